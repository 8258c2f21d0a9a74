"""Writes to a file, as the system tells of them."""

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenflow.store.file_watch import FileWatch
from evenflow.store.signals import readable


def write(path: Path, text: str = "x") -> None:
    with path.open("a") as file:
        file.write(text)


def is_told(watch: FileWatch) -> bool:
    assert watch.descriptor is not None
    return bool(readable([watch.descriptor], 0))


def test_a_write_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    watch = FileWatch(str(path))
    assert not is_told(watch)
    write(path)
    assert is_told(watch)
    watch.clear()
    assert not is_told(watch)
    watch.close()
    assert watch.descriptor is None


def test_a_file_that_is_made_later_or_anew_is_watched_after_a_look(tmp_path: Path) -> None:
    path = tmp_path / "log"
    watch = FileWatch(str(path))
    assert watch.descriptor is None
    path.touch()
    watch.renew()
    write(path)
    assert is_told(watch)
    path.rename(tmp_path / "old")  # kept, so that its number is not used again
    path.touch()
    watch.renew()
    assert not is_told(watch)
    write(path)
    assert is_told(watch)
    path.unlink()
    watch.renew()
    assert watch.descriptor is None


@pytest.mark.parametrize("libc", [SimpleNamespace(), SimpleNamespace(inotify_init1=lambda flags: -1)])
def test_a_system_that_tells_nothing_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libc: SimpleNamespace
) -> None:
    (tmp_path / "log").touch()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    watch = FileWatch(str(tmp_path / "log"))
    assert watch.descriptor is None
    watch.clear()
    watch.close()


def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(10):
        watch = FileWatch(str(tmp_path / "log"))
        watch.renew()
        watch.close()
    assert set(os.listdir("/proc/self/fd")) == before
