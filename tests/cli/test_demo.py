"""`evenflow demo` and its race: ends by itself, loses nothing, and Alice does not wait."""

import asyncio
import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evenflow import Evenflow, EvenflowError, Job
from evenflow.cli.demo import _refuse_flaws
from evenflow.cli.race import ALICE, BOB, FAIR, FIFO, QUEUES, Leg, Race
from evenflow.cli.trial import Outcome, most_at_once, most_in_a_second
from evenflow.job import JobRecord
from evenflow.store.open import open_engine
from tests.cli.running import environment, evenflow, evenflow_on_terminal, evenflow_process, without_rich

pytestmark = pytest.mark.slow

SUMMARY = re.compile(
    r"Alice waited\n  Fair turns +(?P<fair>[\d.]+ m?s)\n  First come, first served +(?P<fifo>[\d.]+ m?s)\n"
    r"  [\d,]+ times longer without fair turns\n\n"
    r"Limits held\n  bank: never more than [123] at once, the cap is 3\n"
    r"  api: never more than (1?\d|20) starts in a second, the rate is 20\n"
    r"  process \d+ was killed; [1-9]\d* jobs? of it ran again elsewhere\n\n"
    r"2,092 jobs enqueued, 2,092 succeeded, 0 lost, in [\d.]+ s\n"
)


def test_without_a_terminal_it_says_lines_and_a_summary(folder: Path) -> None:
    done = evenflow_process("demo", "--fast", TMPDIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.count("Bob 1,000 of 1,000, Alice 1 of 1\n") == 2
    assert SUMMARY.search(done.stdout), done.stdout
    (path,) = folder.glob("evenflow-demo-*/*")  # nothing but its file
    assert path.name == "demo.db"
    assert "bank 60 of 60, api 30 of 30\n" in done.stdout
    assert f"The jobs stay in {path}" in done.stdout
    assert len(path.parent.name) > len("evenflow-demo-")
    with Evenflow(f"sqlite:///{path}") as app:
        assert len(list(app.jobs(state="succeeded"))) == 2092
        assert app.stats() == {}


@pytest.mark.parametrize(
    "has_rich", [pytest.param(True, id="rich"), pytest.param(False, id="plain", marks=pytest.mark.large)]
)
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
    # A shell that runs us in the background has interrupts ignored, and so would the demo.
    start = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('evenflow', None, '__main__')"
    )
    command = [sys.executable, "-u", "-c", start, "demo"]
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


def test_ctrl_c_is_heard_also_while_a_leg_ends(folder: Path) -> None:
    """The worker of a leg is cancelled when its jobs are done; who cancels the demo just then means the demo."""

    async def run() -> None:
        race = Race(app, app._producer.engine, files=5)
        demo = asyncio.create_task(race.run(FAIR, lambda name, done: None))
        while race._done != {BOB: 5, ALICE: 1}:
            await asyncio.sleep(0)
        while not any("arun_worker" in repr(task) and task.cancelling() for task in asyncio.all_tasks()):
            await asyncio.sleep(0)
        demo.cancel()
        await demo

    with Evenflow(f"sqlite:///{folder}/demo.db", queues=QUEUES) as app, pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


def test_with_serve_the_dashboard_shows_what_it_left_until_ctrl_c(folder: Path) -> None:
    port = _port_that_nobody_is_given()
    command = [sys.executable, "-u", "-m", "evenflow", "demo", "--fast", "--serve", "--port", str(port)]
    variables = environment({"TMPDIR": str(folder)})
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = next(line for line in process.stdout if line.startswith("Dashboard of "))
            assert f"http://127.0.0.1:{port}/" in said
            assert "demo.call" in _fetched(f"http://127.0.0.1:{port}/jobs")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, 1)
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def _port_that_nobody_is_given() -> int:
    """A free one below those that the system gives to whoever asks for any: it is opened only after the demo."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def _fetched(url: str) -> str:
    ends_at = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:  # the line comes a moment before the port is open
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.05)


def test_another_address_is_a_wrong_use() -> None:
    done = evenflow("demo", "--postgres", "sqlite:///a.db")
    assert done.exit_code == 2
    assert "expected postgresql://user:password@host/database" in done.stderr


def record(started_at: int, finished_at: int = 0) -> JobRecord:
    return msgspec.convert(
        {**dict.fromkeys(JobRecord.__struct_fields__), **_FILLED, "started_at": started_at, "finished_at": finished_at},
        JobRecord,
    )  # fmt: skip


_FILLED = {
    "id": 1, "state": "succeeded", "queue": "bank", "task": "demo.charge", "priority": 0, "attempt": 1, "max_attempts": 1,
    "crashes": 0, "created_at": 0, "run_at": 0, "payload": "[]",
}  # fmt: skip


class TestTrial:
    def test_what_overlaps_is_at_once_and_what_follows_is_not(self) -> None:
        assert most_at_once([record(0, 10), record(5, 15), record(10, 20), record(15, 30)]) == 2
        assert most_at_once([record(0, 10), record(1, 9), record(2, 3)]) == 3
        assert most_at_once([]) == 0

    def test_starts_are_counted_in_every_window_of_a_second(self) -> None:
        starts = [0, 400_000, 999_999, 1_000_000, 1_100_000]
        assert most_in_a_second([record(start) for start in starts]) == 4
        assert most_in_a_second([record(0), record(1_000_000)]) == 1

    def test_a_limit_that_did_not_hold_ends_the_demo_with_an_error(self) -> None:
        leg = Leg(FAIR, 1, 1, 0, 0.1)
        _refuse_flaws([leg], Outcome(2, 2, 3, 20, 1, 1, 0.1))
        with pytest.raises(
            EvenflowError, match="4 jobs ran at once under a cap of 3 and 21 jobs started within a second"
        ):
            _refuse_flaws([leg], Outcome(2, 2, 4, 21, 1, 1, 0.1))
        with pytest.raises(EvenflowError, match="1 job did not succeed"):
            _refuse_flaws([leg], Outcome(2, 1, 3, 20, 1, 1, 0.1))


def _in_order_of_start(app: Evenflow, queue: str) -> list[Job[Any]]:
    return sorted(app.jobs(queue=queue), key=lambda job: (job.started_at, job.id))


class TestRace:
    async def test_alice_goes_ahead_with_fair_turns_and_last_without(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "evenflow.cli.race.WORK_S", 0.05
        )  # Bob is far from done when Alice's enqueue has its turn
        app = Evenflow(sqlite_url, queues=QUEUES)
        engine = open_engine(app.settings.database)
        seen: list[tuple[str, int]] = []
        race = Race(app, engine, files=300)
        fair = await race.run(FAIR, lambda name, done: seen.append((name, done)))
        fifo = await race.run(FIFO, lambda name, done: None)
        started = {queue: [job.group for job in _in_order_of_start(app, queue)] for queue in (FAIR, FIFO)}
        assert (fair.enqueued, fair.succeeded, fair.lost) == (301, 301, 0)
        assert (fifo.enqueued, fifo.succeeded, fifo.lost) == (301, 301, 0)
        # By turns, not by time: one of the two legs may stand still for a while.
        assert started[FAIR].index(ALICE) < 250
        assert started[FIFO].index(ALICE) == 300
        assert min(fair.alice_waited_us, fifo.alice_waited_us) > 0
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
