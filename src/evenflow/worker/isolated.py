"""An isolated process: `python -m evenflow.worker.isolated FD`. Runs one job at a time and sends its End back.

Bodies run on the main thread; another one listens to the worker, whose end is the end of this process and of all it started.
"""

import asyncio
import os
import queue
import random
import signal
import socket
import sys
import threading
from typing import Any

from evenflow.client.app import Client
from evenflow.errors import ProcessExitError
from evenflow.job import Claimed, End
from evenflow.signing import KeyRing
from evenflow.worker.calling import Caller, Run
from evenflow.worker.loading import load_apps
from evenflow.worker.logs import configure_logging
from evenflow.worker.outcome import UnknownTask, raised
from evenflow.worker.processes import Channel, Message, sendable
from evenflow.worker.registry import Registry
from evenflow.worker.step_gate import StepGate


def main(descriptor: int) -> None:
    """Load the app that the first message names, then run jobs until the worker is gone."""
    channel = Channel(socket.socket(fileno=descriptor), lambda: ProcessExitError("the worker is gone"))
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, messages), name="evenflow-lifeline", daemon=True).start()
    first = messages.get()
    assert first.locator is not None
    configure_logging("")
    apps: list[Client] = load_apps(first.locator, Client, paths=first.path or [])
    for app in apps:
        app.hooks.worker_start()
        app.hooks.child_start()
    while True:
        message = messages.get()
        assert message.job is not None
        channel.send(Message(end=sendable(_run(message.job, message.start_by, apps, channel))))


def _listen(channel: Channel, messages: "queue.SimpleQueue[Message]") -> None:
    try:
        while True:
            message = channel.receive(None)
            assert message is not None
            messages.put(message)
    except ProcessExitError:
        os.killpg(os.getpid(), signal.SIGKILL)  # a session of its own: nobody else is in this group


def _run(job: Claimed, start_by: float | None, apps: list[Client], channel: Channel) -> End:
    app = next((app for app in apps if job.task in app.tasks), apps[0])
    registry = Registry(app.tasks, app.settings)
    entry = registry.entry(job)
    run = Run(job, entry, start_by)
    if entry is None:
        unknown = UnknownTask(f"no task {job.task!r} in the isolated process")
        return raised(job, unknown, registry.unknown, run.now(), 0.5)

    def report(_job: int, _epoch: int, said: dict[str, Any]) -> None:
        channel.send(Message(progress=said))

    def say(_job: Claimed, level: str, line: str) -> None:
        channel.send(Message(log=(level, line)))

    keys = KeyRing.build(app.settings.signing_keys) if app.settings.signing_keys else None
    caller = Caller(
        keys=keys, require_signed=app.settings.require_signed, hooks=app.hooks, report=report, say=say,
        gate=StepGate(app.conditions), journal=app.journal,
    )  # fmt: skip
    channel.send(Message(has_begun=True))
    if entry.is_async:
        try:
            return asyncio.run(caller.run_coroutine(run, entry))
        except BaseException as error:  # SystemExit in a task that the body has started
            return raised(job, error, entry.rules, run.now(), random.random())
    return caller.run_function(run, entry)


if __name__ == "__main__":
    main(int(sys.argv[1]))
