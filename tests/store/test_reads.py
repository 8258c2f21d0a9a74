"""Reads: what is found, in which order and how it is paged, on every engine."""

import time
from collections.abc import Sequence

import pytest

from evenflow.job import ENDS, State
from evenflow.settings import Retention
from evenflow.store.control import pause, resume, set_cap, withdraw
from evenflow.store.engine import Parameters, Row
from evenflow.store.leases import save_progress
from evenflow.store.open import AnyEngine
from evenflow.store.reads import (
    PAGE,
    Filter,
    count,
    counts,
    ended_among,
    find,
    has_open,
    now_us,
    page,
    pages,
    queues,
    rounds,
    tails,
)
from tests.store.scene import ALICE, SECOND, Scene, end_of, execute, new_job

ALL = Filter()


def mixed(scene: Scene) -> list[int]:
    """Ten jobs, oldest first: two each succeeded, failed and running, four ready."""
    jobs = scene.enqueue(*(new_job() for _ in range(10)))
    claimed = scene.claim(6)
    scene.advance(
        ALICE, *(end_of(job, state) for job, state in zip(claimed, ["succeeded", "failed"] * 2, strict=False))
    )
    return jobs


class TestFind:
    def test_finds_live_and_kept_jobs_and_leaves_out_the_others(self, scene: Scene) -> None:
        done = scene.running()
        scene.finish(done, result="7")
        (ready,) = scene.enqueue(new_job())
        found = find(scene.engine, [ready, done.id, 7])
        assert {job: record.state for job, record in found.items()} == {
            ready: State.READY,
            done.id: State.SUCCEEDED,
        }
        assert find(scene.engine, []) == {}

    def test_gives_every_field_of_a_live_job(self, scene: Scene) -> None:
        job = scene.running(
            group="g", priority=2, good_until=scene.now + 9, unique_key="k", headers="{}", options="[]"
        )
        save_progress(scene.engine, ALICE, [(job.id, 1, '{"done":1}')])
        withdraw(scene.engine, [job.id], "cancelled", Retention(), why="w", now=scene.now)
        record = find(scene.engine, [job.id])[job.id]
        assert (record.state, record.queue, record.task, record.group) == (
            "running",
            job.queue,
            "mail.send",
            "g",
        )
        assert (record.priority, record.attempt, record.max_attempts, record.crashes) == (2, 1, 3, 0)
        assert (record.created_at, record.run_at, record.started_at, record.finished_at) == (
            *(scene.now,) * 3,
            None,
        )
        assert (record.good_until, record.worker, record.unique_key) == (scene.now + 9, ALICE, "k")
        assert (record.payload, record.result, record.errors, record.progress) == (
            "[1]",
            None,
            None,
            '{"done":1}',
        )
        assert (record.headers, record.options, record.cancel_why) == ("{}", "[]", "w")

    def test_gives_every_field_of_a_kept_job(self, scene: Scene) -> None:
        job = scene.running(
            group="g", priority=2, good_until=scene.now + 9, unique_key="k", headers="{}", options="[]"
        )
        scene.now += SECOND
        scene.finish(job, "failed", result="1", error='{"code":"X","message":""}')
        record = find(scene.engine, [job.id])[job.id]
        assert (record.state, record.queue, record.task, record.group) == (
            "failed",
            job.queue,
            "mail.send",
            "g",
        )
        assert (record.priority, record.attempt, record.max_attempts, record.crashes) == (2, 1, 3, 0)
        assert (record.started_at, record.finished_at) == (scene.now - SECOND, scene.now)
        assert (record.good_until, record.worker, record.unique_key) == (job.good_until, ALICE, "k")
        assert (record.payload, record.result, record.errors) == ("[1]", "1", '[{"code":"X","message":""}]')
        assert (record.progress, record.headers, record.options, record.cancel_why) == (
            None,
            "{}",
            "[]",
            None,
        )


class TestAPage:
    def test_holds_live_and_kept_jobs_newest_first(self, scene: Scene) -> None:
        jobs = mixed(scene)
        assert [job.id for job in page(scene.engine, ALL)] == jobs[::-1]

    def test_goes_on_below_its_cursor(self, scene: Scene) -> None:
        jobs = mixed(scene)
        first = page(scene.engine, ALL, top=4)
        second = page(scene.engine, ALL, top=4, before=first[-1].id)
        third = page(scene.engine, ALL, top=4, before=second[-1].id)
        assert [job.id for job in [*first, *second, *third]] == jobs[::-1]
        assert page(scene.engine, ALL, before=third[-1].id) == []

    def test_after_page_finds_everything_once(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job() for _ in range(2 * PAGE + 50)))
        scene.advance(ALICE, *(end_of(job) for job in scene.claim(PAGE + 30)))
        assert len(page(scene.engine, ALL)) == PAGE
        assert [job.id for job in pages(scene.engine, ALL)] == jobs[::-1]

    @pytest.mark.parametrize("state", list(State))
    def test_can_be_asked_for_one_state(self, scene: Scene, state: State) -> None:
        first, second = scene.running(), scene.running()
        for job in (first, second):
            if state in ENDS:
                scene.finish(job, state)
            else:
                execute(scene.engine, f"update evenflow_job set state = '{state}' where id = {job.id}")
        other = scene.running()
        scene.finish(other, "skipped" if state is not State.SKIPPED else "failed")
        assert [job.id for job in page(scene.engine, Filter(state=state))] == [second.id, first.id]
        assert page(scene.engine, Filter(state=state), before=first.id) == []

    @pytest.mark.parametrize("ends_as", [None, "succeeded", "failed"])
    def test_can_be_asked_for_queue_task_and_group(self, scene: Scene, ends_as: str | None) -> None:
        scene.enqueue(
            new_job(queue="a", task="t", group="g"), new_job(queue="b", task="u"), new_job(queue="a")
        )
        if ends_as:
            scene.advance(ALICE, *(end_of(job, ends_as) for job in scene.claim(queues=["a", "b"])))
        first, second, third = 1000, 1001, 1002
        state = State(ends_as) if ends_as else None
        for chosen in {state, None}:
            expected = {
                Filter(chosen, queue="a"): [third, first],
                Filter(chosen, task="u"): [second],
                Filter(chosen, group="g"): [first],
                Filter(chosen, queue="a", task="t", group="g"): [first],
                Filter(chosen, queue="b", group="g"): [],
            }
            assert {asked: [job.id for job in page(scene.engine, asked)] for asked in expected} == expected

    def test_holds_a_job_once_that_ends_between_its_two_reads(self, scene: Scene) -> None:
        job = scene.running()

        class EndsInBetween:
            kind = scene.engine.kind

            def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
                rows = scene.engine.run(name, parameters, deadline_s=deadline_s)
                if name == "list_live":
                    scene.finish(job)
                return rows

            def run_all(
                self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
            ) -> list[list[Row]]:
                return scene.engine.run_all(units, deadline_s=deadline_s)

            def close(self) -> None:
                scene.engine.close()

        assert [(found.id, found.state) for found in page(EndsInBetween(), ALL)] == [(job.id, "succeeded")]


def test_ended_among_tells_which_are_no_longer_open(scene: Scene) -> None:
    done, gone, runs = scene.running(), scene.running(), scene.running()
    scene.finish(done)
    scene.finish(gone, keep_us=0)
    (ready,) = scene.enqueue(new_job())
    assert ended_among(scene.engine, [done.id, gone.id, runs.id, ready]) == {done.id, gone.id}
    assert ended_among(scene.engine, []) == set()


def test_queues_are_those_declared_paused_or_used(scene: Scene) -> None:
    scene.enqueue(new_job(queue="used"))
    pause(scene.engine, "paused", now=scene.now)
    found = queues(scene.engine)
    assert [queue.name for queue in found] == ["paused", "used"]
    assert (found[1].priority, found[1].fair, found[1].max_concurrency) == (50, "round-robin", None)


def test_counts_are_of_open_jobs_by_queue_and_state(scene: Scene) -> None:
    mixed(scene)
    scene.enqueue(new_job(queue="mail", run_at=scene.now + SECOND))
    assert counts(scene.engine) == {"default": {"ready": 4, "running": 2}, "mail": {"scheduled": 1}}


@pytest.mark.parametrize(
    "state", ["arriving", "scheduled", "waiting", "blocked", "overflow", "ready", "claimed", "running"]
)
def test_a_queue_has_open_work_that_needs_nobody_s_help(scene: Scene, state: str) -> None:
    (job,) = scene.enqueue(new_job(queue="a"))
    if state in ("claimed", "running"):
        scene.claim(queues=["a"], lease_us=SECOND if state == "claimed" else None)
    else:
        execute(scene.engine, f"update evenflow_job set state = '{state}' where id = {job}")
    assert has_open(scene.engine, ["b", "a"]) == (
        state in ("arriving", "ready", "overflow", "claimed", "running")
    )
    assert not has_open(scene.engine, ["b"])
    assert not has_open(scene.engine, [])


def test_what_is_ready_in_a_paused_or_held_queue_needs_somebody_s_help(scene: Scene) -> None:
    scene.enqueue(new_job(queue="a"))
    assert has_open(scene.engine, ["a"])
    pause(scene.engine, "a")
    assert not has_open(scene.engine, ["a"])
    resume(scene.engine, "a")
    assert has_open(scene.engine, ["a"])
    set_cap(scene.engine, "a", 0)
    assert not has_open(scene.engine, ["a"])


def test_rounds_and_tails_tell_the_order_of_bands_and_groups(scene: Scene) -> None:
    scene.enqueue(*(new_job(group="bob", priority=1) for _ in range(3)), new_job(queue="mail", group="eve"))
    assert rounds(scene.engine) == {}
    scene.claim(2)
    assert rounds(scene.engine) == {("default", 1): 2.0}
    assert tails(scene.engine) == {("default", 1, "bob"): 3.0, ("mail", 0, "eve"): 1.0}


def test_the_store_has_a_clock(store: AnyEngine) -> None:
    before = time.time()
    assert before - 60 < now_us(store) / SECOND < time.time() + 60


class TestCount:
    def test_counts_live_and_kept_jobs_by_state(self, scene: Scene) -> None:
        mixed(scene)
        found = {state.value: count(scene.engine, Filter(state)) for state in State}
        assert {state: jobs for state, jobs in found.items() if jobs} == {
            "succeeded": 2,
            "failed": 2,
            "running": 2,
            "ready": 4,
        }
        assert count(scene.engine, ALL) == 10

    @pytest.mark.parametrize("state", [None, State.READY, State.SUCCEEDED, State.FAILED])
    def test_counts_what_a_page_lists(self, scene: Scene, state: State | None) -> None:
        for queue, task, group in (("a", "t", "g"), ("a", "t", None), ("a", "u", "g"), ("b", "t", "g")):
            scene.enqueue(*(new_job(queue=queue, task=task, group=group) for _ in range(4)))
            claimed = scene.claim(3, queues=[queue])
            ends = zip(claimed, ["succeeded", "failed"], strict=False)
            scene.advance(ALICE, *(end_of(each, end) for each, end in ends))
        for wanted in (
            Filter(state),
            Filter(state, queue="a"),
            Filter(state, task="u"),
            Filter(state, group="g"),
            Filter(state, "a", "t", "g"),
            Filter(state, "c"),
        ):
            assert count(scene.engine, wanted) == len(page(scene.engine, wanted, top=1000))
