"""The ledger's checker sees what it is there to see: each kind of violation, planted, is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ledger import (
    BodyLedger,
    Checker,
    DeathLedger,
    Interval,
    Ledger,
    ProducerLedger,
    Report,
    most_at_once,
    now_ns,
    percentiles,
)
from tests.processes import wait_until


class Refused(Exception):
    """A certain refusal."""


class Story:
    """Ledgers in a folder, and a job that was enqueued, run and ended as it should be."""

    def __init__(self, folder: Path) -> None:
        self.producers, self.bodies, self.deaths = (
            folder / name for name in ("producers", "bodies", "deaths")
        )
        self.producer = ProducerLedger(self.producers)
        self.body = BodyLedger(self.bodies)
        self.job = self.producer.enqueue(lambda job: None, refusals=(Refused,))
        with self.body.body(self.job, epoch=1):
            pass

    def violations(self, books: dict[str, list[str]], **options: object) -> list[str]:
        return Checker(self.producers, self.bodies, self.deaths).check(books, **options).violations  # type: ignore[arg-type]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_clean_story_has_no_violation(story: Story) -> None:
    assert story.violations({story.job: ["succeeded"]}) == []


def test_an_accepted_job_that_is_nowhere_is_lost(story: Story) -> None:
    assert story.violations({}) == [f"{story.job}: accepted and lost"]


def test_a_job_that_has_not_ended_is_named(story: Story) -> None:
    assert "has not ended" in story.violations({story.job: ["running"]})[0]


def test_two_entries_for_one_job_are_named(story: Story) -> None:
    assert "2 entries" in story.violations({story.job: ["succeeded", "failed"]})[0]


def test_a_success_without_a_run_that_returned_is_named(story: Story) -> None:
    job = story.producer.enqueue(lambda job: None, refusals=())
    assert "without a run" in story.violations({story.job: ["succeeded"], job: ["succeeded"]})[0]


def test_a_job_that_nobody_meant_is_named(story: Story) -> None:
    assert "nobody meant" in story.violations({story.job: ["succeeded"], "phantom": ["failed"]})[0]


def test_a_refused_job_must_not_be_stored(story: Story) -> None:
    def refuse(job: str) -> None:
        raise Refused

    job = story.producer.enqueue(refuse, refusals=(Refused,))
    assert story.violations({story.job: ["succeeded"]}) == []
    assert "refused at enqueue" in story.violations({story.job: ["succeeded"], job: ["failed"]})[0]


def test_an_unknown_outcome_may_go_either_way(story: Story) -> None:
    def lose(job: str) -> None:
        raise OSError("the line is cut")

    job = story.producer.enqueue(lose, refusals=(Refused,))
    assert story.violations({story.job: ["succeeded"]}) == []
    assert story.violations({story.job: ["succeeded"], job: ["failed"]}) == []


def test_a_claim_that_runs_twice_is_named(story: Story) -> None:
    with story.body.body(story.job, epoch=1):
        pass
    assert "epochs of its runs are [1, 1]" in story.violations({story.job: ["succeeded"]})[0]


def test_a_run_after_a_crash_has_a_greater_epoch(story: Story) -> None:
    with story.body.body(story.job, epoch=2):
        pass
    assert story.violations({story.job: ["succeeded"]}) == []


def test_overlap_beyond_a_cap_is_named(story: Story) -> None:
    with story.body.body(story.job, epoch=2, key="bob"), story.body.body(story.job, epoch=3, key="bob"):
        pass
    assert story.violations({story.job: ["succeeded"]}, caps={"bob": 2}) == []
    assert story.violations({story.job: ["succeeded"]}, caps={"bob": 1}) == [
        "bob: 2 ran at once, the cap is 1"
    ]


def test_a_run_ends_with_the_death_of_its_process(story: Story) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.ledger import BodyLedger\n"
        "with BodyLedger(Path(sys.argv[1])).body(sys.argv[2], epoch=2):\n"
        "    print('begun', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(story.bodies), story.job]
    deaths = DeathLedger(story.deaths)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deaths.watch(process.pid, process.pid)
        assert Checker(story.producers, story.bodies, story.deaths).runs[-1].ended is None
        process.kill()
        wait_until(lambda: story.deaths.read_text() != "", "the death to be noted")
    deaths.close()
    run = Checker(story.producers, story.bodies, story.deaths).runs[-1]
    assert run.ended is not None and run.ended >= run.began and not run.has_returned


def test_a_recovery_is_the_time_from_a_death_to_the_next_run_of_the_job(story: Story) -> None:
    pid = 4_000_001
    second = 1_000_000_000
    story.body.note("B", "one", story.job, 2, pid, 5, 10 * second, "default", "-")
    Ledger(story.deaths).note("D", pid, 5, 11 * second)
    story.body.note("B", "two", story.job, 3, pid + 1, 5, 11 * second + second // 2, "default", "-")
    assert Checker(story.producers, story.bodies, story.deaths).recoveries_s() == [0.5]


def test_the_greatest_overlap_is_found_by_its_edges() -> None:
    def run(began: int, ended: int | None) -> Interval:
        return Interval("job", 1, 1, "default", "-", began, ended, ended is not None)

    assert most_at_once([]) == 0
    assert most_at_once([run(0, 10), run(10, 20)]) == 1
    assert most_at_once([run(0, 10), run(5, 20), run(6, 7)]) == 3
    assert most_at_once([run(0, None), run(100, 200)]) == 2


def test_a_line_that_one_write_may_split_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with pytest.raises(ValueError, match="bytes"):
        ledger.note("x" * 5000)
    ledger.close()


def test_lines_of_many_processes_never_mix(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "for _ in range(500): ledger.note(sys.argv[2] * 200)"
    )
    path = tmp_path / "ledger"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = path.read_text().splitlines()
    assert len(lines) == 1500
    assert set(lines) == {"a" * 200, "b" * 200, "c" * 200}


def test_a_report_says_how_much_stands_behind_it() -> None:
    report = Report(300, 1000, 1100, [], seed=7, recoveries_s=[0.1, 0.2, 0.3])
    assert "faults 300, jobs 1000, runs 1100, violations 0" in str(report)
    assert "0.0100" in str(report)
    assert "seed 7" in str(report)
    assert "p50 0.20 s" in str(report)


def test_percentiles() -> None:
    assert percentiles(range(1, 101)) == (51, 100, 100)


def test_the_clock_goes_forward() -> None:
    earlier = now_ns()
    assert earlier <= now_ns()
