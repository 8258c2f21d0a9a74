"""What a worker knows about tasks: where their bodies run, for how long, and by which rules they end."""

from typing import Any

import pytest

from evenflow import Evenflow, Retention, Retry
from evenflow.worker.registry import Entry, Registry
from tests.worker.test_outcome import SECOND, job


def add(a: int, b: int) -> int:
    return a + b


async def aadd(a: int, b: int) -> int:
    return a + b


@pytest.fixture
def app() -> Evenflow:
    return Evenflow("sqlite:///:memory:", retention=Retention(succeeded=10))


def entry_of(app: Evenflow, function: Any = add, *, options: str | None = None, **declared: Any) -> Entry:
    app.task(name="mail", **declared)(function)
    entry = Registry(app.tasks, app.settings).entry(job(task="mail", options=options))
    assert entry is not None
    return entry


@pytest.mark.parametrize(
    ("function", "declared", "place"),
    [
        (add, {}, "thread"),
        (aadd, {}, "async"),
        (add, {"run_in": "process"}, "process"),
        (aadd, {"run_in": "process"}, "process"),
    ],
)
def test_a_body_runs_where_it_belongs(app: Evenflow, function: Any, declared: Any, place: str) -> None:
    assert entry_of(app, function, **declared).place == place


def test_an_unknown_task_has_no_entry(app: Evenflow) -> None:
    assert Registry(app.tasks, app.settings).entry(job(task="mail")) is None


def test_a_task_declared_after_the_first_look_is_found(app: Evenflow) -> None:
    registry = Registry(app.tasks, app.settings)
    assert registry.entry(job(task="late")) is None
    app.task(name="late")(add)
    assert registry.entry(job(task="late")) is not None


def test_the_declaration_decides_where_the_call_says_nothing(app: Evenflow) -> None:
    entry = entry_of(app, timeout=1.5, on_crash="fail", keep_result=60, retry=Retry(max_attempts=3))
    assert (entry.timeout_s, entry.fails_on_crash, entry.rules.keep_us) == (1.5, True, 60 * SECOND)
    assert entry.rules.retry.max_attempts == 3


def test_results_are_kept_as_the_app_says_where_the_task_says_nothing(app: Evenflow) -> None:
    assert entry_of(app).rules.keep_us == 10 * SECOND


def test_a_task_may_keep_no_result(app: Evenflow) -> None:
    assert entry_of(app, keep_result=0).rules.keep_us == 0


def test_a_call_may_have_its_own_timeout_and_retention(app: Evenflow) -> None:
    changed = entry_of(app, timeout=5, options='{"timeout_us":250000,"keep_us":0}')
    assert (changed.timeout_s, changed.rules.keep_us) == (0.25, 0)


def test_a_call_may_lift_the_timeout(app: Evenflow) -> None:
    assert entry_of(app, timeout=5, options='{"timeout_us":null}').timeout_s is None


def test_a_call_may_have_its_own_back_off_and_keeps_the_declared_kinds(app: Evenflow) -> None:
    declared = Retry(max_attempts=3, on=(OSError,))
    options = '{"retry":{"backoff":"fixed","base":7.0,"max":null,"jitter":false}}'
    retry = entry_of(app, retry=declared, options=options).rules.retry
    assert retry.delay(attempt=2, random=0.5) == 7.0
    assert not retry.allows(ValueError())


def test_options_of_one_call_do_not_leak_into_the_next(app: Evenflow) -> None:
    app.task(name="mail", timeout=5)(add)
    registry = Registry(app.tasks, app.settings)
    registry.entry(job(task="mail", options='{"timeout_us":1}'))
    entry = registry.entry(job(task="mail"))
    assert entry is not None and entry.timeout_s == 5
