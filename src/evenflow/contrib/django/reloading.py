"""Running a command anew whenever a file of the project changes, for development.

The files are watched from outside: a mistake that keeps the command from starting does not end the watch.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from django.apps import apps
from django.utils.autoreload import StatReloader

LOOK_S = 0.5
STOP_WITHIN_S = 40.0


def run_reloading(command: list[str]) -> int:
    """Run the command until a signal ends it; start it anew after every change. The exit code of its last run."""
    asked: list[int] = []
    files = _ProjectFiles()
    with _noted_signals(asked):
        while True:
            process = subprocess.Popen(command)
            changed = _watched(process, files, asked)
            code = _stopped(process, asked[0] if asked else signal.SIGTERM)
            if changed is None:
                return code
            print(f"{changed} has changed: starting anew", file=sys.stderr, flush=True)


def _watched(process: "subprocess.Popen[bytes]", files: "_ProjectFiles", asked: list[int]) -> Path | None:
    """The file that has changed, or None where somebody wants us to stop. A command that has ended waits for a change."""
    has_ended = False
    while not asked:
        if (changed := files.changed()) is not None:
            return changed
        if not has_ended and process.poll() is not None:
            has_ended = True
            print("the command has ended: waiting for a change", file=sys.stderr, flush=True)
        time.sleep(LOOK_S)
    return None


def _stopped(process: "subprocess.Popen[bytes]", number: int) -> int:
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class _ProjectFiles:
    """The sources that this process has imported, and all that stand in the folders of the project's own apps."""

    def __init__(self) -> None:
        self._reloader: Any = StatReloader()
        for config in apps.get_app_configs():
            if not {"site-packages", "dist-packages"} & set(Path(config.path).parts):
                self._reloader.watch_dir(config.path, "**/*.py")
        self._seen: dict[Path, float] = dict(self._reloader.snapshot_files())

    def changed(self) -> Path | None:
        """A file that was changed or added since the last call."""
        before, self._seen = self._seen, dict(self._reloader.snapshot_files())
        return next((path for path, at in self._seen.items() if before.get(path) != at), None)


@contextlib.contextmanager
def _noted_signals(asked: list[int]) -> Iterator[None]:
    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
