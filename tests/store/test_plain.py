"""Plain rounds hold what `advance` promises: the same cases run over them. And they say when there is more to it."""

from collections.abc import Callable

import msgspec
import pytest

from evenflow.job import Claimed, End
from evenflow.queues import Queue
from evenflow.store.advance import NOTHING, Advanced, Bound, Claim, Reached, Want, advance
from evenflow.store.control import declare_cluster, declare_queue
from evenflow.store.open import AnyEngine
from evenflow.store.plain import advance_plainly, are_plain, is_plain
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import await_job
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, execute, new_job, rows_of
from tests.store.test_advance import (  # the same cases, with the scene of this module
    TestAnEnd,
    TestAReturn,
    TestTheClaim,
)

SAME = (TestTheClaim, TestAnEnd, TestAReturn)
FIVE = Claim((Want("default", 0, 5),), 5)


class PlainScene(Scene):
    """A scene whose rounds are plain wherever they can be, as those of a worker are."""

    def __init__(self, engine: AnyEngine) -> None:
        super().__init__(engine)
        self._plain: set[tuple[int, int]] = set()
        self.rounds = 0

    def advance(self, worker: int, *ends: End, claim: Claim = NOTHING) -> Advanced:
        marked = [msgspec.structs.replace(end, is_plain=self._is_plain(end)) for end in ends]
        if not (is_plain(claim, self.engine.kind) and are_plain(marked)):
            return super().advance(worker, *ends, claim=claim)
        self.rounds += 1
        answer = advance_plainly(self.engine, worker, marked, claim, now=self.now)
        self._plain |= {(job.id, job.epoch) for job in answer.claimed if job.is_plain}
        if not answer.is_rich:
            return answer
        claimed = super().advance(worker, claim=claim)
        return msgspec.structs.replace(claimed, lost=answer.lost, awaited=answer.awaited)

    def _is_plain(self, end: End) -> bool:
        return end.state == "succeeded" and (end.id, end.epoch) in self._plain


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> AnyEngine:
    engine: AnyEngine = request.getfixturevalue(f"{request.param}_store")
    return engine


@pytest.fixture
def scene(store: AnyEngine) -> PlainScene:
    return PlainScene(store)


@pytest.fixture
def plain(store: AnyEngine) -> Scene:
    return Scene(store)


def claimed(scene: Scene, claim: Claim = FIVE) -> Advanced:
    return advance_plainly(scene.engine, ALICE, [], claim, now=scene.now)


def ended(scene: Scene, *jobs: Claimed, worker: int = ALICE, result: str | None = "null") -> Advanced:
    ends = [end_of(job, result=result) for job in jobs]
    return advance_plainly(scene.engine, worker, ends, now=scene.now)


def limit(scene: Scene, job: int) -> None:
    execute(scene.engine, f"update evenflow_job set limits = '[]' where id = {job}")


def shut(scene: Scene) -> None:
    execute(
        scene.engine,
        "insert into evenflow_gate (kind, name, cause, shut_at) values ('task', 'other', 'pause', 1)",
    )


def test_the_cases_above_really_ran_plain_rounds(scene: PlainScene) -> None:
    scene.enqueue(new_job())
    scene.finish(scene.claim()[0])
    assert scene.rounds == 2


@pytest.mark.parametrize(
    "result", ["null", '"a \\"b\\" \\\\ c"', '{"a":[1,2],"b":"{},"}', '"\'ü€\\u0000 NULL"', '""', "[]"]
)
def test_a_result_is_stored_byte_for_byte(plain: Scene, result: str) -> None:
    (job,) = plain.enqueue(new_job())
    ended(plain, *claimed(plain).claimed, result=result)
    assert plain.kept(job)["result"] == result


def test_a_run_without_a_result_stores_none(plain: Scene) -> None:
    (job,) = plain.enqueue(new_job())
    ended(plain, *claimed(plain).claimed, result=None)
    assert plain.kept(job)["result"] is None


def test_what_is_kept_is_what_advance_would_keep(plain: Scene) -> None:
    first, second = plain.enqueue(
        *[new_job(group="g", headers="{}", options="{}", unique_key=key) for key in "ab"]
    )
    one, other = claimed(plain).claimed
    ended(plain, one)
    plain.finish(other, result="null")
    differ = {"id", "unique_key", "payload"}
    rows = [
        {name: value for name, value in plain.kept(job).items() if name not in differ}
        for job in (first, second)
    ]
    assert rows[0] == rows[1]


def test_some_ends_that_are_refused_are_told_and_the_others_count(plain: Scene) -> None:
    jobs = plain.enqueue(*[new_job() for _ in range(3)])
    mine = claimed(plain).claimed
    execute(plain.engine, f"update evenflow_job set worker = {BOB} where id = {jobs[1]}")
    answer = ended(plain, *mine)
    assert answer.lost == [(jobs[1], 1)]
    assert plain.states() == {jobs[0]: "succeeded", jobs[1]: "running", jobs[2]: "succeeded"}


def test_ends_that_are_all_refused_are_all_told(plain: Scene) -> None:
    (job,) = plain.enqueue(new_job())
    answer = ended(plain, *claimed(plain).claimed, worker=BOB)
    assert (answer.lost, plain.states()) == ([(job, 1)], {job: "running"})


def test_ends_that_somebody_waits_for_are_told(plain: Scene) -> None:
    first, _ = plain.enqueue(new_job(), new_job())
    mine = claimed(plain).claimed
    await_job(plain.engine, first)
    assert ended(plain, *mine).awaited == [first]


@pytest.mark.parametrize("form", [advance, advance_plainly])
def test_a_claim_says_which_jobs_are_plain(plain: Scene, form: Callable[..., Advanced]) -> None:
    plain.enqueue(new_job(), new_job(run_id=7))
    jobs = form(plain.engine, ALICE, [], FIVE, now=plain.now).claimed
    # Isolated processes are told of their job in messages that are checked for types.
    assert [job.is_plain is True for job in jobs] == [True, False]


def test_a_job_with_keys_or_rates_is_not_plain(plain: Scene) -> None:
    limit(plain, plain.enqueue(new_job(), new_job())[1])
    assert [job.is_plain is True for job in plain.claim()] == [True, False]


class TestItClaimsNothingAndSaysSo:
    def test_where_the_queue_has_a_cap(self, plain: Scene) -> None:
        plain.enqueue(new_job())
        declare_queue(plain.engine, Queue("default", max_concurrency=3))
        self.expect_rich(plain)

    def test_where_the_cluster_has_a_cap(self, plain: Scene) -> None:
        plain.enqueue(new_job())
        declare_cluster(plain.engine, 3)
        self.expect_rich(plain)

    def test_where_a_gate_is_shut(self, plain: Scene) -> None:
        plain.enqueue(new_job())
        shut(plain)
        self.expect_rich(plain)

    def test_where_one_of_the_first_jobs_has_a_key(self, plain: Scene) -> None:
        limit(plain, plain.enqueue(new_job(), new_job())[1])
        self.expect_rich(plain)

    def test_but_not_where_that_job_comes_later(self, plain: Scene) -> None:
        first, later = plain.enqueue(new_job(), new_job(priority=5))
        limit(plain, later)
        answer = claimed(plain, Claim((Want("default", 0, 1),), 1))
        assert ([job.id for job in answer.claimed], answer.is_rich) == ([first], False)

    def test_and_the_ends_are_written(self, plain: Scene) -> None:
        job, _ = plain.enqueue(new_job(), new_job())
        mine = claimed(plain, Claim((Want("default", 0, 1),), 1)).claimed
        declare_cluster(plain.engine, 3)
        answer = advance_plainly(plain.engine, ALICE, [end_of(mine[0])], FIVE, now=plain.now)
        assert (answer.claimed, answer.is_rich) == ([], True)
        assert plain.states()[job] == "succeeded"

    def test_unless_nothing_was_to_be_claimed(self, plain: Scene) -> None:
        plain.enqueue(new_job())
        mine = claimed(plain).claimed
        declare_cluster(plain.engine, 3)
        assert not ended(plain, *mine).is_rich

    @staticmethod
    def expect_rich(scene: Scene) -> None:
        answer = claimed(scene)
        assert (answer.claimed, answer.is_rich) == ([], True)
        assert set(scene.states().values()) <= {"ready", "blocked"}


class TestUnderCapsOnSqlite:
    """Whoever writes there is alone, so a plain round may count."""

    UNDER = msgspec.structs.replace(FIVE, under_caps=True)

    @pytest.fixture
    def plain(self, sqlite_store: AnyEngine) -> Scene:
        return Scene(sqlite_store)

    def test_it_takes_what_the_cap_of_the_queue_leaves(self, plain: Scene) -> None:
        plain.enqueue(*[new_job() for _ in range(6)])
        declare_queue(plain.engine, Queue("default", max_concurrency=3))
        mine = claimed(plain, self.UNDER).claimed
        assert len(mine) == 3 and all(job.is_plain for job in mine)
        at_the_cap = claimed(plain, self.UNDER)
        assert (at_the_cap.claimed, at_the_cap.is_rich) == ([], False)
        answer = advance_plainly(plain.engine, ALICE, [end_of(mine[0])], self.UNDER, now=plain.now)
        assert len(answer.claimed) == 1

    def test_it_takes_what_the_cap_of_the_cluster_leaves(self, plain: Scene) -> None:
        plain.enqueue(*[new_job(queue=queue) for queue in ("a", "b", "b")])
        declare_cluster(plain.engine, 2)
        both = Claim((Want("a", 0, 5), Want("b", 1, 5)), 5, under_caps=True)
        assert [job.queue for job in claimed(plain, both).claimed] == ["a", "b"]
        at_the_cap = claimed(plain, both)
        assert (at_the_cap.claimed, at_the_cap.is_rich) == ([], False)

    def test_what_others_hold_before_it_runs_counts(self, plain: Scene) -> None:
        plain.enqueue(*[new_job(queue=queue) for queue in ("a", "a", "b")])
        declare_queue(plain.engine, Queue("a", max_concurrency=1))
        held = Claim((Want("a", 0, 1),), 1, lease_us=SECOND, under_caps=True)
        assert plain.advance(BOB, claim=held).claimed
        both = Claim((Want("a", 0, 5), Want("b", 1, 5)), 5, under_caps=True)
        assert [job.queue for job in claimed(plain, both).claimed] == ["b"]

    def test_a_key_among_the_first_is_told_only_where_there_is_room(self, plain: Scene) -> None:
        declare_queue(plain.engine, Queue("default", max_concurrency=1))
        plain.enqueue(new_job())
        assert claimed(plain, self.UNDER).claimed
        limit(plain, plain.enqueue(new_job())[0])
        assert not claimed(plain, self.UNDER).is_rich
        declare_queue(plain.engine, Queue("default", max_concurrency=2))
        assert claimed(plain, self.UNDER).is_rich

    def test_a_gate_is_told(self, plain: Scene) -> None:
        plain.enqueue(new_job())
        shut(plain)
        assert claimed(plain, self.UNDER).is_rich


def test_a_bound_is_that_of_its_queue_and_priority_only(plain: Scene) -> None:
    jobs = plain.enqueue(*[new_job(queue=queue, priority=priority) for queue in "ab" for priority in (0, 5)])
    behind = [Bound("a", 5, 1e9, 1), Bound("b", 0, 1e9, 1), Bound("elsewhere", 0, 1e9, 1)]
    claim = Claim((Want("a", 0, 5), Want("b", 1, 5)), 5, behind)
    assert [job.id for job in claimed(plain, claim).claimed] == [jobs[0], jobs[3]]


def claimed_twice(scene: Scene) -> tuple[Claimed, Claimed]:
    (job,) = scene.enqueue(new_job())
    (first,) = claimed(scene).claimed
    execute(scene.engine, f"update evenflow_job set state = 'ready', worker = null where id = {job}")
    (second,) = claimed(scene).claimed
    return first, second


def test_the_end_of_an_earlier_claim_is_refused_and_changes_nothing(plain: Scene) -> None:
    first, second = claimed_twice(plain)
    assert ended(plain, first).lost == [(first.id, first.epoch)]
    assert plain.states() == {second.id: "running"}


def test_of_two_ends_of_one_job_the_later_claim_s_counts_in_either_order(plain: Scene) -> None:
    first, second = claimed_twice(plain)
    ended(plain, second, first, result='"kept"')
    assert plain.states() == {second.id: "succeeded"}


class TestWhatWasReached:
    """By claims that left V where it was."""

    REACHED = (Reached("default", 0, 7.0), Reached("other", 5, 2.5))

    def test_moves_v_by_a_round_that_asks_for_nothing(self, plain: Scene) -> None:
        (job,) = plain.enqueue(new_job())
        answer = claimed(plain, Claim(reached=self.REACHED))
        assert (answer.rounds, answer.claimed) == ({("default", 0): 7.0, ("other", 5): 2.5}, [])
        assert vs(plain) == answer.rounds
        assert plain.states() == {job: "ready"}

    def test_moves_v_along_with_ends_and_with_a_claim(self, plain: Scene) -> None:
        plain.enqueue(new_job(), new_job())
        (job,) = claimed(plain, Claim((Want("default", 0, 1),), 1, moves_v=False)).claimed
        claim = msgspec.structs.replace(FIVE, reached=self.REACHED[1:])
        answer = advance_plainly(plain.engine, ALICE, [end_of(job, result="null")], claim, now=plain.now)
        assert answer.rounds == vs(plain) == {("default", 0): 1.0, ("other", 5): 2.5}

    def test_moves_v_also_where_a_round_claims_nothing_since_there_is_more_to_it(self, plain: Scene) -> None:
        plain.enqueue(new_job())
        declare_cluster(plain.engine, 3)
        answer = claimed(plain, msgspec.structs.replace(FIVE, reached=self.REACHED))
        assert answer.is_rich
        assert answer.rounds == vs(plain) == {("default", 0): 7.0, ("other", 5): 2.5}

    def test_never_moves_v_back_and_says_where_it_is(self, plain: Scene) -> None:
        claimed(plain, Claim(reached=self.REACHED))
        answer = claimed(plain, Claim(reached=(Reached("default", 0, 3.0),)))
        assert answer.rounds == {("default", 0): 7.0}
        assert vs(plain)["default", 0] == 7.0

    def test_does_not_wait_for_whoever_holds_v(self, postgres_store: PostgresEngine) -> None:
        plain = Scene(postgres_store)
        claimed(plain, Claim(reached=self.REACHED))
        with postgres_store.connect() as other, other.transaction():
            other.execute("select from evenflow.round where queue = 'default' for update")
            further = tuple(msgspec.structs.replace(band, turn=9.0) for band in self.REACHED)
            assert claimed(plain, Claim(reached=further)).rounds == {("other", 5): 9.0}
        assert vs(plain) == {("default", 0): 7.0, ("other", 5): 9.0}


def vs(scene: Scene) -> dict[tuple[str, int], float]:
    return {(row["queue"], row["priority"]): row["v"] for row in rows_of(scene.engine, "round")}
