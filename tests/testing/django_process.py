"""A Django project with one table, tested by Django's own TestCase: `python -m tests.testing.django_process KIND URL`."""

import sys
import unittest
from typing import Any

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from evenflow import Evenflow


def database(kind: str, url: str) -> dict[str, Any]:
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    known = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {"ENGINE": "django.db.backends.postgresql"} | {key: known.get(name) for key, name in names.items()}


settings.configure(DATABASES={"default": database(*sys.argv[1:3])}, INSTALLED_APPS=[], USE_TZ=True)
django.setup()

from django.db import connection, transaction  # noqa: E402
from django.test import TestCase  # noqa: E402

from evenflow.testing.django import EvenflowTestMixin  # noqa: E402

app = Evenflow("sqlite:////nowhere/jobs.db")


@app.task(name="welcome")
def welcome(address: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("insert into welcomed values (%s)", [address])
    return address


class TestSignUp(EvenflowTestMixin, TestCase):  # type: ignore[misc]
    evenflow_app = app

    @classmethod
    def setUpTestData(cls) -> None:
        with connection.cursor() as cursor:
            cursor.execute("create table welcomed (address text)")

    def test_a_job_is_seen_and_run_in_the_transaction_of_the_test(self) -> None:
        self.evenflow.refute_enqueued()
        with transaction.atomic():
            welcome.using(connection=connection).enqueue("bob@example.org")
            welcome.enqueue("alice@example.org")
        self.evenflow.assert_enqueued(welcome, {"address": "bob@example.org"}, state="arriving")
        assert self.evenflow.drain(raises=True) == {"succeeded": 2}
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from welcomed")
            assert cursor.fetchone() == (2,)

    def test_what_is_rolled_back_is_gone(self) -> None:
        self.evenflow.refute_enqueued()
        try:
            with transaction.atomic():
                welcome.using(connection=connection).enqueue("bob@example.org")
                raise ValueError
        except ValueError:
            pass
        self.evenflow.refute_enqueued()


class TestInline(EvenflowTestMixin, TestCase):  # type: ignore[misc]
    evenflow_app = app
    evenflow_mode = "inline"

    def test_jobs_run_at_once(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("create table welcomed (address text)")
        assert welcome.enqueue("bob@example.org").result(timeout=0) == "bob@example.org"


def left() -> int:
    """How many jobs, or tables of ours, are there when all tests are over."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("select count(*) from sqlite_master where name like 'evenflow%'")
        else:
            cursor.execute(
                "select (select count(*) from evenflow.job) + (select count(*) from evenflow.history)"
            )
        count: int = cursor.fetchone()[0]
        return count


if __name__ == "__main__":
    program = unittest.main(argv=["tests"], exit=False)
    print("left:", left())
    sys.exit(not program.result.wasSuccessful())
