"""Spacing: waiting jobs of a queue that is fair by time move to where what their group's runs take puts them."""

import random
from collections import Counter

import pytest

from evenflow.queues import Queue
from evenflow.rules.fair import TOLERANCE, Respacing, TurnLine, step_of, time_cost
from evenflow.store.control import declare_queue, learn_costs, set_weights
from evenflow.store.open import AnyEngine
from evenflow.store.reads import tails
from evenflow.store.spacing import is_asked, respace
from evenflow.store.upkeep import forget_idle_groups
from tests.store.scene import BOB, SECOND, Scene, execute, new_job, rows_of, second_engine

COSTS = {"quick": (1, 100), "slow": (1, 1000)}
MEAN = 550.0


@pytest.fixture
def timed(scene: Scene) -> Scene:
    """A queue that is fair by time and has never run anything."""
    declare_queue(scene.engine, Queue("default", fair="time"))
    return scene


def backlog(scene: Scene, jobs: int = 20, *groups: str) -> dict[str, list[int]]:
    return {group: scene.enqueue(*[new_job(group=group)] * jobs) for group in groups or COSTS}


def learn(scene: Scene, costs: dict[str, tuple[int, int]] = COSTS) -> None:
    learn_costs(scene.engine, {("default", group): cost for group, cost in costs.items()}, now=scene.now)


def respace_all(engine: AnyEngine, top: int = 1000) -> list[int]:
    moved = []
    while (batch := respace(engine, top=top)) is not None:
        moved.append(batch)
        assert batch <= top
        assert len(moved) < 1000
    return moved


def turns(scene: Scene) -> dict[int, float]:
    return {row["id"]: row["turn"] for row in rows_of(scene.engine, "job") if row["state"] == "ready"}


def step_for(group: str, costs: dict[str, tuple[int, int]] = COSTS) -> float:
    runs, spent = costs[group]
    return step_of(cost=time_cost(spent / runs, MEAN))


class TestABacklogFromBefore:
    def test_gets_the_turns_that_it_would_have_got_had_its_costs_been_known(self, timed: Scene) -> None:
        jobs = backlog(timed)
        assert timed.live(jobs["slow"][9])["turn"] == timed.live(jobs["quick"][9])["turn"] == 10.0
        learn(timed)
        respace_all(timed.engine)
        for group, ids in jobs.items():
            placed = [turn for job, turn in sorted(turns(timed).items()) if job in ids]
            assert placed == pytest.approx([step_for(group) * rank for rank in range(1, 21)])
        assert tails(timed.engine) == {
            ("default", 0, group): pytest.approx(20 * step_for(group)) for group in COSTS
        }

    @pytest.mark.parametrize("ratio", [10, 100])
    def test_is_claimed_by_time_and_in_its_order(self, timed: Scene, ratio: int) -> None:
        """S4-3"""
        jobs = backlog(timed, 550)
        learn(timed, {"quick": (1, 100), "slow": (1, 100 * ratio)})
        respace_all(timed.engine, top=70)
        claimed = timed.claim_ids(505)
        by_group = {group: [job for job in claimed if job in ids] for group, ids in jobs.items()}
        assert len(by_group["slow"]) == pytest.approx(len(by_group["quick"]) / ratio, abs=1)
        assert all(ids == sorted(ids) for ids in by_group.values())

    def test_moves_in_batches_that_are_as_large_as_told(self, timed: Scene) -> None:
        backlog(timed, 25)
        learn(timed)
        moved = respace_all(timed.engine, top=10)
        assert moved == [10, 10, 5, 10, 10, 5]

    def test_lets_new_jobs_follow_behind_it_at_any_moment(self, timed: Scene) -> None:
        backlog(timed, 12)
        learn(timed)
        while respace(timed.engine, top=5) is not None:
            backlog(timed, 2)
        found = [row for row in rows_of(timed.engine, "job") if row["state"] == "ready"]
        for group in COSTS:
            mine = sorted((row["turn"], row["id"]) for row in found if row["group_key"] == group)
            assert [job for _, job in mine] == sorted(job for _, job in mine)
            gaps = [after - before for (before, _), (after, _) in zip(mine, mine[1:], strict=False)]
            assert gaps == pytest.approx([step_for(group)] * len(gaps))

    def test_keeps_its_order_while_it_is_claimed_between_batches(self, timed: Scene) -> None:
        jobs = backlog(timed, 60)
        learn(timed)
        claimed = []
        while respace(timed.engine, top=9) is not None:
            claimed += timed.claim_ids(5)
        claimed += timed.claim_ids(1000)
        for ids in jobs.values():
            assert [job for job in claimed if job in ids] == ids

    def test_pays_for_what_it_got_too_cheaply_while_it_was_moved(self, timed: Scene) -> None:
        backlog(timed, 300)
        learn(timed)
        got: Counter[str | None] = Counter()
        for _ in range(12):  # all of quick, and the end of slow
            respace(timed.engine, top=30)
        got += Counter(job.group for job in timed.claim(60))
        assert got["slow"] * 10 > got["quick"] + 30
        respace_all(timed.engine)
        got += Counter(job.group for job in timed.claim(105))
        assert got["slow"] * 10 == pytest.approx(got["quick"], abs=10)

    def test_never_moves_to_a_place_in_the_past(self, timed: Scene) -> None:
        backlog(timed, 50)
        timed.claim(40)
        learn(timed)
        respace_all(timed.engine, top=8)
        assert min(turns(timed).values()) > 20.0

    def test_in_overflow_moves_too(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("default", fair="time", max_ready=5))
        backlog(scene, 20)
        assert Counter(scene.states().values())["overflow"] == 40
        learn(scene)
        assert sum(respace_all(scene.engine)) == 40

    def test_of_each_priority_moves_by_itself(self, timed: Scene) -> None:
        for priority in (-1, 1):
            timed.enqueue(*[new_job(group="slow", priority=priority)] * 3)
        learn(timed)
        respace_all(timed.engine)
        assert sorted(turns(timed).values()) == pytest.approx(
            sorted([step_for("slow") * n for n in (1, 2, 3)] * 2)
        )

    def test_that_arrived_in_a_caller_s_transaction_moves_too(self, timed: Scene) -> None:
        timed.enqueue(*[new_job(group="slow")] * 3, arriving=True)
        timed.enqueue(*[new_job(group="slow", run_at=timed.now)] * 3)
        timed.admit()
        learn(timed)
        assert respace_all(timed.engine) == [6]

    def test_leaves_jobs_that_came_back_where_they_are(self, timed: Scene) -> None:
        backlog(timed, 9)
        job = next(job for job in timed.claim(4) if job.group == "slow")
        timed.finish(job, "ready", refund=1)
        before = timed.live(job.id)["turn"]
        learn(timed)
        respace_all(timed.engine)
        assert timed.live(job.id)["turn"] == before


class TestWhoIsAsked:
    def test_nobody_while_the_costs_are_about_the_same(self, timed: Scene) -> None:
        backlog(timed)
        learn(timed, {"quick": (1, 100), "slow": (1, int(100 * TOLERANCE))})
        assert not is_asked(timed.engine)
        assert respace(timed.engine) is None

    def test_nobody_where_nothing_waits(self, timed: Scene) -> None:
        backlog(timed, 1)
        timed.claim(10)
        learn(timed)
        assert not is_asked(timed.engine)

    @pytest.mark.parametrize("fair", ["round-robin", "fifo"])
    def test_nobody_in_other_queues(self, scene: Scene, fair: str) -> None:
        declare_queue(scene.engine, Queue("default", fair=fair))  # type: ignore[arg-type]
        backlog(scene)
        learn(scene)
        assert not is_asked(scene.engine)
        assert {row["is_timed"] for row in rows_of(scene.engine, "job")} == {False}

    def test_a_group_whose_weight_has_changed(self, timed: Scene) -> None:
        backlog(timed, 4, "slow")
        set_weights(timed.engine, "default", {"slow": 4})
        learn(timed, {"slow": (1, 1000)})
        respace_all(timed.engine)
        assert sorted(turns(timed).values()) == pytest.approx([0.25, 0.5, 0.75, 1.0])

    def test_a_group_once_however_often_it_is_reported(self, timed: Scene) -> None:
        backlog(timed)
        learn(timed)
        learn(timed)
        respace_all(timed.engine)
        learn(timed)
        assert not is_asked(timed.engine)

    def test_nobody_any_more_when_the_queue_is_no_longer_fair_by_time(self, timed: Scene) -> None:
        backlog(timed)
        learn(timed)
        declare_queue(timed.engine, Queue("default"))
        before = turns(timed)
        assert set(respace_all(timed.engine)) == {0}
        assert turns(timed) == before

    def test_nobody_any_more_when_the_group_is_forgotten(self, timed: Scene) -> None:
        backlog(timed, 3, "quick")
        learn(timed)
        assert is_asked(timed.engine)
        timed.claim(10)
        forget_idle_groups(timed.engine)
        execute(timed.engine, "delete from evenflow_group_tail")
        assert respace_all(timed.engine) == [0]


def test_whoever_comes_next_goes_on_where_another_stopped(timed: Scene) -> None:
    backlog(timed, 30)
    learn(timed)
    respace(timed.engine, top=10)
    (halfway,) = [row for row in rows_of(timed.engine, "respacing") if row["ratio"] is not None]
    assert (halfway["group_key"], halfway["job_id"]) == ("quick", 1009)
    other = second_engine(timed.engine)
    try:
        assert sum(respace_all(other, top=10)) == 50
    finally:
        other.close()
    assert rows_of(timed.engine, "respacing") == []


@pytest.mark.parametrize("seed", range(4))
def test_any_course_of_things_follows_the_model(timed: Scene, seed: int) -> None:
    """Enqueues, claims, reports and batches in any order: every turn is the model's."""
    chance, line = random.Random(seed), TurnLine("time")
    under_way: dict[str, Respacing] = {}
    costs: dict[str, tuple[int, int]] = {}
    for _ in range(60):
        match chance.choice(["enqueue", "claim", "learn", "respace", "respace"]):
            case "enqueue":
                group, count = chance.choice(["a", "b", "c"]), chance.randrange(1, 9)
                ids = timed.enqueue(*[new_job(group=group)] * count)
                line.admit(ids, group=group, now=timed.now, step=step_now(timed, group))
            case "claim":
                top = chance.randrange(1, 8)
                assert timed.claim_ids(top) == line.claim(top)
            case "learn":
                costs[chance.choice(["a", "b", "c"])] = (100, 100 * chance.choice([100, 500, 3000]))
                learn(timed, costs)
            case _:
                follow(timed, line, under_way, top=chance.randrange(1, 6))
        assert turns(timed) == pytest.approx(line.turns, rel=1e-9)
    assert timed.claim_ids(1000) == line.claim(1000)


def step_now(scene: Scene, group: str) -> float:
    """The step of a group by what the store has learnt."""
    unit = rows_of(scene.engine, "queue")[0]["unit_us"]
    cost = {row["group_key"]: row["cost_us"] for row in rows_of(scene.engine, "group_cost")}.get(group)
    return time_cost(cost, unit)


def follow(scene: Scene, line: TurnLine, under_way: dict[str, Respacing], top: int) -> None:
    """One batch, on both sides."""
    asked = sorted(row["group_key"] for row in rows_of(scene.engine, "respacing"))
    respace(scene.engine, top=top)
    if not asked:
        return
    group = asked[0]
    found = under_way.pop(group, None) or line.begin_respacing(group, step_now(scene, group))
    if found is not None:
        left = line.respace(group, found, top)
        under_way.update({group: left} if left is not None else {})


def test_claims_go_on_while_a_large_backlog_moves(timed: Scene) -> None:
    """The long form has 100,000 jobs: what a batch and a claim take must not depend on it."""
    for _ in range(4):
        backlog(timed, 2500)
    learn(timed)
    claimed: list[int] = []
    moved = []
    while (batch := respace(timed.engine)) is not None:
        moved.append(batch)
        claimed += timed.claim_ids(20, worker=BOB)
        timed.now += SECOND
    assert max(moved) <= 1000
    assert len(claimed) == 20 * len(moved)
    late = timed.claim(1100)
    assert Counter(job.group for job in late)["slow"] <= 110
