"""Limits and schedules above and below Django's `@task`."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from evenflow import ConfigError, Queue, Rate, Retry, State
from evenflow.contrib.django import (
    declaring,
    evenflow_task,
    limits_concurrency,
    limits_rate,
    links,
    policy,
    queue_app,
    recurring,
)
from evenflow.contrib.django.compat import PACKAGE, InvalidTask, task, task_backends
from evenflow.contrib.django.declaring import declared
from evenflow.contrib.django.registry import known_tasks
from evenflow.services.scheduler import Scheduler
from tests.contrib.django import project
from tests.contrib.django.shop import tasks

ANY: Any = declaring  # mistakes that a type checker would see
NAME = "tests.contrib.django.test_declaring"


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """What these tests declare is forgotten again."""
    before = dict(known_tasks)
    yield
    known_tasks.clear()
    known_tasks.update(before)


@pytest.mark.usefixtures("database")
class TestLimits:
    def test_hold_for_jobs_that_django_s_own_enqueue_sends(self) -> None:
        first, second, other = (tasks.report.enqueue(tenant) for tenant in ("bob", "bob", "eve"))
        app = queue_app()
        assert [app.job(each.id).state for each in (first, second, other)] == [
            State.READY,
            State.BLOCKED,
            State.READY,
        ]
        [reason] = [each for each in app.why(second.id) if first.id in each.holders]
        assert "1/1" in reason.text
        app.run_worker(until_empty=True)
        assert [tasks.report.get_result(each.id).return_value for each in (first, second, other)] == [
            "bob",
            "bob",
            "eve",
        ]

    def test_policies_below_django_s_task_count_as_those_above_it(self) -> None:
        result = tasks.below.enqueue("bob")
        assert queue_app().job(result.id).group == "bob"
        assert evenflow_task(tasks.below).policy.timeout == 30

    def test_of_a_group_are_shared_by_tasks(self) -> None:
        first, second = tasks.report.enqueue("bob"), tasks.other_report.enqueue("bob")
        assert queue_app().job(first.id).state is State.READY
        assert queue_app().job(second.id).state is State.BLOCKED

    def test_of_different_groups_are_apart_though_their_keys_are_equal(self) -> None:
        first, second = tasks.report.enqueue("bob"), tasks.invoice.enqueue("bob")
        app = queue_app()
        assert app.job(first.id).state is app.job(second.id).state is State.READY
        stored = {
            row.name: row.holders
            for row in app.limits()
            if first.id in row.holders or second.id in row.holders
        }
        assert [holders for name, holders in stored.items() if "reports" in name and "bob" in name] == [
            (first.id,)
        ]
        assert [holders for name, holders in stored.items() if "invoices" in name and "bob" in name] == [
            (second.id,)
        ]


def plain(tenant: str, amount: int = 0) -> str:
    return tenant


def forget(function: Any) -> None:
    if hasattr(function, "__evenflow__"):
        del function.__evenflow__


@pytest.fixture
def function() -> Iterator[Callable[..., Any]]:
    yield plain
    forget(plain)


def test_several_limits_of_a_kind_all_count(function: Callable[..., Any]) -> None:
    limits_concurrency(to=2)(limits_concurrency(to=1, key="tenant")(function))
    limits_rate("60/minute")(policy(rate=Rate("5/second"))(function))
    options = declared(function).options
    assert [limit.to for limit in options["concurrency"]] == [2, 1]  # type: ignore[union-attr]
    assert [rate.limit for rate in options["rate"]] == ["60/minute", "5/second"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("decorate", "mistake"),
    [
        (lambda: ANY.policy(retry=3), f"task '{NAME}.plain': retry: expected a Retry, got 3"),
        (lambda: ANY.policy(nonsense=3), f"task '{NAME}.plain': unknown option 'nonsense'"),
        (
            lambda: ANY.policy(queue="mail"),
            r"queue: not an option here; Django says it: @task\(queue_name=…\)",
        ),
        (
            lambda: ANY.policy(priority=3),
            r"priority: not an option here; Django says it: @task\(priority=…\)",
        ),
        (lambda: policy(group="nobody"), f"task '{NAME}.plain': group: .*nobody"),
        (lambda: limits_concurrency(key="nobody"), f"task '{NAME}.plain': concurrency: .*nobody"),
        (lambda: limits_concurrency(to=0), "Concurrency: to: expected a whole number"),
        (lambda: limits_rate("often"), "Rate: "),
        (lambda: recurring("every now and then"), f"schedule '{NAME}.plain': "),
        (lambda: recurring(), "expected cron= or every=, got neither"),
        (lambda: ANY.recurring("* * * * *", catch_up="never"), "catch_up: expected 'skip' or"),
    ],
)
def test_a_mistake_is_refused_where_it_is_written(
    function: Callable[..., Any], decorate: Callable[[], Any], mistake: str
) -> None:
    with pytest.raises(ConfigError, match=mistake):
        decorate()(function)
    assert declared(function).options == {}
    assert declared(function).schedules == ()


def test_all_mistakes_of_a_policy_are_told_at_once(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        policy(retry=3, timeout=-1, run_in="elsewhere")(function)  # type: ignore[arg-type]
    assert len(refused.value.mistakes) == 3


def test_a_schedule_is_refused_twice_under_one_key(function: Callable[..., Any]) -> None:
    recurring("* * * * *")(function)
    with pytest.raises(ConfigError, match="is declared twice"):
        recurring("0 * * * *")(function)
    recurring("0 * * * *", key="another")(function)


@pytest.mark.usefixtures("database")
class TestSchedules:
    def test_are_those_of_the_app_with_django_s_priority_and_time_zone(self, settings_zone: str) -> None:
        app = links.link_of().load()
        found = {each.key: each for each in app.schedules.declared}
        nightly, often = found["nightly"], found["often"]
        assert (nightly.cron, nightly.timezone, nightly.queue, nightly.priority) == (
            "30 2 * * *",
            settings_zone,
            "mail",
            -5,
        )
        assert (often.every_us, often.queue, often.priority) == (300_000_000, "mail", -2)

    def test_fire_jobs_that_are_results_of_their_task(self) -> None:
        app = links.link_of().load()
        app.prepare()
        Scheduler(app._producer.engine, app.schedules).step()
        job = app.schedules.run_now("nightly")
        app.run_worker(until_empty=True, services=False, queues=["mail"])
        result = tasks.sweep.get_result(job.id)
        assert (result.return_value, result.task.priority, result.task.queue_name) == ("all", 5, "mail")


@recurring("0 6 * * *", key="convert")
def convert() -> None:
    """A task of the other backend, where a test makes it one."""


@pytest.mark.usefixtures("sqlite_database")
class TestOfTwoBackends:
    @pytest.fixture(autouse=True)
    def two(self, tmp_path: Path) -> Iterator[None]:
        """The backend `docs` beside the one of the other tests, with a queue and a database of its own."""
        docs = {
            "BACKEND": project.BACKEND,
            "QUEUES": ["docs"],
            "OPTIONS": {"url": f"sqlite:///{tmp_path}/docs.db"},
        }
        with override_settings(TASKS={**project.TASKS, "docs": docs}):
            yield
            queue_app("docs").close()

    def test_each_has_the_schedules_of_its_tasks_and_no_others(self) -> None:
        task(backend="docs", queue_name="docs")(convert)
        found = {
            alias: {each.key for each in links.link_of(alias).load().schedules.declared}
            for alias in ("default", "docs")
        }
        assert found == {"default": {"nightly", "often"}, "docs": {"convert"}}
        assert [list(backend.check()) for backend in map(task_backends.__getitem__, found)] == [[], []]

    def test_no_check_minds_the_queues_of_the_other_s_tasks(self, capsys: pytest.CaptureFixture[str]) -> None:
        for alias in ("default", "docs"):
            call_command("evenflow_check", backend=alias)
            assert capsys.readouterr().out.endswith("no mistakes\n")

    def test_a_task_can_be_sent_to_the_other_and_is_known_there(self) -> None:
        result = tasks.note.using(backend="docs", queue_name="docs").enqueue("over there")
        links.link_of("docs").load().run_worker(until_empty=True)
        result.refresh()
        assert (result.return_value, result.task.queue_name) == ("over there", "docs")


@pytest.fixture
def settings_zone() -> Iterator[str]:
    with override_settings(TIME_ZONE="Europe/Berlin"):
        yield "Europe/Berlin"


@pytest.mark.usefixtures("sqlite_database")
def test_a_task_that_is_declared_anew_runs_as_it_was_declared_last(run: Any) -> None:
    """As after a reload of its module."""

    def declare(answer: int) -> Any:
        def again() -> int:
            return answer

        again.__qualname__ = "again"
        return task(again)

    first = declare(1)
    first.enqueue()
    second = declare(2)
    result = second.enqueue()
    run()
    result.refresh()
    assert result.return_value == 2


def test_rules_for_queues_are_options_of_the_backend(sqlite_database: str) -> None:
    params = {"BACKEND": project.BACKEND, "OPTIONS": {"queues": [Queue("mail", max_concurrency=2)]}}
    with override_settings(TASKS={"default": params}):
        assert {queue.name: queue.max_concurrency for queue in queue_app().settings.queues} == {
            "mail": 2,
            "default": None,
        }
        assert task_backends["default"].queues == {"default", "mail"}
        with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
            tasks.note.using(queue_name="nowhere")


def test_what_the_decorators_say_harms_no_other_backend() -> None:
    with override_settings(
        TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend", "QUEUES": []}}
    ):
        assert tasks.report.enqueue("bob").return_value == "bob"
        assert tasks.third_time.func.__name__ == "third_time"
    assert isinstance(declared(tasks.third_time.func).options["retry"], Retry)
    assert timedelta(minutes=5) in [each.every for each in declared(tasks.sweep.func).schedules]
