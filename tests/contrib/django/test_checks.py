"""What `manage.py check` says about the backend."""

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.db import connections

from evenflow import Queue
from evenflow.contrib.django.compat import task_backends

Change = Callable[..., None]


def found() -> list[tuple[str, str]]:
    return [(message.id, message.msg) for message in task_backends["default"].check()]


@pytest.mark.usefixtures("sqlite_database")
class TestTheChecks:
    def test_find_nothing_in_a_project_that_is_right(self) -> None:
        assert found() == []

    def test_are_asked_for_by_django(self, options: Change) -> None:
        options(max_payload_bytes=0)
        assert "evenflow.E002" in [message.id for message in run_checks()]

    @pytest.mark.parametrize(
        ("given", "number", "text"),
        [
            (
                {"url": "sqlite:///a.db", "database": "default"},
                "E001",
                "url and database both say where the jobs live",
            ),
            (
                {"database": "nowhere"},
                "E001",
                "OPTIONS['database']: expected one of 'default', 'other', got 'nowhere'",
            ),
            ({"url": "mysql://shop"}, "E002", "url: expected a sqlite or postgresql URL"),
            ({"on_comit": True}, "E002", "on_comit: not an option"),
            (
                {"queues": [Queue("docs")]},
                "E003",
                "OPTIONS['queues'] has rules for 'docs', which QUEUES does not list",
            ),
            (
                {"on_commit": "nowhere"},
                "E004",
                "OPTIONS['on_commit']: expected True, False or one of 'default', 'other'",
            ),
            (
                {"task_modules": "tasks"},
                "E004",
                "OPTIONS['task_modules']: expected a list of names, got 'tasks'",
            ),
            (
                {"task_modules": ["shop.nothing"]},
                "E005",
                "OPTIONS['task_modules']: there is no module 'shop.nothing'",
            ),
        ],
    )
    def test_find_what_is_wrong_with_the_options(
        self, options: Change, given: dict[str, Any], number: str, text: str
    ) -> None:
        options(**given)
        [(_, message)] = [each for each in found() if each[0] == f"evenflow.{number}"]
        assert message.startswith("TASKS['default']: ")
        assert text in message

    def test_find_every_mistake_of_the_settings_at_once(self, options: Change) -> None:
        options(cluster_wide_cap=0, max_payload_bytes=0)
        assert [number for number, _ in found()] == ["evenflow.E002"] * 2

    def test_warn_of_what_looks_unintended(self, options: Change) -> None:
        options(signing_keys="a secret of thirty-two characters!!")
        assert [number for number, _ in found()] == ["evenflow.W001"]

    def test_warn_where_the_app_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(apps, "is_installed", lambda _: False)
        [(number, text)] = found()
        assert number == "evenflow.W002"
        assert "is not in INSTALLED_APPS" in text

    def test_warn_of_transactions_that_would_fail_on_sqlite(self) -> None:
        connections["default"].settings_dict["OPTIONS"] = {}
        [(number, text)] = found()
        assert number == "evenflow.W003"
        assert "'transaction_mode': 'IMMEDIATE'" in text


def test_a_database_that_jobs_cannot_live_in_needs_another_for_them(
    options: Change, sqlite_database: str
) -> None:
    connections.settings["other"] = connections.configure_settings(
        {"default": {"ENGINE": "django.db.backends.dummy"}}
    )["default"]
    if hasattr(connections._connections, "other"):
        del connections["other"]
    options(database="other")
    [(number, text)] = found()
    assert number == "evenflow.E001"
    assert (
        "the database 'other' is unknown, and jobs live in SQLite or PostgreSQL; give them one of their own"
        in text
    )
    options(url=f"{sqlite_database}-jobs")
    assert [number for number, _ in found()] == []


@pytest.mark.usefixtures("sqlite_database")
def test_tasks_that_could_not_run_are_found(options: Change) -> None:
    options(QUEUES=["default"])
    texts = [text for number, text in found() if number == "evenflow.E006"]
    assert any("shop.tasks.report" in text and "queue 'mail' is not declared" in text for text in texts)
