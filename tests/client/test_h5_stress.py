import time, pytest, logging, threading
from evenflow import Evenflow, Resilience
from evenflow.store import signals
from evenflow.worker.pump import Pump
from tests.client.serving import serving
def echo(value: int) -> int:
    return value
@pytest.mark.parametrize("i", range(30))
def test_x(postgres_url, make_app, i, monkeypatch):
    log=[]; T0=time.monotonic()
    def note(*a): log.append((round(time.monotonic()-T0,4), threading.current_thread().name)+a)
    run=signals.Waker._notify
    def _notify(self, kind, payload):
        try:
            wake = {"channel": signals.channel(self._engine.schema, kind), "payload": payload}
            self._engine.run("wake", wake, deadline_s=3)
            note("sent", kind, payload)
        except Exception as e:
            note("NOT SENT", repr(e))
    monkeypatch.setattr(signals.Waker, "_notify", _notify)
    heard=signals.Listener._heard
    def _heard(self, c):
        r=heard(self,c)
        if r: note("heard", self._channel, r)
        return r
    monkeypatch.setattr(signals.Listener, "_heard", _heard)
    drop=signals.Listener._drop
    def _drop(self):
        note("drop", self._channel); drop(self)
    monkeypatch.setattr(signals.Listener, "_drop", _drop)
    ex=Pump._exchange
    def _exchange(self, claim, now):
        note("exchange", bool(claim.wants)); r=ex(self, claim, now); note("exchanged", self._hungry); return r
    monkeypatch.setattr(Pump, "_exchange", _exchange)
    h=Pump._hear
    def _hear(self, p):
        r=h(self,p)
        if p: note("pump hear", p, self._hungry)
        return r
    monkeypatch.setattr(Pump, "_hear", _hear)
    app = make_app(postgres_url, resilience=Resilience(notify_poll_interval_ms=60_000))
    task = app.task(name="echo")(echo)
    with serving(app, queues=["default"]):
        for value in range(5):
            try:
                note("enqueue", value)
                assert task.enqueue(value).result(timeout=4) == value
            except Exception as e:
                for l in log[-24:]: print(l)
                raise
