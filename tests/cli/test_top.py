"""`evenflow top`: its tables, its document, and the live view with the keys that are pressed in it."""

import asyncio
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from evenflow import StoreError
from evenflow.cli.overview import look, sorted_table, tables
from evenflow.cli.top_view import TopView
from tests.cli.running import environment, evenflow
from tests.cli.stage import Stage
from tests.client.serving import serving

WITHIN_S = 30.0


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """Some jobs have run, one has failed, three tenants wait, one queue is paused."""
    return filled(stage)


@pytest.fixture
def viewed_stage(sqlite_stage: Stage) -> Stage:
    """The same on SQLite alone: the view itself knows no engine."""
    return filled(sqlite_stage)


def filled(stage: Stage) -> Stage:
    stage.failed()
    stage.add.enqueue_many([(1, 2, tenant) for tenant in ("ann", "bob", "eve") for _ in range(4)])
    stage.app.set_limit("mail", max_concurrency=2)
    stage.app.pause("mail", who="eve", why="too much")
    return stage


def test_once_prints_every_table(busy: Stage) -> None:
    done = evenflow("top", "--once", "--url", busy.url)
    assert done.exit_code == 0, done.output
    for expected in (
        "Queues",
        "Groups",
        "Workers",
        "Limits",
        "paused",
        "queue:mail",
        "no workers",
        "0 of 0 slots busy",
    ):
        assert expected in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("default "))
    assert line.split()[1] == "12"


def test_json_has_the_same_with_stable_keys(busy: Stage) -> None:
    done = evenflow("top", "--json", "--url", busy.url)
    found = msgspec.json.decode(done.stdout)
    assert found.keys() == {"at", "slots", "queues", "groups", "workers", "limits", "breakers"}
    default, mail = found["queues"]
    assert default["jobs"] == {"ready": 12}
    assert (mail["paused"], mail["paused_by"], mail["paused_why"]) == (True, "eve", "too much")
    assert mail["errors_per_minute"] == 1
    assert [row["group"] for row in found["groups"]["default"]] == ["ann", "bob", "eve"]


def test_workers_are_shown_while_they_live(stage: Stage) -> None:
    with serving(stage.app, concurrency=7):
        ends_at = time.monotonic() + WITHIN_S
        while look(stage.engine).slots != (0, 7):
            assert time.monotonic() < ends_at
    assert look(stage.engine).slots == (0, 0)


def test_an_empty_database_is_shown_too(stage: Stage) -> None:
    assert evenflow("top", "--once", "--url", stage.url).exit_code == 0


def test_away_from_a_terminal_the_live_view_is_refused_with_advice(stage: Stage) -> None:
    done = evenflow("top", "--url", stage.url)
    assert done.exit_code == 2
    assert "--once or --json" in done.stderr


def test_columns_of_numbers_are_sorted_by_size_and_texts_by_letter(busy: Stage) -> None:
    queues = next(table for table in tables(look(busy.engine)) if table.name == "queues")
    assert sorted_table(queues, "ready").keys == ["default", "mail"]
    assert sorted_table(queues, "cap").keys == ["mail", "default"]
    assert sorted_table(queues, "queue").keys == ["default", "mail"]
    assert sorted_table(queues, None) is queues


class Viewed:
    """A live view under test, at 80 columns and 24 lines."""

    def __init__(self, view: TopView, pilot: Pilot[None]) -> None:
        self._view = view
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def until(self, is_so: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + WITHIN_S
        while not is_so():
            assert time.monotonic() < ends_at, self.lines()
            await self._pilot.pause(0.02)

    def lines(self) -> list[list[str]]:
        table = self._view.query_one(DataTable)
        return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]

    def said(self) -> str:
        return str(self._view.query_one("#said", Static).content)


def view(stage: Stage, act: Callable[[Viewed], Any]) -> None:
    async def run() -> None:
        live = TopView(stage.engine, stage.app, interval_s=0.2)
        async with live.run_test(size=(80, 24)) as pilot:
            viewed = Viewed(live, pilot)
            await viewed.until(lambda: bool(viewed.lines()))
            await act(viewed)

    asyncio.run(run())


def test_the_keys_choose_views(viewed_stage: Stage) -> None:
    async def act(viewed: Viewed) -> None:
        assert [line[0] for line in viewed.lines()] == ["default", "mail"]
        await viewed.press("2")
        await viewed.until(lambda: [line[1] for line in viewed.lines()] == ["ann", "bob", "eve"])
        await viewed.press("4")
        await viewed.until(lambda: [line[0] for line in viewed.lines()] == ["queue:mail"])
        await viewed.press("tab")
        await viewed.until(lambda: [line[0] for line in viewed.lines()] == ["default", "mail"])

    view(viewed_stage, act)


def test_p_pauses_and_resumes_the_chosen_queue(viewed_stage: Stage) -> None:
    def paused() -> list[str]:
        return [row.name for row in viewed_stage.app.queues() if row.paused_at is not None]

    async def act(viewed: Viewed) -> None:
        await viewed.press("p")  # the first line
        await viewed.until(lambda: paused() == ["default", "mail"])
        await viewed.until(lambda: viewed.said() == "queue 'default' is paused")
        await viewed.until(lambda: viewed.lines()[0][-1] == "paused")
        await viewed.press("down", "p")
        await viewed.until(lambda: paused() == ["default"])

    view(viewed_stage, act)


def test_s_sorts_by_the_next_column_and_the_cursor_stays_with_its_queue(viewed_stage: Stage) -> None:
    async def act(viewed: Viewed) -> None:
        await viewed.press("down", "s")
        await viewed.until(lambda: viewed.said() == "sorted by queue")
        await viewed.press(*"s" * 8)
        await viewed.until(lambda: [line[0] for line in viewed.lines()] == ["mail", "default"])
        assert viewed.said() == "sorted by cap"
        await viewed.press("p")  # still on mail
        await viewed.until(lambda: viewed.said() == "queue 'mail' is served again")

    view(viewed_stage, act)


def test_space_stops_the_view_and_lets_it_go_on(viewed_stage: Stage) -> None:
    async def act(viewed: Viewed) -> None:
        await viewed.press("space")
        await viewed.until(lambda: "space goes on" in viewed.said())
        viewed_stage.add.enqueue(1, 2, "zoe")
        await viewed.press("space")
        await viewed.until(lambda: viewed.lines()[0][1] == "13")

    view(viewed_stage, act)


def test_a_database_that_is_away_is_said_and_tried_again(
    viewed_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(viewed: Viewed) -> None:
        def away(_: object) -> None:
            raise StoreError("the database is away")

        with monkeypatch.context() as during:
            during.setattr("evenflow.cli.top_view.look", away)
            await viewed.until(lambda: viewed.said() == "the database is away; trying again")
        viewed_stage.add.enqueue(1, 2, "zoe")
        await viewed.until(lambda: viewed.lines()[0][1] == "13")

    view(viewed_stage, act)


def test_control_characters_in_names_reach_no_terminal(sqlite_stage: Stage) -> None:
    sqlite_stage.add.using(group="\u202eevil").enqueue(1)

    async def act(viewed: Viewed) -> None:
        await viewed.press("2")
        await viewed.until(lambda: [line[1] for line in viewed.lines()] == ["\\u202eevil"])

    view(sqlite_stage, act)


@pytest.mark.slow
def test_on_a_real_terminal_it_shows_the_queues_and_q_ends_it(sqlite_stage: Stage) -> None:
    sqlite_stage.add.enqueue(1)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "evenflow", "top", "--url", sqlite_stage.url]
    variables = environment({"TERM": "xterm-256color"})
    with subprocess.Popen(command, env=variables, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        seen, has_quit, ends_at = "", False, time.monotonic() + WITHIN_S
        while time.monotonic() < ends_at and select.select([master], [], [], WITHIN_S)[0]:
            try:
                seen += os.read(master, 65_536).decode(errors="replace")
            except OSError:
                break
            if not has_quit and "default" in seen and "pause/resume" in seen:
                os.write(master, b"q")
                has_quit = True
        os.close(master)
        assert process.wait(WITHIN_S) == 0
    assert has_quit, seen
    assert "Traceback" not in seen
