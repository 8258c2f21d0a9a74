"""The error tree: one root, the right built-in parents, and errors that survive the way between processes."""

import ast
import copy
import inspect
import pickle

import pytest

from evenflow import errors
from evenflow.errors import Code, ConfigError, EvenflowError

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]


@pytest.mark.parametrize("error", ALL)
def test_every_error_hangs_under_one_root(error: type[Exception]) -> None:
    assert issubclass(error, EvenflowError)


@pytest.mark.parametrize("error", ALL)
def test_the_drawing_at_the_top_names_every_error(error: type[Exception]) -> None:
    drawn = [line.strip(" │├└─").split(" ")[0] for line in (errors.__doc__ or "").splitlines()]
    assert error.__name__ in drawn


@pytest.mark.parametrize("error", ALL)
def test_the_drawing_puts_every_error_under_its_parent(error: type[Exception]) -> None:
    lines = (errors.__doc__ or "").splitlines()
    names = [line.strip(" │├└─").split(" ")[0] for line in lines]
    at = names.index(error.__name__)
    indent = lines[at].index(error.__name__)
    parent = next(
        (n for n, line in zip(names[at::-1], lines[at::-1], strict=True) if n and line.find(n) < indent), ""
    )
    expected = error.__bases__[0].__name__ if error is not EvenflowError else "One"
    assert parent == expected


@pytest.mark.parametrize("error", ALL)
def test_every_error_says_when_it_comes_and_what_to_do(error: type[Exception]) -> None:
    assert error.__doc__
    assert "__doc__" in vars(error)


def test_lookups_and_timeouts_are_also_the_built_in_kinds() -> None:
    assert issubclass(errors.JobNotFound, LookupError)
    assert issubclass(errors.ResultTimeout, TimeoutError)


def test_refusals_at_enqueue_share_a_parent() -> None:
    kinds = (errors.PayloadError, errors.QueueFull, errors.DuplicateJob, errors.UnknownQueue)
    assert all(issubclass(kind, errors.EnqueueError) for kind in kinds)


def test_a_config_error_lists_every_mistake() -> None:
    error = ConfigError(["first", "second"])
    assert error.mistakes == ["first", "second"]
    assert str(error) == "2 mistakes in the configuration:\n  1. first\n  2. second"


def test_a_config_error_takes_one_text() -> None:
    assert ConfigError("only").mistakes == ["only"]
    assert str(ConfigError("only")) == "only"


def test_an_ended_job_and_its_error_travel_with_the_exception() -> None:
    job, reason = object(), object()
    caught = errors.JobFailed("job 7 failed", job=job, error=reason)
    assert (caught.job, caught.error) == (job, reason)
    assert isinstance(caught, errors.JobEnded)


def test_a_missing_driver_names_the_extra_to_install() -> None:
    assert "pip install 'evenflow[postgres]'" in str(errors.DriverMissing("no psycopg", extra="postgres"))


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["a", "b"]),
        errors.DuplicateJob("taken", job_id="7"),
        errors.JobExpired("late", job="job", error="error"),
        errors.RateLimited("full", retry_after=2.5),
        errors.DriverMissing("no psycopg", extra="postgres"),
        errors.ProcessExitError("died", exit_code=3, signal=None),
    ],
)
def test_errors_keep_their_text_and_attributes_across_processes(error: EvenflowError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_a_code_is_its_own_text() -> None:
    assert [code.value for code in Code] == [code.name for code in Code]
    assert f"{Code.TASK_TIMEOUT}" == "TASK_TIMEOUT"


def test_the_promised_codes_exist() -> None:
    promised = (
        "UNHANDLED_ERROR WORKER_SERIALIZATION_ERROR WORKER_RESOLUTION_ERROR WORKER_CRASHED TASK_TIMEOUT "
        "TASK_EXPIRED TASK_CANCELLED LOCK_CONTENDED SIGNATURE_INVALID WORKFLOW_CONDITION_EVALUATION_ERROR"
    )
    assert set(promised.split()) <= {code.value for code in Code}


def test_the_module_imports_nothing_of_evenflow() -> None:
    tree = ast.parse(inspect.getsource(errors))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported if name.startswith("evenflow")]
