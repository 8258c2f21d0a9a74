"""An isolated process: `python -m evenflow.worker.isolated FD`. Runs one job at a time and sends its End back.

Bodies run on the main thread; another one listens to the worker, whose end is the end of this process and of all it started.
"""

import asyncio
import functools
import os
import queue
import random
import signal
import socket
import sys
import threading
from typing import Any

from evenflow.client.app import Client
from evenflow.errors import ConfigError, ProcessExitError
from evenflow.job import Claimed, End
from evenflow.signing import KeyRing
from evenflow.store.open import AnyEngine, open_engine
from evenflow.worker.calling import Caller, Run
from evenflow.worker.loading import load_apps
from evenflow.worker.logs import configure_logging
from evenflow.worker.outcome import UnknownTask, raised
from evenflow.worker.processes import Channel, Message, sendable
from evenflow.worker.registry import Registry
from evenflow.worker.step_gate import StepGate
from evenflow.worker.transaction import RunTransaction


def main(descriptor: int) -> None:
    """Load the app that the first message names, then run jobs until the worker is gone."""
    channel = Channel(socket.socket(fileno=descriptor), lambda: ProcessExitError("the worker is gone"))
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, messages), name="evenflow-lifeline", daemon=True).start()
    first = messages.get()
    assert first.locator is not None
    configure_logging(*(first.log_as or ("", "")))
    try:
        apps: list[Client] = load_apps(first.locator, Client, paths=first.path or [])
    except ConfigError as error:
        messages.get()  # the job that is to end with it
        channel.send(Message(refusal=str(error)))
        return
    for app in apps:
        app.hooks.worker_start()
        app.hooks.child_start()
    while True:
        message = messages.get()
        assert message.job is not None
        channel.send(_run(message, apps, channel))


def _listen(channel: Channel, messages: "queue.SimpleQueue[Message]") -> None:
    try:
        while True:
            message = channel.receive(None)
            assert message is not None
            messages.put(message)
    except ProcessExitError:
        os.killpg(os.getpid(), signal.SIGKILL)  # a session of its own: nobody else is in this group


def _run(message: Message, apps: list[Client], channel: Channel) -> Message:
    """Run a job: its end, and whether that is written already, in the transaction of its body."""
    assert message.job is not None
    run, end = _ended(message.job, message.start_by, message.worker, apps, channel)
    return Message(end=sendable(end), is_written=run.written is not None)


def _ended(
    job: Claimed, start_by: float | None, worker: int, apps: list[Client], channel: Channel
) -> tuple[Run, End]:
    app = next((app for app in apps if job.task in app.tasks), apps[0])
    registry = Registry(app.tasks, app.settings)
    entry = registry.entry(job)
    run = Run(job, entry, start_by)
    if entry is None:
        unknown = UnknownTask(f"no task {job.task!r} in the isolated process")
        return run, raised(job, unknown, registry.unknown, run.now(), 0.5)

    def report(_job: int, _epoch: int, said: dict[str, Any]) -> None:
        channel.send(Message(progress=said))

    def say(_job: Claimed, level: str, line: str) -> None:
        channel.send(Message(log=(level, line)))

    keys = KeyRing.build(app.settings.signing_keys) if app.settings.signing_keys else None
    caller = Caller(
        keys=keys, require_signed=app.settings.require_signed, hooks=app.hooks, report=report, say=say,
        gate=StepGate(app.conditions), journal=app.journal,
        transact=lambda job, is_async: RunTransaction(_engine(app), app.settings.retention, worker, job, is_async),
    )  # fmt: skip
    channel.send(Message(has_begun=True))
    if entry.is_async:
        try:
            return run, asyncio.run(caller.run_coroutine(run, entry))
        except BaseException as error:  # SystemExit in a task that the body has started
            return run, raised(job, error, entry.rules, run.now(), random.random())
    return run, caller.run_function(run, entry)


@functools.cache
def _engine(app: Client) -> AnyEngine:
    """The store, for bodies that ask for a transaction."""
    return open_engine(app.settings.database, app.settings.schema, pool_size=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
