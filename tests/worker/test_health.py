"""The health port: what it answers, and that it stays on loopback."""

import json
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from evenflow.errors import ConfigError
from evenflow.worker.health import serve_health


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_worker_that_serves_is_alive_and_ready() -> None:
    port = free_port()
    with serve_health(port, lambda: {"alive": True, "ready": True}):
        assert ask(port, "/healthz") == (200, {"alive": True, "ready": True})
        assert ask(port, "/readyz")[0] == 200


def test_a_worker_that_is_not_ready_says_so() -> None:
    port = free_port()
    with serve_health(port, lambda: {"alive": True, "ready": False}):
        assert ask(port, "/healthz")[0] == 200
        assert ask(port, "/readyz")[0] == 503


def test_other_paths_are_not_found() -> None:
    port = free_port()
    with serve_health(port, lambda: {"alive": True, "ready": True}):
        assert ask(port, "/")[0] == 404


def test_a_taken_port_is_refused_with_its_number() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"--health-port {port}"),
            serve_health(port, lambda: {"alive": True, "ready": True}),
        ):
            pass


def test_without_a_port_nothing_is_served() -> None:
    with serve_health(None, dict):
        pass
