"""Fair turns: the stores against the pure model of the rules, and the promises to a small tenant beside a large one."""

import random
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenflow.queues import Queue, Strategy
from evenflow.rules.fair import TurnLine, step_of, time_cost
from evenflow.store.control import declare_queue, learn_costs, retry, set_weights
from evenflow.store.migrate import migrate
from evenflow.store.reads import rounds, tails
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.upkeep import forget_idle_groups
from tests.store.legs import on_both_engines
from tests.store.scene import ALICE, SECOND, Scene, end_of, execute, new_job, rows_of
from tests.thorough import examples

WEIGHTS = {"one": 1.0, "two": 2.0, "four": 4.0}
ODD_WEIGHTS = {"a": 3.0, "b": 0.7, "c": 10.0}
SPENT = {"quick": (6, 600), "slow": (2, 1400)}


class Model:
    """The same acts on a store and on the model of its queue."""

    def __init__(self, scene: Scene, strategy: Strategy, weights: dict[str, float] | None = None) -> None:
        self.scene = scene
        self.line = TurnLine(strategy)
        self.steps = {group: step_of(weight=weight) for group, weight in (weights or {}).items()}
        declare_queue(scene.engine, Queue("default", fair=strategy, weights=weights))

    def learn(self, spent: dict[str, tuple[int, int]]) -> None:
        learn_costs(
            self.scene.engine, {("default", group): cost for group, cost in spent.items()}, now=self.scene.now
        )
        mean = sum(us for _, us in spent.values()) / sum(runs for runs, _ in spent.values())
        for group, (runs, us) in spent.items():
            self.steps[group] = step_of(cost=time_cost(us / runs, mean))

    def enqueue(self, *groups: str | None) -> list[int]:
        jobs = self.scene.enqueue(*(new_job(group=group) for group in groups))
        for group in dict.fromkeys(groups):
            mine = [job for job, of in zip(jobs, groups, strict=True) if of == group]
            self.line.admit(mine, group=group, now=self.scene.now, step=self.steps.get(group or "", 1.0))
        return jobs

    def claim(self, top: int) -> list[int]:
        """Claim on both sides: the same jobs in the same order, and the same V."""
        found = self.scene.claim_ids(top)
        assert found == self.line.claim(top)
        assert rounds(self.scene.engine).get(("default", 0), 0.0) == self.line.v
        return found

    def turns(self) -> dict[int, float]:
        return {
            row["id"]: row["turn"] for row in rows_of(self.scene.engine, "job") if row["state"] == "ready"
        }

    def groups(self, jobs: list[int]) -> list[str | None]:
        of = {row["id"]: row["group_key"] for row in rows_of(self.scene.engine, "job")}
        return [of[job] for job in jobs]


def play(model: Model, groups: list[str | None], seed: int, rounds_played: int = 40) -> None:
    """Random enqueues, claims, releases and forgetting; every claim is compared."""
    chance = random.Random(seed)
    for _ in range(rounds_played):
        match chance.randrange(5):
            case 0 | 1:
                model.enqueue(*(chance.choice(groups) for _ in range(chance.randrange(1, 12))))
            case 2 | 3:
                model.claim(chance.randrange(1, 8))
            case _:
                forget_idle_groups(model.scene.engine)
                model.line.forget_idle_groups(model.steps)
        assert model.turns() == model.line.turns
    model.claim(1000)
    assert model.turns() == model.line.turns == {}


@on_both_engines
class TestAgainstTheModel:
    @pytest.mark.parametrize("seed", range(3))
    def test_round_robin(self, scene: Scene, seed: int) -> None:
        play(Model(scene, "round-robin"), ["a", "b", "c", None], seed)

    @pytest.mark.parametrize("seed", range(3))
    def test_weights_one_to_two_to_four(self, scene: Scene, seed: int) -> None:
        play(Model(scene, "round-robin", WEIGHTS), [*WEIGHTS, None], seed)

    @pytest.mark.parametrize("seed", range(3))
    def test_weights_that_no_binary_fraction_holds(self, scene: Scene, seed: int) -> None:
        play(Model(scene, "round-robin", ODD_WEIGHTS), [*ODD_WEIGHTS, None], seed)

    @pytest.mark.parametrize("seed", range(3))
    def test_time(self, scene: Scene, seed: int) -> None:
        model = Model(scene, "time")
        model.learn(SPENT)
        play(model, [*SPENT, "unknown", None], seed)

    def test_fifo(self, scene: Scene) -> None:
        model = Model(scene, "fifo")
        jobs = []
        for groups in (["b", "b", None], ["a"], ["b", "c"]):
            jobs += model.enqueue(*groups)
            scene.now += 1
        assert model.claim(2) == jobs[:2]
        assert model.claim(100) == jobs[2:]
        assert tails(scene.engine) == {}


class TestTurns:
    def test_of_two_groups_alternate(self, scene: Scene) -> None:
        """S4-10"""
        model = Model(scene, "round-robin")
        model.enqueue(*["bob"] * 5, *["alice"] * 5)
        assert model.groups(model.claim(10)) == ["bob", "alice"] * 5

    def test_give_alice_s_one_job_the_next_round_behind_bob_s_ten_thousand(self, scene: Scene) -> None:
        """S4-1, S4-27"""
        scene.enqueue(*(new_job(group="bob") for _ in range(10_000)))
        scene.claim(7)
        (alice,) = scene.enqueue(new_job(group="alice"))
        assert alice in scene.claim_ids(2)

    def test_are_shared_by_weight(self, scene: Scene) -> None:
        model = Model(scene, "round-robin", WEIGHTS)
        model.enqueue(*["one"] * 40, *["two"] * 40, *["four"] * 40)
        served = model.groups(model.claim(70))
        assert {group: served.count(group) for group in WEIGHTS} == {"one": 10, "two": 20, "four": 40}

    def test_are_shared_by_time(self, scene: Scene) -> None:
        """S4-3"""
        model = Model(scene, "time")
        model.learn(SPENT)
        model.enqueue(*["quick"] * 70, *["slow"] * 70)
        served = model.groups(model.claim(40))
        assert served.count("quick") * 100 == pytest.approx(served.count("slow") * 700, rel=0.1)

    def test_of_a_new_group_begin_one_round_ahead_of_v(self, scene: Scene) -> None:
        """S4-27"""
        scene.enqueue(*(new_job(group="bob") for _ in range(9)))
        scene.claim(4)
        (alice,) = scene.enqueue(new_job(group="alice"))
        assert scene.live(alice)["turn"] == 5.0
        assert scene.claim(1)[0].group == "bob"
        assert scene.claim_ids(1) == [alice]

    def test_of_endless_new_groups_leave_bob_his_own_in_every_round(self, scene: Scene) -> None:
        """S4-28"""
        scene.enqueue(*(new_job(group="bob") for _ in range(50)))
        served = []
        for number in range(40):
            scene.enqueue(*(new_job(group=f"new {number} {place}") for place in range(5)))
            served += [job.group for job in scene.claim(6)]
        assert served.count("bob") >= 39

    def test_bank_no_credit_for_an_idle_group(self, scene: Scene) -> None:
        """S4-30"""
        model = Model(scene, "round-robin")
        model.enqueue("alice")
        model.enqueue(*["bob"] * 50)
        model.claim(31)
        model.enqueue(*["alice"] * 10)
        assert model.groups(model.claim(10)) == ["bob", "alice"] * 5

    def test_go_on_from_the_greatest_after_the_queue_has_run_empty(self, scene: Scene) -> None:
        """S4-31"""
        model = Model(scene, "round-robin")
        model.enqueue(*["bob"] * 5)
        scene.advance(ALICE, *(end_of(job, keep_us=0) for job in scene.claim(5)))
        model.line.claim(5)
        assert rounds(scene.engine) == {("default", 0): 5.0}
        (job,) = model.enqueue("bob")
        assert scene.live(job)["turn"] == 6.0

    def test_of_each_priority_have_a_v_of_their_own(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group="bob", priority=-1) for _ in range(30)))
        scene.claim(30)
        scene.enqueue(*(new_job(group="bob", priority=1) for _ in range(3)))
        (alice,) = scene.enqueue(new_job(group="alice", priority=1))
        assert scene.live(alice)["turn"] == 1.0
        assert alice in scene.claim_ids(2)

    def test_of_jobs_without_a_group_stand_one_round_ahead(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group="bob") for _ in range(9)))
        scene.claim(4)
        first, second = scene.enqueue(new_job(), new_job())
        assert [scene.live(job)["turn"] for job in (first, second)] == [5.0, 5.0]
        assert set(tails(scene.engine)) == {("default", 0, "bob")}

    def test_of_an_arrival_begin_at_the_round_of_its_admission(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(group="alice"), arriving=True)
        (alone,) = scene.enqueue(new_job(), arriving=True)
        scene.enqueue(*(new_job(group="bob") for _ in range(9)))
        scene.claim(4)
        scene.admit()
        assert [scene.live(number)["turn"] for number in (job, alone)] == [5.0, 5.0]

    def test_of_a_scheduled_job_begin_at_the_round_in_which_it_is_due(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(group="alice", run_at=scene.now + SECOND))
        scene.enqueue(*(new_job(group="bob") for _ in range(9)))
        scene.claim(4)
        scene.now += SECOND
        scene.admit()
        assert scene.live(job)["turn"] == 5.0

    def test_of_an_admitted_batch_follow_each_other_behind_the_group_s_last(self, scene: Scene) -> None:
        """S4-29"""
        scene.enqueue(*(new_job(group="bob") for _ in range(3)))
        jobs = scene.enqueue(*(new_job(group="bob") for _ in range(3)), arriving=True)
        scene.admit()
        assert [scene.live(job)["turn"] for job in jobs] == [4.0, 5.0, 6.0]
        assert tails(scene.engine) == {("default", 0, "bob"): 6.0}

    @pytest.mark.parametrize("how", ["release", "rescue"])
    def test_of_a_job_that_comes_back_are_one_round_ahead_and_leave_its_group_s_tail(
        self, scene: Scene, how: str
    ) -> None:
        """S4-26"""
        scene.enqueue(*(new_job(group="bob") for _ in range(9)))
        jobs = scene.claim(4)
        if how == "release":
            scene.finish(jobs[0], "ready", refund=1)
        else:
            scene.rescue()
        assert scene.live(jobs[0].id)["turn"] == 5.0
        assert tails(scene.engine) == {("default", 0, "bob"): 9.0}

    def test_of_a_revived_backlog_leave_others_theirs(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job(group="bob") for _ in range(200)))
        scene.advance(ALICE, *(end_of(job, "failed") for job in scene.claim(200)))
        assert len(retry(scene.engine, jobs, now=scene.now)) == 200
        scene.admit()
        (alice,) = scene.enqueue(new_job(group="alice"))
        assert alice in scene.claim_ids(2)

    def test_are_the_same_for_one_batch_and_for_many(self, scene: Scene) -> None:
        groups = ["b", "a", "b", "c", "a", "b"]
        batch = scene.enqueue(*(new_job(queue="batch", group=group) for group in groups))
        single = [scene.enqueue(new_job(queue="single", group=group))[0] for group in groups]
        assert [scene.live(job)["turn"] for job in batch] == [scene.live(job)["turn"] for job in single]

    def test_are_read_in_the_same_order_twice(self, scene: Scene) -> None:
        """S4-43"""
        scene.enqueue(*(new_job(group=group) for group in "bbaacb"))
        first = sorted((row["turn"], row["id"]) for row in rows_of(scene.engine, "job"))
        assert [job for _, job in first] == scene.claim_ids()

    def test_reach_groups_with_strange_names(self, scene: Scene) -> None:
        names = ["", "(a,b)", 'quo"te', "comma,", "ünïcode", "back\\slash", " ", "null", "it's"]
        scene.enqueue(*(new_job(group=name) for name in names for _ in range(2)))
        assert [job.turn for job in scene.claim()] == [1.0] * len(names) + [2.0] * len(names)
        assert {group for _, _, group in tails(scene.engine)} == set(names)

    def test_of_many_first_jobs_of_new_groups_need_no_preparation(self, scene: Scene) -> None:
        """S4-13"""
        scene.enqueue(*(new_job(group=f"g{number}") for number in range(2000)))
        assert len(tails(scene.engine)) == 2000
        assert {job.turn for job in scene.claim(2000)} == {1.0}

    def test_keep_their_order_when_the_strategy_changes(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group="bob") for _ in range(3)))
        declare_queue(scene.engine, Queue("default", fair="fifo"))
        (late,) = scene.enqueue(new_job(group="alice"))
        assert scene.claim_ids()[-1] == late
        declare_queue(scene.engine, Queue("default", fair="round-robin"))
        (next_one,) = scene.enqueue(new_job(group="bob"))
        assert scene.live(next_one)["turn"] == scene.live(late)["turn"] + 1


def test_a_weight_that_changes_counts_from_the_next_enqueue(scene: Scene) -> None:
    scene.enqueue(new_job(group="bob"), new_job(group="bob"))
    set_weights(scene.engine, "default", {"bob": 4})
    jobs = scene.enqueue(*(new_job(group="bob") for _ in range(2)))
    assert [scene.live(job)["turn"] for job in jobs] == [2.25, 2.5]


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["round-robin", "time", "fifo"]),
    st.lists(
        st.tuples(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1), st.integers(0, 6)), max_size=8
    ),
)
def test_any_series_of_enqueues_and_claims_follows_the_model(
    strategy: str, acts: list[tuple[list[str | None], int]]
) -> None:
    engine = SqliteEngine(None)
    migrate(engine)
    model = Model(Scene(engine), cast(Strategy, strategy))
    for groups, top in acts:
        model.enqueue(*groups)
        model.scene.now += 1
        model.claim(top)
    model.claim(1000)
    engine.close()


@pytest.mark.large
def test_more_groups_than_a_million_have_their_turns_in_one_queue(scene: Scene) -> None:
    """S4-32: more than 2^20 groups that wait at their second turn; others, old and new, take theirs among them."""
    groups = 2**20 + 1
    values = "select 'default', 0, 'g' || n, 2, 1 from"
    execute(
        scene.engine,
        f"insert into evenflow_group_tail (queue, priority, group_key, tail, span) {values}"
        f" (with recursive s (n) as (select 1 union all select n + 1 from s where n < {groups}) select n from s)",
        f"insert into evenflow.group_tail (queue, priority, group_key, tail, span) {values} generate_series(1, {groups}) n",
    )
    old, new, again = scene.enqueue(*(new_job(group=group) for group in (f"g{groups}", "new", "new")))
    assert [scene.live(job)["turn"] for job in (old, new, again)] == [3.0, 1.0, 2.0]
    assert scene.claim_ids() == [new, again, old]
