"""Where the jobs of a backend live: the database of one of Django's aliases, or an address of their own."""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

# What Django's PostgreSQL backend hands to the driver, and libpq does not know.
_NOT_LIBPQ = {"context", "cursor_factory", "prepare_threshold", "client_encoding", "isolation_level", "pool"}


@dataclass(frozen=True, slots=True)
class Address:
    """The URL for Evenflow, and the alias whose connections reach the same database.

    `is_memory` is a database that only Django's own connection can see, as test runs on SQLite have it.
    """

    url: str
    alias: str | None = None
    is_memory: bool = False


def address_of(options: dict[str, Any]) -> Address:
    """The address that a backend's OPTIONS mean. ImproperlyConfigured says what is wrong with them."""
    url, alias = options.get("url"), options.get("database")
    if url is not None and alias is not None:
        raise ImproperlyConfigured("OPTIONS: url and database both say where the jobs live; give one of them")
    if url is not None:
        return Address(url)
    return shared_address(DEFAULT_DB_ALIAS if alias is None else alias)


def shared_address(alias: str) -> Address:
    """The database of one of Django's aliases."""
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise ImproperlyConfigured(f"OPTIONS['database']: expected one of {known}, got {alias!r}")
    connection = connections[alias]
    match connection.vendor:
        case "sqlite":
            name = str(connection.settings_dict["NAME"])
            path = _sqlite_path(name)
            if path is None:
                return Address("sqlite:///:memory:", alias, is_memory=True)
            return Address(f"sqlite:///{os.path.abspath(path)}", alias)
        case "postgresql":
            return Address(_postgres_url(connection), alias)
        case other:
            raise ImproperlyConfigured(
                f"the database {alias!r} is {other}, and jobs live in SQLite or PostgreSQL; give them one of their own: "
                "OPTIONS = {'url': 'sqlite:///jobs.db'} or 'postgresql://…'"
            )


def identity_of(alias: str) -> object:
    """What changes when an alias comes to mean another database, as it does when a test run begins."""
    return connections[alias].settings_dict["NAME"]


def _sqlite_path(name: str) -> str | None:
    """The file that NAME means, which may be one of SQLite's URIs; None for a database in memory.

    >>> _sqlite_path("shop.db"), _sqlite_path("file:/srv/shop.db?cache=private")
    ('shop.db', '/srv/shop.db')
    >>> _sqlite_path("file:memorydb_default?mode=memory&cache=shared")
    """
    if not name.startswith("file:"):
        return None if name.startswith(":memory:") else name
    uri = urlsplit(name)
    path = unquote(uri.path)
    return None if path == ":memory:" or ("mode", "memory") in parse_qsl(uri.query) else path


def _postgres_url(connection: Any) -> str:
    given: dict[str, Any] = connection.get_connection_params()
    kept = {
        name: value
        for name, value in given.items()
        if name not in _NOT_LIBPQ and isinstance(value, str | int)
    }
    return f"postgresql:///?{urlencode(kept)}"
