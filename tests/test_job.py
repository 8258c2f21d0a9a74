"""The values of a job's life: which states are ends, and that records survive their way through JSON."""

import msgspec
import pytest

from evenflow.job import ENDS, FOREVER_US, Claimed, End, JobError, JobRecord, NewJob, State
from evenflow.store.statements import load_units


def test_every_state_is_open_or_an_end() -> None:
    assert {state for state in State if state.is_end} == ENDS
    assert {state.value for state in ENDS} == {
        "succeeded", "failed", "expired", "cancelled", "skipped", "discarded", "quarantined",
    }  # fmt: skip


def test_only_claimed_and_running_jobs_are_in_flight() -> None:
    assert {state for state in State if state.is_in_flight} == {State.CLAIMED, State.RUNNING}


def test_a_state_is_its_word() -> None:
    assert State("ready") is State.READY
    assert f"{State.FAILED}" == "failed"
    with pytest.raises(ValueError, match="'done'"):
        State("done")


def test_an_error_without_details_is_short_and_comes_back_whole() -> None:
    error = JobError("TASK_TIMEOUT", "ran longer than 30 s")
    assert msgspec.json.encode(error) == b'{"code":"TASK_TIMEOUT","message":"ran longer than 30 s"}'
    full = JobError("X", "m", class_name="ValueError", traceback="t", data={"a": [1]}, attempt=2, at=5)
    assert msgspec.json.decode(msgspec.json.encode(full), type=JobError) == full


def test_an_end_sends_only_what_it_says() -> None:
    # The database parses it for each job: the statements know what a value that was left out stands for.
    sent = msgspec.json.decode(msgspec.json.encode(End(1, 2, "scheduled")))
    assert sent == {"id": 1, "epoch": 2, "state": "scheduled"}


def test_a_claimed_job_has_a_field_for_every_column_of_the_claim() -> None:
    for unit in ("advance", "plain_advance"):
        columns = [name.replace("group_key", "group") for name in load_units("postgres")[unit].returns]
        assert ["kind", *Claimed.__struct_fields__] == [*columns, "inputs"]  # a step gets its inputs later


def test_a_record_has_a_field_for_every_column_of_a_read() -> None:
    for unit in ("jobs_by_id", "list_live", "list_history", "list_trouble"):
        columns = load_units("sqlite")[unit].returns
        assert [name.replace("group_key", "group") for name in columns] == list(JobRecord.__struct_fields__)


def test_forever_fits_behind_any_date_of_a_job() -> None:
    year_9999 = 253_402_300_799_000_000
    assert year_9999 < FOREVER_US
    assert FOREVER_US + year_9999 < 2**63


def test_values_of_a_job_do_not_change() -> None:
    job = NewJob("t", "[]")
    with pytest.raises(AttributeError):
        job.task = "u"  # type: ignore[misc]
