"""Which database a command is about: `--url`, `--app MODULE:APP`, or `EVENFLOW_URL`; and opening it with care.

A command that only looks creates nothing: a mistyped address must not become an empty database.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from evenflow import Evenflow, StoreError
from evenflow.settings import DEFAULT_URL, Settings, parse_url
from evenflow.store.migrate import require_schema
from evenflow.store.open import AnyEngine, open_engine
from evenflow.worker.loading import load_object


def load_app(locator: str) -> Evenflow:
    """The app that `MODULE:APP` or `path/to/file.py:APP` names; ConfigError says what is wrong with the locator."""
    app: Evenflow = load_object(locator, Evenflow)
    return app


@dataclass(frozen=True, slots=True)
class Place:
    """What the user said about the database. Nothing is opened or imported before it is asked for."""

    url: str | None
    locator: str | None

    def app(self) -> Evenflow:
        """The app named, or one without tasks at the address named."""
        if self.locator is not None:
            return load_app(self.locator)
        return Evenflow(self._address())

    def settings(self) -> Settings:
        """Settings alone, which need no driver."""
        if self.locator is not None:
            return load_app(self.locator).settings
        return Settings.build(self._address())

    @contextlib.contextmanager
    def looking(self) -> Iterator[AnyEngine]:
        """The store, for reading. StoreError where there is none yet."""
        with opened(self.settings()) as engine:
            yield engine

    @contextlib.contextmanager
    def acting(self) -> Iterator[Evenflow]:
        """The app on tables that are there. StoreError where there are none yet."""
        with self.app() as app:
            with opened(app.settings):
                pass  # only to know that it can be
            yield app

    def _address(self) -> str | None:
        if self.url is not None:
            return self.url
        if "EVENFLOW_URL" not in os.environ and not Path(parse_url(DEFAULT_URL).path or "").exists():
            raise click.UsageError(
                "which database? Say --url URL or --app MODULE:APP, or set EVENFLOW_URL "
                f"(there is no {DEFAULT_URL} here either)"
            )
        return None


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[AnyEngine]:
    """The store with the tables of this version, or StoreError; nothing is created."""
    refuse_missing(settings)
    engine = open_engine(settings.database, settings.schema, pool_size=1)
    try:
        require_schema(engine)
        yield engine
    finally:
        engine.close()


def refuse_missing(settings: Settings) -> None:
    """StoreError for a SQLite database that is not there, which opening would create."""
    database = settings.database
    if database.memory:
        raise StoreError("a database in memory lives and dies with its process: from here it cannot be seen")
    if database.path is not None and not Path(database.path).exists():
        raise StoreError(
            f"there is no file {database.path!r}; correct the address, or create it with: "
            f"evenflow migrate --url {database.masked()}"
        )


def takes_place(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--url` and `--app`, and pass them on as `place`."""

    @click.option("--url", metavar="URL", help="The database, as in sqlite:///jobs.db.")
    @click.option("--app", metavar="MODULE:APP", help="Take the database of this app.")
    @functools.wraps(command)
    def wrapped(*, url: str | None, app: str | None, **options: Any) -> None:
        if url is not None and app is not None:
            raise click.UsageError("--url and --app both name a database; give one of them")
        command(place=Place(url, app), **options)

    return wrapped
