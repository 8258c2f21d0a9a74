"""Which database a command is about, and that looking creates nothing."""

from pathlib import Path

import pytest

from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow, evenflow_process
from tests.cli.stage import Stage

LOOKS = [["queues"], ["jobs"], ["workers"], ["job", "0000000000000"]]
ACTS = [
    ["pause", "mail"],
    ["resume", "mail"],
    ["retry", "--queue", "mail"],
    ["cancel", "0000000000000"],
    ["discard", "--queue", "q"],
]
every_use = pytest.mark.parametrize("command", [*LOOKS, *ACTS], ids=lambda command: command[0])


@every_use
def test_without_a_database_the_use_is_wrong(command: list[str]) -> None:
    done = evenflow(*command)
    assert done.exit_code == 2
    assert "Error: which database? Say --url URL or --app MODULE:APP, or set EVENFLOW_URL" in done.stderr


@every_use
def test_a_file_that_is_not_there_is_not_created(command: list[str], folder: Path) -> None:
    done = evenflow(*command, "--url", "sqlite:///jobs.db")
    assert done.exit_code == 1
    assert "there is no file 'jobs.db'" in done.stderr
    assert list(folder.iterdir()) == []


@every_use
def test_a_database_without_tables_is_left_without(command: list[str], empty_postgres_url: str) -> None:
    for _ in range(2):
        done = evenflow(*command, "--url", empty_postgres_url)
        assert done.exit_code == 1
        assert (
            "Error: the tables are missing or older than this Evenflow; run: evenflow migrate" in done.stderr
        )


def test_a_database_in_memory_cannot_be_seen_from_here() -> None:
    done = evenflow("queues", "--url", "sqlite:///:memory:")
    assert done.exit_code == 1
    assert "lives and dies with its process" in done.stderr


def test_url_and_app_together_are_a_wrong_use() -> None:
    done = evenflow("queues", "--url", "sqlite:///a.db", "--app", "shop:app")
    assert done.exit_code == 2
    assert "--url and --app both name a database" in done.stderr


def test_the_environment_names_the_database_where_the_command_does_not(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENFLOW_URL", sqlite_stage.url)
    assert evenflow("workers").stdout == "no worker is running\n"
    assert evenflow("workers", "--url", "sqlite:///other.db").exit_code == 1


def test_the_default_file_counts_where_it_is_there(folder: Path) -> None:
    assert evenflow("migrate", "--url", "sqlite:///evenflow.db").exit_code == 0
    assert evenflow("workers").exit_code == 0


def test_an_app_names_its_database(write_app: WriteApp) -> None:
    module = write_app("from evenflow import Evenflow\napp = Evenflow('sqlite:///of-app.db')\n")
    assert evenflow("migrate", "--app", f"{module}:app").stdout.endswith(
        "sqlite:///of-app.db is up to date\n"
    )
    assert evenflow("queues", "--app", module).exit_code == 0


def test_a_server_that_is_away_is_said_without_the_password() -> None:
    done = evenflow_process("queues", "--url", "postgresql://bob:secret@127.0.0.1:1/jobs")
    assert done.returncode == 1
    assert "Connection refused; is the server running, and is the URL right?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "mysql://bob:secret@db/jobs",
        "postgresql+psycopg://bob:secret@db/jobs",
        "postgresql://bob:secret@db/jo bs",
    ],
)
def test_a_wrong_address_is_shown_without_its_password(url: str) -> None:
    done = evenflow("migrate", "--url", url)
    assert done.exit_code == 1
    assert "bob:***@db" in done.stderr
    assert "secret" not in done.output


class TestLocators:
    """What is said of a MODULE:APP that names no app. `check` reports it as a mistake, other commands as an error."""

    def said(self, locator: str) -> str:
        done = evenflow("queues", "--app", locator)
        assert done.exit_code == 1
        assert evenflow("check", locator).exit_code == 1
        assert done.stderr.startswith("Error: ")
        return done.stderr

    def test_a_module_that_is_not_there(self, folder: Path) -> None:
        (folder / "shopping.py").write_text("")
        assert "there is no module 'shoping' in" in self.said("shoping:app")
        assert "did you mean 'shopping'?" in self.said("shoping:app")

    def test_a_file_that_is_not_there(self) -> None:
        assert "there is no file 'lib/jobs.py'" in self.said("lib/jobs.py:app")

    def test_a_module_that_raises(self, write_app: WriteApp) -> None:
        module = write_app("one = 1\nhalf = one / 0\n")
        said = self.said(f"{module}:app")
        assert "ZeroDivisionError: division by zero" in said
        assert f"{module}.py, line 2" in said
        assert "Traceback" not in said

    def test_a_module_that_imports_what_is_not_there(self, write_app: WriteApp) -> None:
        module = write_app("import no_such_package\n")
        assert f"module '{module}' cannot be imported: No module named 'no_such_package'" in self.said(module)

    def test_a_module_that_ends_the_program(self, write_app: WriteApp) -> None:
        assert "SystemExit" in self.said(write_app("raise SystemExit(3)\n"))

    def test_a_name_that_is_not_there(self, write_app: WriteApp) -> None:
        module = write_app("from evenflow import Evenflow\nqueue_app = Evenflow('sqlite:///a.db')\n")
        assert f"module '{module}' has no 'app'; it has {module}:queue_app" in self.said(module)

    def test_a_module_without_any_app(self, write_app: WriteApp) -> None:
        module = write_app("name = 1\n")
        assert f"module '{module}' has no 'app'; it holds no Evenflow at all" in self.said(f"{module}:app")

    def test_an_object_that_is_no_app(self, write_app: WriteApp) -> None:
        module = write_app("from evenflow import Evenflow\napp = 'sqlite:///a.db'\nreal = Evenflow(app)\n")
        assert f"{module}:app is a str, expected an Evenflow; it has {module}:real" in self.said(
            f"{module}:app"
        )

    def test_a_locator_without_a_module(self) -> None:
        assert "expected MODULE:APP, got ':app'" in self.said(":app")

    def test_a_file_is_named_by_its_path(self, folder: Path) -> None:
        (folder / "lib").mkdir()
        (folder / "lib" / "in_a_folder.py").write_text(
            "from evenflow import Evenflow\nflow = Evenflow('sqlite:///a.db')\n"
        )
        assert evenflow("migrate", "--app", "lib/in_a_folder.py:flow").exit_code == 0
