"""Spacing: the waiting jobs of a group move to where they belong, once it is known what its runs take.

Batches in short transactions. How far it has come is a row, so whoever comes next goes on after a crash.
"""

from typing import Any

import msgspec

from evenflow.rules.fair import Respacing, is_misplaced
from evenflow.store.callers import drive_together
from evenflow.store.engine import Engine, Steps
from evenflow.store.open import AnyEngine

BATCH = 1000


def is_asked(engine: Engine) -> bool:
    """Whether some group's waiting jobs have to move. A look that writes nothing."""
    return bool(engine.run("any_respacing", {}))


def respace(engine: AnyEngine, *, top: int = BATCH) -> int | None:
    """Move jobs of one group, at most `top`; how many, None where there is nothing to do."""
    return drive_together(engine, lambda: _respace_steps(top))


def _respace_steps(top: int) -> Steps[int | None]:
    taken = yield "take_respacing", {}
    if not taken:
        return None
    queue, priority, group, *noted = taken[0]
    key = {"queue": queue, "priority": priority, "group_key": group}
    rows = yield "lock_spacing", key
    # Without a row, or in a queue that is no longer fair by time, nobody waits in a step that matters.
    tail, placed_step, v, step = rows[0] if rows else (0.0, None, 0.0, None)
    begins = noted[1] is None
    if step is None or placed_step is None or (begins and (tail <= v or not is_misplaced(placed_step, step))):
        yield "end_respacing", key
        return 0
    if begins:
        respacing = Respacing.begun(v, tail, placed_step, step)
        tail = respacing.stretched(tail) if respacing.stretches else tail
        yield "set_spacing", {**key, "tail": tail, "step": step}
    else:
        respacing = Respacing(*noted)
    return (yield from _move(key, respacing.at(v), tail, top))


def _move(key: dict[str, Any], respacing: Respacing, tail: float, top: int) -> Steps[int]:
    unit = "stretch_jobs" if respacing.stretches else "close_up_jobs"
    rows = yield unit, {**key, **msgspec.structs.asdict(respacing), "top": top}
    moved, *last = rows[0] if rows else (0,)
    if moved:
        respacing = respacing.after(*last)
    if moved == top:
        yield "note_respacing", {**key, **msgspec.structs.asdict(respacing)}
        return top
    if not respacing.stretches:
        yield "set_spacing", {**key, "tail": respacing.final_tail(tail), "step": respacing.step}
    yield "end_respacing", key
    return int(moved)
