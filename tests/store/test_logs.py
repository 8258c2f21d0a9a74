"""Lines that bodies logged: kept in order, read with their job, deleted when their time has passed."""

from evenflow.settings import Retention
from evenflow.store import logs
from evenflow.store.logs import LogLine, NewLine
from tests.store.scene import DAY, Scene

KEPT = Retention(failed="1 day")


def line(scene: Scene, number: int, *, job: int = 1, attempt: int = 1, text: str = "done") -> NewLine:
    return NewLine(job, scene.now, attempt, number, "INFO", text)


def test_lines_come_back_by_attempt_and_number(scene: Scene) -> None:
    logs.add(
        scene.engine,
        [line(scene, 2, attempt=2, text="c"), line(scene, 1, text="b"), line(scene, 0, text="a")],
        KEPT,
    )
    assert [each.line for each in logs.of(scene.engine, 1)] == ["a", "b", "c"]
    assert logs.of(scene.engine, 1)[0] == LogLine(scene.now, 1, "INFO", "a")


def test_a_job_reads_its_own_lines_only(scene: Scene) -> None:
    logs.add(scene.engine, [line(scene, 0, job=1), line(scene, 1, job=2)], KEPT)
    assert len(logs.of(scene.engine, 1)) == 1
    assert logs.of(scene.engine, 3) == []


def test_lines_are_kept_as_long_as_a_failed_job(scene: Scene) -> None:
    logs.add(scene.engine, [line(scene, 0)], KEPT)
    assert logs.prune(scene.engine, now=scene.now + DAY - 1) == 0
    assert logs.prune(scene.engine, now=scene.now + DAY) == 1
    assert logs.of(scene.engine, 1) == []


def test_pruning_goes_in_bounded_steps(scene: Scene) -> None:
    logs.add(scene.engine, [line(scene, number) for number in range(5)], KEPT)
    assert logs.prune(scene.engine, top=3, now=scene.now + DAY) == 3
    assert logs.prune(scene.engine, top=3, now=scene.now + DAY) == 2
