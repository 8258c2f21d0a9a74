"""Upkeep: forget what has served its time. Bounded steps, safe from any number of processes."""

import contextlib
from datetime import timedelta

from evenflow.clock import from_us, to_us
from evenflow.errors import StoreUnavailable
from evenflow.store.engine import Conflict, Engine, retried
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import now_us

DAYS_AHEAD = 32
UPKEEP_KEY = 0x0E7E2F11
_DAY = timedelta(days=1)


def prune(engine: Engine, *, top: int = 1000, now: int | None = None) -> int:
    """Delete finished jobs whose retention has passed, at most `top`; on PostgreSQL partitions do most of it."""
    return len(engine.run("prune_history", {"top": top, "now": now}))


def forget_idle_groups(engine: Engine, *, top: int = 1000) -> int:
    """Remove rows of groups that have fallen behind their round: they keep no credit, so nothing is lost."""
    return len(engine.run("forget_idle_groups", {"top": top}))


def forget_old_costs(engine: Engine, before: int) -> int:
    """Remove learnt costs that nobody has reported on since `before`."""
    return len(engine.run("forget_old_costs", {"before": before}))


def forget_marks(engine: Engine, *, top: int = 1000, now: int | None = None) -> int:
    """Remove unique keys whose time is over."""
    return len(engine.run("forget_marks", {"top": top, "now": now}))


def turn_partitions(
    engine: PostgresEngine, *, days_ahead: int = DAYS_AHEAD, now: int | None = None
) -> tuple[list[str], list[str]]:
    """Create the history partitions of the coming days and drop those whose whole day has passed: (created, dropped).

    Partitions are by the day on which a row may be forgotten. Each step takes its locks for a moment or gives up until
    the next call: a long reader of the history must not make a finish wait.
    """
    if not _owns_history(engine):
        return [], []  # the owner's `evenflow migrate` does it; until then rows wait in the default partition
    today = from_us(now_us(engine) if now is None else now).replace(hour=0, minute=0, second=0, microsecond=0)
    present = retried(lambda: _partitions(engine))
    wanted = {f"history_{today + day * _DAY:%Y%m%d}": today + day * _DAY for day in range(days_ahead + 1)}
    created = [
        name
        for name, day in wanted.items()
        if name not in present and _create(engine, name, to_us(day), to_us(day + _DAY))
    ]
    dropped = [name for name in sorted(present) if name < f"history_{today:%Y%m%d}" and _drop(engine, name)]
    return created, dropped


def drop_schema(engine: PostgresEngine) -> None:
    """Remove everything of an installation. For schemas that were made for a measurement or a test."""
    with engine.session() as connection:
        connection.execute(f'drop schema if exists "{engine.schema}" cascade'.encode())


def _partitions(engine: PostgresEngine) -> set[str]:
    with engine.session() as connection:
        rows = connection.execute(
            "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = %s::regclass",
            (f'"{engine.schema}".history',),
        ).fetchall()
    return {name for (name,) in rows if name != "history_default"}


def _owns_history(engine: PostgresEngine) -> bool:
    """Whether this login may make partitions. One with the rights of a role alone may not."""
    with engine.session() as connection:
        row = connection.execute(
            "select pg_has_role(relowner, 'USAGE') from pg_class where oid = %s::regclass",
            (f'"{engine.schema}".history',),
        ).fetchone()
    return row == (True,)


def _create(engine: PostgresEngine, name: str, first: int, end: int) -> bool:
    # Rows that were kept for longer than the partitions reached wait in the default partition; they move along.
    schema = f'"{engine.schema}"'
    # Locked first: a row that came into the default partition between the move and the attachment would refuse it.
    return _ddl(
        engine,
        f"lock table {schema}.history_default in share row exclusive mode",
        f"create table {schema}.{name} (like {schema}.history including defaults including constraints)",
        f"with moved as (delete from {schema}.history_default where expires_at >= {first} and expires_at < {end} returning *) "
        f"insert into {schema}.{name} select * from moved",
        f"alter table {schema}.history attach partition {schema}.{name} for values from ({first}) to ({end})",
        makes=f"{schema}.{name}",
    )


def _drop(engine: PostgresEngine, name: str) -> bool:
    return _ddl(engine, f'drop table if exists "{engine.schema}".{name}')


def _ddl(engine: PostgresEngine, *statements: str, makes: str | None = None) -> bool:
    with (
        contextlib.suppress(Conflict, StoreUnavailable),
        engine.session() as connection,
        connection.transaction(),
    ):
        connection.execute("set local lock_timeout = '500ms'")
        if connection.execute("select pg_try_advisory_xact_lock(%s)", (UPKEEP_KEY,)).fetchone() != (True,):
            return False  # another process is at it
        if makes is not None and connection.execute("select to_regclass(%s)", (makes,)).fetchone() != (None,):
            return False  # another process made it since we looked
        for statement in statements:
            connection.execute(statement.encode())
        return True
    return False
