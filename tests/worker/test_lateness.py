"""Lateness: a process that starts rated jobs too late takes fewer of them, waits longer, and recovers by itself."""

from evenflow.store.advance import Want
from evenflow.worker.lateness import LONGEST_PAUSE_S, PAUSE_S, SAME_TIME_S, Lateness

WANTS = [Want("mail", 0, 16), Want("docs", 1, 16)]


def tops(lateness: Lateness, now: float) -> dict[str, int]:
    return {want.queue: want.top for want in lateness.cut(WANTS, now)}


def test_a_process_that_was_never_late_takes_what_it_wants() -> None:
    assert Lateness().cut(WANTS, 0.0) is WANTS
    assert Lateness().resumes_at(0.0) is None


def test_a_late_queue_pauses_and_then_gives_half_while_the_others_go_on() -> None:
    lateness = Lateness()
    lateness.note(["mail", "mail"], 16, 100.0)
    assert tops(lateness, 100.0) == {"docs": 16}
    resumes_at = lateness.resumes_at(100.0)
    assert resumes_at == 100.0 + PAUSE_S
    assert tops(lateness, resumes_at) == {"mail": 8, "docs": 16}


def test_jobs_that_are_found_late_together_count_once() -> None:
    lateness = Lateness()
    lateness.note(["mail"], 16, 100.0)
    lateness.note(["mail"], 16, 100.0 + SAME_TIME_S / 2)
    assert tops(lateness, 100.0 + PAUSE_S)["mail"] == 8


def test_each_further_time_halves_again_down_to_one_and_pauses_longer() -> None:
    lateness, now = Lateness(), 100.0
    pauses = []
    for _ in range(10):
        lateness.note(["mail"], 16, now)
        resumes_at = lateness.resumes_at(now)
        assert resumes_at is not None
        pauses.append(resumes_at - now)
        now = resumes_at + SAME_TIME_S
    assert tops(lateness, now)["mail"] == 1
    assert pauses == sorted(pauses)
    assert max(pauses) <= LONGEST_PAUSE_S + 1e-6


def test_what_was_late_once_is_forgotten_when_all_goes_well() -> None:
    lateness = Lateness()
    lateness.note(["mail"], 16, 100.0)
    assert tops(lateness, 110.0) == {"mail": 16, "docs": 16}
    assert lateness.cut(WANTS, 110.0) is WANTS
