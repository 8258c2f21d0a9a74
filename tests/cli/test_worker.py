"""`evenflow worker`: what its options tell the worker processes."""

import contextlib
import os
from typing import Any

import pytest

from evenflow.cli import main
from evenflow.cli import worker as worker_module
from evenflow.worker.orders import Orders
from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow

APP = "from evenflow import Evenflow, Queue\napp = Evenflow('sqlite:///a.db', queues=[Queue('mail'), Queue('docs')])\n"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Orders]:
    """The orders of the worker processes that a supervisor would start."""
    seen: list[Orders] = []

    class Supervisor:
        health = staticmethod(lambda: None)

        def __init__(self, settings: Any, orders: list[Orders], **_: Any) -> None:
            seen.extend(orders)

        def obeys_signals(self) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def run(self) -> int:
            return 0

    monkeypatch.setattr(worker_module, "Supervisor", Supervisor)
    monkeypatch.setattr(worker_module, "configure_logging", lambda *_: None)
    return seen


def test_a_program_that_starts_the_workers_gets_a_process_per_cpu_too(
    write_app: WriteApp, told: list[Orders], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-14: `manage.py evenflow` and others call the same command, and nobody else starts processes."""
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    with pytest.raises(SystemExit) as ended:
        main.main(args=["worker", write_app(APP)], prog_name="evenflow", standalone_mode=False)
    assert ended.value.code == 0
    assert len(told) == 7


def test_each_option_reaches_every_process(write_app: WriteApp, told: list[Orders]) -> None:
    """S2-26, S0-36"""
    options = [
        "--processes",
        "2",
        "--queues",
        "mail",
        "--concurrency",
        "3",
        "--max-claim-batch",
        "4",
        "--loglevel",
        "error",
    ]
    options += ["--max-claim-per-worker", "8", "--coalesce-notifies", "9"]
    assert evenflow("worker", write_app(APP), *options).exit_code == 0
    assert [
        (
            each.queues,
            each.concurrency,
            each.max_claim_batch,
            each.max_claim,
            each.coalesce_notifies,
            each.loglevel,
        )
        for each in told
    ] == [(["mail"], 3, 4, 4, 9, "error")] * 2


def test_a_queue_that_the_app_does_not_declare_is_worth_a_warning(
    write_app: WriteApp, told: list[Orders], caplog: pytest.LogCaptureFixture
) -> None:
    assert evenflow("worker", write_app(APP), "--queues", "mial,docs,do*,x-*").exit_code == 0
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "--queues 'mial': this app declares no such queue, only 'mail', 'docs'",
        "--queues 'x-*': this app declares no such queue, only 'mail', 'docs'",
    ]


def test_where_any_name_is_a_queue_none_is_worth_a_warning(
    write_app: WriteApp, told: list[Orders], caplog: pytest.LogCaptureFixture
) -> None:
    module = write_app("from evenflow import Evenflow\napp = Evenflow('sqlite:///a.db')\n")
    assert evenflow("worker", module, "--queues", "mial,x-*").exit_code == 0
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
