"""Processes for bodies with `run_in="process"`: isolated from the worker, and killed when their time is up."""

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from evenflow.errors import ProcessExitError
from evenflow.ids import id_text
from evenflow.job import Claimed, End, JudgedEnd
from evenflow.store.advance import Advanced
from evenflow.store.signals import readable
from evenflow.worker.calling import Report, Run, Say, timed_out
from evenflow.worker.logs import logged_as
from evenflow.worker.outcome import CancelledByWish, NoProcess, UnknownTask
from evenflow.worker.registry import Entry

log = logging.getLogger("evenflow.worker")

START_WITHIN_S = 60.0
_LOOK_S = 0.2
_LENGTH = struct.Struct("!I")


class Message(msgspec.Struct, frozen=True):
    """What travels between a worker and an isolated process."""

    job: Claimed | None = None
    worker: int = 0
    is_written: bool = False
    start_by: float | None = None
    has_begun: bool = False
    refusal: str | None = None
    end: JudgedEnd | None = None
    progress: dict[str, object] | None = None
    log: tuple[str, str] | None = None
    locator: str | None = None
    path: list[str] | None = None
    log_as: tuple[str, str] | None = None


def sendable(end: End) -> JudgedEnd:
    """An end as it travels: one kind for all, since a decoder cannot tell them apart."""
    return end if isinstance(end, JudgedEnd) else JudgedEnd(*msgspec.structs.astuple(end))


def _written(job: Claimed) -> Advanced:
    """What follows from an end that an isolated process has written itself. Keys that it let go of are found by the sweep."""
    runs = frozenset() if job.run_id is None else frozenset({job.run_id})
    return Advanced([], [], [job.id], {}, set(), runs=runs)


class Processes:
    """A pool of isolated processes, grown as needed and used again. One thread of the worker waits for each busy one."""

    def __init__(self, locator: str | None, report: Report, say: Say, worker: int = 0) -> None:
        self._worker = worker
        self._locator = locator
        self._report = report
        self._say = say
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._busy: set[Process] = set()

    def run(self, run: Run, entry: Entry) -> End:
        """Run a job in a process of its own. Raises TimedOut, CancelledByWish, UnknownTask, NoProcess or ProcessExitError."""
        process = self._idle_process()
        if process is not None:
            try:
                return self._run_in(process, run, entry)
            except ProcessExitError:
                if process.has_begun:
                    raise
                # It died between two jobs, so no job is to blame.
        return self._run_in(self._fresh_process(run.job, entry), run, entry)

    def _fresh_process(self, job: Claimed, entry: Entry) -> "Process":
        try:
            return Process(self._locator or entry.function.__module__)
        except OSError as error:  # out of processes, files or memory: the host's trouble, not the job's fault
            said = "job %s goes back: an isolated process could not be started (%s)"
            log.error(said, id_text(job.id), error)
            raise NoProcess(str(error)) from error

    def _run_in(self, process: "Process", run: Run, entry: Entry) -> End:
        with self._lock:
            self._busy.add(process)
        try:
            end = self._await_end(process, run, entry)
        except BaseException:
            process.kill()
            raise
        finally:
            with self._lock:
                self._busy.discard(process)
        with self._lock:
            self._idle.append(process)
        return end

    def close(self) -> None:
        """End them all, also those whose job was given back a moment ago."""
        with self._lock:
            processes = [*self._idle, *self._busy]
            self._idle.clear()
        for process in processes:
            process.kill()

    def _idle_process(self) -> "Process | None":
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.is_alive():
                return process
            process.kill()

    def _await_end(self, process: "Process", run: Run, entry: Entry) -> End:
        # The timeout is the body's: an interpreter that starts and imports the app first has a limit of its own.
        ends_at: float | None = time.monotonic() + START_WITHIN_S
        process.has_begun = False
        # `start_by` fits there too: one clock for all processes of a host.
        process.channel.send(Message(job=run.job, start_by=run.start_by, worker=self._worker))
        while True:
            left = _LOOK_S if ends_at is None else min(_LOOK_S, ends_at - time.monotonic())
            message = process.channel.receive(max(0.0, left))
            if message is None and not process.is_alive():
                # Its end of the channel is held open by a process that it has forked: no more than what it said comes.
                message = process.channel.receive(0.0)
                if message is None:
                    raise process.describe_death()
            if message is not None and message.end is not None:
                if message.is_written:
                    run.written = _written(run.job)
                return message.end
            if message is not None and message.refusal is not None:
                raise UnknownTask(f"an isolated process cannot load the app: {message.refusal}")
            if message is not None and message.has_begun:
                process.has_begun = True
                ends_at = None if entry.timeout_s is None else time.monotonic() + entry.timeout_s
            if message is not None and message.progress is not None:
                self._report(run.job.id, run.job.epoch, dict(message.progress))
            if message is not None and message.log is not None:
                self._say(run.job, *message.log)
            if run.cancel_why is not None:
                raise CancelledByWish(run.cancel_why)
            if run.is_over:
                raise CancelledByWish("the job was given back")
            if ends_at is not None and time.monotonic() >= ends_at:
                raise timed_out(entry) if process.has_begun else process.slow_start()


class Process:
    """One isolated interpreter."""

    def __init__(self, locator: str) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "evenflow.worker.isolated", str(theirs.fileno())]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        self._is_ended = False
        self.has_begun = False
        """Whether the body of its last job was entered."""
        self.channel = Channel(ours, self.describe_death)
        self.channel.send(
            Message(locator=locator, path=[path for path in sys.path if path], log_as=logged_as())
        )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it with everything it has started. Once: its number may be a stranger's afterwards."""
        if self._is_ended:
            return
        self._is_ended = True
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

    def slow_start(self) -> ProcessExitError:
        return ProcessExitError(
            f"isolated process {self._process.pid} did not begin within {START_WITHIN_S:g} s: it was still loading the app"
        )


class Channel:
    """Messages over a socket: length, then JSON. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket, describe_death: Callable[[], ProcessExitError]) -> None:
        self._socket = connection
        self._describe_death = describe_death
        self._sending = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Message).decode

    def send(self, message: Message) -> None:
        text = self._encode(message)
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(text)) + text)
        except OSError as error:
            raise self._describe_death() from error

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message, or None when none came in time."""
        if timeout_s is not None and not readable([self._socket.fileno()], timeout_s):
            return None
        return self._decode(self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0]))

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            try:
                part = self._socket.recv(count - len(parts))
            except OSError as error:
                raise self._describe_death() from error
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
