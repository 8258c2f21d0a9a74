"""Who holds SQLite's write lock for too long."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenflow.database_url import parse_url
from evenflow.worker import write_lock
from evenflow.worker.write_lock import FROZEN_S, WriteLockWatch

SOMEBODY = 4_000_001


class Holder:
    """A process that takes the lock, as a descriptor of its own: flock counts descriptors, not processes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def take(self, pid: int = SOMEBODY, *, at_ns: int) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.pwrite(self._file, b"%-10d" % pid, 0)
        os.utime(self._file, ns=(at_ns, at_ns))

    def free(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)


class Scene:
    """A lock file, a holder, a watch, and a clock that stands still until it is told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(write_lock, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.watch = WriteLockWatch(parse_url(f"sqlite:///{folder}/jobs.db"))
        self.holder = Holder(folder / "jobs.db.lock")

    def after(self, seconds: float) -> int | None:
        self.now += seconds
        return self.watch.frozen_holder()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.holder.close()


def test_a_free_lock_has_no_holder(scene: Scene) -> None:
    assert scene.after(0) is None
    assert scene.after(FROZEN_S * 2) is None


def test_a_holder_that_does_not_let_go_is_told_once_in_that_time(scene: Scene) -> None:
    scene.holder.take(at_ns=1)
    assert scene.after(0) is None
    assert scene.after(FROZEN_S - 0.1) is None
    assert scene.after(0.2) == SOMEBODY
    assert scene.after(0.5) is None
    assert scene.after(FROZEN_S) == SOMEBODY


def test_a_holder_that_takes_it_again_and_again_is_busy_not_frozen(scene: Scene) -> None:
    for number in range(50):
        scene.holder.take(at_ns=number + 1)
        assert scene.after(0.5) is None
        scene.holder.free()


def test_ones_own_process_is_never_told(scene: Scene) -> None:
    scene.holder.take(os.getpid(), at_ns=1)
    assert scene.after(0) is None
    assert scene.after(FROZEN_S + 1) is None


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "postgresql://db/jobs", "sqlite:////nowhere/jobs.db"])
def test_other_databases_have_no_such_lock(url: str) -> None:
    assert WriteLockWatch(parse_url(url)).frozen_holder() is None
