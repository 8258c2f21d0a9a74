"""The matrix of versions: `make test-matrix`, or `nox -s django` for a part of it.

Interpreters that are not installed are skipped and said to be; so are PostgreSQL servers. Arguments after `--` go to pytest.
"""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools.server_binaries import Binaries, installed_servers, version_text

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

VERSIONS = ("3.11", "3.12", "3.13")
DJANGO = {"5.2": VERSIONS[:2], "6.0": VERSIONS[1:], "6.1": VERSIONS[1:]}
"""Which Pythons a Django is for; newer ones than it knows are not tried."""
AT_ONCE = ("-n", "6", "--maxprocesses", "6")  # as `make test` does
PYTEST = ("pytest>=9", "pytest-asyncio>=1.3", "pytest-timeout>=2.4", "pytest-xdist>=3.8", "hypothesis>=6.140")


def interpreter(version: str) -> str:
    """The program of this version: on the path, where it works, else among those of pyenv, else its bare name."""
    for found in (
        shutil.which(f"python{version}"),
        *sorted(glob.glob(str(_pyenv() / f"{version}.*/bin/python"))),
    ):
        if found is not None and _works(found):
            return found
    return f"python{version}"


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def _works(program: str) -> bool:
    return subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0


PYTHONS = {version: interpreter(version) for version in VERSIONS}
SERVERS: dict[str, Binaries] = {version_text(found): found for found in installed_servers()}


@nox.session
@nox.parametrize("python", [nox.param(program, id=version) for version, program in PYTHONS.items()])
def tests(session: nox.Session) -> None:
    """Everything, on each Python."""
    session.install("--editable", ".[test]")
    session.run("python", "-m", "tools.servers")
    session.run("python", "-m", "pytest", *AT_ONCE, *session.posargs)


@nox.session
@nox.parametrize(
    ("python", "version"),
    [
        nox.param(PYTHONS[python], django, id=f"{python}-{django}")
        for django, pythons in DJANGO.items()
        for python in pythons
    ],
)
def django(session: nox.Session, version: str) -> None:
    """The Django backend, and Django's own tests of its tasks framework, on each Django and each Python that it is for."""
    backport = ["django-tasks>=0.12"] if version == "5.2" else []
    session.install(
        "--editable", ".[postgres]", f"django=={version}.*", *backport, *PYTEST, "time-machine", "sqlparse"
    )
    session.run("python", "-m", "pytest", "tests/contrib/django", *session.posargs)
    session.run("python", "-m", "tools.django_suite")


@nox.session
@nox.parametrize("server", [nox.param(version, id=f"postgresql-{version}") for version in SERVERS])
def postgres(session: nox.Session, server: str) -> None:
    """The store, the client and the workers on each PostgreSQL of this machine."""
    session.install("--editable", ".[test]")
    chosen = {"EVENFLOW_TEST_POSTGRES_BIN": str(SERVERS[server].folder)}
    session.run(
        "python",
        "-m",
        "pytest",
        "tests/store",
        "tests/client",
        "tests/worker",
        *AT_ONCE,
        "-k",
        "postgres",
        *session.posargs,
        env=chosen,
    )


@nox.session
def peers(session: nox.Session) -> None:
    """The examples of other queues in the pages for those who come from them."""
    session.install("celery", "huey", "procrastinate", "psycopg[binary]")
    session.run("python", "-m", "tools.peers")
