"""Processes for bodies with `run_in="process"`: isolated from the worker, and killed when their time is up."""

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import msgspec

from evenflow.errors import ProcessExitError
from evenflow.job import Claimed, End
from evenflow.worker.calling import Report, Run, timed_out
from evenflow.worker.outcome import CancelledByWish
from evenflow.worker.registry import Entry

_LOOK_S = 0.2
_LENGTH = struct.Struct("!I")


class Message(msgspec.Struct, frozen=True):
    """What travels between a worker and an isolated process."""

    job: Claimed | None = None
    end: End | None = None
    progress: dict[str, object] | None = None
    locator: str | None = None
    path: list[str] | None = None


class Processes:
    """A pool of isolated processes, grown as needed and used again. One thread of the worker waits for each busy one."""

    def __init__(self, locator: str | None, report: Report) -> None:
        self._locator = locator
        self._report = report
        self._lock = threading.Lock()
        self._idle: list[Process] = []

    def run(self, run: Run, entry: Entry) -> End:
        """Run a job in a process of its own. Raises TimedOut, CancelledByWish or ProcessExitError."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or Process(self._locator or entry.function.__module__)
        try:
            end = self._await_end(process, run, entry)
        except BaseException:
            process.kill()
            raise
        with self._lock:
            self._idle.append(process)
        return end

    def close(self) -> None:
        with self._lock:
            for process in self._idle:
                process.kill()
            self._idle.clear()

    def _await_end(self, process: "Process", run: Run, entry: Entry) -> End:
        ends_at = None if entry.timeout_s is None else time.monotonic() + entry.timeout_s
        process.channel.send(Message(job=run.job))
        while True:
            left = _LOOK_S if ends_at is None else min(_LOOK_S, ends_at - time.monotonic())
            message = process.channel.receive(max(0.0, left))
            if message is not None and message.end is not None:
                return message.end
            if message is not None and message.progress is not None:
                self._report(run.job.id, run.job.epoch, dict(message.progress))
            if run.cancel_why is not None:
                raise CancelledByWish(run.cancel_why)
            if ends_at is not None and time.monotonic() >= ends_at:
                raise timed_out(entry)
            if run.is_over:
                raise CancelledByWish("the job was given back")


class Process:
    """One isolated interpreter."""

    def __init__(self, locator: str) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "evenflow.worker.isolated", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self.channel = Channel(ours, self.describe_death)
        self.channel.send(Message(locator=locator, path=[path for path in sys.path if path]))

    def kill(self) -> None:
        """End it with everything it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.channel.close()

    def describe_death(self) -> ProcessExitError:
        """How it died. Waits for it: its end of the pipe is closed."""
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.returncode
        return exit_error(f"isolated process {self._process.pid}", code)


class Channel:
    """Messages over a socket: length, then JSON."""

    def __init__(self, connection: socket.socket, describe_death) -> None:  # type: ignore[no-untyped-def]
        self._socket = connection
        self._describe_death = describe_death
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Message).decode

    def send(self, message: Message) -> None:
        text = self._encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(text)) + text)
        except OSError as error:
            raise self._describe_death() from error

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message, or None when none came in time."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return None
        return self._decode(self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0]))

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise self._describe_death()
            parts += part
        return parts


def exit_error(who: str, code: int) -> ProcessExitError:
    """How a process ended, as the error that its jobs carry."""
    if code < 0:
        name = (
            signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
        )
        return ProcessExitError(f"{who} was ended by {name}", signal=name)
    return ProcessExitError(f"{who} exited with code {code}", exit_code=code)
