"""`evenflow demo` and its race: ends by itself, loses nothing, and Alice does not wait."""

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenflow import Evenflow, EvenflowError
from evenflow.cli.race import FAIR, FIFO, QUEUES, Race
from evenflow.store.open import open_engine
from tests.cli.running import environment, evenflow, evenflow_on_terminal, evenflow_process, without_rich

pytestmark = pytest.mark.slow

SUMMARY = re.compile(
    r"Alice waited\n  Fair turns +(?P<fair>[\d.]+ m?s)\n  First come, first served +(?P<fifo>[\d.]+ m?s)\n"
    r"  [\d,]+ times longer without fair turns\n\n"
    r"2,002 jobs enqueued, 2,002 succeeded, 0 lost, in [\d.]+ s\n"
)


def test_without_a_terminal_it_says_lines_and_a_summary(folder: Path) -> None:
    done = evenflow_process("demo", "--fast", TMPDIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.count("Bob 1,000 of 1,000, Alice 1 of 1\n") == 2
    assert SUMMARY.search(done.stdout), done.stdout
    (path,) = folder.glob("evenflow-demo-*/demo.db")
    assert f"The jobs stay in {path}" in done.stdout
    assert len(path.parent.name) > len("evenflow-demo-")
    with Evenflow(f"sqlite:///{path}") as app:
        assert len(list(app.jobs(state="succeeded"))) == 2002
        assert app.stats() == {}


@pytest.mark.parametrize("has_rich", [True, False], ids=["rich", "plain"])
def test_on_a_terminal_it_draws_a_bar_per_tenant(has_rich: bool, folder: Path) -> None:
    variables = {} if has_rich else without_rich(folder)
    done = evenflow_on_terminal("demo", "--fast", TMPDIR=str(folder), **variables)
    assert done.code == 0, done.text
    wanted = "1000/1000" if has_rich else "1,000 of 1,000"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.text)
    assert re.search(rf"Bob +\S+ +{wanted}", plain)
    assert re.search(r"Alice +\S+ +1", plain)
    assert SUMMARY.search(plain), plain


def test_it_runs_on_postgres_and_twice_in_one_database(postgres_url: str) -> None:
    for _ in range(2):
        done = evenflow_process("demo", "--fast", "--postgres", postgres_url)
        assert (done.returncode, done.stderr) == (0, "")
        assert SUMMARY.search(done.stdout), done.stdout
    assert "The jobs stay in the schema evenflow_demo" in done.stdout


def test_ctrl_c_ends_it_without_a_traceback(folder: Path) -> None:
    command = [sys.executable, "-u", "-m", "evenflow", "demo"]
    with subprocess.Popen(
        command,
        env=environment({"TMPDIR": str(folder)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if " of 10,000" in line:  # the first line of progress: the worker is at it
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1
        assert "Traceback" not in process.stderr.read()


def test_another_address_is_a_wrong_use() -> None:
    done = evenflow("demo", "--postgres", "sqlite:///a.db")
    assert done.exit_code == 2
    assert "expected postgresql://user:password@host/database" in done.stderr


class TestRace:
    async def test_alice_goes_ahead_with_fair_turns_and_last_without(self, sqlite_url: str) -> None:
        app = Evenflow(sqlite_url, queues=QUEUES)
        engine = open_engine(app.settings.database)
        seen: list[tuple[str, int]] = []
        race = Race(app, engine, files=300)
        fair = await race.run(FAIR, lambda name, done: seen.append((name, done)))
        fifo = await race.run(FIFO, lambda name, done: None)
        assert (fair.enqueued, fair.succeeded, fair.lost) == (301, 301, 0)
        assert (fifo.enqueued, fifo.succeeded, fifo.lost) == (301, 301, 0)
        assert fair.alice_waited_us < fifo.alice_waited_us
        assert {name for name, _ in seen} == {"Bob", "Alice"}
        engine.close()
        app.close()

    async def test_a_worker_that_ends_is_an_error_and_not_an_endless_wait(self, sqlite_url: str) -> None:
        class Refusing(Evenflow):
            async def arun_worker(self, **_: Any) -> None:
                raise EvenflowError("not today")

        app = Refusing(sqlite_url, queues=QUEUES)
        engine = open_engine(app.settings.database)
        with pytest.raises(EvenflowError, match="not today"):
            await asyncio.wait_for(Race(app, engine, files=5).run(FAIR, lambda name, done: None), 30)
        engine.close()
        app.close()
