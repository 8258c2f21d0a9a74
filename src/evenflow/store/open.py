"""Opening a store: from a database URL to an engine."""

from evenflow.clock import Clock
from evenflow.database_url import DatabaseUrl
from evenflow.store.migrate import migrate
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.upkeep import turn_partitions

AnyEngine = SqliteEngine | PostgresEngine


def open_engine(
    database: DatabaseUrl, schema: str = "evenflow", *, pool_size: int = 4, clock: Clock | None = None
) -> AnyEngine:
    """An engine for this database. Nothing is opened before its first use."""
    if database.kind == "sqlite":
        return SqliteEngine(database.path, clock=clock)
    return PostgresEngine(database.conninfo, schema, pool_size=pool_size, clock=clock)


def prepare(engine: AnyEngine) -> list[str]:
    """Bring the tables up to date, with partitions for the coming days; names of the migrations applied."""
    applied = [f"{migration.version:04d}_{migration.name}" for migration in migrate(engine)]
    if applied and isinstance(engine, PostgresEngine):
        turn_partitions(engine)
    return applied
