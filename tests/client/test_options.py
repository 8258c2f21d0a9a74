"""The options of a task and of one call: each mistake is named where it is written, all of them at once."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from evenflow import Concurrency, ConfigError, Evenflow, Rate, Retry, Unique
from evenflow.client.options import Policy
from evenflow.errors import EnqueueError

NAIVE = datetime(2040, 1, 1)  # noqa: DTZ001 - that is what is refused


def nothing(tenant: str = "bob") -> None: ...


async def nothing_yet() -> None: ...


def mistakes_of(app: Evenflow, function: Any = nothing, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        app.task(name="bill", **options)(function)
    assert "bill" not in app.tasks
    return refused.value.mistakes


def test_a_task_without_options_has_the_plain_policy(sqlite_app: Evenflow) -> None:
    assert sqlite_app.task(nothing).policy == Policy()
    assert sqlite_app.task()(nothing).policy == Policy()


def test_what_a_declaration_says_is_its_policy(sqlite_app: Evenflow) -> None:
    policy = sqlite_app.task(
        name="bill", queue="docs", priority=-5, retry=Retry(max_attempts=3), timeout="30s", good_until=timedelta(hours=1),
        group="tenant", unique=True, on_crash="fail", run_in="thread", keep_result=0,
    )(nothing).policy  # fmt: skip
    assert (policy.queue, policy.priority, policy.retry.max_attempts, policy.timeout_us) == (
        "docs",
        -5,
        3,
        30_000_000,
    )
    assert (policy.group, policy.unique, policy.on_crash, policy.run_in) == (
        "tenant",
        Unique(),
        "fail",
        "thread",
    )
    assert (policy.good_until, policy.keep_us) == (timedelta(hours=1), 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "9 lives"}, "queue '9 lives': expected a letter"),
        ({"priority": 101}, "priority: expected a whole number from -100 to 100, got 101"),
        ({"priority": -101}, "priority: expected a whole number from -100 to 100, got -101"),
        ({"priority": 1.5}, "priority: expected a whole number"),
        ({"priority": True}, "priority: expected a whole number"),
        ({"on_crash": "ignore"}, "on_crash: expected"),
        ({"run_in": "fiber"}, "run_in: expected"),
        ({"timeout": 0}, "timeout: expected more than 0 seconds, got 0"),
        ({"timeout": "soon"}, "timeout: expected a duration, got 'soon'"),
        ({"timeout": -1}, "timeout: expected a duration of 0 or more"),
        ({"keep_result": -1}, "keep_result: expected a duration of 0 or more"),
        (
            {"good_until": NAIVE},
            "good_until: expected a datetime with a time zone, got the naive",
        ),
        ({"retry": 5}, "retry: expected a Retry, got 5; write retry=Retry(max_attempts=5)"),
        ({"unique": "tenant"}, "unique: expected a Unique, True or False, got 'tenant'"),
        (
            {"unique": Unique("nobody")},
            "unique: expected arguments of the function, got 'nobody'; it has 'tenant'",
        ),
        ({"group": "nobody"}, "group: expected arguments of the function, got 'nobody'; it has 'tenant'"),
        ({"group": "{tenant}{tenant}"}, "group: expected a separator between the arguments"),
        ({"group": lambda nobody, tenant: "x"}, "group: expected arguments of the function, got 'nobody'"),
        ({"group": 7}, "group: expected an argument's name, a template or a callable, got 7"),
        ({"run_in": "async"}, "run_in='async' is for coroutines"),
        ({"run_after": 60}, "unknown option 'run_after'; a task takes name, "),
        ({"prioritty": 5}, "unknown option 'prioritty'"),
    ],
)
def test_a_wrong_option_of_a_declaration_is_named(
    sqlite_app: Evenflow, options: dict[str, Any], text: str
) -> None:
    (mistake,) = mistakes_of(sqlite_app, **options)
    assert mistake.startswith("task 'bill': ")
    assert text in mistake


def test_a_coroutine_cannot_be_run_in_a_thread(sqlite_app: Evenflow) -> None:
    (mistake,) = mistakes_of(sqlite_app, nothing_yet, run_in="thread")
    assert "run_in='thread' is for plain functions" in mistake


def test_every_mistake_of_a_declaration_is_reported_at_once(sqlite_app: Evenflow) -> None:
    found = mistakes_of(
        sqlite_app,
        queue="9",
        priority=500,
        retry=None,
        timeout="x",
        group="nobody",
        unique=Unique("noone"),
        run_in="async",
        x=1,
    )
    assert len(found) == 8
    assert all(mistake.startswith("task 'bill': ") for mistake in found)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "queue '': expected a letter"),
        ({"priority": -101}, "priority: expected a whole number from -100 to 100"),
        (
            {"run_after": NAIVE},
            "run_after: expected a datetime with a time zone, got the naive",
        ),
        ({"good_until": NAIVE}, "good_until: expected a datetime with a time zone"),
        ({"run_after": -5}, "run_after: expected a duration of 0 or more"),
        ({"run_after": "tomorrow"}, "run_after: expected a duration, got 'tomorrow'"),
        ({"group": 7}, "group: expected a text, got 7"),
        ({"unique": 7}, "unique: expected a Unique, True or False, got 7"),
        ({"unique": Unique("nobody")}, "unique: expected arguments of the function, got 'nobody'"),
        ({"name": "other"}, "unknown option 'name'; using() takes connection, "),
        ({"run_in": "thread"}, "unknown option 'run_in'"),
        ({"group_value": "x"}, "unknown option 'group_value'"),
        ({"conection": None}, "unknown option 'conection'"),
    ],
)
def test_a_wrong_option_of_a_call_is_named(sqlite_app: Evenflow, options: dict[str, Any], text: str) -> None:
    task = sqlite_app.task(name="bill")(nothing)
    with pytest.raises(ConfigError) as refused:
        task.using(**options)
    (mistake,) = refused.value.mistakes
    assert mistake.startswith("task 'bill': ")
    assert text in mistake


def test_every_mistake_of_a_call_is_reported_at_once(sqlite_app: Evenflow) -> None:
    wrong: dict[str, Any] = {"priority": 500, "timeout": 0, "x": 1, "y": 2}
    with pytest.raises(ConfigError) as refused:
        sqlite_app.task(name="bill")(nothing).using(**wrong)
    assert len(refused.value.mistakes) == 4


def test_using_leaves_the_task_as_it_was_and_adds_up(sqlite_app: Evenflow) -> None:
    task = sqlite_app.task(name="bill")(nothing)
    changed = task.using(priority=5).using(queue="docs")
    assert (changed.policy.priority, changed.policy.queue) == (5, "docs")
    assert task.policy == Policy()
    assert sqlite_app.tasks["bill"] is task


def test_classes_of_a_retry_belong_to_the_declaration(sqlite_app: Evenflow) -> None:
    task = sqlite_app.task(name="bill", retry=Retry(max_attempts=3, on=(ValueError,)))(nothing)
    assert task.using(priority=1).job().new.options is None
    with pytest.raises(ConfigError, match="on and give_up_on belong to the declaration"):
        task.using(retry=Retry(max_attempts=3, on=(KeyError,))).enqueue()
    assert list(sqlite_app.jobs()) == []


def test_limits_of_a_wrong_type_are_mistakes_of_the_declaration(sqlite_app: Evenflow) -> None:
    with pytest.raises(ConfigError) as wrong:
        sqlite_app.task(name="call", rate="2/minute", concurrency=3, priority=1000)(lambda: None)  # type: ignore[call-overload]
    said = "\n".join(wrong.value.mistakes)
    assert "rate: expected Rate, got '2/minute'; write rate=Rate(…)" in said
    assert "concurrency: expected Concurrency, got 3" in said and "priority" in said


def test_two_rules_that_count_the_same_thing_are_refused(sqlite_app: Evenflow) -> None:
    with pytest.raises(ConfigError) as wrong:
        sqlite_app.task(
            name="call",
            rate=[
                Rate("2/minute"),
                Rate("2/minute", burst=1),
                Rate("9/60s"),
                Rate("9/minute", key="who"),
                Rate("2/s"),
            ],
            concurrency=[Concurrency(to=1, key="who"), Concurrency(to=2, key="who"), Concurrency(to=2)],
        )(lambda who: None)
    assert wrong.value.mistakes == [
        "task 'call': concurrency: two rules for scope 'call' and key 'who'; keep one",
        "task 'call': rate: '2/minute' and '2/minute' for one window and key None; keep one",
        "task 'call': rate: '2/minute' and '9/60s' for one window and key None; keep one",
        "task 'call': rate: '2/minute' and '9/60s' for one window and key None; keep one",
    ]


def test_a_limit_that_is_computed_gets_the_arguments_that_it_names(sqlite_app: Evenflow) -> None:
    @sqlite_app.task(name="call", concurrency=Concurrency(to=lambda plan: 2 if plan == "gold" else 1))
    def call(plan: str, page: int = 0) -> None: ...

    assert [call.enqueue("gold").state, call.enqueue("gold", 2).state] == ["ready", "ready"]
    (row,) = sqlite_app.limits("key:call")
    assert (row.used, row.limit) == (2, 2)


def test_a_limit_that_is_computed_from_something_else_is_refused_at_the_declaration(
    sqlite_app: Evenflow,
) -> None:
    limit = Concurrency(to=lambda plan, seats: seats)
    with pytest.raises(
        ConfigError, match=r"task 'call': concurrency: to: expected arguments .*'seats'; it has 'plan'"
    ):
        sqlite_app.task(name="call", concurrency=limit)(lambda plan: None)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        (lambda plan: 0, r"to\(\): expected a whole number of 1 or more, got 0"),
        (lambda plan: "3", r"to\(\): expected a whole number of 1 or more, got '3'"),
        (lambda plan: 1 / 0, r"to\(\) raised ZeroDivisionError"),
        ({"gold": 3}, r"no limit for key 'tin'; add it, or '\*', to the table"),
    ],
)
def test_a_call_without_a_limit_is_refused_and_nothing_is_written(
    sqlite_app: Evenflow, to: Any, said: str
) -> None:
    task = sqlite_app.task(name="call", concurrency=Concurrency(to=to, key="plan"))(lambda plan: None)
    with pytest.raises(EnqueueError, match=f"task 'call': concurrency: {said}"):
        task.enqueue("tin")
    assert list(sqlite_app.jobs()) == []


def test_keys_that_turn_out_equal_take_one_place(sqlite_app: Evenflow) -> None:
    @sqlite_app.task(
        name="move",
        concurrency=[
            Concurrency(to=2, key="a", scope="account"),
            Concurrency(to=1, key="b", scope="account"),
        ],
    )
    def move(a: str, b: str) -> None: ...

    job = move.enqueue("bob", "bob")
    assert job.state == "ready"
    sqlite_app.run_worker(until_empty=True)
    assert job.refresh().state == "succeeded"
