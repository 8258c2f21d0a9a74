"""Tasks: plain calls, enqueueing one and many, and what one call may say differently."""

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from evenflow import (
    Context,
    DuplicateJob,
    EnqueueError,
    Evenflow,
    Job,
    PayloadError,
    Queue,
    Retry,
    State,
    Unique,
    UnknownQueue,
)
from evenflow.client.task import Task
from evenflow.ids import id_text
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.store.crowd import in_threads

Order = list[int]


def drain(app: Evenflow, **options: Any) -> None:
    app.run_worker(until_empty=True, **options)


def add(a: int, b: int = 2) -> int:
    return a + b


def adder(app: Evenflow, **options: Any) -> Task[..., int, int]:
    """The task `add` of this app. To declare one function again is to declare it anew."""
    return app.task(name="add", **options)(add)


def recorder(app: Evenflow, **options: Any) -> tuple[Task[[int], None, None], Order]:
    """A task that notes the order in which its jobs ran."""
    order: Order = []

    def note(number: int) -> None:
        order.append(number)

    return app.task(name="note", **options)(note), order


def test_a_plain_call_runs_the_function_here_and_stores_nothing(app: Evenflow) -> None:
    assert adder(app)(1, 2) == 3
    assert adder(app)(1) == 3
    assert list(app.jobs()) == []


async def test_a_plain_call_of_a_coroutine_is_awaited_here(sqlite_app: Evenflow) -> None:
    @sqlite_app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    assert await double(4) == 8
    assert list(sqlite_app.jobs()) == []


def test_a_plain_call_gives_a_context_where_the_function_wants_one(sqlite_app: Evenflow) -> None:
    @sqlite_app.task(queue="docs", name="look")
    def look(ctx: Context, number: int) -> tuple[str, str, int, bool, int]:
        ctx.progress(1, 2)
        return ctx.task, ctx.queue, ctx.attempt, ctx.cancelled, number

    assert look(7) == ("look", "docs", 1, False, 7)
    assert look(number=7) == ("look", "docs", 1, False, 7)


def test_a_plain_call_keeps_a_context_that_it_is_given(sqlite_app: Evenflow) -> None:
    @sqlite_app.task(name="look")
    def look(ctx: Context, number: int) -> tuple[str, int]:
        return ctx.job_id, number

    own = Context(job_id="mine", task="look", attempt=3, fence=9, queue="default")
    call: Callable[..., tuple[str, int]] = look
    assert call(own, 7) == ("mine", 7)
    assert call(ctx=own, number=7) == ("mine", 7)


def test_a_task_looks_like_its_function(sqlite_app: Evenflow) -> None:
    @sqlite_app.task
    def documented(number: int) -> None:
        """What it does."""

    assert documented.__doc__ == "What it does."
    assert getattr(documented, "__name__", None) == "documented"
    assert documented.name == (f"{__name__}.test_a_task_looks_like_its_function.documented")
    assert repr(documented) == f"<Task {documented.name}>"


def test_enqueue_stores_a_job_that_a_worker_runs(app: Evenflow) -> None:
    job = adder(app).enqueue(1, b=5)
    assert (job.state, job.task, job.queue, job.priority, job.is_new) == (
        State.READY,
        "add",
        "default",
        0,
        True,
    )
    assert app.job(job.id).state is State.READY
    drain(app)
    assert job.result(timeout=0) == 6
    assert job.state is State.SUCCEEDED


async def test_aenqueue_stores_a_job_that_a_worker_runs(app: Evenflow) -> None:
    job = await adder(app).aenqueue(1, 2)
    await app.arun_worker(until_empty=True)
    assert await job.aresult(timeout=0) == 3


def test_a_named_argument_may_be_called_self(app: Evenflow) -> None:
    def named(**values: int) -> dict[str, int]:
        return values

    task = app.task(named)
    assert task(self=1) == {"self": 1}
    jobs = [task.enqueue(self=2), *task.enqueue_many([{"self": 3}])]
    drain(app)
    assert [job.result(timeout=30) for job in jobs] == [{"self": 2}, {"self": 3}]


def test_coroutines_run_too(app: Evenflow) -> None:
    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    job = double.enqueue(4)
    drain(app)
    assert job.result(timeout=0) == 8


def test_a_context_is_given_by_the_worker_and_is_no_part_of_the_call(app: Evenflow) -> None:
    @app.task(group="tenant", queue="docs", timeout=60)
    def look(ctx: Context, tenant: str) -> list[Any]:
        return [ctx.job_id, ctx.attempt, ctx.fence, ctx.queue, ctx.group, ctx.deadline is not None]

    job = look.enqueue("bob")
    drain(app)
    assert job.result(timeout=0) == [job.id, 1, 1, "docs", "bob", True]
    assert job.args == ("bob",)


def test_ids_of_one_app_ascend_and_read_back(app: Evenflow) -> None:
    jobs = [adder(app).enqueue(1, 2) for _ in range(5)]
    ids = [job.id for job in jobs]
    assert ids == sorted(set(ids))
    assert [app.job(id) for id in ids] == jobs
    assert all(len(id) <= 36 for id in ids)


def test_enqueue_many_takes_tuples_lists_and_dicts_and_keeps_their_order(app: Evenflow) -> None:
    jobs = adder(app).enqueue_many([(1, 2), [3, 4], {"a": 5, "b": 6}, (7,)])
    drain(app)
    assert [job.result(timeout=0) for job in jobs] == [3, 7, 11, 9]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)


async def test_aenqueue_many_is_enqueue_many_awaited(app: Evenflow) -> None:
    jobs = await adder(app).aenqueue_many([(1, 2), (3, 4)])
    assert await adder(app).aenqueue_many([]) == []
    await app.arun_worker(until_empty=True)
    assert [await job.aresult(timeout=0) for job in jobs] == [3, 7]


def test_enqueue_many_of_nothing_is_nothing(app: Evenflow) -> None:
    assert adder(app).enqueue_many([]) == []
    assert app.enqueue_many([]) == []


@pytest.mark.parametrize("call", ["ab", 7, None])
def test_enqueue_many_refuses_what_is_no_set_of_arguments(app: Evenflow, call: Any) -> None:
    with pytest.raises(
        PayloadError, match=r"expected a tuple or a dict of arguments for each call, got .*write \[\(1, 2\)"
    ):
        adder(app).enqueue_many([(1, 2), call])
    assert list(app.jobs()) == []


def test_app_enqueue_many_takes_calls_of_any_tasks(app: Evenflow) -> None:
    sums = adder(app)
    note, order = recorder(app, queue="notes")
    jobs = app.enqueue_many([sums.job(1, 2), note.job(7), sums.using(priority=-5).job(3, 4)])
    assert [(job.task, job.queue, job.priority) for job in jobs] == [
        ("add", "default", 0), ("note", "notes", 0), ("add", "default", -5),
    ]  # fmt: skip
    drain(app)
    assert [job.result(timeout=0) for job in jobs] == [3, None, 7]
    assert order == [7]


async def test_app_aenqueue_many_is_enqueue_many_awaited(sqlite_app: Evenflow) -> None:
    jobs = await sqlite_app.aenqueue_many([adder(sqlite_app).job(1, 2)])
    await sqlite_app.arun_worker(until_empty=True)
    assert [await job.aresult(timeout=0) for job in jobs] == [3]


@pytest.mark.parametrize("not_a_call", [(1, 2), "add", None])
def test_app_enqueue_many_refuses_what_is_no_call(sqlite_app: Evenflow, not_a_call: Any) -> None:
    with pytest.raises(EnqueueError, match=r"expected calls made by task.job\(...\), got"):
        sqlite_app.enqueue_many([adder(sqlite_app).job(1, 2), not_a_call])
    assert list(sqlite_app.jobs()) == []


def test_app_enqueue_many_refuses_the_calls_of_another_app(make_app: MakeApp, sqlite_app: Evenflow) -> None:
    other = adder(make_app("sqlite:///:memory:"))
    with pytest.raises(EnqueueError, match="task 'add' belongs to another app"):
        sqlite_app.enqueue_many([other.job(1, 2)])


def test_job_binds_and_encodes_without_storing(app: Evenflow) -> None:
    call = adder(app).using(queue="sums").job(1, 2)
    assert repr(call) == "<Call of add for queue 'sums'>"
    assert list(app.jobs()) == []
    with pytest.raises(PayloadError):
        adder(app).job("one", 2)


def test_lower_priorities_run_first_and_equal_ones_in_their_order(app: Evenflow) -> None:
    note, order = recorder(app)
    for number, priority in enumerate([0, 5, -5, 100, -100, -5]):
        note.using(priority=priority).enqueue(number)
    drain(app, concurrency=1)
    assert order == [4, 2, 5, 0, 1, 3]


def test_a_priority_of_the_task_is_that_of_its_jobs(app: Evenflow) -> None:
    assert adder(app, priority=-7).enqueue(1, 2).refresh().priority == -7


@pytest.mark.parametrize(
    "run_after",
    [3600, 3600.0, "1h", timedelta(hours=1), lambda: datetime.now(UTC) + timedelta(hours=1)],
    ids=["int", "float", "text", "timedelta", "datetime"],
)
def test_run_after_schedules_the_job(app: Evenflow, run_after: Any) -> None:
    due = run_after() if callable(run_after) else run_after
    job = adder(app).using(run_after=due).enqueue(1, 2)
    assert job.state is State.SCHEDULED
    stored = app.job(job.id)
    assert stored.state is State.SCHEDULED
    assert abs(stored.run_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    drain(app)
    assert stored.refresh().state is State.SCHEDULED


def test_run_after_accepts_moments_of_any_time_zone(sqlite_app: Evenflow) -> None:
    zone = datetime.now(UTC).astimezone().tzinfo
    due = datetime(2040, 1, 1, 12, tzinfo=zone)
    assert adder(sqlite_app).using(run_after=due).enqueue(1, 2).refresh().run_at == due


@pytest.mark.parametrize("run_after", [0, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)])
def test_what_is_due_already_runs_at_once(app: Evenflow, run_after: Any) -> None:
    job = adder(app).using(run_after=run_after).enqueue(1, 2)
    assert job.state is State.READY
    drain(app)
    assert job.result(timeout=0) == 3


def test_a_scheduled_job_runs_when_it_is_due(app: Evenflow) -> None:
    with serving(app):
        job = adder(app).using(run_after=0.2).enqueue(1, 2)
        assert job.result(timeout=30) == 3
    assert job.started_at is not None
    assert job.started_at >= job.run_at


@pytest.mark.parametrize("good_until", [60, timedelta(seconds=60), "1 minute"])
def test_good_until_is_a_span_from_now_or_a_moment(app: Evenflow, good_until: Any) -> None:
    stored = adder(app).using(good_until=good_until).enqueue(1, 2).refresh().good_until
    assert stored is not None
    assert timedelta(seconds=50) < stored - datetime.now(UTC) <= timedelta(seconds=60)
    moment = datetime(2040, 5, 1, tzinfo=UTC)
    assert adder(app).using(good_until=moment).enqueue(1, 2).refresh().good_until == moment


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("tenant", "bob"),
        ("{tenant}/{region}", "bob/eu"),
        (lambda tenant: tenant.upper(), "BOB"),
        (lambda call: f"{call['tenant']}-{call['region']}", "bob-eu"),
        (lambda tenant: None, None),
        (None, None),
    ],
    ids=["argument", "template", "callable", "mapping", "nobody", "none"],
)
def test_the_group_is_made_from_the_arguments(app: Evenflow, group: Any, expected: str | None) -> None:
    @app.task(name="parse", group=group)
    def parse(tenant: str, region: str = "eu") -> None: ...

    assert parse.enqueue("bob").refresh().group == expected
    assert parse.enqueue(tenant="bob", region="eu").refresh().group == expected
    drain(app)


def test_a_group_given_with_using_is_taken_as_it_is(app: Evenflow) -> None:
    @app.task(name="parse", group="tenant")
    def parse(tenant: str) -> None: ...

    literal = parse.using(group="{tenant}")
    assert literal.enqueue("bob").refresh().group == "{tenant}"
    assert literal.using(group=None).enqueue("bob").refresh().group == "bob"
    assert parse.enqueue("bob").refresh().group == "bob"


def test_groups_take_turns(app: Evenflow) -> None:
    note, order = recorder(app)
    note.using(group="bob").enqueue_many([(number,) for number in range(5)])
    note.using(group="alice").enqueue(100)
    drain(app, concurrency=1)
    assert order.index(100) <= 1


@pytest.mark.parametrize(
    "unique",
    [True, Unique(), Unique("tenant"), Unique("{tenant}"), Unique(lambda tenant: tenant)],
    ids=["true", "all arguments", "argument", "template", "callable"],
)
def test_a_unique_task_has_one_open_job_per_key(app: Evenflow, unique: Any) -> None:
    @app.task(name="bill", unique=unique)
    def bill(tenant: str) -> str:
        return tenant

    first, again, other = bill.enqueue("bob"), bill.enqueue("bob"), bill.enqueue("eve")
    assert (again, again.is_new, first.is_new) == (first, False, True)
    assert other != first
    assert len(list(app.jobs())) == 2
    drain(app)
    assert again.result(timeout=0) == "bob"
    assert bill.enqueue("bob").is_new


def test_the_existing_job_is_shown_as_it_is_and_not_as_the_call_that_found_it(app: Evenflow) -> None:
    @app.task(name="bill", unique=Unique("tenant"))
    def bill(tenant: str, amount: int) -> None: ...

    first = bill.using(priority=5, run_after=3600).enqueue("bob", 1)
    again = bill.using(queue="other").enqueue("bob", 2)
    assert (again.id, again.state, again.queue, again.priority, again.args) == (
        first.id, State.SCHEDULED, "default", 5, ("bob", 1),
    )  # fmt: skip
    assert again.created_at == first.refresh().created_at


def test_unique_keys_of_different_tasks_are_apart(app: Evenflow) -> None:
    first, second = (app.task(name=name, unique=True)(_nothing) for name in ("one", "two"))
    assert first.enqueue().is_new
    assert second.enqueue().is_new
    assert first.using(unique="k").enqueue().is_new
    assert second.using(unique="k").enqueue().is_new


def _nothing() -> None: ...


def test_a_literal_unique_key_given_with_using_is_taken_as_it_is(app: Evenflow) -> None:
    task = adder(app)
    first = task.using(unique="monthly").enqueue(1, 2)
    assert task.using(unique="monthly").enqueue(3, 4) == first
    assert task.using(unique="weekly").enqueue(3, 4).is_new
    assert task.enqueue(1, 2).is_new


def test_using_goes_back_from_a_literal_key_to_the_arguments_or_to_none(app: Evenflow) -> None:
    literal = adder(app).using(unique="k")
    literal.enqueue(1, 2)
    assert literal.using(unique=True).enqueue(1, 2).is_new
    assert not literal.using(unique=True).enqueue(1, 2).is_new
    assert literal.using(unique=None).enqueue(1, 2).is_new
    assert literal.using(unique=False).enqueue(1, 2).is_new


def test_a_unique_key_that_is_none_is_no_key(app: Evenflow) -> None:
    @app.task(name="bill", unique=Unique("tenant"))
    def bill(tenant: str | None) -> None: ...

    assert bill.enqueue(None).is_new
    assert bill.enqueue(None).is_new


EQUAL_CALLS: list[tuple[Any, Any]] = [
    ({"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}),
    ({1: "one", 2: "two"}, {2: "two", 1: "one"}),
    ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
    ({3, 1, 2}, {2, 3, 1}),
    ({"k": {(1, 2): 1, (0, 1): 2}}, {"k": {(0, 1): 2, (1, 2): 1}}),
]


@pytest.mark.parametrize(("first", "second"), EQUAL_CALLS)
def test_equal_arguments_are_one_unique_job_in_whatever_order_they_were_written(
    sqlite_app: Evenflow, first: Any, second: Any
) -> None:
    @sqlite_app.task(name="store", unique=True)
    def store(value: Any, **extra: Any) -> None: ...

    assert store.enqueue(first, p=1, q=2) == store.enqueue(q=2, p=1, value=second)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), (1, "1"), ({"a": [1, 2]}, {"a": [2, 1]}), (1, 1.5)],
)
def test_different_arguments_are_different_unique_jobs(sqlite_app: Evenflow, first: Any, second: Any) -> None:
    @sqlite_app.task(name="store", unique=True)
    def store(value: Any) -> None: ...

    assert store.enqueue(first) != store.enqueue(second)


def test_on_conflict_error_raises_with_the_id_of_the_open_job(app: Evenflow) -> None:
    strict = adder(app, unique=Unique(on_conflict="error"))
    first = strict.enqueue(1, 2)
    with pytest.raises(
        DuplicateJob, match=rf"task 'add': job {first.id} with the same unique key is open"
    ) as refused:
        strict.enqueue(1, 2)
    assert refused.value.job_id == first.id
    assert list(app.jobs()) == [first]
    drain(app)
    assert strict.enqueue(1, 2).is_new


def _unique_key_of(task: Task[..., int, int], number: int) -> str | None:
    return task.job(number).new.unique_key


def test_the_first_calls_of_a_task_by_several_threads_all_have_their_keys(app: Evenflow) -> None:
    task, usual = adder(app, unique=True), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for priority in range(100):
            twin = task.using(priority=priority)
            keys = in_threads(4, partial(_unique_key_of, twin))
            assert len({key for key in keys if key is not None}) == 4
    finally:
        sys.setswitchinterval(usual)


def test_the_options_of_a_call_reach_the_run(app: Evenflow) -> None:
    @app.task(name="flaky")
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return ctx.attempt

    job = flaky.using(retry=Retry(max_attempts=3, base=0, jitter=False)).enqueue()
    drain(app)
    assert job.result(timeout=0) == 3
    assert [error.attempt for error in job.errors] == [1, 2]
    assert flaky.enqueue().refresh().max_attempts == 1


def test_keep_result_none_with_using_goes_back_to_the_app_s_retention(app: Evenflow) -> None:
    kept = adder(app, keep_result=0).using(keep_result=None).enqueue(1, 2)
    drain(app)
    assert kept.result(timeout=0) == 3


def test_an_undeclared_queue_is_refused_in_custom_mode(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url, queues=[Queue("mail")])
    with pytest.raises(
        UnknownQueue, match=r"queue 'docs' is not declared \(queue_mode='custom' has 'mail'\)"
    ):
        adder(app, queue="docs").enqueue(1, 2)
    assert adder(app, queue="docs").using(queue="mail").enqueue(1, 2).queue == "mail"
    assert len(list(app.jobs())) == 1


class Unstorable:
    pass


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (("one", 2), {}, "task 'add': argument 'a': expected int"),
        ((Unstorable(), 2), {}, "argument 'a'"),
        ((1, 2, 3), {}, "takes at most 2 positional arguments, got 3"),
        ((), {}, "argument 'a' is missing"),
        ((1,), {"c": 2}, "unknown argument 'c'; it takes a, b"),
        ((1,), {"a": 2}, "argument 'a' is given twice"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name_and_nothing_is_written(
    app: Evenflow, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    enqueue: Callable[..., Job[int]] = adder(app).enqueue
    with pytest.raises(PayloadError, match=text):
        enqueue(*args, **kwargs)
    assert list(app.jobs()) == []


def test_one_bad_call_of_many_leaves_nothing(app: Evenflow) -> None:
    with pytest.raises(PayloadError, match="argument 'b': expected int"):
        adder(app).enqueue_many([(1, 2), (3, "four")])
    assert list(app.jobs()) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Unstorable(), r"argument 'value': values of type Unstorable cannot be stored"),
        ({"deep": [Unstorable()]}, r"argument 'value' at \['deep'\]\[0\]"),
        (float("nan"), "argument 'value': NaN cannot be stored"),
        ("\ud800", "argument 'value': text with a lone surrogate"),
        (
            "x" * 300_000,
            r"argument 'value': the arguments take 300\d+ bytes of JSON, at most 262144 are allowed",
        ),
    ],
    ids=["type", "nested", "nan", "surrogate", "huge"],
)
def test_what_cannot_be_stored_is_refused_by_name_and_nothing_is_written(
    app: Evenflow, value: Any, text: str
) -> None:
    @app.task(name="store")
    def store(value: Any) -> None: ...

    with pytest.raises(PayloadError, match=text):
        store.enqueue(value)
    assert list(app.jobs()) == []


def test_max_payload_bytes_is_the_limit(sqlite_url: str, make_app: MakeApp) -> None:
    app = make_app(sqlite_url, max_payload_bytes=40)

    @app.task(name="store")
    def store(value: str) -> None: ...

    store.enqueue("x" * 30)
    with pytest.raises(PayloadError, match="at most 40 are allowed"):
        store.enqueue("x" * 40)
    assert len(list(app.jobs())) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group": "a\0b"}, "group: NUL"),
        ({"group": "x" * 256}, "group: expected at most 255 characters, got 256"),
        ({"unique": "a\0b"}, "unique: NUL"),
        ({"unique": "x" * 256}, "unique: expected at most 255 characters, got 256"),
    ],
)
def test_a_literal_that_cannot_be_stored_is_refused(
    app: Evenflow, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(EnqueueError, match=text):
        adder(app).using(**options).enqueue(1, 2)
    assert list(app.jobs()) == []


@pytest.mark.parametrize("option", ["group", "unique"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\0b", "without NUL"),
        ("x" * 300, "at most 255 characters"),
        ("\udc00", "lone surrogate"),
        ([1], "expected text"),
    ],
)
def test_a_key_whose_value_cannot_be_stored_is_refused(
    app: Evenflow, option: str, value: Any, text: str
) -> None:
    key: Any = (
        {"group": lambda number: value} if option == "group" else {"unique": Unique(lambda number: value)}
    )

    @app.task(name="bill", **key)
    def bill(number: int) -> None: ...

    with pytest.raises(EnqueueError, match=f"task 'bill': {option}: .*{text}"):
        bill.enqueue(1)
    assert list(app.jobs()) == []


@pytest.mark.parametrize("option", ["group", "unique"])
def test_a_key_callable_that_raises_is_named(app: Evenflow, option: str) -> None:
    def broken(number: int) -> str:
        raise ZeroDivisionError("no such tenant")

    key: Any = {"group": broken} if option == "group" else {"unique": Unique(broken)}

    @app.task(name="bill", **key)
    def bill(number: int) -> None: ...

    text = f"task 'bill': {option}: making the key raised ZeroDivisionError: no such tenant"
    with pytest.raises(EnqueueError, match=text) as refused:
        bill.enqueue(1)
    assert isinstance(refused.value.__cause__, ZeroDivisionError)
    assert list(app.jobs()) == []


def test_the_job_of_another_module_is_known_by_its_full_name(app: Evenflow) -> None:
    task = app.task(id_text)
    assert task.name == "evenflow.ids.id_text"
    job = task.enqueue(0)
    drain(app)
    assert job.result(timeout=0) == "0000000000000"
