"""The pictures of the manual: what the runs behind them must show, and that the diagrams are those of the code."""

from pathlib import Path

import pytest

from bench.stores import ENGINES, Stores
from evenflow import State
from tests.postgres_server import DatabaseHost
from tools.figures import charts, diagrams, runs
from tools.figures.__main__ import FIGURES, IMAGES
from tools.figures.claims import claim_costs
from tools.figures.drawing import marks_up_to, stairs


@pytest.mark.parametrize("name", ["states", "architecture"])
def test_a_diagram_in_the_manual_is_what_the_tool_draws_now(name: str, tmp_path: Path) -> None:
    drawn = FIGURES[name](tmp_path)
    assert (IMAGES / f"{name}.svg").read_text("utf-8") == drawn, f"run: python -m tools.figures {name}"


def test_every_state_of_the_code_is_drawn() -> None:
    drawn = diagrams.states()
    assert [state for state in State if f">{state.value}</text>" not in drawn] == []


def test_a_state_without_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(diagrams.PLACES, State.OVERFLOW)
    with pytest.raises(LookupError, match="overflow"):
        diagrams.states()


@pytest.mark.slow
def test_the_race_shows_alice_served_early_under_fair_turns_and_late_without(tmp_path: Path) -> None:
    fifo, fair = (
        runs.race(tmp_path, "fifo", files=400, before=40, work_s=0.04),
        runs.race(tmp_path, "round-robin", files=400, before=40, work_s=0.04),
    )
    place = {leg.fair: [name for _, name in leg.starts].index("Alice") for leg in (fifo, fair)}
    assert place["fifo"] == 400
    assert place["round-robin"] < 200
    assert "Alice waits" in charts.race([fifo, fair])


@pytest.mark.slow
def test_tenants_share_under_fair_turns(tmp_path: Path) -> None:
    # Long enough that backlogs last until Dan comes, though his enqueue has to wait for its turn.
    fair = runs.tenants(tmp_path, "round-robin", scale=10, work_s=0.04)
    names = [name for _, name in fair.starts]
    after = names[names.index("Dan") :][:60]  # all four have a backlog from here on
    assert {"Ann", "Bob", "Cem", "Dan"} == set(after)
    assert after.count("Dan") > 1.3 * after.count("Ann")
    assert charts.shares([fair]).count("<rect") > 50


@pytest.mark.slow
def test_a_rate_lets_no_more_than_its_count_into_any_window(tmp_path: Path) -> None:
    seen = runs.rated(tmp_path, burst=None, most=20, windows=2)
    assert len(seen.starts) == 40
    # One more: a body that was let in may be kept from noting its start. Bodies that come late have tests of their own.
    assert max(count for _, count in seen.in_window()) <= 20 + 1
    assert "most in any second" in charts.rate([seen])


@pytest.mark.process
def test_a_cap_holds_over_processes_while_one_is_killed(tmp_path: Path) -> None:
    seen = runs.capped(tmp_path, jobs=40, cap=3, later=5)
    assert seen.killed > 0
    assert len(seen.runs) >= 40 + seen.killed  # a body whose end was not written before the kill runs again
    over = [(moment, count) for moment, count in seen.running() if count > seen.cap_at(moment)]
    assert over == []
    assert "kill -9" in charts.cap(seen)


def test_a_claim_is_measured_at_each_backlog_on_both_engines(
    postgres_server: DatabaseHost, tmp_path: Path
) -> None:
    stores = Stores(postgres_server, tmp_path, tmp_path)
    costs = claim_costs(stores, backlogs=[200, 2_000], groups=10, rounds=2)
    assert [cost.engine for cost in costs.engines] == list(ENGINES.values())
    assert [[ready for ready, _ in cost.points] for cost in costs.engines] == [[200, 2_000]] * 2
    assert all(ms > 0 for cost in costs.engines for _, ms in cost.points)
    drawn = charts.claim(costs)
    assert drawn.count("<circle") == 4
    assert all(f">{text}</text>" in drawn for text in ("200", "2,000", *ENGINES.values()))


def test_marks_are_round_and_few() -> None:
    assert marks_up_to(3.4) == [0, 1, 2, 3]
    assert marks_up_to(11.5) == [0, 2, 4, 6, 8, 10]


def test_stairs_keep_their_height_until_the_next_step() -> None:
    assert stairs([(0, 1), (2, 3)], until=5) == [(0, 1), (2, 1), (2, 3), (5, 3)]
