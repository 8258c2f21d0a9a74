"""`evenflow retry`, `cancel` and `discard`: which jobs are meant, and that nobody is surprised by how many."""

from typing import Any

import pytest

from evenflow import Job, State
from evenflow.cli import batches
from evenflow.cli.batches import BATCH, CANCELLED, DISCARDED, RETRIED
from evenflow.store import reads
from tests.cli.running import evenflow, evenflow_on_terminal, without_rich
from tests.cli.stage import Stage

CAN = {"retry": RETRIED, "cancel": CANCELLED, "discard": DISCARDED}
every_verb = pytest.mark.parametrize("verb", CAN)


@every_verb
@pytest.mark.parametrize("state", State, ids=lambda state: state.value)
def test_a_filter_offers_exactly_the_states_that_can_be_acted_on(
    verb: str, state: State, stage: Stage
) -> None:
    job = stage.failed()[0] if state.is_end else stage.add.enqueue(1)
    stage.set_state(job, state)
    by_id = evenflow(verb, job.id, "--url", stage.url)
    done = {"retry": "retried", "cancel": "cancelled", "discard": "discarded"}[verb]
    if state in CAN[verb]:
        assert by_id.stdout == f"{done} 1 job\n"
    else:
        assert by_id.stdout == f"{done} 0 jobs; 1 other could not be, as they are now\n"
        refused = evenflow(verb, "--state", state.value, "--url", stage.url)
        assert refused.exit_code == 2
        assert "Invalid value for '--state'" in refused.stderr


@every_verb
@pytest.mark.parametrize(
    "arguments", [[], ["0000000000001", "--queue", "mail"], ["--expect", "3"], ["--yes"]]
)
def test_ids_or_a_filter_and_not_both_or_neither(
    verb: str, arguments: list[str], sqlite_stage: Stage
) -> None:
    done = evenflow(verb, *arguments, "--url", sqlite_stage.url)
    assert done.exit_code == 2
    assert "name jobs by their ids, or by a filter" in done.stderr


def test_failed_jobs_go_back_to_work(stage: Stage) -> None:
    jobs = stage.failed(3)
    done = evenflow("retry", "--queue", "mail", "--yes", "--url", stage.url)
    assert (done.exit_code, done.stderr, done.stdout) == (0, "3 jobs match\n", "retried 3 jobs\n")
    assert set(stage.states(*jobs)) <= {"arriving", "ready"}


def test_retry_by_filter_means_failed_and_quarantined_unless_told(stage: Stage) -> None:
    failed, quarantined, cancelled, discarded = stage.failed(4)
    for job, state in ((quarantined, "quarantined"), (cancelled, "cancelled"), (discarded, "discarded")):
        stage.set_state(job, state)
    evenflow("retry", "--task", "shop.fail", "--yes", "--url", stage.url)
    assert stage.states(cancelled, discarded) == ["cancelled", "discarded"]
    assert not any(State(state).is_end for state in stage.states(failed, quarantined))
    evenflow("retry", "--state", "cancelled", "--state", "discarded", "--yes", "--url", stage.url)
    assert not any(State(state).is_end for state in stage.states(cancelled, discarded))


def test_cancel_by_group_leaves_the_others(stage: Stage) -> None:
    bob, alice = stage.add.enqueue(1), stage.add.enqueue(1, tenant="alice")
    done = evenflow("cancel", "--group", "bob", "--why", "he left", "--yes", "--url", stage.url)
    assert done.stdout == "cancelled 1 job\n"
    assert stage.states(bob, alice) == ["cancelled", "ready"]


def test_discard_by_state_gives_open_jobs_up(stage: Stage) -> None:
    job, (failed,) = stage.add.using(run_after=60).enqueue(1), stage.failed()
    evenflow("discard", "--state", "scheduled", "--yes", "--url", stage.url)
    assert stage.states(job, failed) == ["discarded", "failed"]


class TestSureness:
    def test_the_number_is_shown_and_asked_about(self, sqlite_stage: Stage) -> None:
        jobs = sqlite_stage.failed(2)
        done = evenflow("retry", "--queue", "mail", "--url", sqlite_stage.url, answer="n\n")
        assert done.exit_code == 1
        assert "2 jobs match\nretry 2 jobs? [y/N]:" in done.stderr
        assert done.stderr.endswith("Error: nothing was changed\n")
        assert sqlite_stage.states(*jobs) == ["failed", "failed"]
        assert (
            evenflow("retry", "--queue", "mail", "--url", sqlite_stage.url, answer="y\n").stdout
            == "retried 2 jobs\n"
        )

    def test_where_nobody_answers_nothing_is_changed(self, sqlite_stage: Stage) -> None:
        jobs = sqlite_stage.failed()
        done = evenflow("discard", "--queue", "mail", "--url", sqlite_stage.url, answer="")
        assert done.exit_code == 1
        assert done.stderr.endswith("Error: nothing was changed; where nobody can answer, add --yes\n")
        assert sqlite_stage.states(*jobs) == ["failed"]

    def test_another_number_than_expected_changes_nothing(self, stage: Stage) -> None:
        jobs = stage.failed(2)
        for given in (["--queue", "mail", "--yes"], [job.id for job in jobs]):
            done = evenflow("retry", *given, "--expect", "3", "--url", stage.url)
            assert done.exit_code == 1
            assert "Error: --expect 3, but 2 jobs " in done.stderr
            assert "nothing was changed" in done.stderr
        assert stage.states(*jobs) == ["failed", "failed"]
        assert (
            evenflow("retry", "--queue", "mail", "--yes", "--expect", "2", "--url", stage.url).exit_code == 0
        )

    def test_one_job_matches_and_two_match(self, sqlite_stage: Stage) -> None:
        sqlite_stage.failed()
        done = evenflow("retry", "--queue", "mail", "--expect", "2", "--url", sqlite_stage.url)
        assert "Error: --expect 2, but 1 job matches: nothing was changed" in done.stderr

    def test_what_came_to_match_after_the_count_is_left_alone(
        self, sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The third job has failed while somebody thought about the two that he was shown."""
        jobs = sqlite_stage.failed(3)
        counts = iter([2, 0])  # failed, then quarantined
        monkeypatch.setattr(reads, "count", lambda *_: next(counts))
        done = evenflow("retry", "--queue", "mail", "--yes", "--expect", "2", "--url", sqlite_stage.url)
        assert done.stdout == "retried 2 jobs\n"
        assert sqlite_stage.states(*jobs).count("failed") == 1

    def test_nothing_to_do_is_no_error_and_no_question(self, sqlite_stage: Stage) -> None:
        done = evenflow("cancel", "--queue", "mail", "--url", sqlite_stage.url)
        assert (done.exit_code, done.output) == (0, "0 jobs match\n")

    def test_an_id_that_is_none_is_said_before_anything_is_done(self, sqlite_stage: Stage) -> None:
        jobs = sqlite_stage.failed()
        done = evenflow("retry", jobs[0].id, "nonsense", "--url", sqlite_stage.url)
        assert (done.exit_code, "expected a job id" in done.stderr) == (1, True)
        assert sqlite_stage.states(*jobs) == ["failed"]

    def test_a_job_named_twice_counts_once(self, sqlite_stage: Stage) -> None:
        (job,) = sqlite_stage.failed()
        assert evenflow("retry", job.id, job.id, "--url", sqlite_stage.url).stdout == "retried 1 job\n"


class TestLongWork:
    COUNT = 2 * BATCH + 50

    def waiting(self, stage: Stage) -> list[Job[Any]]:
        return stage.add.enqueue_many([(1,)] * self.COUNT)

    def test_goes_in_batches_through_every_match(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "BATCH", 7)
        jobs = stage.add.enqueue_many([(1,)] * 50)
        done = evenflow("cancel", "--queue", "default", "--yes", "--url", stage.url)
        assert done.stdout == "cancelled 50 jobs\n"
        assert set(stage.states(*jobs)) == {"cancelled"}

    def test_shows_a_bar_on_a_terminal(self, sqlite_stage: Stage) -> None:
        self.waiting(sqlite_stage)
        done = evenflow_on_terminal("cancel", "--queue", "default", "--url", sqlite_stage.url, answer="y\n")
        assert done.code == 0
        assert f"cancel {self.COUNT:,} jobs? [y/N]:" in done.text
        assert f"{self.COUNT}/{self.COUNT}" in done.text
        assert done.text.endswith(f"cancelled {self.COUNT:,} jobs\n")

    def test_shows_a_bar_without_rich_too(self, sqlite_stage: Stage, folder: Any) -> None:
        self.waiting(sqlite_stage)
        command = ["cancel", "--queue", "default", "--yes", "--url", sqlite_stage.url]
        done = evenflow_on_terminal(*command, **without_rich(folder))
        assert f"{'█' * 32}  {self.COUNT:,} of {self.COUNT:,}\n" in done.text
