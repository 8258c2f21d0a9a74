"""Ends of runs that succeeded, as SQLite takes them, and what a unit that wrote such ends says of them."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evenflow.job import End
from evenflow.store.engine import Row, as_json

_epoch = operator.attrgetter("epoch")
_ids = msgspec.json.Decoder(list[int]).decode
_PAYLOAD, _OPTIONS = 15, 18  # their places in a row of the answer


def epochs_of(ends: Iterable[End]) -> str:
    """Ids and epochs as one object. Of two ends of one job the later claim's counts: the other would be refused in any case."""
    return as_json({end.id: end.epoch for end in sorted(ends, key=_epoch)})


def successes(ends: Sequence[End], worker: int) -> dict[str, Any]:
    """The parameters of `end_successes`, and of all units that it is a part of."""
    kept = [(end.id, end.epoch, end.keep_us, end.result) for end in ends if end.keep_us > 0]
    return {"epochs": epochs_of(ends), "kept": as_json(kept), "worker": worker}


def told(row: Row, ends: Sequence[End]) -> tuple[list[int], list[tuple[int, int]]]:
    """What a row of the kind `ended` says: which ends somebody waits for, and which were refused."""
    awaited = [] if row[_PAYLOAD] is None else _ids(row[_PAYLOAD])
    if row[_OPTIONS] is None:
        return awaited, []
    written = set(_ids(row[_OPTIONS]))
    return awaited, [(end.id, end.epoch) for end in ends if end.id not in written]
