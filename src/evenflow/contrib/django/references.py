"""Model instances as arguments: stored as a reference to their row, and fetched again when the job runs.

Decoding gives a `RowReference`, which knows nothing of databases; `resolved` fetches what it names. So a job can be listed and
shown although its rows are gone, and a coroutine's arguments are not fetched on the event loop.
"""

import dataclasses
from typing import Any

from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import connections, models, router

from evenflow.codec import register_type
from evenflow.errors import DeserializationError

TAG = "django.row"
IN_PAYLOAD = f'"{TAG}"'
"""What a payload with a reference in it contains."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowReference:
    """A row of a model: `shop.order` 7, in the database of this alias (None: where the router reads it)."""

    model: str
    pk: Any
    database: str | None = None

    def __str__(self) -> str:
        return f"{self.model}:{self.pk}"


def register_models() -> None:
    """Let model instances be arguments and results. Again changes nothing."""
    register_type(models.Model, _encode, _decode, tag=TAG, stands_in=True)


def resolved(value: Any) -> Any:
    """The value with rows in the place of references. DeserializationError where a row is gone."""
    if isinstance(value, RowReference):
        return _fetched(value)
    if isinstance(value, dict):
        return {resolved(key): resolved(each) for key, each in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(resolved, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_rows(value)
    return value


def _encode(instance: models.Model) -> list[Any]:
    label = instance._meta.label_lower
    if instance.pk is None:
        raise ValueError(f"this {label} has no primary key yet; save it before it is sent")
    # What a router would choose without the instance is not stored: it may choose otherwise when the job runs.
    chosen = router.db_for_write(type(instance), instance=instance)
    database = None if chosen == router.db_for_write(type(instance)) else chosen
    return [label, instance.pk, *([] if database is None else [database])]


def _decode(stored: list[Any]) -> RowReference:
    return RowReference(*stored)


def _fetched(row: RowReference) -> models.Model:
    try:
        model = apps.get_model(row.model)
    except LookupError as error:
        raise DeserializationError(f"{row}: there is no model {row.model!r} here: {error}") from error
    if row.database is not None and row.database not in connections:
        raise DeserializationError(f"{row}: there is no database {row.database!r} in DATABASES here")
    # A job reads what others may have written a moment ago: a replica may not have it yet.
    alias = row.database or router.db_for_write(model)
    try:
        found: models.Model = model._base_manager.using(alias).get(pk=row.pk)
    except (ObjectDoesNotExist, ValidationError, ValueError) as error:
        raise DeserializationError(
            f"{row} is gone: it was deleted, or never committed; enqueue in the transaction that writes the row"
        ) from error
    return found


def _with_rows(record: Any) -> Any:
    """A dataclass, its fields resolved in place: its own `__init__` may do more than hold them."""
    for each in dataclasses.fields(record):
        value = getattr(record, each.name, None)
        if (found := resolved(value)) is not value:
            object.__setattr__(record, each.name, found)
    return record
