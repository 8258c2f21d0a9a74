"""The program: its help, its exit codes, and how it tells what went wrong."""

import json
import subprocess
import sys

import click
import pytest

import evenflow as package
from evenflow.cli import main
from evenflow.cli.program import COMMANDS
from tests.cli.conftest import WriteApp
from tests.cli.running import environment, evenflow, evenflow_process
from tests.cli.stage import Stage
from tests.store.scene import execute

NAMES = [name for section in COMMANDS.values() for name in section]
every_command = pytest.mark.parametrize("name", NAMES)


@every_command
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help(name: str, flag: str) -> None:
    done = evenflow(name, flag)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: evenflow {name} ")


@every_command
def test_every_command_says_what_it_does_and_what_each_option_means(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.help
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.opts for option in options if not option.help and option.name != "loglevel"] == []


def test_the_help_lists_every_command_in_its_section() -> None:
    done = evenflow("--help")
    lines = done.stdout.splitlines()
    for section, names in COMMANDS.items():
        start = lines.index(f"{section}:")
        assert [line.split()[0] for line in lines[start + 1 : start + 1 + len(names)]] == list(names)


def test_the_version_is_the_package_s() -> None:
    assert evenflow("--version").stdout == f"evenflow {package.__version__}\n"


def test_without_a_command_the_help_is_shown_and_that_is_a_wrong_use() -> None:
    done = evenflow()
    assert done.exit_code == 2
    assert "Usage: evenflow" in done.output


@pytest.mark.parametrize(
    ("typed", "meant"), [("quues", "did you mean 'queues'?"), ("xyzzy", "`evenflow --help` lists them")]
)
def test_an_unknown_command_is_a_wrong_use_with_a_suggestion(typed: str, meant: str) -> None:
    done = evenflow(typed)
    assert done.exit_code == 2
    assert f"Error: there is no command '{typed}'; {meant}" in done.stderr


def test_an_unknown_option_is_a_wrong_use() -> None:
    assert evenflow("queues", "--jsno").exit_code == 2


def test_the_module_is_the_program() -> None:
    done = evenflow_process("--version")
    assert (done.returncode, done.stdout) == (0, f"evenflow {package.__version__}\n")


def test_only_the_module_of_the_command_is_imported() -> None:
    code = (
        "import sys; from evenflow.cli import main; main(['queues', '--help'], standalone_mode=False); "
        "import json; print(json.dumps([n for n in sys.modules if n.startswith(('evenflow.cli', 'rich'))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = set(json.loads(done.stdout.splitlines()[-1]))
    assert "evenflow.cli.queues" in found
    assert not found & {"evenflow.cli.demo", "evenflow.cli.jobs", "evenflow.cli.worker", "rich"}


def test_an_error_is_one_line_on_standard_error(folder: object) -> None:
    done = evenflow_process("queues", "--url", "sqlite:///none.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "Error: there is no file 'none.db'; correct the address, or create it with: "
        "evenflow migrate --url sqlite:///none.db\n"
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_way_to_an_error_without_passwords(place: str, write_app: WriteApp) -> None:
    module = write_app("raise RuntimeError('postgresql://bob:secret@db/jobs is closed')\n")
    command = ["queues", "--app", f"{module}:app"]
    done = evenflow(*(["--debug", *command] if place == "before" else [*command, "--debug"]))
    assert done.exit_code == 1
    assert "Traceback (most recent call last):" in done.stderr
    assert "postgresql://bob:***@db/jobs is closed" in done.stderr
    assert "secret" not in done.output


def test_an_unexpected_error_is_one_line_too(sqlite_stage: Stage) -> None:
    (job,) = sqlite_stage.failed()
    execute(sqlite_stage.engine, "update evenflow_history set errors = '[nonsense'")
    done = evenflow("job", job.id, "--url", sqlite_stage.url)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: DecodeError: JSON is malformed")
    assert done.stderr.endswith("(unexpected; `--debug` shows where)\n")
    assert done.stderr.count("\n") == 1


def test_a_reader_who_has_seen_enough_is_no_error(sqlite_stage: Stage) -> None:
    sqlite_stage.add.enqueue_many([(number,) for number in range(400)])
    command = [
        sys.executable,
        "-m",
        "evenflow",
        "jobs",
        "--json",
        "--limit",
        "400",
        "--url",
        sqlite_stage.url,
    ]
    with subprocess.Popen(
        command, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "{\n"
        process.stdout.close()
        assert process.stderr.read() == ""
