"""Roles: each does its work with a login of its own, and what is not its work is refused by the database."""

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from evenflow import Concurrency, Context, Evenflow, Queue, Rate, State, Unique
from evenflow.errors import ConfigError, StoreRefused
from evenflow.store.postgres import PostgresEngine
from evenflow.store.roles import ROLES, make_roles, role_script

SECRET = "of-a-test"  # of logins that live as long as their test


class Stage:
    """A database with roles, and a login for each of them."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.apps: list[Evenflow] = []

    def url_of(self, role: str) -> str:
        info = make_conninfo(self.url, user=f"{self.prefix}{role}_login", password=SECRET)
        return "postgresql:///?" + "&".join(
            f"{name}={value}" for name, value in psycopg.conninfo.conninfo_to_dict(info).items()
        )

    def app(self, role: str | None, **options: Any) -> Evenflow:
        app = Evenflow(self.url if role is None else self.url_of(role), **options)
        self.apps.append(app)

        @app.task(name="plain")
        def plain(value: int = 0) -> int:
            return value

        @app.task(
            name="keyed",
            concurrency=Concurrency(1, key="value"),
            rate=Rate("1000/s"),
            unique=Unique("value", ttl=60),
        )
        def keyed(ctx: Context, value: int) -> int:
            ctx.log.info("here")
            ctx.progress(1, 1)
            kept: int = ctx.step("once", lambda: value)
            return kept

        @app.task(name="broken")
        def broken() -> None:
            raise ValueError("no")

        return app

    def execute(self, role: str, text: str) -> list[Any]:
        with psycopg.connect(self.url_of(role), autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def prefix() -> str:
    return f"test_{secrets.token_hex(4)}_"


@pytest.fixture
def stage(postgres_server: Any, postgres_database: str, prefix: str) -> Iterator[Stage]:
    url = postgres_server.url(postgres_database)
    engine = PostgresEngine(url)
    assert make_roles(engine, prefix) == [f"{prefix}{role}" for role in ROLES]
    with psycopg.connect(url, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(
                f"create role {prefix}{role}_login login password '{SECRET}' in role {prefix}{role}".encode()
            )
    stage = Stage(url, prefix)
    yield stage
    for app in stage.apps:
        app.close()
    engine.close()
    with psycopg.connect(url, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"drop owned by {prefix}{role}".encode())
            connection.execute(f"drop role {prefix}{role}_login, {prefix}{role}".encode())


WRITES = {
    "insert into evenflow.published values ('x', '{}', 1)": (),
    "insert into evenflow.migration values (99, 'x', 1)": (),
    "update evenflow.job set payload = '[[666],{}]'": ("client", "worker", "operator"),
    "update evenflow.job set worker = 7, lease_until = 1": ("worker", "operator"),
    "update evenflow.job set cancel_at = 1": ("worker", "operator"),
    "update evenflow.job set epoch = 7": ("worker",),
    "update evenflow.job set errors = '[]'": ("worker",),
    "update evenflow.job set progress = '1'": ("worker",),
    "update evenflow.job set crashes = 0": ("worker",),
    "update evenflow.job set created_at = 0": ("worker",),
    "insert into evenflow.job (id, created_at, run_at, max_attempts, priority, state, queue, task, payload, worker) "
    "values (1, 1, 1, 1, 0, 'claimed', 'default', 'plain', '[]', 7)": ("worker",),
    "update evenflow.history set result = '666'": ("worker",),
    "update evenflow.history set state = 'discarded'": ("worker", "operator"),
    "delete from evenflow.history": ("worker", "operator"),
    "update evenflow.worker set beat = 0": ("worker",),
    "delete from evenflow.log_line": ("worker",),
    "delete from evenflow.audit": (),
    "update evenflow.statistic set minute = 0": ("client", "worker", "operator"),
    "update evenflow.memo set value = 'x'": ("worker",),
    "update evenflow.queue set paused_at = 1": ("worker", "operator"),
    "delete from evenflow.queue": ("worker", "operator"),
    "update evenflow.cluster set cap = null": ("worker",),
    "update evenflow.schedule set paused_at = 1": ("worker", "operator"),
    "select payload from evenflow.job": ("client", "worker", "viewer", "operator"),
    "select result from evenflow.history": ("client", "worker", "viewer", "operator"),
    "select evenflow.enqueue('plain')": ("producer",),
    "create table evenflow.mine (id int)": (),
    "drop table evenflow.job": (),
    "truncate evenflow.job": (),
    "alter table evenflow.job disable trigger all": (),
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_do_what_is_listed_and_nothing_else(stage: Stage, role: str) -> None:
    owner = stage.app(None)
    owner.publish(owner.tasks["plain"])
    for text, allowed in WRITES.items():
        if role in allowed:
            stage.execute(role, text)
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stage.execute(role, text)


def test_a_producer_enqueues_by_the_function_and_sees_no_table(stage: Stage) -> None:
    owner = stage.app(None)
    owner.publish(owner.tasks["plain"])
    ((job,),) = stage.execute("producer", "select evenflow.enqueue('plain', '[7]')")
    owner.run_worker(until_empty=True)
    assert owner.job(job).result(timeout=0) == 7


def test_a_client_enqueues_in_all_forms_and_reads_results(stage: Stage) -> None:
    app = stage.app("client", queues=[Queue("default", max_concurrency=5), Queue("small", max_ready=1)])
    worker = stage.app("worker", queues=[Queue("default", max_concurrency=5), Queue("small", max_ready=1)])
    plain, keyed = app.tasks["plain"], app.tasks["keyed"]
    jobs = [
        plain.enqueue(1),
        *plain.enqueue_many([(2,), (3,)]),
        plain.using(queue="small", group="a").enqueue(4),
    ]
    jobs += [plain.using(run_after=3600).enqueue(5), keyed.enqueue(6), keyed.enqueue(6)]
    with psycopg.connect(stage.url_of("client")) as connection:
        jobs.append(plain.using(connection=connection).enqueue(8))
    wf = app.workflow("two")
    wf.step(plain, wf.step(plain, 9).output)
    run = wf.start()
    later = plain.using(unique=Unique("value", on_conflict="replace"), run_after=60)
    replaced = later.enqueue(10)
    assert later.using(run_after=0, queue="small", priority=3).enqueue(10).id == replaced.id
    worker.run_worker(until_empty=True)
    assert replaced.result(timeout=10) == 10
    assert [job.result(timeout=10) for job in (*jobs[:4], *jobs[5:])] == [1, 2, 3, 4, 6, 6, 8]
    assert run.result(timeout=10) == 9
    with pytest.raises(StoreRefused, match="permission denied"):
        app.pause(task="plain")
    with pytest.raises(StoreRefused, match="permission denied"):
        app.pause("default")


def test_a_worker_runs_jobs_with_all_its_services(stage: Stage) -> None:
    app = stage.app("worker")
    app.schedules.add("often", app.tasks["plain"], every=3600)
    keyed = [app.tasks["keyed"].enqueue(number) for number in range(3)]
    failed = app.tasks["broken"].enqueue()
    app.run_worker(until_empty=True)
    assert [job.result(timeout=0) for job in keyed] == [0, 1, 2]
    assert failed.refresh().state is State.FAILED
    assert [line.line for line in keyed[0].logs()] == ["here"]


def test_a_viewer_looks_and_changes_nothing(stage: Stage) -> None:
    owner, app = stage.app(None), stage.app("viewer")
    job = owner.tasks["plain"].using(run_after=60).enqueue()
    assert app.job(job.id).state is State.SCHEDULED and app.why(job.id)
    assert app.stats() and [each.id for each in app.jobs()] == [job.id]
    for act in (
        lambda: app.pause("default"),
        lambda: app.cancel(job.id),
        lambda: app.tasks["plain"].enqueue(),
    ):
        with pytest.raises(StoreRefused, match="permission denied"):
            act()


def test_an_operator_retries_cancels_discards_pauses_and_sets_limits(stage: Stage) -> None:
    owner, app = stage.app(None), stage.app("operator")
    failed, lasting = owner.tasks["broken"].enqueue(), owner.tasks["plain"].using(run_after=60).enqueue()
    owner.run_worker(until_empty=True)
    owner.schedules.add("often", owner.tasks["plain"], every=3600)
    assert app.retry(failed.id) == app.discard(failed.id) == app.cancel(lasting.id) == 1
    app.pause("default")
    app.pause(task="plain")
    assert app.resume("default") and app.resume(task="plain")
    app.set_limit("default", max_concurrency=1)
    app.schedules.pause("often")
    app.schedules.run_now("often")
    assert app.limits() is not None and app.breakers() is not None
    wf = owner.workflow("two")
    wf.step(owner.tasks["broken"])
    run = app.workflow_run(wf.start().id)
    assert run.pause() and run.resume()
    owner.run_worker(until_empty=True)
    assert run.retry() == 1
    assert run.cancel()
    with pytest.raises(StoreRefused, match="permission denied"):
        app.run_worker(until_empty=True)


def test_making_them_again_changes_nothing_and_takes_away_what_was_added(stage: Stage, prefix: str) -> None:
    engine = PostgresEngine(stage.url)
    with engine.session() as connection:
        connection.execute(f"grant select on evenflow.job to {prefix}producer".encode())
    make_roles(engine, prefix)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stage.execute("producer", "select 1 from evenflow.job")
    engine.close()


def test_a_prefix_is_checked_and_the_script_names_the_schema() -> None:
    with pytest.raises(ConfigError, match="prefix: expected small letters"):
        role_script(prefix='x"; drop')
    assert 'on schema "jobs"' in role_script("jobs") and '"evenflow_viewer"' in role_script("jobs")
