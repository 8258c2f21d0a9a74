"""Evenflow's tables in Django's databases. They have migrations of their own, which `manage.py migrate` runs as well."""

import functools
from typing import Any

from django.db import connections

from evenflow.contrib.django.links import Link, links
from evenflow.store.migrate import migration_script, migrations
from evenflow.store.statements import split_statements


def make_tables(alias: str) -> list[str]:
    """Bring the tables in the database of this alias up to date; the names of the migrations that were applied.

    Jobs with an address of their own are left to `manage.py evenflow_migrate`, and to the workers, which do it at their start.
    """
    return [name for link in links() if link.address.alias == alias for name in update_tables(link)]


def close_before_drop(alias: str) -> None:
    """Give our connections back before Django drops the test database of this alias: PostgreSQL refuses it otherwise, and no
    signal of Django's tells of it."""
    creation = connections[alias].creation
    drop = creation.destroy_test_db
    if hasattr(drop, "__wrapped__"):
        return

    @functools.wraps(drop)
    def destroy_test_db(*args: Any, **kwargs: Any) -> None:
        for link in links():
            link.close()
        drop(*args, **kwargs)

    creation.destroy_test_db = destroy_test_db


def update_tables(link: Link) -> list[str]:
    """Bring the tables of one backend up to date."""
    if link.address.is_memory:
        return _make_in_memory(connections[link.address.alias])
    try:
        return link.app.migrate()
    finally:
        link.close()  # a test database is copied for parallel runs, which PostgreSQL refuses while it is in use


def _make_in_memory(connection: Any) -> list[str]:
    """Only Django's own connection can see such a database, so it makes the tables, too."""
    if "evenflow_migration" in connection.introspection.table_names():
        return []
    with connection.cursor() as cursor:
        for statement in split_statements(migration_script("sqlite")):
            if statement.strip().rstrip(";").lower() not in ("begin", "commit"):
                cursor.execute(statement)
    return [f"{each.version:04d}_{each.name}" for each in migrations("sqlite")]
