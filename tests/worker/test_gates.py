"""Breakers and paused tasks at work: on threads of this process, and over several worker processes that are killed."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenflow import (
    Breaker,
    Cancel,
    Concurrency,
    Evenflow,
    Event,
    Fail,
    JobFailed,
    Queue,
    Retry,
    Snooze,
    State,
)
from tests.client.serving import serving
from tests.ledger import Interval, intervals, most_at_once, now_ns
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.guarded_jobs import declared

QUICK = Breaker(failure_threshold=3, cooldown_s=0.3, name="bank")


class Downstream:
    """Something that can be down, and counts who asks."""

    def __init__(self) -> None:
        self.is_down = threading.Event()
        self.is_down.set()
        self.asked = 0
        self._lock = threading.Lock()

    def ask(self) -> None:
        with self._lock:
            self.asked += 1
        if self.is_down.is_set():
            raise ConnectionError("nobody answers")


@pytest.fixture
def bank() -> Downstream:
    return Downstream()


def state_of(app: Evenflow, name: str = "bank") -> str:
    return app.breaker(name).status().state


def heard(app: Evenflow) -> list[Event]:
    """What the app's listeners are told about breakers."""
    events: list[Event] = []
    app.hooks.on_event(lambda event: events.append(event) if event.name.startswith("breaker.") else None)
    return events


def test_a_breaker_opens_waits_probes_and_closes(app: Evenflow, bank: Downstream) -> None:
    @app.task(name="charge", breaker=QUICK)
    def charge(number: int) -> int:
        bank.ask()
        return number

    events = heard(app)
    with serving(app, concurrency=1):
        failed = charge.enqueue_many([(number,) for number in range(3)])
        wait_until(lambda: state_of(app) != "closed", "the breaker to open")
        waiting = charge.enqueue_many([(number,) for number in range(8)])
        wait_until(lambda: bank.asked >= 5, "two probes to fail")
        attempts = [job.refresh().attempt for job in waiting]
        tried = bank.asked - 3 + 1  # those that have asked so far, and one that is on its way
        assert not any(attempts[tried:]), "the others have neither run nor been probes"
        bank.is_down.clear()
        wait_until(lambda: all(job.refresh().state.is_end for job in waiting), "all to end")
    assert {job.refresh().state for job in failed} == {State.FAILED}
    ended = Counter(job.refresh().state for job in waiting)
    assert (
        ended[State.SUCCEEDED] == 8 - ended[State.FAILED]
    )  # each probe that failed was a job's only attempt
    assert state_of(app) == "closed"
    assert bank.asked == 11
    names = [event.name for event in events]
    assert names[0] == "breaker.opened"
    assert names[-2:] == ["breaker.half_open", "breaker.closed"]
    assert events[0].fields == {"breaker": "bank", "failures": 3}


def test_jobs_do_not_wait_where_they_are_told_to_fail(app: Evenflow, bank: Downstream) -> None:
    strict = Breaker(failure_threshold=2, cooldown_s=3600, name="bank", on_open="fail")

    @app.task(name="charge", breaker=strict, retry=Retry(max_attempts=5, base=0.01))
    def charge() -> None:
        bank.ask()

    with serving(app, concurrency=1):
        charge.enqueue_many([(), ()])
        wait_until(lambda: state_of(app) == "open", "the breaker to open")
        job = charge.enqueue()
        with pytest.raises(JobFailed) as failed:
            job.result(timeout=20)
    assert failed.value.error.code == "BREAKER_OPEN"
    assert job.refresh().attempt == 0
    assert bank.asked == 2


def test_only_the_failures_that_count_open_it(app: Evenflow) -> None:
    @app.task(
        name="odd",
        breaker=Breaker(failure_threshold=2, name="bank", on=(OSError, "BUSY"), ignore=TimeoutError),
    )
    def odd(how: str) -> None:
        match how:
            case "value":
                raise ValueError("not the downstream's fault")
            case "ignored":
                raise TimeoutError("an OSError, but ignored")
            case "cancel":
                raise Cancel("not wanted")
            case "snooze":
                raise Snooze(3600)
            case "code":
                raise Fail("BUSY")
            case _:
                raise ConnectionError("down")

    odd.enqueue_many([(how,) for how in ("value", "ignored", "cancel", "snooze") * 3])
    app.run_worker(until_empty=True, concurrency=1)
    assert app.breaker("bank").status().failures == 0
    odd.enqueue("code")
    app.run_worker(until_empty=True, concurrency=1)
    assert (app.breaker("bank").status().failures, state_of(app)) == (1, "closed")
    odd.enqueue("down")
    app.run_worker(until_empty=True, concurrency=1)
    assert state_of(app) == "open"


def test_a_queue_s_breaker_shuts_the_queue_and_no_other(
    engine_url: str, make_app: MakeApp, bank: Downstream
) -> None:
    app = make_app(
        engine_url,
        queues=[Queue("default"), Queue("stripe", breaker=Breaker(failure_threshold=2, cooldown_s=0.3))],
    )

    @app.task(name="pay", queue="stripe")
    def pay() -> None:
        bank.ask()

    @app.task(name="mail")
    def mail() -> None: ...

    with serving(app, concurrency=1):
        pay.enqueue_many([(), ()])
        wait_until(lambda: state_of(app, "queue_stripe") != "closed", "the breaker to open")
        waiting = pay.enqueue_many([(), (), ()])
        mail.enqueue().result(timeout=20)
        bank.is_down.clear()
        wait_until(lambda: all(job.refresh().state.is_end for job in waiting), "all to end")
    assert state_of(app, "queue_stripe") == "closed"


def test_a_task_and_its_queue_with_breakers_of_their_own_recover_together(
    engine_url: str, make_app: MakeApp, bank: Downstream
) -> None:
    mail = Queue("mail", breaker=Breaker(failure_threshold=3, cooldown_s=0.3, name="post"))
    app = make_app(engine_url, queues=[mail])

    @app.task(name="send", queue="mail", breaker=QUICK, concurrency=Concurrency(to=2, key="number"))
    def send(number: int) -> None:
        bank.ask()

    with serving(app, concurrency=1):
        send.enqueue_many([(number,) for number in range(3)])
        wait_until(lambda: state_of(app) == state_of(app, "post") != "closed", "both to open")
        waiting = send.enqueue_many([(number,) for number in range(8)])
        bank.is_down.clear()
        wait_until(lambda: all(job.refresh().state.is_end for job in waiting), "all to end")
    assert (state_of(app), state_of(app, "post")) == ("closed", "closed")


def test_a_breaker_survives_its_worker(app: Evenflow, bank: Downstream) -> None:
    @app.task(name="charge", breaker=Breaker(failure_threshold=2, cooldown_s=3600, name="bank"))
    def charge() -> None:
        bank.ask()

    charge.enqueue_many([(), (), ()])
    app.run_worker(until_empty=True, concurrency=1)
    app.run_worker(until_empty=True, concurrency=1)
    assert (state_of(app), bank.asked) == ("open", 2)
    bank.is_down.clear()
    app.breaker("bank").close()
    app.run_worker(until_empty=True, concurrency=1)
    assert bank.asked == 3


def test_a_paused_task_waits_and_goes_on_in_its_order(app: Evenflow) -> None:
    ran: list[int] = []

    @app.task(name="charge")
    def charge(number: int) -> None:
        ran.append(number)

    @app.task(name="mail")
    def mail() -> None: ...

    app.pause(task=charge, who="ann", why="the bank is closed")
    jobs = charge.enqueue_many([(number,) for number in range(30)])
    with serving(app, concurrency=1):
        mail.enqueue().result(timeout=20)
        assert ran == []
        (reason,) = app.why(jobs[0].id)
        assert reason.rule == "pause"
        assert "task 'charge' was paused by ann" in reason.text
        assert reason.text.endswith(": the bank is closed")
        assert app.resume(task="charge")
        for job in jobs:
            job.result(timeout=20)
    assert ran == list(range(30))
    assert not app.resume(task="charge")


@pytest.mark.either
@pytest.mark.slow
def test_ten_thousand_jobs_behind_a_gate_do_not_hold_others_up(app: Evenflow) -> None:
    @app.task(name="charge", keep_result=0)
    def charge() -> None: ...

    @app.task(name="mail", keep_result=0)
    def mail() -> None: ...

    app.pause(task="charge")
    charge.enqueue_many([()] * 10_000)
    others = mail.enqueue_many([()] * 50)
    app.run_worker(until_empty=True)
    assert app.stats() == {"default": {"blocked": 10_000}}
    assert len(others) == 50
    app.resume(task="charge")
    app.run_worker(until_empty=True)
    assert app.stats() == {}


class Stage:
    """Four worker processes, a downstream that is down, and what the bodies wrote."""

    def __init__(self, app: Evenflow, url: str, folder: Path) -> None:
        self.app = app
        self.url = url
        self.folder = folder

    def runs(self) -> list[Interval]:
        path = self.folder / "bodies"
        return sorted(intervals(path), key=lambda run: run.began) if path.exists() else []

    def trip(self, jobs: int) -> int:
        """Let the breaker open; how many runs there were until nothing but probes could begin."""
        (self.folder / "down").touch()
        self.app.tasks["call"].enqueue_many([(f"job-{number}",) for number in range(jobs)])
        wait_until(lambda: state_of(self.app) != "closed", "the breaker to open", 60)
        wait_until(lambda: not self.in_flight(), "what was claimed before, begun or not, to end", 60)
        return len(self.runs())

    def in_flight(self) -> bool:
        return any(True for _ in self.app.jobs(state="running"))

    def all_succeeded(self, jobs: int) -> bool:
        return sum(1 for _ in self.app.jobs(state="succeeded")) == jobs


@pytest.fixture
def stage(engine_url: str, make_app: MakeApp, start_worker: StartWorker, tmp_path: Path) -> Iterator[Stage]:
    app = declared(make_app(engine_url))
    for _ in range(2):
        start_worker(
            engine_url, "--processes", "2", "--concurrency", "4", locator="tests.worker.guarded_jobs:app"
        ).ready(2)
    yield Stage(app, engine_url, tmp_path)


@pytest.mark.process
def test_one_probe_at_a_time_over_four_processes_and_nothing_is_lost(stage: Stage) -> None:
    before = stage.trip(60)
    wait_until(lambda: len(stage.runs()) >= before + 4, "four probes", 60)
    (stage.folder / "hang").touch()
    wait_until(lambda: any(run.ended is None for run in stage.runs()), "a probe that does not come back", 60)
    probes = stage.runs()[before:]
    assert most_at_once(probes) == 1
    (stage.folder / "down").unlink()
    (stage.folder / "hang").unlink()
    wait_until(lambda: stage.all_succeeded(60), "all jobs to succeed", 90)
    assert len({run.job for run in stage.runs()}) == 60
    assert state_of(stage.app) == "closed"


@pytest.mark.process
@pytest.mark.either
def test_a_killed_probe_is_followed_by_one_other_after_its_lease(stage: Stage) -> None:
    stage.trip(20)
    (stage.folder / "hang").touch()
    hanging_since = now_ns()  # a body that began before may have missed the file and end by itself

    def hanging() -> list[Interval]:
        return [run for run in stage.runs() if run.ended is None and run.began > hanging_since]

    wait_until(lambda: hanging() != [], "a probe that hangs", 60)
    (probe,) = hanging()
    books = Books(stage.url)
    began = len(stage.runs())
    ((leased_until,),) = books.rows("select probe_until from {breaker} where name = 'bank'")
    os.kill(probe.pid, signal.SIGKILL)
    (stage.folder / "down").unlink()
    (stage.folder / "hang").unlink()
    wait_until(lambda: stage.all_succeeded(20), "all jobs to succeed", 90)
    following = stage.runs()[began]
    claims: dict[str, int] = dict(books.rows("select payload, started_at from {history}"))
    # By the store's clock: the lease began with its choice, not with its body, and each heartbeat of its process has renewed it.
    (claimed_at,) = [at for payload, at in claims.items() if f'"{following.job}"' in payload]
    assert claimed_at >= leased_until
    assert len({run.job for run in stage.runs() if run.ended is not None}) == 20
