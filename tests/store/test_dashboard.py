"""Reads of the dashboard: bounded, and right where the bounds are not reached."""

import pytest

from evenflow.errors import StoreRefused
from evenflow.job import State
from evenflow.store import audit, control, dashboard
from evenflow.store.audit import Asked
from evenflow.store.dashboard import Count
from evenflow.store.reads import Filter
from tests.store.scene import ALICE, SECOND, START, Scene, execute, new_job

ASKED = Asked("ann", "operator", "127.0.0.1", "pause-queue", "mail", {"before": None})


def test_few_jobs_are_counted_exactly_by_queue_and_state(scene: Scene) -> None:
    scene.enqueue(*[new_job()] * 3, new_job(queue="mail", run_at=START + SECOND))
    scene.claim(1)
    found = dashboard.depths(scene.engine)
    assert found.of("default", "ready") == Count(2)
    assert found.of("default", "claimed", "running") == Count(1)
    assert found.of("mail", "scheduled") == Count(1)
    assert found.total() == Count(4)


def test_counting_stops_and_says_that_there_may_be_more(scene: Scene) -> None:
    scene.enqueue(*[new_job()] * 8, *[new_job(queue="mail", run_at=START + SECOND)] * 8)
    found = dashboard.depths(scene.engine, top=5)
    assert found.of("default", "ready") == Count(5, True)
    assert found.of("mail", "scheduled") == Count(5, True)


def test_states_without_an_index_are_known_from_the_newest_jobs(scene: Scene) -> None:
    jobs = scene.enqueue(*[new_job()] * 6)
    execute(scene.engine, f"update evenflow_job set state = 'blocked' where id >= {jobs[3]}")
    found = dashboard.depths(scene.engine, top=5)
    assert found.of("default", "ready") == Count(3)
    assert found.of("default", "blocked") == Count(3, True)


def test_where_the_newest_jobs_show_none_of_such_a_state_there_may_still_be_some(scene: Scene) -> None:
    jobs = scene.enqueue(*[new_job()] * 9)
    execute(scene.engine, f"update evenflow_job set state = 'blocked' where id <= {jobs[2]}")
    found = dashboard.depths(scene.engine, top=5)
    assert found.of("default", "ready") == Count(5, True)
    assert found.of("default", "blocked") == found.total("blocked") == Count(0, True)


def test_ends_are_counted_by_state(scene: Scene) -> None:
    scene.finish(scene.running(), "failed")
    scene.finish(scene.running(), "succeeded")
    found = dashboard.ends(scene.engine)
    assert found["failed"] == Count(1)
    assert found["cancelled"] == Count(0)
    assert "succeeded" not in found


def test_the_oldest_ready_job_of_a_queue_is_found_behind_others(scene: Scene) -> None:
    scene.enqueue(new_job(queue="mail"))
    scene.now += 5 * SECOND
    scene.enqueue(new_job(queue="mail", priority=-5), new_job(queue="docs"))
    assert dashboard.oldest_ready(scene.engine) == {"docs": START + 5 * SECOND, "mail": START}
    assert dashboard.oldest_ready(scene.engine, top=1)["mail"] == START


class TestSearch:
    def test_a_page_is_newest_first_and_says_where_to_go_on(self, scene: Scene) -> None:
        jobs = scene.enqueue(*[new_job()] * 5)
        first = dashboard.search(scene.engine, Filter(), top=2)
        assert [job.id for job in first.jobs] == [jobs[4], jobs[3]]
        assert first.following == jobs[3]
        assert not first.is_partial
        rest = dashboard.search(scene.engine, Filter(), before=jobs[3], top=10)
        assert [job.id for job in rest.jobs] == [jobs[2], jobs[1], jobs[0]]
        assert rest.following is None

    def test_live_and_finished_jobs_come_in_one_order(self, scene: Scene) -> None:
        done = scene.running()
        scene.finish(done)
        live = scene.enqueue(new_job())
        found = dashboard.search(scene.engine, Filter())
        assert [job.id for job in found.jobs] == [live[0], done.id]

    @pytest.mark.parametrize(
        "wanted",
        [
            Filter(queue="mail"),
            Filter(task="t.other"),
            Filter(group="bob"),
            Filter(State.SCHEDULED),
            Filter(State.FAILED),
        ],
        ids=str,
    )
    def test_a_filter_leaves_what_matches(self, scene: Scene, wanted: Filter) -> None:
        scene.enqueue(
            new_job(),
            new_job(queue="mail"),
            new_job(task="t.other"),
            new_job(group="bob"),
            new_job(run_at=START + SECOND),
        )
        scene.finish(scene.running(), "failed")
        assert len(dashboard.search(scene.engine, wanted).jobs) == 1

    @pytest.mark.parametrize("state", [None, State.READY, State.FAILED], ids=str)
    def test_it_keeps_to_the_groups_it_is_held_to(self, scene: Scene, state: State | None) -> None:
        def found(among: list[str] | None, group: str | None = None) -> set[str | None]:
            wanted = Filter(state, group=group)
            return {job.group for job in dashboard.search(scene.engine, wanted, among=among).jobs}

        scene.enqueue(*(new_job(group=group) for group in ("ann", "bob", "cid", None)))
        if state is State.FAILED:
            for job in scene.claim():
                scene.finish(job, "failed")
        assert found(None) == {"ann", "bob", "cid", None}
        assert found(["ann", "bob", "dot"]) == {"ann", "bob"}
        assert found(["ann"], group="bob") == set()
        assert found([]) == set()

    def test_it_goes_through_many_pieces(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dashboard, "DEPTH", 2)
        first = scene.enqueue(new_job(queue="mail"))
        scene.enqueue(*[new_job()] * 7)
        found = dashboard.search(scene.engine, Filter(queue="mail"), within_s=10)
        assert [job.id for job in found.jobs] == first
        assert found.following is None

    def test_it_stops_when_its_time_is_over_and_goes_on_from_there(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dashboard, "DEPTH", 2)
        first = scene.enqueue(new_job(queue="mail"))
        scene.enqueue(*[new_job()] * 3)
        found = dashboard.search(scene.engine, Filter(queue="mail"), within_s=0)
        assert found.jobs == []
        assert found.is_partial
        assert found.following is not None
        rest = dashboard.search(scene.engine, Filter(queue="mail"), before=found.following, within_s=0)
        assert [job.id for job in rest.jobs] == first

    def test_few_jobs_of_a_state_are_paged_too(self, scene: Scene) -> None:
        jobs = scene.enqueue(*[new_job(run_at=START + SECOND)] * 3)
        first = dashboard.search(scene.engine, Filter(State.SCHEDULED), top=2)
        assert [job.id for job in first.jobs] == [jobs[2], jobs[1]]
        assert first.following == jobs[1]
        rest = dashboard.search(scene.engine, Filter(State.SCHEDULED), before=jobs[1], top=2)
        assert [job.id for job in rest.jobs] == [jobs[0]]

    def test_many_jobs_of_a_state_are_found_by_pieces(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dashboard, "FEW", 2)
        jobs = scene.enqueue(*[new_job()] * 5)
        found = dashboard.search(scene.engine, Filter(State.READY), top=3)
        assert [job.id for job in found.jobs] == [jobs[4], jobs[3], jobs[2]]


def test_groups_show_what_they_hold_what_comes_next_and_about_how_many_wait(scene: Scene) -> None:
    control.set_weights(scene.engine, "default", {"alice": 3.0})
    scene.enqueue(*[new_job(group="bob")] * 50)
    scene.enqueue(*[new_job(group="alice")] * 5)
    scene.claim(4, worker=ALICE)
    rows = {row.group: row for row in dashboard.groups(scene.engine, "default")}
    assert rows["alice"].weight == 3.0
    assert sum(row.in_flight for row in rows.values()) == 4
    assert rows["bob"].next_turns == 50 - rows["bob"].in_flight
    assert abs(rows["bob"].waiting - rows["bob"].next_turns) <= 2
    assert next(iter(rows)) == "bob"


def test_jobs_in_flight_are_counted_by_worker(scene: Scene) -> None:
    scene.enqueue(*[new_job()] * 3)
    scene.claim(2, worker=ALICE)
    assert dashboard.in_flight_by_worker(scene.engine) == {ALICE: 2}


def test_the_facts_of_the_database_are_its_own(scene: Scene) -> None:
    scene.enqueue(new_job())
    found = dashboard.facts(scene.engine)
    assert found.kind == scene.engine.kind
    assert found.bytes > 0
    assert found.version
    names = [row.name for row in dashboard.tables(scene.engine)]
    assert ("job" in names and "history" in names) == (scene.engine.kind == "postgres")


class TestAudit:
    def test_an_act_has_a_row_before_it_is_done_and_gets_its_outcome(self, scene: Scene) -> None:
        number = audit.ask(scene.engine, ASKED, now=START)
        assert [(row.who, row.target, row.outcome) for row in audit.page(scene.engine)] == [
            ("ann", "mail", None)
        ]
        audit.answer(scene.engine, number, ASKED, {"done": True})
        [row] = audit.page(scene.engine)
        assert row.outcome == {"done": True}
        assert row.detail == {"before": None}
        assert row.at == START

    def test_pages_go_back_in_time(self, scene: Scene) -> None:
        numbers = [audit.ask(scene.engine, ASKED) for _ in range(3)]
        assert [row.id for row in audit.page(scene.engine, top=2)] == [numbers[2], numbers[1]]
        assert [row.id for row in audit.page(scene.engine, before=numbers[1])] == [numbers[0]]

    @pytest.mark.parametrize(
        "change", ["delete from evenflow_audit", "update evenflow_audit set who = 'nobody'"]
    )
    def test_nothing_can_be_changed_or_deleted(self, scene: Scene, change: str) -> None:
        audit.ask(scene.engine, ASKED)
        with pytest.raises(StoreRefused, match="append-only"):
            execute(scene.engine, change)

    def test_text_that_no_database_takes_is_made_storable(self, scene: Scene) -> None:
        audit.ask(scene.engine, Asked("a\0b", "viewer", "x", "y", "z", {"why": "a\0b"}))
        assert len(audit.page(scene.engine)) == 1
