"""A worker process by itself: what it says with its exit code, its lifeline, its watchdog, its size."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from evenflow.worker.child import _memory_mb
from evenflow.worker.orders import EXIT_GONE, EXIT_OK, EXIT_REFUSED, Orders
from evenflow.worker.turns import SHORTEST_S
from tests.processes import wait_until
from tests.scratch_directory import start_time
from tests.worker.command import Books
from tests.worker.conftest import MakeApp, StartWorker

pytestmark = [pytest.mark.process, pytest.mark.either]

APP = "import os, signal, sys, threading, time\nfrom evenflow import Evenflow\napp = Evenflow()\n"
HANG_ONCE = """
from evenflow.store import leases
main, flag = sys.modules["__main__"], os.environ["LEDGER_FOLDER"] + "/hung"
beat, calls = leases.beat, []

def hang(*arguments, **options):
    calls.append(1)
    if len(calls) > 3 and not os.path.exists(flag):
        with open(flag, "w") as file:
            file.write(f"{os.getpid()}\\n")
        threading.Event().wait()
    return beat(*arguments, **options)

if hasattr(main, "HUNG_S"):
    main.HUNG_S, main.HUNG_POLLS, main.GONE_WITHIN_S = 4.0, 0, 0.5
    leases.beat = hang
"""
FREEZE = """
from evenflow.worker import write_lock
write_lock.FROZEN_S = 4.0

@app.task(name="freeze")
def freeze(flag: str) -> int:
    if not os.path.exists(flag):
        open(flag, "w").close()
        with app._producer.engine.exclusive():
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)  # the signal may take a moment to reach this thread: it must not let go meanwhile
    return os.getpid()
"""
READ = """
import subprocess

@app.task(name="read")
def read() -> list[str]:
    return [sys.stdin.read(), subprocess.run(["cat"], capture_output=True, timeout=10, text=True).stdout]
"""


TURNS = """
@app.task(name="turns")
async def turns():
    import sys
    return sys.getswitchinterval()
"""


def orders(**changes: object) -> bytes:
    plain = Orders(
        locator="shop:app", path=[], queues=["*"], parent=1, concurrency=2, max_claim_batch=0, max_claim=2, prefetch=0,
        shutdown_timeout_s=1.0, coalesce_notifies=100, max_jobs=0, max_memory_mb=0, max_age_s=0.0, loglevel="info",
    )  # fmt: skip
    return msgspec.json.encode(msgspec.structs.replace(plain, **changes)) + b"\n"


def child(folder: Path, text: str, sqlite_url: str) -> "subprocess.Popen[bytes]":
    (folder / "shop.py").write_text(APP.replace("Evenflow()", f"Evenflow({sqlite_url!r})") + text)
    process = subprocess.Popen(
        [sys.executable, "-m", "evenflow.worker.child"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(orders(path=[str(folder)]))
    process.stdin.flush()
    return process


def test_it_serves_until_term_and_says_that_all_is_well(tmp_path: Path, sqlite_url: str) -> None:
    with child(tmp_path, "", sqlite_url) as process:
        wait_until(lambda: Books(sqlite_url).worker_pids() == [process.pid], "it to register", 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == EXIT_OK
    assert Books(sqlite_url).worker_pids() == []


@pytest.mark.parametrize("text", ["raise ValueError('no key')", "app = 5"])
def test_an_app_that_cannot_be_loaded_is_refused(tmp_path: Path, sqlite_url: str, text: str) -> None:
    with child(tmp_path, text, sqlite_url) as process:
        assert process.wait(30) == EXIT_REFUSED


def test_the_end_of_its_lifeline_is_its_end(tmp_path: Path, sqlite_url: str) -> None:
    with child(tmp_path, "", sqlite_url) as process:
        wait_until(lambda: Books(sqlite_url).worker_pids() == [process.pid], "it to register", 30)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == EXIT_GONE
    assert Books(sqlite_url).worker_pids() == []


def test_a_lifeline_that_ends_before_it_serves_ends_it_too(tmp_path: Path, sqlite_url: str) -> None:
    with child(tmp_path, "import time; time.sleep(1)", sqlite_url) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == EXIT_GONE


@pytest.mark.parametrize(
    ("text", "seconds"), [("", SHORTEST_S), ("import sys; sys.setswitchinterval(0.003)", 0.003)]
)
def test_the_pump_gets_its_turn_soon_unless_the_app_has_said_when(
    text: str, seconds: float, tmp_path: Path, sqlite_url: str, make_app: MakeApp
) -> None:
    task = make_app(sqlite_url).task(name="turns")(lambda: 0.0)
    with child(tmp_path, TURNS + text, sqlite_url) as process:
        job = task.enqueue()
        try:
            assert job.result(timeout=30) == pytest.approx(seconds)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == EXIT_OK


def test_bodies_and_what_they_start_find_nothing_to_read(
    tmp_path: Path, sqlite_url: str, make_app: MakeApp
) -> None:
    task = make_app(sqlite_url).task(name="read")(lambda: ["", ""])
    with child(tmp_path, READ, sqlite_url) as process:
        job = task.enqueue()
        try:
            assert job.result(timeout=30) == ["", ""], (
                "they read the lifeline, which says nothing and does not end"
            )
        finally:
            assert process.stdin is not None
            process.stdin.close()
        assert process.wait(30) == EXIT_GONE, "the lifeline is still one"


def test_a_long_start_hook_is_not_taken_for_a_hung_pump(
    start_worker: StartWorker, sqlite_url: str, tmp_path: Path
) -> None:
    slow = "@app.hooks.on_worker_start\ndef start() -> None:\n    time.sleep(6)\n"
    (tmp_path / "slow.py").write_text(APP + HANG_ONCE.replace("leases.beat = hang", "") + slow)
    worker = start_worker(sqlite_url, "--processes", "1", locator="slow:app", PYTHONPATH=tmp_path).ready()
    assert "no progress" not in worker.log
    assert worker.stop() == 0


def test_a_process_whose_pump_hangs_is_replaced(
    start_worker: StartWorker, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(APP + HANG_ONCE)
    worker = start_worker(sqlite_url, "--processes", "1", locator="hanging:app", PYTHONPATH=tmp_path)
    worker.said(r"the pump has made no progress for \d+ s: this process is replaced")
    hung = int((tmp_path / "hung").read_text())
    wait_until(lambda: worker.children() not in ([], [hung]), "a new process", 60)
    worker.ready()
    assert worker.stop() == 0


def test_a_process_whose_pump_hangs_does_not_outlive_its_supervisor(
    start_worker: StartWorker, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(APP + HANG_ONCE.replace("4.0, 0, 0.5", "600.0, 0, 0.5"))
    worker = start_worker(sqlite_url, "--processes", "1", locator="hanging:app", PYTHONPATH=tmp_path).ready()
    (orphan,) = worker.children()
    wait_until(lambda: (tmp_path / "hung").exists(), "the pump to hang", 60)
    worker.send(signal.SIGKILL)
    wait_until(lambda: start_time(orphan) is None, "the orphan to leave", 60)


def test_a_process_that_is_frozen_with_the_write_lock_is_ended_and_the_others_go_on(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    (tmp_path / "freezing.py").write_text(APP + FREEZE)
    app = make_app(sqlite_url)
    task = app.task(name="freeze")(lambda flag: 0)
    worker = start_worker(sqlite_url, "--processes", "2", locator="freezing:app", PYTHONPATH=tmp_path).ready(
        2
    )
    job = task.enqueue(str(tmp_path / "frozen"))
    worker.said("is frozen with the database's write lock: it is ended")
    assert job.result(timeout=60) in worker.children()
    assert job.crashes == 1


def test_memory_is_what_is_resident_now() -> None:
    before = _memory_mb()
    ballast = bytearray(64 * 1024**2)
    ballast[::4096] = b"x" * len(ballast[::4096])
    grown = _memory_mb()
    assert grown - before > 40
    del ballast
    assert _memory_mb() < grown
