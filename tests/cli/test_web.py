"""`evenflow web`: it serves, it stops, and it does not start where others could come in."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import WriteApp
from tests.cli.running import ROOT, environment, evenflow, evenflow_process
from tests.cli.stage import Stage

WITHIN_S = 30.0
TOKEN = "token:0123456789abcdef:viewer"


@contextlib.contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The command in a process of its own, once it listens; its address, as it says it."""
    command = [sys.executable, "-m", "evenflow", "web", *arguments, "--port", "0"]
    with subprocess.Popen(
        command, env=environment(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = re.match(r"Dashboard of .* on (http://127\.0\.0\.1:\d+)/ ", process.stdout.readline())
            assert said is not None, process.stdout.read()
            yield said[1], process
        finally:
            process.kill()


def answered(address: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=WITHIN_S) as answer:
        return str(answer.read().decode())


@pytest.mark.process
def test_it_serves_a_database_and_ends_on_term(sqlite_stage: Stage) -> None:
    job = sqlite_stage.add.enqueue(1)
    with serving("--url", sqlite_stage.url) as (address, process):
        assert job.id in answered(f"{address}/jobs")
        assert answered(f"{address}/readyz") == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0


@pytest.mark.process
def test_ctrl_c_ends_it_without_noise_while_somebody_watches(sqlite_stage: Stage) -> None:
    with serving("--url", sqlite_stage.url) as (address, process):
        with urllib.request.urlopen(f"{address}/live", timeout=WITHIN_S) as stream:
            assert stream.readline().strip() == b"event: pulse"
            process.send_signal(signal.SIGINT)
            assert process.wait(WITHIN_S) == 0
        assert process.stdout is not None
        said = process.stdout.read()
    assert "Shutting down" in said
    assert "ERROR" not in said
    assert "Traceback" not in said


def test_a_port_in_use_is_one_sentence_before_anything_else_is_said(sqlite_stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for command in (["web", "--url", sqlite_stage.url], ["demo", "--serve"]):
            done = evenflow(*command, "--port", port)
            assert (done.exit_code, done.stdout) == (1, "")
            assert done.stderr == (
                f"Error: cannot listen on 127.0.0.1:{port}: address already in use; choose another --port\n"
            )


@pytest.mark.process
def test_it_takes_its_logins_from_the_environment_and_its_app_by_name(
    sqlite_stage: Stage, write_app: WriteApp
) -> None:
    name = write_app(
        f"from evenflow import Evenflow\napp = Evenflow({sqlite_stage.url!r})\n@app.task\ndef seen(): ...\n"
    )
    with serving(f"{name}:app", "--enqueue", EVENFLOW_WEB_AUTH=TOKEN) as (address, _):
        with pytest.raises(OSError, match="401"):
            answered(f"{address}/api/jobs")
        assert '"jobs":' in answered(f"{address}/api/jobs", Authorization="Bearer 0123456789abcdef")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "it needs a login: add --auth"),
        (["--host", "0.0.0.0"], "would send passwords in plain text"),
        (["--host", "10.1.2.3", "--auth", TOKEN], "--trusted-proxy"),
        (["--auth", "token:short:viewer"], "shorter than 8 characters"),
        (
            ["--auth", "basic:ann:a long secret:king"],
            "expected a role of viewer, reader, operator, admin, producer",
        ),
        (["--auth", "ann:secret"], "expected basic:NAME:PASSWORD:ROLE"),
        (["--auth", "token/:a long secret:viewer"], "token/NAME:SECRET:ROLE"),
        (["--auth", "basic/ann:bob:a long secret:viewer"], "token/NAME:SECRET:ROLE"),
        (["--auth", "@nowhere.txt"], "No such file"),
        (["--tls-cert", __file__], "belong together"),
    ],
)
def test_what_would_be_unsafe_does_not_start(sqlite_stage: Stage, arguments: list[str], said: str) -> None:
    done = evenflow("web", "--url", sqlite_stage.url, *arguments)
    assert done.exit_code != 0
    assert said in done.stderr
    assert "a long secret" not in done.stderr


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
@pytest.mark.process
def test_without_the_extra_it_says_what_to_install(sqlite_stage: Stage, folder: Path, package: str) -> None:
    hidden = folder / "hidden" / package
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(f"raise ImportError('not installed', name={package!r})\n")
    done = evenflow_process(
        "web", "--url", sqlite_stage.url, PYTHONPATH=f"{hidden.parent}{os.pathsep}{ROOT / 'src'}"
    )
    assert done.returncode == 1
    assert f"the dashboard needs {package}; install it with: pip install 'evenflow[web]'" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["shop:app", "--url", "sqlite:///x.db"]])
def test_it_needs_an_app_or_a_database(arguments: list[str]) -> None:
    done = evenflow("web", *arguments)
    assert done.exit_code == 2
    assert "one of them" in done.stderr


def test_a_mistyped_file_is_refused_and_not_served_as_an_empty_database(folder: Path) -> None:
    done = evenflow_process("web", "--url", f"sqlite:///{folder}/nowhere.db", "--port", "99")
    assert done.returncode == 1
    assert (
        "nowhere.db'; correct the address, or create it with: evenflow migrate --url sqlite:///"
        in done.stderr
    )
