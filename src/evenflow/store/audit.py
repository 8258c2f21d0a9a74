"""The audit log: what was asked for through the dashboard or its API, by whom, and what came of it. Append-only."""

from typing import Any

import msgspec

from evenflow.codec import storable_text
from evenflow.store.engine import Engine, as_json

NEWEST = 2**63 - 1
PAGE = 50


class Asked(msgspec.Struct, frozen=True):
    """Who asks for what, before it is done."""

    who: str
    role: str
    address: str
    act: str
    target: str
    detail: dict[str, Any]


class AuditRow(msgspec.Struct, frozen=True):
    """One act as the log knows it; without an outcome where the process that did it died meanwhile."""

    id: int
    at: int
    who: str
    role: str
    address: str
    act: str
    target: str
    detail: Any
    outcome: Any


def ask(engine: Engine, asked: Asked, *, now: int | None = None) -> int:
    """Write down what is about to be done; the number by which `answer` knows it."""
    return _add(engine, asked, None, asked.detail, now)


def answer(
    engine: Engine, number: int, asked: Asked, outcome: dict[str, Any], *, now: int | None = None
) -> None:
    """Write down what came of it."""
    _add(engine, asked, number, outcome, now)


def page(engine: Engine, *, before: int = NEWEST, top: int = PAGE) -> list[AuditRow]:
    """What was asked for, newest first, with its outcomes."""
    rows = engine.run("list_audit", {"before": before, "top": top})
    return [AuditRow(*row[:-2], *map(_read, row[-2:])) for row in rows]


def _add(engine: Engine, asked: Asked, answers: int | None, detail: dict[str, Any], now: int | None) -> int:
    texts = {
        name: storable_text(getattr(asked, name)) for name in ("who", "role", "address", "act", "target")
    }
    rows = engine.run("add_audit", {**texts, "answers": answers, "detail": as_json(detail), "now": now})
    number: int = rows[0][0]
    return number


def _read(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
