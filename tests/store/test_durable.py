"""What bodies remember and wait for, as the store keeps it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenflow.store import durable
from evenflow.store.callers import drive_together
from evenflow.store.engine import Steps
from evenflow.store.postgres import PostgresEngine
from tests.processes import wait_until
from tests.store.scene import Scene, second_engine

_WAITING = (
    b"select 1 from pg_locks l join pg_database d on d.oid = l.database "
    b"where l.locktype = 'advisory' and not l.granted and d.datname = current_database()"
)


def test_an_event_that_is_committed_late_is_not_behind_those_that_were_seen(scene: Scene) -> None:
    if not isinstance(scene.engine, PostgresEngine):
        pytest.skip("one writer at a time: numbers are committed in their order")
    engine = scene.engine
    slow, quick = second_engine(scene.engine), second_engine(scene.engine)
    is_added, may_commit = threading.Event(), threading.Event()

    def is_waiting() -> bool:
        with engine.session() as session:
            return bool(session.execute(_WAITING))

    def add() -> Steps[None]:
        yield "add_event", {"name": "go", "payload": "1", "keep_us": 10**9, "now": scene.now}
        is_added.set()
        may_commit.wait(30)

    seen: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(drive_together, slow, add)
        assert is_added.wait(30)
        second = pool.submit(durable.emit, quick, "go", "2", now=scene.now)
        wait_until(lambda: second.done() or is_waiting(), "the second event")
        found = durable.next_event(engine, "go", after=0, since=0)
        may_commit.set()
        first.result(30)
        second.result(30)
    after = 0
    while found or (found := durable.next_event(engine, "go", after=after, since=0)):
        after, payload = found
        seen.append(payload)
        found = None
    assert sorted(seen) == ["1", "2"]
    slow.close()
    quick.close()
