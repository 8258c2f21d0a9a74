"""Signed jobs: what was changed in the store is quarantined before its body runs, and keys can be changed meanwhile."""

import sqlite3
import threading
from typing import Any

import psycopg
import pytest

from evenflow import ConfigError, Evenflow, JobFailed, State
from evenflow.ids import id_number
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.client.transactions import path_of, with_psycopg, with_sqlite3
from tests.processes import wait_until

OLD, NEW, FOREIGN = "an old secret of 16+", "a new secret of 16+", "a secret of somebody else"


class Shop:
    """An app with two tasks that note what they did."""

    def __init__(self, app: Evenflow) -> None:
        self.app = app
        self.ran: list[tuple[str, int]] = []
        self.pay = app.task(name="pay", queue="shop", group="tenant")(self._pay)
        self.refund = app.task(name="refund", queue="shop", group="tenant")(self._refund)

    def _pay(self, amount: int, tenant: str = "bob") -> int:
        self.ran.append(("pay", amount))
        return amount

    def _refund(self, amount: int, tenant: str = "bob") -> int:
        self.ran.append(("refund", amount))
        return amount

    def run(self) -> None:
        self.app.run_worker(until_empty=True, queues=["shop", "other"])


def signed(url: str, make_app: MakeApp, keys: Any = NEW, **options: Any) -> Shop:
    return Shop(make_app(url, signing_keys=keys, **{"require_signed": True, **options}))


def change(url: str, column: str, value: str | None, job: int | None = None) -> None:
    """Write to the stored job, or to all, as somebody with access to the database could."""
    ids = "" if job is None else f" where id = {job}"
    if url.startswith("sqlite"):
        with sqlite3.connect(path_of(url)) as connection:
            connection.execute(f"update evenflow_job set {column} = ?{ids}", (value,))
        connection.close()
    else:
        with psycopg.connect(url) as session:
            session.execute(f"update evenflow.job set {column} = %s{ids}".encode(), (value,))


def test_a_signed_job_runs(engine_url: str, make_app: MakeApp) -> None:
    shop = signed(engine_url, make_app)
    jobs = [shop.pay.enqueue(5), *shop.refund.enqueue_many([(6,), (7,)])]
    shop.run()
    assert [job.result(timeout=0) for job in jobs] == [5, 6, 7]


def test_a_job_of_a_caller_s_transaction_is_signed_too(engine_url: str, make_app: MakeApp) -> None:
    shop = signed(engine_url, make_app)
    shop.app.migrate()
    with (with_sqlite3() if engine_url.startswith("sqlite") else with_psycopg())(engine_url) as caller:
        job = shop.pay.using(connection=caller.connection).enqueue(5)
        caller.commit()
    shop.run()
    assert job.result(timeout=0) == 5


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", "[[5000],{}]"),
        ("task", "refund"),
        ("queue", "other"),
        ("group_key", "eve"),
        ("signature", None),
        ("signature", "v1:unknown:00"),
        ("signature", "nonsense"),
    ],
)
def test_a_changed_job_is_quarantined_and_its_body_does_not_run(
    engine_url: str, make_app: MakeApp, column: str, value: str | None
) -> None:
    shop = signed(engine_url, make_app)
    shop.refund.using(queue="other").enqueue(1)  # so that the other queue is known
    shop.run()
    shop.ran.clear()
    job = shop.pay.enqueue(5)
    change(engine_url, column, value)
    shop.run()
    assert shop.ran == []
    with pytest.raises(JobFailed, match="ended quarantined: SIGNATURE_INVALID") as failed:
        job.result(timeout=0)
    assert failed.value.job.state is State.QUARANTINED
    assert failed.value.error.code == "SIGNATURE_INVALID"


def test_an_unsigned_job_is_refused_where_signatures_are_required(engine_url: str, make_app: MakeApp) -> None:
    unsigned = Shop(make_app(engine_url))
    job = unsigned.pay.enqueue(5)
    shop = signed(engine_url, make_app)
    shop.run()
    assert shop.ran == []
    with pytest.raises(JobFailed, match="SIGNATURE_INVALID: the job is not signed"):
        job.result(timeout=0)


@pytest.mark.parametrize("on_conflict", ["skip", "fail"])
@pytest.mark.parametrize(("column", "state"), [("payload", "quarantined"), ("options", "failed")])
def test_what_is_forged_ends_as_forged_though_its_lock_is_taken(
    engine_url: str, make_app: MakeApp, on_conflict: Any, column: str, state: str
) -> None:
    """S3-49"""
    app = make_app(engine_url, signing_keys=NEW, require_signed=True)
    has_begun, may_end = threading.Event(), threading.Event()

    @app.task(name="report", single_instance=True, on_conflict=on_conflict)
    def report(number: int) -> None:
        has_begun.set()
        may_end.wait(60)

    holder = report.enqueue(1)
    with serving(app, concurrency=2):
        has_begun.wait(30)
        job = report.using(run_after=3600).enqueue(2)  # nobody may claim it before it is changed
        change(
            engine_url, column, {"payload": "[[5000],{}]", "options": '{"lock":'}[column], id_number(job.id)
        )
        change(engine_url, "run_at", "0", id_number(job.id))
        wait_until(lambda: job.refresh().state == state, "the forged job to end")
        assert job.error is not None and job.error.code != "LOCK_CONTENDED"
        may_end.set()
        wait_until(lambda: holder.refresh().state == "succeeded", "the holder to end")


def test_keys_are_changed_while_jobs_wait(engine_url: str, make_app: MakeApp) -> None:
    before = signed(engine_url, make_app, keys=OLD).pay.enqueue(1)
    both = signed(engine_url, make_app, keys=[NEW, OLD])
    after = both.pay.enqueue(2)
    both.run()
    assert [job.result(timeout=0) for job in (before, after)] == [1, 2]
    # The first key of the ring signs: a worker that has forgotten the old one accepts what the ring wrote.
    late = both.pay.enqueue(3)
    signed(engine_url, make_app, keys=NEW).run()
    assert late.result(timeout=0) == 3


def test_a_job_by_a_forgotten_or_foreign_key_is_refused(engine_url: str, make_app: MakeApp) -> None:
    job = signed(engine_url, make_app, keys=FOREIGN).pay.enqueue(1)
    shop = signed(engine_url, make_app, keys=[NEW, OLD])
    shop.run()
    assert shop.ran == []
    with pytest.raises(JobFailed, match="SIGNATURE_INVALID: the signature is by the unknown key"):
        job.result(timeout=0)


def test_without_require_signed_an_unsigned_job_runs_and_a_forged_one_does_not(
    engine_url: str, make_app: MakeApp
) -> None:
    plain = Shop(make_app(engine_url)).pay.enqueue(1)
    shop = signed(engine_url, make_app, require_signed=False)
    shop.run()
    assert plain.result(timeout=0) == 1
    forged = shop.pay.enqueue(2)
    change(engine_url, "payload", "[[2000],{}]")
    shop.run()
    assert shop.ran == [("pay", 1)]
    assert forged.refresh().state is State.QUARANTINED


def test_require_signed_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="require_signed needs signing_keys"):
        Evenflow("sqlite:///:memory:", require_signed=True)


def test_no_secret_shows_in_the_settings(make_app: MakeApp) -> None:
    app = make_app("sqlite:///:memory:", signing_keys=NEW)
    assert NEW not in repr(app.settings)


@pytest.mark.parametrize("on_conflict", ["snooze", "skip", "fail"])
def test_a_forged_job_under_a_lock_never_runs_and_leaves_the_lock_free(
    engine_url: str, make_app: MakeApp, on_conflict: Any
) -> None:
    """S3-49: its lock is its own, taken before the check, and goes with its end."""
    ran: list[int] = []
    app = make_app(engine_url, signing_keys=NEW, require_signed=True)
    only = app.task(name="only", single_instance=True, on_conflict=on_conflict)(ran.append)
    forged = only.enqueue(5)
    change(engine_url, "payload", "[[6],{}]")
    app.run_worker(until_empty=True)
    assert (ran, forged.refresh().state) == ([], State.QUARANTINED)
    good = only.enqueue(7)
    app.run_worker(until_empty=True)
    assert (ran, good.refresh().state) == ([7], State.SUCCEEDED)
