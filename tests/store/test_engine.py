"""What every engine promises: units in one transaction, steps that hear of a loss, conflicts that are run again."""

import threading
from collections.abc import Sequence

import pytest

from evenflow.errors import StoreRefused, StoreTooSlow, StoreUnavailable
from evenflow.store.deadlines import reads_within
from evenflow.store.engine import Conflict, Parameters, Row, Steps, as_json, drive, retried
from evenflow.store.open import AnyEngine
from evenflow.store.reads import now_us
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import Statement, Unit
from tests.store.scene import Scene, new_job, rows_of

BAND = {"name": "mail", "who": None, "why": None, "now": 5}


def broken(scene: Scene) -> tuple[str, Parameters]:
    """A unit that the database refuses."""
    return "register_worker", {
        "id": 1, "parent": None, "kind": None, "host": "h", "pid": 1, "lease_us": 1, "about": "{}", "now": scene.now,
    }  # fmt: skip


class TestUnits:
    def test_that_run_together_are_committed_together(self, store: AnyEngine) -> None:
        answers = store.run_all(
            [("pause_queue", BAND), ("list_queues", {}), ("resume_queue", {"name": "mail"})]
        )
        assert answers[0] == [("mail",)]
        assert [row[0] for row in answers[1]] == ["mail"]
        assert answers[2] == [("mail",)]
        assert [row["paused_at"] for row in rows_of(store, "queue")] == [None]

    def test_that_run_together_leave_nothing_when_one_is_refused(self, scene: Scene) -> None:
        with pytest.raises(StoreRefused):
            scene.engine.run_all([("pause_queue", BAND), broken(scene)])
        assert rows_of(scene.engine, "queue") == []

    def test_that_are_refused_leave_the_engine_usable(self, scene: Scene) -> None:
        with pytest.raises(StoreRefused):
            scene.engine.run(*broken(scene))
        assert len(scene.enqueue(new_job())) == 1

    def test_that_nobody_has_written_are_a_mistake_of_ours(self, store: AnyEngine) -> None:
        with pytest.raises(KeyError):
            store.run("no_such_unit", {})


ENDLESS = {
    "sqlite": "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n",
    "postgres": "select 1 from pg_sleep(600)",
}


class TestReadsWithin:
    """Those who look will not wait: a read that takes longer is ended, and leaves nothing behind."""

    @pytest.fixture
    def endless(self, store: AnyEngine) -> AnyEngine:
        text = "select current_setting('statement_timeout')" if store.kind == "postgres" else "select '0'"
        store._units = {
            **store._units,
            "endless": Unit("endless", "read", ("n",), (Statement(ENDLESS[store.kind]),)),
            "timeout": Unit("timeout", "read", ("said",), (Statement(text),)),
        }
        return store

    def test_end_a_read_that_takes_longer(self, endless: AnyEngine) -> None:
        with reads_within(0.05), pytest.raises(StoreTooSlow, match="s"):
            endless.run("endless", {})
        assert now_us(endless) > 0

    def test_let_a_short_read_pass_and_leave_nothing_on_the_session(self, endless: AnyEngine) -> None:
        with reads_within(60):
            assert endless.run("timeout", {}) == [("1min" if endless.kind == "postgres" else "0",)]
            assert now_us(endless) > 0
        assert endless.run("timeout", {}) == [("0",)]

    def test_wait_no_longer_for_a_reader_of_the_same_process(self, sqlite_store: SqliteEngine) -> None:
        seen: list[StoreTooSlow] = []

        def read() -> None:
            try:
                with reads_within(0.05):
                    now_us(sqlite_store)
            except StoreTooSlow as slow:
                seen.append(slow)

        with sqlite_store.reading():  # one connection for all threads
            other = threading.Thread(target=read)
            other.start()
            other.join(30)
        assert len(seen) == 1


class TestSteps:
    def test_are_driven_to_their_value(self, store: AnyEngine) -> None:
        def steps() -> Steps[int]:
            first = yield "count_live", {}
            second = yield "list_workers", {}
            return len(first) + len(second)

        assert drive(store, steps()) == 0

    def test_hear_of_a_lost_connection_and_may_go_on(self) -> None:
        def steps() -> Steps[str]:
            try:
                yield "enqueue", {}
            except StoreUnavailable as lost:
                rows = yield "count_live", {}
                return f"{lost}, then {rows}"
            return "nothing was lost"

        assert drive(Breaks("enqueue"), steps()) == "gone, then []"

    def test_that_do_not_care_let_the_loss_through(self) -> None:
        def steps() -> Steps[None]:
            yield "enqueue", {}

        with pytest.raises(StoreUnavailable, match="gone"):
            drive(Breaks("enqueue"), steps())


class Breaks:
    """An engine that loses its connection in one unit and answers the others with nothing."""

    kind = "none"

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        if name == self._unit:
            raise StoreUnavailable("gone")
        return []

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        return [self.run(name, parameters) for name, parameters in units]

    def close(self) -> None:
        self._unit = ""


class TestAConflict:
    def test_is_run_again(self) -> None:
        left = [Conflict("deadlock detected"), Conflict("again")]

        def act() -> str:
            if left:
                raise left.pop()
            return "done"

        assert retried(act) == "done"

    def test_that_does_not_end_is_reported_as_try_again(self) -> None:
        tries = []

        def act() -> None:
            tries.append(1)
            raise Conflict("deadlock detected")

        with pytest.raises(StoreUnavailable, match="deadlock detected"):
            retried(act, tries=3, base_s=0.0)
        assert len(tries) == 3


def test_a_list_is_one_json_text() -> None:
    assert as_json([{"a": 'ü"', "b": None}, 1.5]) == '[{"a":"ü\\"","b":null},1.5]'
