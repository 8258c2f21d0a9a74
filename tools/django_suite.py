"""Runs the tests that Django has for its tasks framework against Evenflow's backend: `python -m tools.django_suite`.

They are fetched with Django's own source package and are no part of this project. A test that expects what Evenflow does
otherwise on purpose is listed here with the reason; any other failure, and any listed one that passes, is an error.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "6.0.*"

OTHERWISE = {
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": "changes the dummy's own list in memory",
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": "changes the dummy's own list in memory",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": "results can be read",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": "results can be read",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": "jobs can be deferred",
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "a body that raises KeyboardInterrupt ends its job, not the worker"
    ),
    "test_immediate_backend.ImmediateBackendTestCase.test_complex_return_value": (
        "the error is evenflow.errors.ResultError instead of TypeError: such a job is never run again"
    ),
    "test_immediate_backend.ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "a job belongs to the open transaction and runs after its commit"
    ),
    "test_tasks.TaskTestCase.test_enqueue_with_invalid_argument": "a datetime is a valid argument",
    "test_tasks.TaskTestCase.test_aenqueue_with_invalid_argument": "a datetime is a valid argument",
}


def main() -> int:
    """Fetch, run and compare; the exit code says whether all went as it is told here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="Django's source package, where it is at hand already")
    parser.add_argument("--version", default=VERSION, help=f"of Django, default {VERSION}")
    parser.add_argument("--database", help="address of an empty database, default a SQLite file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        archive = given.source or _fetched(given.version, place)
        _unpack(archive, place)
        database = given.database or f"sqlite:///{place}/suite.db"
        stock = _run(place, f"sqlite:///{place}/stock.db", "--stock")
        ours = _run(place, database)
    return _report(archive.name, stock, ours)


def _fetched(version: str, place: Path) -> Path:
    wanted = f"django=={version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-binary",
        "django",  # the wheel has no tests; what builds it may come as a wheel
        "--no-deps",
        "--ignore-requires-python",  # its tests run against the backport on older Pythons, too
        "-d",
        str(place),
    ]
    subprocess.run([*command, wanted], check=True)
    [found] = place.glob("*.tar.gz")
    return found


def _unpack(archive: Path, place: Path) -> None:
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            _, _, rest = member.name.partition("/")
            if rest.startswith("tests/tasks/") and member.isfile() and ".." not in rest:
                member.name = rest.removeprefix("tests/")
                packed.extract(member, place, filter="data")


def _run(place: Path, database: str, *options: str) -> dict[str, str]:
    command = [sys.executable, "-m", "tools.django_stand_ins", str(place), database, *options]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode != 0:
        raise SystemExit(f"the tests could not be run: exit code {done.returncode}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report(archive: str, stock: dict[str, str], ours: dict[str, str]) -> int:
    # What fails with Django's own backends, too, says nothing about ours: texts of the backport differ in places.
    apart = sorted(name for name, outcome in stock.items() if outcome != "ok")
    wrong = 0
    passed = 0
    for name, outcome in sorted(ours.items()):
        if name in apart:
            continue
        if (outcome == "ok") == (name not in OTHERWISE):
            passed += outcome == "ok"
            continue
        wrong += 1
        print(f"{'unexpectedly passed' if outcome == 'ok' else 'FAILED'}: {name}: {outcome}")
    for name, reason in sorted(OTHERWISE.items()):
        if name in ours and name not in apart:
            print(f"otherwise: {name}: {reason}")
    for name in apart:
        print(f"apart: {name}: fails with Django's own backends too: {stock[name]}")
    otherwise = sum(name in OTHERWISE and name not in apart for name in ours)
    print(f"{archive}: {passed} passed, {otherwise} otherwise on purpose, {len(apart)} apart, {wrong} wrong")
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
