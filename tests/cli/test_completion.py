"""`evenflow completion`: scripts that the shells take, and completions that come out of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evenflow.cli.completion import SHELLS
from evenflow.cli.program import COMMANDS
from tests.cli.running import environment, evenflow


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    done = evenflow("completion", shell)
    assert done.exit_code == 0
    assert f"_EVENFLOW_COMPLETE={shell}_complete" in done.stdout


def test_another_shell_is_a_wrong_use() -> None:
    assert evenflow("completion", "tcsh").exit_code == 2


def test_commands_and_states_are_completed() -> None:
    names = {name for section in COMMANDS.values() for name in section}
    assert completions("evenflow ", 1) == names
    assert completions("evenflow jobs --state f", 3) == {"failed"}
    assert "--queue" in completions("evenflow jobs --", 2)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_with_the_script() -> None:
    script = (
        'eval "$(evenflow completion bash)"; COMP_WORDS=(evenflow wor); COMP_CWORD=1; '
        '_evenflow_completion evenflow; echo "${COMPREPLY[@]}"'
    )
    variables = environment({"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"})
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert set(done.stdout.split()) == {"worker", "workers", "workflow", "workflows"}


def completions(words: str, place: int) -> set[str]:
    code = "from evenflow.cli import main; main(prog_name='evenflow')"
    variables = {"_EVENFLOW_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(variables),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {line.partition(",")[2] for line in done.stdout.splitlines()}
