"""Statistics: added up per minute and in total, by any number of processes; forgotten in time."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evenflow.rules import histogram
from evenflow.settings import Retention
from evenflow.store import statistics
from evenflow.store.control import cancel, discard, expire
from evenflow.store.open import AnyEngine
from evenflow.store.statistics import MINUTE_US, Statistic
from tests.store.scene import ALICE, BOB, DAY, SECOND, START, Scene, new_job, second_engine

KEPT = Retention(statistics="1 day")


def counted(task: str = "mail.send", queue: str = "default", **counts: Any) -> Statistic:
    cell = Statistic(queue, task, **counts)
    cell.waits = [cell.started, *histogram.empty()[1:]]
    cell.runs = [*histogram.empty()[1:], cell.succeeded]
    return cell


def test_what_two_reports_of_a_minute_say_is_added_up(scene: Scene) -> None:
    for _ in range(2):
        cell = counted(started=3, succeeded=2, retried=1, wait_us=30, run_us=500)
        assert statistics.add(scene.engine, [cell], now=START + 10 * SECOND) == START + 10 * SECOND
    (row,) = statistics.since(scene.engine, START)
    expected = counted(started=6, succeeded=4, retried=2, wait_us=60, run_us=1000)
    expected.minute = START - START % MINUTE_US
    assert row == expected


def test_each_minute_has_a_row_and_the_total_is_their_sum(scene: Scene) -> None:
    for minute in range(3):
        statistics.add(scene.engine, [counted(started=1)], now=START + minute * MINUTE_US)
    first = START - START % MINUTE_US
    assert [row.minute for row in statistics.since(scene.engine, START)] == [
        first, first + MINUTE_US, first + 2 * MINUTE_US,
    ]  # fmt: skip
    assert [row.minute for row in statistics.since(scene.engine, START + MINUTE_US)] == [
        first + MINUTE_US, first + 2 * MINUTE_US,
    ]  # fmt: skip
    (total,) = statistics.totals(scene.engine)
    assert (total.minute, total.started, total.waits[0]) == (0, 3, 3)


def test_tasks_and_queues_are_told_apart_and_can_be_asked_for(scene: Scene) -> None:
    cells = [counted("a", "x", started=1), counted("a", "y", started=2), counted("b", "x", started=4)]
    statistics.add(scene.engine, cells, now=START)
    found = statistics.since(scene.engine, START, queue="x")
    assert [(row.task, row.started) for row in found] == [("a", 1), ("b", 4)]
    found = statistics.since(scene.engine, START, task="a")
    assert [(row.queue, row.started) for row in found] == [("x", 1), ("y", 2)]
    assert [row.started for row in statistics.totals(scene.engine)] == [1, 4, 2]


def test_nothing_counted_writes_nothing(scene: Scene) -> None:
    assert statistics.add(scene.engine, []) is None
    assert statistics.totals(scene.engine) == []


def test_processes_that_report_at_once_lose_nothing(store: AnyEngine) -> None:
    engines = [second_engine(store) for _ in range(3)]
    tasks = [f"task{number}" for number in range(5)]

    def report(number: int) -> None:
        order = tasks if number % 2 else tasks[::-1]
        for _ in range(10):
            statistics.add(engines[number], [counted(task, started=1) for task in order], now=START)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(report, range(3)))
    for engine in engines:
        engine.close()
    assert [row.started for row in statistics.totals(store)] == [30] * 5


def test_minutes_are_forgotten_when_their_time_has_passed_and_totals_stay(scene: Scene) -> None:
    for minute in range(3):
        statistics.add(scene.engine, [counted(started=1)], now=START + minute * MINUTE_US)
    first = START - START % MINUTE_US
    assert statistics.prune(scene.engine, KEPT, now=first + DAY - 1) == 0
    assert statistics.prune(scene.engine, KEPT, top=1, now=first + DAY + MINUTE_US) == 1
    assert statistics.prune(scene.engine, KEPT, now=first + DAY + MINUTE_US) == 1
    assert [row.minute for row in statistics.since(scene.engine, 0)] == [first + 2 * MINUTE_US]
    assert [row.started for row in statistics.totals(scene.engine)] == [3]


def test_totals_of_a_task_that_is_gone_are_forgotten(scene: Scene) -> None:
    statistics.add(scene.engine, [counted("gone", started=1), counted("alive", started=1)], now=START)
    later = START + statistics.TOTALS_KEPT_US
    statistics.add(scene.engine, [counted("alive", started=1)], now=later)
    statistics.prune(scene.engine, Retention(statistics=None), now=later + 1)
    assert [row.task for row in statistics.totals(scene.engine)] == ["alive"]


def test_rescue_counts_crashes_of_what_ran_and_not_of_what_was_only_held(scene: Scene) -> None:
    scene.running()
    scene.running(fails_on_crash=True)
    scene.enqueue(new_job())
    assert scene.claim(1, lease_us=60 * SECOND)
    scene.rescue()  # neither worker is in the books
    found = {(row.queue, row.crashed, row.failed) for row in statistics.totals(scene.engine)}
    assert found == {("only-1000", 1, 0), ("only-1001", 1, 1)}


def test_rescue_counts_the_last_crash_as_quarantined_too(scene: Scene) -> None:
    job = scene.running(worker=BOB)
    for _ in range(2):
        scene.rescue()
        scene.claim(1, worker=BOB, queues=[job.queue])
    scene.rescue()
    (row,) = statistics.totals(scene.engine)
    assert (row.crashed, row.quarantined) == (3, 1)


def test_jobs_that_expire_or_are_withdrawn_are_counted_where_that_happens(scene: Scene) -> None:
    scene.enqueue(new_job(task="late", good_until=START + SECOND))
    expire(scene.engine, KEPT, now=START + 2 * SECOND)
    ids = scene.enqueue(new_job(task="unwanted"), new_job(task="dropped"))
    cancel(scene.engine, ids[:1], KEPT)
    discard(scene.engine, ids[1:], KEPT)
    running = scene.running(worker=ALICE, task="told")
    cancel(scene.engine, [running.id], KEPT)  # only flagged: its worker will count it
    found = {row.task: (row.expired, row.cancelled, row.discarded) for row in statistics.totals(scene.engine)}
    assert found == {"late": (1, 0, 0), "unwanted": (0, 1, 0), "dropped": (0, 0, 1)}
