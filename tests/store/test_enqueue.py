"""Enqueue: one case per sentence of its contract, on every engine."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from evenflow.errors import StoreUnavailable
from evenflow.ids import IdSource
from evenflow.queues import Queue, Strategy
from evenflow.store import control
from evenflow.store.engine import Engine, Parameters, Row, drive
from evenflow.store.enqueue import Enqueued, enqueue_plain, enqueue_steps
from evenflow.store.open import AnyEngine
from evenflow.store.reads import counts, find, queues
from tests.store.scene import FIRST_ID, SECOND, START, Columns, CountedIds, Scene, new_job, rows_of


def test_a_job_is_stored_as_it_was_given(scene: Scene) -> None:
    payload = '{"text":"naïve – “quoted” \\\\ \\u0000 \U0001f600"}'
    (job,) = scene.enqueue(
        new_job(
            task="docs.parse", payload=payload, queue="docs", priority=-7, group="tenant 1", max_attempts=5,
            good_until=scene.now + SECOND, run_id=77, unique_key="k", fails_on_crash=True, headers='{"h":1}',
            options='{"o":2}',
        )
    )  # fmt: skip
    expected = {
        "id": job, "turn": 1.0, "created_at": scene.now, "run_at": scene.now, "started_at": None,
        "good_until": scene.now + SECOND, "lease_until": None, "cancel_at": None, "worker": None, "run_id": 77, "epoch": 0,
        "attempt": 0, "max_attempts": 5, "crashes": 0, "priority": -7, "awaited": False, "fails_on_crash": True,
        "state": "ready", "queue": "docs", "task": "docs.parse", "group_key": "tenant 1", "unique_key": "k",
        "cancel_why": None, "signature": None, "headers": '{"h":1}', "options": '{"o":2}', "errors": None,
        "progress": None, "payload": payload,
    }  # fmt: skip
    assert expected.items() <= scene.live(job).items()


@pytest.mark.parametrize(
    "more",
    [
        {"run_at": START + SECOND}, {"good_until": START + SECOND}, {"run_id": 77}, {"unique_key": "k"},
        {"fails_on_crash": True}, {"headers": '{"h":1}'}, {"options": '{"o":2}'},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_a_lone_job_that_asks_for_one_thing_more_gets_it_and_is_else_like_a_plain_one(
    scene: Scene, more: Columns
) -> None:
    scene.enqueue(new_job())  # the band is there from now on
    plain, asking = new_job(), new_job(**more)
    assert [next(enqueue_steps([job], CountedIds()))[0] for job in (plain, asking)] == [
        "enqueue_plainly", "enqueue_lone",
    ]  # fmt: skip
    rows = [scene.live(*scene.enqueue(job)) for job in (plain, asking)]
    state = {"state": "scheduled"} if "run_at" in more else {}
    assert rows[1] == {**rows[0], "id": rows[1]["id"], **more, **state}


def test_a_lone_job_that_is_signed_is_stored_with_its_signature(scene: Scene) -> None:
    scene.enqueue(new_job())
    steps = enqueue_steps([new_job()], scene.ids, sign=lambda job, number: f"signed {number}", now=scene.now)
    (placed,) = drive(scene.engine, steps)
    assert scene.live(placed.id)["signature"] == f"signed {placed.id}"


def test_a_batch_gets_ascending_ids_in_its_order(store: AnyEngine) -> None:
    jobs = [new_job(payload=f"[{number}]") for number in range(1000)]
    placed = drive(store, enqueue_steps(jobs, IdSource()))
    assert [job.id for job in placed] == sorted({job.id for job in placed})
    stored = {row["id"]: row["payload"] for row in rows_of(store, "job")}
    assert [stored[job.id] for job in placed] == [job.payload for job in jobs]
    assert all(job.is_new for job in placed)


def test_many_single_enqueues_of_one_source_get_ascending_ids(store: AnyEngine) -> None:
    ids = IdSource()
    found = [drive(store, enqueue_steps([new_job()], ids))[0].id for _ in range(100)]
    assert found == sorted(set(found))
    assert counts(store) == {"default": {"ready": 100}}


def test_an_empty_batch_writes_nothing_and_answers_with_nothing(scene: Scene) -> None:
    assert scene.enqueued() == []
    assert drive(scene.engine, enqueue_steps([], IdSource())) == []


def test_a_job_with_run_at_is_scheduled_and_others_are_ready(scene: Scene) -> None:
    now, later = scene.enqueue(new_job(), new_job(run_at=scene.now + SECOND))
    assert scene.states() == {now: "ready", later: "scheduled"}
    assert scene.live(later)["run_at"] == scene.now + SECOND


def test_a_job_whose_run_at_has_passed_is_scheduled_until_the_next_admission(scene: Scene) -> None:
    (job,) = scene.enqueue(new_job(run_at=scene.now - SECOND))
    assert scene.states() == {job: "scheduled"}
    assert scene.admit() == {"default": 1}
    assert scene.states() == {job: "ready"}


def test_an_arriving_job_waits_for_admission_and_has_no_place_yet(scene: Scene) -> None:
    (job,) = scene.enqueue(new_job(group="bob"), arriving=True)
    assert scene.states() == {job: "arriving"}
    assert scene.claim() == []
    assert rows_of(scene.engine, "group_tail") == rows_of(scene.engine, "band") == []


def test_one_batch_may_hold_many_queues_priorities_and_groups(scene: Scene) -> None:
    scene.enqueue(
        *(new_job(queue=q, priority=p, group=g) for q in "ab" for p in (-100, 100) for g in ("x", "y", None))
    )
    places = {(row["queue"], row["priority"], row["group_key"]) for row in rows_of(scene.engine, "job")}
    assert len(places) == 12
    assert [queue.name for queue in queues(scene.engine)] == ["a", "b"]
    assert len(rows_of(scene.engine, "band")) == 4
    assert len(rows_of(scene.engine, "group_tail")) == 8


def test_each_job_is_signed_over_its_own_id(scene: Scene) -> None:
    steps = enqueue_steps(
        [new_job(), new_job(task="other")],
        scene.ids,
        sign=lambda job, number: f"{job.task}/{number}",
        now=scene.now,
    )
    first, second = (job.id for job in drive(scene.engine, steps))
    assert scene.live(first)["signature"] == f"mail.send/{first}"
    assert scene.live(second)["signature"] == f"other/{second}"
    assert {job.signature for job in scene.claim()} == {f"mail.send/{first}", f"other/{second}"}


def test_without_a_time_the_store_s_own_clock_is_written(store: AnyEngine) -> None:
    first = drive(store, enqueue_steps([new_job()], CountedIds()))[0].id
    (row,) = rows_of(store, "job")
    assert row["id"] == first
    assert row["created_at"] == row["run_at"]
    assert abs(row["created_at"] / SECOND - time.time()) < 60


@pytest.mark.parametrize("arriving", [False, True])
def test_a_held_unique_key_gives_its_holder_instead_of_a_new_job(scene: Scene, arriving: bool) -> None:
    (holder,) = scene.enqueue(new_job(unique_key="k"))
    placed = scene.enqueued(
        new_job(unique_key="k"), new_job(unique_key="other"), new_job(), arriving=arriving
    )
    assert placed[0] == Enqueued(holder, is_new=False)
    assert [job.is_new for job in placed] == [False, True, True]
    assert len(scene.states()) == 3


@pytest.mark.parametrize("arriving", [False, True])
def test_the_same_unique_key_twice_in_a_batch_is_one_job(scene: Scene, arriving: bool) -> None:
    first, second = scene.enqueued(new_job(unique_key="k"), new_job(unique_key="k"), arriving=arriving)
    assert (first.is_new, second) == (True, Enqueued(first.id, is_new=False))
    assert len(scene.states()) == 1


@pytest.mark.parametrize("state", ["arriving", "scheduled", "ready", "claimed", "running", "retrying"])
def test_a_unique_key_is_held_in_every_open_state(scene: Scene, state: str) -> None:
    run_at = scene.now + SECOND if state == "scheduled" else None
    (holder,) = scene.enqueue(new_job(unique_key="k", run_at=run_at), arriving=state == "arriving")
    if state in ("claimed", "running", "retrying"):
        (job,) = scene.claim(lease_us=SECOND if state == "claimed" else None)
        if state == "retrying":
            scene.finish(job, "scheduled", run_at=scene.now + SECOND)
    assert scene.states() == {holder: "scheduled" if state == "retrying" else state}
    assert scene.enqueued(new_job(unique_key="k")) == [Enqueued(holder, is_new=False)]


def test_a_unique_key_is_free_again_when_its_holder_has_ended(scene: Scene) -> None:
    holder = scene.running(unique_key="k")
    scene.finish(holder)
    (job,) = scene.enqueued(new_job(unique_key="k"))
    assert job.is_new
    assert job.id != holder.id


INSERTS = ("enqueue", "enqueue_aloud", "enqueue_lone", "enqueue_plainly")


class LosesAnswers:
    """An engine whose connection breaks around chosen runs of `enqueue`, as a network would."""

    kind = "any"

    def __init__(self, engine: Engine, faults: Iterator[str]) -> None:
        self._engine = engine
        self._faults = faults

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        fault = next(self._faults, "") if name in INSERTS else ""
        if fault == "before":
            raise StoreUnavailable("lost before it was sent")
        rows = self._engine.run(name, parameters, deadline_s=deadline_s)
        if fault == "after":
            raise StoreUnavailable("lost after the commit")
        return rows

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        return self._engine.run_all(units, deadline_s=deadline_s)

    def close(self) -> None:
        self._engine.close()


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["after", "after"]])
def test_a_batch_whose_connection_was_lost_ends_as_one_set_of_jobs(scene: Scene, faults: list[str]) -> None:
    (holder,) = scene.enqueue(new_job(unique_key="held"))
    jobs = [new_job(payload=f"[{number}]", group="bob") for number in range(50)]
    jobs += [new_job(unique_key="new"), new_job(unique_key="new"), new_job(unique_key="held")]
    placed = drive(LosesAnswers(scene.engine, iter(faults)), enqueue_steps(jobs, scene.ids, now=scene.now))
    assert [job.is_new for job in placed] == [True] * 51 + [False, False]
    assert placed[51].id == placed[50].id
    assert placed[52].id == holder
    assert sorted(row["payload"] for row in rows_of(scene.engine, "job")) == sorted(
        [f"[{number}]" for number in range(50)] + ["[1]", "[1]"]
    )


@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["after", "after"]])
@pytest.mark.parametrize("knows_queue", [False, True])
def test_a_lone_job_whose_connection_was_lost_is_one_job(
    scene: Scene, faults: list[str], knows_queue: bool
) -> None:
    others = scene.enqueue(new_job()) if knows_queue else []
    steps = enqueue_steps([new_job(payload="[7]")], scene.ids, now=scene.now)
    (placed,) = drive(LosesAnswers(scene.engine, iter(faults)), steps)
    assert placed.is_new
    assert scene.states() == dict.fromkeys([*others, placed.id], "ready")
    assert scene.live(placed.id)["payload"] == "[7]"


@pytest.mark.parametrize("faults", [[], ["before"], ["after"], ["before", "after"], ["after", "after"]])
@pytest.mark.parametrize("knows_queue", [False, True])
@pytest.mark.parametrize("group", [None, "bob"])
def test_a_plain_job_is_one_job_whatever_is_lost(
    scene: Scene, faults: list[str], knows_queue: bool, group: str | None
) -> None:
    others = scene.enqueue(new_job()) if knows_queue else []
    job = new_job(payload="[7]", group=group)
    number = enqueue_plain(cast(AnyEngine, LosesAnswers(scene.engine, iter(faults))), job, IdSource())
    assert scene.states() == dict.fromkeys([*others, number], "ready")
    assert scene.live(number)["payload"] == "[7]"


@pytest.mark.parametrize("table", ["job", "history"])
def test_a_plain_job_whose_id_belongs_to_another_one_gets_a_fresh_one(
    sqlite_scene: Scene, table: str
) -> None:
    run = sqlite_scene.running()
    sqlite_scene.enqueue(new_job())
    if table == "history":
        sqlite_scene.finish(run)
    number = enqueue_plain(sqlite_scene.engine, new_job(), IdSource(), numbers=[run.id])
    assert number != run.id
    assert sqlite_scene.live(number)["state"] == "ready"


LONE: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 7, "queue": "mail"},
    {"run_at": 5_000_000, "good_until": 9_000_000},
    {"unique_key": "k", "run_id": 12, "fails_on_crash": True, "max_attempts": 9},
    {"headers": '{"a":"b"}', "options": '{"timeout_ms":5}', "payload": '["ä\\u0000"]'},
)


@pytest.mark.parametrize("fair", ["fifo", "round-robin", "time"])
@pytest.mark.parametrize("max_ready", [None, 5])
def test_a_lone_job_is_stored_as_it_would_be_in_a_batch(
    scene: Scene, fair: Strategy, max_ready: int | None
) -> None:
    for name in ("default", "mail"):
        control.declare_queue(scene.engine, Queue(name, fair=fair, max_ready=max_ready))
    scene.enqueue(*(new_job(queue=name, group="bob") for name in ("default", "mail") for _ in range(3)))
    scene.enqueue(new_job(queue="mail", priority=7), new_job(queue="default"))
    scene.claim(4)
    for number, fields in enumerate(LONE):
        sign = lambda job, number: "signed"  # noqa: E731
        unlike = {"unique_key": f"other {number}"} if "unique_key" in fields else {}
        lone, batch = (
            drive(scene.engine, enqueue_steps(jobs, scene.ids, sign=sign, now=scene.now))
            for jobs in ([new_job(**fields)], [new_job(**{**fields, **unlike}), new_job(queue="elsewhere")])
        )
        one, same = scene.live(lone[0].id), scene.live(batch[0].id)
        if unlike:
            assert (one.pop("unique_key"), same.pop("unique_key")) == ("k", unlike["unique_key"])
        assert (one.pop("id"), same.pop("id")) == (lone[0].id, batch[0].id)
        assert one == same


def test_a_job_that_ran_before_its_enqueue_was_repeated_is_not_run_again(scene: Scene) -> None:
    # The commit's answer was lost, a worker was quicker than our repetition, and its key has a new holder already.
    scene.enqueue(new_job())
    scene.finish(scene.claim()[0])
    steps = enqueue_steps([new_job(unique_key="k")], scene.ids, now=scene.now)
    name, parameters = next(steps)
    scene.engine.run(name, parameters)
    scene.finish(scene.claim()[0])
    scene.enqueue(new_job(unique_key="k"))
    with pytest.raises(StopIteration) as end:
        name, parameters = steps.throw(StoreUnavailable("lost"))
        while True:
            name, parameters = steps.send(scene.engine.run(name, parameters))
    assert end.value.value == [Enqueued(FIRST_ID + 1, is_new=True)]
    assert list(scene.states().values()) == ["ready", "succeeded", "succeeded"]


def test_an_arriving_batch_does_not_outlive_a_lost_connection(scene: Scene) -> None:
    # The transaction is the caller's: it is gone with the connection, so nothing may be tried on another one.
    steps = enqueue_steps([new_job()], scene.ids, arriving=True, now=scene.now)
    assert next(steps)[0] == "enqueue_arriving"
    with pytest.raises(StoreUnavailable):
        steps.throw(StoreUnavailable("lost"))


def test_a_store_that_stays_away_is_reported_as_it_is(scene: Scene) -> None:
    with pytest.raises(StoreUnavailable, match="lost before it was sent"):
        drive(
            LosesAnswers(scene.engine, iter(["before"] * 9)),
            enqueue_steps([new_job()], scene.ids, now=scene.now),
        )
    assert scene.states() == {}


def test_a_unique_key_that_keeps_changing_hands_is_given_up_on_with_advice(scene: Scene) -> None:
    steps = enqueue_steps([new_job(unique_key="k")], scene.ids, now=scene.now)
    assert next(steps)[0] == "enqueue_lone"
    assert steps.send([])[0] == "enqueue"
    for _ in range(4):
        assert steps.send([(0,)])[0] == "find_duplicates"
        assert steps.send([])[0] == "enqueue"
    assert steps.send([(0,)])[0] == "find_duplicates"
    with pytest.raises(StoreUnavailable, match="changed hands 5 times; try again"):
        steps.send([])


@pytest.mark.parametrize("arriving", [False, True])
@pytest.mark.parametrize("table", ["job", "history"])
def test_an_id_that_belongs_to_another_job_is_replaced_by_a_fresh_one(
    sqlite_scene: Scene, arriving: bool, table: str
) -> None:
    # On SQLite ids are drawn by chance: two processes may draw the same one in the same millisecond.
    scene = sqlite_scene
    (mine,) = scene.enqueue(new_job(payload='["first"]'))
    if table == "history":
        scene.finish(scene.claim()[0])
    scene.ids = CountedIds()
    placed = scene.enqueued(new_job(payload='["second"]'), new_job(payload='["third"]'), arriving=arriving)
    assert mine not in {job.id for job in placed}
    assert all(job.is_new for job in placed)
    stored = {job.id: job.payload for job in find(scene.engine, [mine, *(job.id for job in placed)]).values()}
    assert stored == {mine: '["first"]', placed[0].id: '["second"]', placed[1].id: '["third"]'}


@pytest.fixture
def sqlite_scene(sqlite_store: AnyEngine) -> Scene:
    return Scene(sqlite_store)


def test_a_batch_that_the_store_refuses_leaves_nothing(scene: Scene) -> None:
    with pytest.raises(Exception, match=r"(?i)constraint|out of range"):
        scene.enqueue(new_job(), new_job(group="bob", priority=101))
    assert scene.contents() == {"job": [], "history": [], "round": [], "group_tail": []}
    assert rows_of(scene.engine, "band") == []


def test_admission_takes_arrivals_and_due_jobs_and_counts_them_by_queue(scene: Scene) -> None:
    due = scene.enqueue(new_job(run_at=scene.now), new_job(queue="mail", run_at=scene.now))
    later = scene.enqueue(new_job(run_at=scene.now + 1))
    arrived = scene.enqueue(new_job(), new_job(queue="mail", run_at=scene.now + 1), arriving=True)
    assert scene.admit() == {"default": 2, "mail": 1}
    ready = {*due, arrived[0]}
    assert scene.states() == {
        job: "ready" if job in ready else "scheduled" for job in [*due, *later, *arrived]
    }


def test_a_job_is_due_at_the_very_microsecond_of_its_run_at(scene: Scene) -> None:
    (job,) = scene.enqueue(new_job(run_at=scene.now + SECOND))
    scene.now += SECOND - 1
    assert scene.admit() == {}
    scene.now += 1
    assert scene.admit() == {"default": 1}
    assert scene.states() == {job: "ready"}


def test_admission_is_bounded_and_takes_the_longest_due_first(scene: Scene) -> None:
    jobs = scene.enqueue(*(new_job(run_at=scene.now - number) for number in range(5)))
    assert scene.engine.run("admit", {"top": 2, "now": scene.now}) is not None
    states = scene.states()
    assert [job for job in jobs if states[job] == "ready"] == jobs[3:]


def test_a_queue_that_only_arrivals_use_is_known_after_their_admission(scene: Scene) -> None:
    scene.enqueue(new_job(queue="mail", run_at=scene.now + SECOND), arriving=True)
    assert queues(scene.engine) == []
    scene.admit()
    assert [queue.name for queue in queues(scene.engine)] == ["mail"]


def test_a_new_band_is_claimed_from_at_once(scene: Scene) -> None:
    scene.enqueue(new_job(priority=5))
    scene.claim(1)
    (urgent,) = scene.enqueue(new_job(priority=-5))
    assert scene.claim_ids() == [urgent]


def test_reserved_blocks_are_never_handed_out_twice(postgres_store: AnyEngine) -> None:
    blocks = [block for _ in range(3) for (block,) in postgres_store.run("reserve_ids", {"blocks": 100})]
    assert len(set(blocks)) == 300
    assert blocks == sorted(blocks)


def test_drawn_blocks_ascend_so_that_a_batch_stays_in_its_millisecond(sqlite_store: AnyEngine) -> None:
    blocks = [block for (block,) in sqlite_store.run("reserve_ids", {"blocks": 500})]
    assert blocks == sorted(blocks)
    assert len(blocks) == 500
    assert all(0 <= block < 131_072 for block in blocks)
