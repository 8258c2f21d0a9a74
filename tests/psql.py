"""Calls psql, which the set-up provides like the server; a test that needs it fails where it is missing."""

import os
import subprocess

from tools.server_binaries import find_psql


def run_psql(url: str, *options: str, script: str | None = None) -> str:
    """What psql prints for `-c` options or a script; an error of the script is an error of the test."""
    found = find_psql()
    assert found is not None, "no psql here; `make test` fetches it, or install the PostgreSQL client"
    command = [str(found.folder / "psql"), "-X", "-At", "-q", "-v", "ON_ERROR_STOP=1", *options, url]
    environment = {**os.environ, **found.environment()}
    done = subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
