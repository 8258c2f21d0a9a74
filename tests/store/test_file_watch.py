"""Writes to a file, as the system tells of them."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenflow.store.file_watch import FileWatch, PlaceWatch
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
        place = PlaceWatch(str(tmp_path / "log"))
        place.close()
        PlaceWatch(str(tmp_path / "log"))  # forgotten
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[tuple[Path, PlaceWatch]]:
    """A file in a folder in a folder, and who watches its place."""
    path = tmp_path / "above" / "folder" / "file"
    path.parent.mkdir(parents=True)
    write(path)
    watch = PlaceWatch(str(path))
    yield path, watch
    watch.close()


def replace(path: Path) -> None:
    write(path.with_name("other"))
    os.replace(path.with_name("other"), path)


def rename_above(path: Path) -> None:
    path.parents[1].rename(path.parents[2] / "elsewhere")


@pytest.mark.parametrize(
    "act", [Path.unlink, replace, rename_above, lambda path: path.rename(path.with_name("other"))]
)
def test_a_place_is_not_sure_any_more_once_it_may_lead_elsewhere(
    placed: tuple[Path, PlaceWatch], act: Callable[[Path], object]
) -> None:
    path, watch = placed
    assert watch.is_sure()
    held = path.open()  # as a database is: a file that somebody has open does not end with its last name
    act(path)
    assert not watch.is_sure()
    held.close()


def test_a_place_stays_sure_whatever_is_written_there(placed: tuple[Path, PlaceWatch]) -> None:
    path, watch = placed
    write(path)
    write(path.with_name("other"))
    path.with_name("other").unlink()
    assert watch.is_sure()


def test_a_place_is_sure_again_after_somebody_has_looked(placed: tuple[Path, PlaceWatch]) -> None:
    path, watch = placed
    path.chmod(0o600)
    assert not watch.is_sure()
    watch.clear()
    assert watch.is_sure()


def test_a_place_is_never_sure_where_the_system_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not PlaceWatch(str(tmp_path / "nothing there")).is_sure()
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: SimpleNamespace())
    watch = PlaceWatch(str(tmp_path))
    assert not watch.is_sure()
    watch.clear()
    watch.close()
