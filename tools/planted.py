"""Planted bugs: each patch in tests/planted is one real mistake, and the tests that it names must turn red.

A planted bug that stays green is a defect of the tests. `python -m tools.planted [names…]` copies the sources, applies one
patch, runs its tests against the copy, and prints a table; exit code 1 when a bug survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "planted"
SOURCES = "src"
TESTS_FAILED = 1
TIMEOUT_S = 300.0


class PatchError(Exception):
    """A patch that cannot be read, or that does not fit the sources any more."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of one file that are replaced by others."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One planted bug: what is wrong, which tests must see it, and where it is put."""

    name: str
    bug: str
    tests: tuple[str, ...]
    hunks: tuple[Hunk, ...]


def patches(names: Sequence[str] = ()) -> list[Patch]:
    """The patches of these names, or all of them, by name."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.patch"))}
    if unknown := [name for name in names if name not in found]:
        raise PatchError(f"no planted bug {unknown[0]!r}; there are {', '.join(found)}")
    return [parsed(path.stem, path.read_text()) for path in map(found.__getitem__, names or found)]


def parsed(name: str, text: str) -> Patch:
    """A unified diff below lines `bug: …` and `test: …`. The numbers of lines do not count, only the lines themselves."""
    bug, tests, hunks = "", [], []
    path, before, after = "", "", ""
    for line in [*text.splitlines(), "@@"]:
        kind, rest = line[:1], line[1:]
        if line.startswith(("@@", "--- ")):
            if before or after:
                hunks.append(Hunk(path, before, after))
            before = after = ""
        elif line.startswith("+++ "):
            path = line.removeprefix("+++ ").strip().removeprefix("b/")
        elif not path and line.startswith("bug: "):
            bug = line.removeprefix("bug: ")
        elif not path and line.startswith("test: "):
            tests.append(line.removeprefix("test: "))
        elif path and kind in ("-", " ", ""):
            before += rest + "\n"
            after += rest + "\n" if kind != "-" else ""
        elif path and kind == "+":
            after += rest + "\n"
        elif line:
            raise PatchError(f"{name}: a line that is neither header nor diff: {line!r}")
    if not (bug and tests and hunks):
        raise PatchError(f"{name}: expected `bug: …`, `test: …` and a diff")
    return Patch(name, bug, tuple(tests), tuple(hunks))


def apply(patch: Patch, root: Path) -> None:
    """Change the files below `root`. Each hunk must fit in exactly one place."""
    for hunk in patch.hunks:
        path = root / hunk.path
        text = path.read_text()
        if (count := text.count(hunk.before)) != 1:
            raise PatchError(f"{patch.name}: a hunk fits {count} places of {hunk.path}, expected one")
        path.write_text(text.replace(hunk.before, hunk.after))


def run(patch: Patch) -> tuple[int, str]:
    """pytest's exit code and output for the patch's tests, against a copy of the sources with the bug in it."""
    with tempfile.TemporaryDirectory(prefix="evenflow-planted-") as folder:
        shutil.copytree(ROOT / SOURCES, Path(folder, SOURCES), ignore=shutil.ignore_patterns("__pycache__"))
        apply(patch, Path(folder))
        return tested(patch.tests, Path(folder, SOURCES))


def tested(tests: Sequence[str], sources: Path) -> tuple[int, str]:
    """pytest's exit code and output for these tests of this working copy, with the sources from elsewhere."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(sources), str(ROOT)])
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def main(names: Sequence[str]) -> int:
    """First that the tests pass without any bug, then each bug by itself; 1 when one survives."""
    chosen = patches(names)
    code, output = tested(sorted({test for patch in chosen for test in patch.tests}), ROOT / SOURCES)
    if code != 0:
        print(output)
        print("the tests fail without any planted bug, so they would prove nothing")
        return 1
    survivors = 0
    print("| planted bug | what is wrong | result | seconds |\n|---|---|---|--:|")
    for patch in chosen:
        began = time.monotonic()
        code, output = run(patch)
        is_caught = code == TESTS_FAILED
        survivors += not is_caught
        result = "caught" if is_caught else f"SURVIVED (pytest exit code {code})"
        print(f"| {patch.name} | {patch.bug} | {result} | {time.monotonic() - began:.1f} |", flush=True)
        if code not in (0, TESTS_FAILED):
            print(output)
    print(f"\n{len(chosen) - survivors} of {len(chosen)} planted bugs were caught")
    return 1 if survivors else 0


def _names(arguments: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(
        prog="python -m tools.planted", description="Plant bugs one by one and see whether the tests notice."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="planted bugs to try; all of them if none is named"
    )
    names: list[str] = parser.parse_args(arguments).names
    return names


if __name__ == "__main__":
    try:
        sys.exit(main(_names(sys.argv[1:])))
    except PatchError as wrong:
        sys.exit(str(wrong))
