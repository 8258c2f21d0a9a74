"""Gates in the store: paused tasks and open breakers let nobody pass but the one probe, and nothing is lost behind them."""

import random
from typing import Any

import pytest

from evenflow.job import Claimed, JudgedEnd, Limit, Verdict
from evenflow.limits import Breaker
from evenflow.rules.breaker import (
    BreakerState,
    Circuit,
    Declared,
    Target,
    allow,
    circuit,
    extend_probe,
    record_failure,
    record_success,
    release_probe,
)
from evenflow.settings import Retention
from evenflow.store import control, gates
from evenflow.store.advance import Advanced, Claim, Want, start
from tests.store.crowd import in_threads
from tests.store.legs import on_both_engines
from tests.store.scene import ALICE, BOB, SECOND, Scene, new_job, rows_of, second_engine
from tests.store.test_limits import KEPT, enqueue, pass_on

BANK = Breaker(failure_threshold=3, cooldown_s=10, probe_lease_s=5)
CHARGE: dict[Target, str] = {("task", "charge"): "bank"}


def declare(scene: Scene, breaker: Breaker = BANK, **guards: str) -> None:
    """One breaker, `bank`, over a task or a queue; by default over the task `charge`."""
    named: Any = {tuple(key.split("_", 1)): "bank" for key in guards} or CHARGE
    gates.declare(scene.engine, Declared({"bank": breaker}, named))


def judged(job: Claimed, outcome: Any, state: str | None = None, breaker: str = "bank") -> JudgedEnd:
    given = state or ("succeeded" if outcome == "success" else "failed")
    return JudgedEnd(job.id, job.epoch, given, keep_us=SECOND, verdicts=(Verdict(breaker, outcome),))


def say(scene: Scene, *outcomes: str, worker: int = ALICE) -> Advanced:
    """Run as many jobs of a task that is not shut, and end them so."""
    scene.enqueue(*[new_job(task="other", queue="aux") for _ in outcomes])
    jobs = scene.claim(len(outcomes), worker=worker, queues=["aux"])
    ends = [judged(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]
    return scene.advance(worker, *ends)


def bank(scene: Scene) -> gates.BreakerRow:
    (row,) = gates.breakers(scene.engine, "bank", now=scene.now)
    return row


def elect(scene: Scene, *queues: str, breaker: str = "bank") -> int | None:
    found = gates.elect_probe(scene.engine, breaker, queues or ("default",), now=scene.now)
    return None if found is None else found[0]


def both(scene: Scene) -> None:
    """The task `charge` has the breaker `bank`, the queue `default` the breaker `post`."""
    guards: dict[Target, str] = {**CHARGE, ("queue", "default"): "post"}
    gates.declare(scene.engine, Declared({"bank": BANK, "post": BANK}, guards))


def trip_both(scene: Scene) -> None:
    """The breakers of a task and of its queue open together, as they do where all calls fail."""
    scene.enqueue(*[new_job(task="other", queue="aux") for _ in range(3)])
    scene.advance(
        ALICE,
        *[
            JudgedEnd(job.id, job.epoch, "failed", keep_us=SECOND,
                      verdicts=(Verdict("bank", "failure"), Verdict("post", "failure")))
            for job in scene.claim(3, queues=["aux"])
        ],
    )  # fmt: skip


def tripped(scene: Scene, jobs: int = 3, **fields: Any) -> list[int]:
    """An open breaker with jobs behind it that a claim has set aside."""
    declare(scene)
    ids = scene.enqueue(*[new_job(task="charge", **fields) for _ in range(jobs)])
    say(scene, "failure", "failure", "failure")
    assert claim_past(scene) == []
    return ids


def claim_past(scene: Scene, *queues: str, worker: int = ALICE) -> list[int]:
    """Claim as a pump does: what is shut is set aside, and asked again."""
    claimed: list[int] = []
    while True:
        wants = Claim([Want(queue, place, 50) for place, queue in enumerate(queues or ("default",))], 50)
        answer = scene.advance(worker, claim=wants)
        claimed += [job.id for job in answer.claimed]
        if not answer.is_obstructed:
            return claimed
        assert gates.set_aside(scene.engine, queues or ("default",))[0]


class TestPausedTasks:
    def test_no_job_of_a_paused_task_is_claimed_and_no_attempt_is_used(self, scene: Scene) -> None:
        (first,) = scene.enqueue(new_job(task="charge"))
        (other,) = scene.enqueue(new_job(task="mail"))
        gates.pause_task(scene.engine, "charge", who="ann", why="closing time", now=scene.now)
        assert claim_past(scene) == [other]
        row = scene.live(first)
        assert (row["state"], row["epoch"], row["attempt"], row["worker"]) == ("blocked", 0, 0, None)

    def test_a_paused_task_is_met_until_it_is_set_aside(self, scene: Scene) -> None:
        scene.enqueue(*[new_job(task="charge") for _ in range(5)])
        gates.pause_task(scene.engine, "charge")
        answer = scene.advance(ALICE, claim=Claim([Want("default", 0, 3)], 3))
        assert (answer.claimed, answer.is_obstructed) == ([], True)
        assert gates.set_aside(scene.engine, ["default"]) == (5, set())
        assert not scene.advance(ALICE, claim=Claim([Want("default", 0, 3)], 3)).is_obstructed

    def test_many_are_set_aside_in_one_go(self, scene: Scene) -> None:
        scene.enqueue(*[new_job(task="charge" if place % 2 else "mail") for place in range(40)])
        gates.pause_task(scene.engine, "charge")
        assert gates.set_aside(scene.engine, ["default"], top=30)[0] == 15
        assert gates.set_aside(scene.engine, ["default"])[0] == 5
        assert gates.set_aside(scene.engine, ["default"])[0] == 0
        assert len(scene.claim()) == 20

    def test_a_resumed_task_runs_what_was_set_aside_in_its_order(self, scene: Scene) -> None:
        jobs = scene.enqueue(*[new_job(task="charge") for _ in range(6)])
        gates.pause_task(scene.engine, "charge")
        assert claim_past(scene) == []
        assert gates.resume_task(scene.engine, "charge")
        scene.admit()
        assert scene.claim_ids() == jobs
        assert not gates.resume_task(scene.engine, "charge")

    def test_groups_keep_their_turns_behind_a_pause(self, scene: Scene) -> None:
        bobs = scene.enqueue(*[new_job(task="charge", group="bob") for _ in range(5)])
        (alices,) = scene.enqueue(new_job(task="charge", group="alice"))
        gates.pause_task(scene.engine, "charge")
        assert claim_past(scene) == []
        gates.resume_task(scene.engine, "charge")
        scene.admit()
        assert scene.claim_ids()[:3] == [bobs[0], alices, bobs[1]]

    def test_a_pause_and_its_reason_are_remembered(self, scene: Scene) -> None:
        gates.pause_task(scene.engine, "charge", who="ann", why="closing time", now=scene.now)
        other = second_engine(scene.engine)
        (gate,) = gates.gates(other)
        other.close()
        assert (gate.kind, gate.name, gate.cause) == ("task", "charge", "pause")
        assert (gate.shut_at, gate.shut_by, gate.shut_why) == (scene.now, "ann", "closing time")

    def test_a_job_that_is_set_aside_lets_go_of_its_keys(self, scene: Scene) -> None:
        key = (Limit("k", 1, KEPT),)
        first, second = enqueue(scene, new_job(task="charge", limits=key), new_job(task="mail", limits=key))
        gates.pause_task(scene.engine, "charge")
        assert gates.set_aside(scene.engine, ["default"]) == (1, {"k"})
        pass_on(scene, {"k"})
        (job,) = scene.claim()
        assert job.id == second
        gates.resume_task(scene.engine, "charge")
        scene.admit()
        assert scene.states()[first] == "blocked"
        pass_on(scene, scene.finish(job).freed)
        assert scene.claim_ids() == [first]

    def test_a_prefetched_job_of_a_task_that_was_paused_since_does_not_start(self, scene: Scene) -> None:
        scene.enqueue(new_job(task="charge"))
        (job,) = scene.claim(lease_us=60 * SECOND)
        gates.pause_task(scene.engine, "charge")
        assert start(scene.engine, ALICE, [job], now=scene.now) == set()
        gates.resume_task(scene.engine, "charge")
        assert start(scene.engine, ALICE, [job], now=scene.now) == {job.id}

    def test_a_job_that_is_set_aside_can_be_cancelled_and_expires(self, scene: Scene) -> None:
        one, two = scene.enqueue(
            new_job(task="charge"), new_job(task="charge", good_until=scene.now + SECOND)
        )
        gates.pause_task(scene.engine, "charge")
        assert claim_past(scene) == []
        control.withdraw(scene.engine, [one], "cancelled", Retention(), now=scene.now)
        scene.now += 2 * SECOND
        control.expire(scene.engine, Retention(), now=scene.now)
        assert scene.states() == {one: "cancelled", two: "expired"}


class TestCounting:
    def test_failures_in_a_row_open_and_a_success_starts_the_count_again(self, scene: Scene) -> None:
        declare(scene)
        assert say(scene, "failure", "failure").turned == []
        assert bank(scene).failures == 2
        say(scene, "success")
        assert bank(scene).failures == 0
        assert say(scene, "failure", "failure").turned == []
        (turned,) = say(scene, "failure").turned
        assert (turned.name, turned.opened_at, turned.failures) == ("bank", scene.now, 3)
        assert bank(scene).state is Circuit.OPEN
        assert bank(scene).opens_at == scene.now + 10 * SECOND

    def test_the_threshold_is_found_in_the_midst_of_a_batch(self, scene: Scene) -> None:
        declare(scene)
        say(scene, "failure", "success", "failure", "failure", "failure", "success", "success")
        assert (bank(scene).state, bank(scene).failures) == (Circuit.OPEN, 3)

    def test_an_end_without_a_verdict_changes_nothing(self, scene: Scene) -> None:
        declare(scene)
        say(scene, "failure", "none", "failure", "none")
        assert bank(scene).failures == 2

    def test_a_verdict_counts_only_if_its_end_does(self, scene: Scene) -> None:
        declare(scene, Breaker(failure_threshold=2))
        scene.enqueue(new_job())
        (job,) = scene.claim()
        end = judged(job, "failure")
        assert scene.advance(BOB, end).lost == [(job.id, job.epoch)]
        assert bank(scene).failures == 0
        assert scene.advance(ALICE, end).lost == []
        assert scene.advance(ALICE, end).lost == [(job.id, job.epoch)]  # repeated after a lost answer
        assert bank(scene).failures == 1

    def test_while_it_is_open_only_the_probe_is_heard(self, scene: Scene) -> None:
        declare(scene)
        say(scene, "failure", "failure", "failure")
        say(scene, "success", "failure", "success")
        assert (bank(scene).state, bank(scene).failures) == (Circuit.OPEN, 3)

    def test_breakers_of_many_names_are_told_in_one_go(self, scene: Scene) -> None:
        strict = Breaker(failure_threshold=1)
        gates.declare(
            scene.engine, Declared({"a": strict, "b": strict}, {("task", "x"): "a", ("task", "y"): "b"})
        )
        scene.enqueue(new_job())
        (job,) = scene.claim()
        both = (Verdict("a", "failure"), Verdict("b", "success"))
        answer = scene.advance(ALICE, JudgedEnd(job.id, job.epoch, "failed", verdicts=both))
        assert [(each.name, each.failures) for each in answer.turned] == [("a", 1)]

    def test_workers_that_fail_at_once_lose_no_count(self, scene: Scene) -> None:
        declare(scene, Breaker(failure_threshold=1000))
        scene.enqueue(*[new_job() for _ in range(40)])
        shares = [scene.claim(10, worker=ALICE + number) for number in range(4)]

        def fail(number: int) -> None:
            for job in shares[number]:
                scene.advance(ALICE + number, judged(job, "failure"))

        in_threads(4, fail)
        assert bank(scene).failures == 40


class TestOpenBreakers:
    def test_its_jobs_wait_and_use_no_attempt(self, scene: Scene) -> None:
        ids = tripped(scene)
        (other,) = scene.enqueue(new_job(task="mail"))
        assert scene.claim_ids() == [other]
        assert {scene.live(job)["attempt"] for job in ids} == {0}
        assert bank(scene).waiting == 3

    def test_no_probe_before_the_cooldown_is_over(self, scene: Scene) -> None:
        first, *_ = tripped(scene)
        scene.now += 10 * SECOND - 1
        assert elect(scene) is None
        scene.now += 1
        assert bank(scene).state is Circuit.HALF_OPEN
        assert elect(scene) == first

    def test_exactly_one_probe_passes(self, scene: Scene) -> None:
        first, *_ = tripped(scene)
        scene.now += 10 * SECOND
        assert elect(scene) == first
        assert elect(scene) is None
        assert scene.claim_ids() == [first]
        assert elect(scene) is None
        assert scene.claim_ids(worker=BOB) == []
        assert bank(scene).probe_job == first

    def test_many_electors_choose_one(self, scene: Scene) -> None:
        tripped(scene, jobs=10)
        scene.now += 10 * SECOND
        engines = [second_engine(scene.engine) for _ in range(4)]
        chosen: list[tuple[int, str]] = []

        def choose(number: int) -> None:
            found = gates.elect_probe(engines[number], "bank", ["default"], now=scene.now)
            chosen.extend([found] if found else [])

        in_threads(4, choose)
        for engine in engines:
            engine.close()
        assert len(chosen) == 1
        assert len(scene.claim()) == 1

    def test_a_probe_that_succeeds_closes_it_and_the_others_go_on_in_their_order(self, scene: Scene) -> None:
        first, *others = tripped(scene, jobs=5)
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        (turned,) = scene.advance(ALICE, judged(probe, "success")).turned
        assert (turned.opened_at, turned.failures) == (None, 0)
        assert bank(scene).state is Circuit.CLOSED
        assert gates.release(scene.engine) == 4
        scene.admit()
        assert probe.id == first
        assert scene.claim_ids() == others

    def test_a_probe_that_fails_opens_it_for_a_full_cooldown(self, scene: Scene) -> None:
        tripped(scene)
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        scene.now += SECOND
        (turned,) = scene.advance(ALICE, judged(probe, "failure", "scheduled")).turned
        assert turned.opened_at == scene.now
        scene.now += 10 * SECOND - 1
        assert elect(scene) is None
        scene.now += 1
        assert elect(scene) is not None

    def test_a_probe_without_a_verdict_lets_the_next_one_try_at_once(self, scene: Scene) -> None:
        first, *_ = tripped(scene)
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        scene.advance(ALICE, judged(probe, "none", "ready"))
        assert scene.claim() == []  # it is no probe any more
        assert elect(scene) is not None
        assert len(scene.claim()) == 1
        assert probe.id == first

    def test_a_probe_in_flight_is_not_replaced_however_long_it_takes(self, scene: Scene) -> None:
        tripped(scene)
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        scene.now += 3600 * SECOND
        assert elect(scene) is None
        assert scene.advance(ALICE, judged(probe, "success")).turned[0].opened_at is None

    def test_a_killed_probe_is_followed_by_one_other_when_its_lease_is_over(self, scene: Scene) -> None:
        tripped(scene)
        scene.register(ALICE)
        scene.register(BOB)
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        scene.bury(ALICE)
        scene.rescue()
        assert scene.claim(worker=BOB) == []  # rescued, it is a job like any other
        scene.now += 5 * SECOND - 1
        assert elect(scene) is None
        scene.now += 1
        assert elect(scene) is not None
        assert elect(scene) is None
        (second,) = scene.claim(worker=BOB)
        assert (second.id, second.epoch) != (probe.id, probe.epoch)
        assert scene.advance(ALICE, judged(probe, "success")).turned == []
        assert bank(scene).state is Circuit.HALF_OPEN
        assert scene.advance(BOB, judged(second, "success")).turned[0].opened_at is None

    def test_a_probe_that_nobody_claims_keeps_its_place(self, scene: Scene) -> None:
        first, *_ = tripped(scene)
        scene.now += 10 * SECOND
        elect(scene)
        scene.now += 60 * SECOND
        assert elect(scene) is None
        assert scene.claim_ids() == [first]

    def test_a_probe_whose_queue_is_served_no_longer_makes_room_for_another(self, scene: Scene) -> None:
        declare(scene)
        (stuck,) = scene.enqueue(new_job(task="charge", queue="far"))
        (near,) = scene.enqueue(new_job(task="charge", queue="near"))
        say(scene, "failure", "failure", "failure")
        assert claim_past(scene, "far", "near") == []
        scene.now += 10 * SECOND
        assert elect(scene, "far") == stuck
        assert elect(scene, "near") is None
        scene.now += 5 * SECOND
        assert elect(scene, "near") == near
        assert scene.claim_ids(queues=["far", "near"]) == [near]

    def test_a_cancelled_probe_is_followed_by_another_when_its_lease_is_over(self, scene: Scene) -> None:
        first, second, _ = tripped(scene)
        scene.now += 10 * SECOND
        elect(scene)
        control.withdraw(scene.engine, [first], "cancelled", Retention(), now=scene.now)
        scene.now += 5 * SECOND
        assert elect(scene) == second

    def test_a_probe_does_not_pass_a_pause(self, scene: Scene) -> None:
        tripped(scene)
        scene.now += 10 * SECOND
        gates.pause_task(scene.engine, "charge")
        assert elect(scene) is None
        gates.resume_task(scene.engine, "charge")
        assert claim_past(scene) == []
        assert elect(scene) is not None

    def test_a_resumed_task_stays_shut_behind_its_breaker(self, scene: Scene) -> None:
        tripped(scene)
        gates.pause_task(scene.engine, "charge")
        gates.resume_task(scene.engine, "charge")
        scene.admit()
        assert scene.claim() == []

    def test_a_probe_with_a_key_lines_up_at_it_first(self, scene: Scene) -> None:
        declare(scene)
        enqueue(scene, new_job(task="charge", limits=(Limit("k", 1, KEPT),)))
        say(scene, "failure", "failure", "failure")
        assert gates.set_aside(scene.engine, ["default"]) == (1, {"k"})
        scene.now += 10 * SECOND
        probe = elect(scene)
        scene.admit()
        assert scene.claim_ids() == [probe]

    def test_a_clock_that_steps_back_keeps_it_open_for_a_cooldown_at_most(self, scene: Scene) -> None:
        tripped(scene)
        scene.now -= 3600 * SECOND
        assert elect(scene) is None
        scene.now += 10 * SECOND
        assert elect(scene) is not None

    def test_its_state_outlives_the_process(self, scene: Scene) -> None:
        tripped(scene)
        other = second_engine(scene.engine)
        gates.declare(other, Declared({"bank": BANK}, CHARGE))
        (row,) = gates.breakers(other, now=scene.now)
        other.close()
        assert (row.state, row.failures, row.opened_at) == (Circuit.OPEN, 3, scene.now)
        assert row.guards == ("task:charge",)
        assert row.opened_why == "3 failures in a row"

    def test_tasks_share_a_breaker_by_its_name(self, scene: Scene) -> None:
        declare(scene, task_charge="", task_refund="")
        scene.enqueue(new_job(task="charge"), new_job(task="refund"))
        say(scene, "failure", "failure", "failure")
        assert claim_past(scene) == []
        scene.now += 10 * SECOND
        assert elect(scene) is not None
        assert len(scene.claim()) == 1

    def test_who_declares_an_open_breaker_is_shut_at_once(self, scene: Scene) -> None:
        tripped(scene)
        scene.enqueue(new_job(task="refund"))
        declare(scene, task_charge="", task_refund="")
        assert scene.claim() == []

    def test_who_declares_no_breaker_any_more_is_free(self, scene: Scene) -> None:
        ids = tripped(scene)
        gates.declare(scene.engine, Declared(free=[("task", "charge"), ("task", "mail")]))
        gates.release(scene.engine)
        scene.admit()
        assert scene.claim_ids() == ids

    def test_waiting_jobs_are_told_apart_from_the_probe(self, scene: Scene) -> None:
        first, *others = tripped(scene)
        assert sorted(gates.waiting_at(scene.engine, "bank")) == [first, *others]
        scene.now += 10 * SECOND
        elect(scene)
        assert sorted(gates.waiting_at(scene.engine, "bank")) == others


class TestBreakersOfQueues:
    def test_a_shut_queue_gives_nothing_but_the_probe(self, scene: Scene) -> None:
        declare(scene, queue_default="")
        first, *others = scene.enqueue(*[new_job() for _ in range(4)])
        (free,) = scene.enqueue(new_job(queue="aux2"))
        say(scene, "failure", "failure", "failure")
        assert scene.claim_ids(queues=["default", "aux2"]) == [free]
        assert {scene.live(job)["state"] for job in others} == {"ready"}  # nothing is moved
        assert bank(scene).waiting == 4
        scene.now += 10 * SECOND
        assert elect(scene) == first
        assert scene.claim_ids() == [first]
        assert scene.claim() == []
        assert elect(scene) is None

    def test_the_probe_of_a_queue_decides(self, scene: Scene) -> None:
        declare(scene, queue_default="")
        scene.enqueue(*[new_job() for _ in range(4)])
        say(scene, "failure", "failure", "failure")
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        scene.advance(ALICE, judged(probe, "success"))
        assert len(scene.claim()) == 3

    def test_a_rescued_probe_of_a_queue_waits_for_its_lease(self, scene: Scene) -> None:
        declare(scene, queue_default="")
        scene.register(ALICE)
        scene.enqueue(*[new_job() for _ in range(2)])
        say(scene, "failure", "failure", "failure")
        scene.now += 10 * SECOND
        elect(scene)
        scene.claim()
        scene.bury(ALICE)
        scene.rescue()
        assert scene.claim(worker=BOB) == []
        scene.now += 5 * SECOND
        assert elect(scene) is not None
        assert len(scene.claim(worker=BOB)) == 1

    def test_a_probe_is_bound_by_the_cap_of_its_queue(self, scene: Scene) -> None:
        declare(scene, queue_default="")
        control.set_cap(scene.engine, "default", 1)
        scene.enqueue(new_job(), new_job())
        wants = Claim([Want("default", 0, 5)], 5, under_caps=True)
        (running,) = scene.advance(ALICE, claim=wants).claimed
        say(scene, "failure", "failure", "failure")
        scene.now += 10 * SECOND
        elect(scene)
        assert scene.advance(ALICE, claim=wants).claimed == []
        scene.finish(running)
        assert len(scene.advance(ALICE, claim=wants).claimed) == 1

    def test_one_job_probes_the_breaker_of_its_task_and_that_of_its_queue(self, scene: Scene) -> None:
        both(scene)
        first, *_ = scene.enqueue(*[new_job(task="charge") for _ in range(3)])
        trip_both(scene)
        scene.now += 10 * SECOND
        assert (elect(scene), elect(scene, breaker="post")) == (None, None)
        assert (
            gates.set_aside(scene.engine, ["default"])[0] == 3
        )  # no claim meets them in a queue that is shut
        assert (elect(scene), elect(scene, breaker="post")) == (first, first)
        (probe,) = scene.claim()
        verdicts = (Verdict("bank", "success"), Verdict("post", "success"))
        scene.advance(ALICE, JudgedEnd(probe.id, probe.epoch, "succeeded", keep_us=SECOND, verdicts=verdicts))
        assert gates.open_breakers(scene.engine, now=scene.now) == []

    def test_the_probe_of_a_task_is_not_chosen_behind_a_queue_that_stays_shut(self, scene: Scene) -> None:
        both(scene)
        scene.enqueue(new_job(task="charge", priority=-1))
        (near,) = scene.enqueue(new_job(task="charge", queue="near"))
        say(scene, "failure", "failure", "failure")
        assert claim_past(scene, "default", "near") == []
        gates.open_breaker(scene.engine, "post", now=scene.now)
        scene.now += 10 * SECOND
        assert elect(scene, "default", "near") == near

    def test_the_probe_of_a_task_is_not_chosen_in_a_queue_that_is_held(self, scene: Scene) -> None:
        declare(scene)
        scene.enqueue(new_job(task="charge", priority=-1))
        (near,) = scene.enqueue(new_job(task="charge", queue="near"))
        say(scene, "failure", "failure", "failure")
        assert claim_past(scene, "default", "near") == []
        control.set_cap(scene.engine, "default", 0)
        scene.now += 10 * SECOND
        assert elect(scene, "default") is None
        assert elect(scene, "default", "near") == near

    def test_a_prefetched_job_of_a_queue_that_was_shut_since_does_not_start(self, scene: Scene) -> None:
        declare(scene, queue_default="")
        scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=3600 * SECOND)
        say(scene, "failure", "failure", "failure")
        assert start(scene.engine, ALICE, [job], now=scene.now) == set()

    def test_a_prefetched_probe_starts(self, scene: Scene) -> None:
        declare(scene, queue_default="")
        scene.enqueue(new_job())
        say(scene, "failure", "failure", "failure")
        scene.now += 10 * SECOND
        elect(scene)
        (job,) = scene.claim(lease_us=3600 * SECOND)
        assert start(scene.engine, ALICE, [job], now=scene.now) == {job.id}


class Model:
    """The pure rule beside the store: what it says after each step is what the store must say."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.random = random.Random(seed)
        self.state = BreakerState()
        self.probe: Claimed | None = None

    def say(self) -> None:
        outcomes = self.random.choices(["success", "failure", "none"], [2, 5, 1], k=self.random.randint(1, 6))
        say(self.scene, *outcomes)
        for outcome in outcomes:
            if outcome == "failure":
                self.state = record_failure(BANK, self.state, self.scene.now)
            elif outcome == "success":
                self.state = record_success(self.state)

    def pass_time(self) -> None:
        self.scene.now += self.random.choice([1, 2, 5, 9, 10, 30, -3]) * SECOND

    def elect(self) -> None:
        if self.probe is not None:
            self.state = extend_probe(BANK, self.state, self.scene.now, "probe")
        verdict = allow(BANK, self.state, self.scene.now, "probe")
        self.state = verdict.state
        self.scene.enqueue(new_job(task="charge"))
        gates.set_aside(self.scene.engine, ["default"])
        assert (elect(self.scene) is not None) == (verdict.answer == "probe")
        if verdict.answer == "probe":
            (self.probe,) = self.scene.claim()

    def end_probe(self) -> None:
        if self.probe is None:
            return
        outcome = self.random.choice(["success", "failure", "none"])
        self.scene.advance(ALICE, judged(self.probe, outcome))
        self.probe = None
        if outcome == "success":
            self.state = record_success(self.state, "probe")
            gates.release(self.scene.engine)
            self.scene.admit()
            for job in self.scene.claim(1000):  # nobody may stand in the way of the next probe
                self.scene.finish(job)
        elif outcome == "failure":
            self.state = record_failure(BANK, self.state, self.scene.now, "probe")
        else:
            self.state = release_probe(self.state, "probe")


@on_both_engines
@pytest.mark.parametrize("seed", range(8))
def test_the_store_says_what_the_rule_says(scene: Scene, seed: int) -> None:
    declare(scene)
    model = Model(scene, seed)
    for _ in range(60):
        model.random.choice([model.say, model.pass_time, model.pass_time, model.elect, model.end_probe])()
        row = bank(scene)
        assert (row.failures, row.opened_at) == (model.state.failures, model.state.opened_at)
        assert row.state is circuit(BANK, model.state, scene.now)


class TestByHand:
    def test_opened_by_hand_it_stays_open_until_it_is_closed_by_hand(self, scene: Scene) -> None:
        declare(scene)
        ids = scene.enqueue(new_job(task="charge"))
        assert gates.open_breaker(scene.engine, "bank", who="ann", why="the bank moves", now=scene.now)
        assert claim_past(scene) == []
        scene.now += 3600 * SECOND
        assert elect(scene) is None
        row = bank(scene)
        assert (row.state, row.opens_at, row.opened_by, row.opened_why) == (
            Circuit.OPEN, None, "ann", "the bank moves",
        )  # fmt: skip
        assert gates.close_breaker(scene.engine, "bank") is True
        scene.admit()
        assert scene.claim_ids() == ids

    def test_a_reset_forgets_the_failures_of_a_closed_breaker(self, scene: Scene) -> None:
        declare(scene)
        say(scene, "failure", "failure")
        assert gates.close_breaker(scene.engine, "bank", forgets=False) is False
        assert bank(scene).failures == 2
        assert gates.close_breaker(scene.engine, "bank") is False
        assert bank(scene).failures == 0

    def test_a_name_that_nobody_has_declared_is_told(self, scene: Scene) -> None:
        assert not gates.open_breaker(scene.engine, "bnak")
        assert gates.close_breaker(scene.engine, "bnak") is None

    def test_the_probe_of_a_breaker_that_was_opened_by_hand_is_not_heard(self, scene: Scene) -> None:
        tripped(scene)
        scene.now += 10 * SECOND
        elect(scene)
        (probe,) = scene.claim()
        gates.open_breaker(scene.engine, "bank", now=scene.now)
        assert scene.advance(ALICE, judged(probe, "success")).turned == []
        assert bank(scene).state is Circuit.OPEN


def test_nothing_is_shut_where_nothing_was_declared(scene: Scene) -> None:
    scene.enqueue(new_job())
    assert len(scene.claim()) == 1
    for table in ("gate", "guard", "breaker"):
        assert rows_of(scene.engine, table) == []


@pytest.mark.parametrize("jobs", [1, 1200])
def test_everything_that_was_set_aside_comes_back(scene: Scene, jobs: int) -> None:
    ids = scene.enqueue(*[new_job(task="charge") for _ in range(jobs)])
    gates.pause_task(scene.engine, "charge")
    while gates.set_aside(scene.engine, ["default"])[0]:
        pass
    gates.resume_task(scene.engine, "charge")
    while scene.admit() or gates.release(scene.engine):
        pass
    assert scene.claim_ids(2000) == ids
