"""Tasks that every worker knows without an app's word: the jobs of `evenflow seed`, which do nothing for a while, and
those that begin sub-workflows and spread the lists of fan-outs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenflow.client.options import Policy
from evenflow.client.plan import BEGIN_TASK, SPREAD_TASK
from evenflow.codec import CallSignature
from evenflow.context import Context
from evenflow.rules.retry import Retry

SEED_TASK = "evenflow.seed"


@dataclass(slots=True)
class BuiltIn:
    """A task as a worker needs it."""

    name: str
    function: Callable[..., Any]
    signature: CallSignature
    is_async: bool
    policy: Any


async def seeded(delay: float) -> None:
    """The body of a seeded job: nothing, or as long as it was told."""
    if delay:
        await asyncio.sleep(delay)


def begin() -> None:
    """The body of a sub-workflow's beginning: it waited for the steps before, and asked the conditions."""


def spread(ctx: Context, over: Any, plan: str) -> None:
    """The body of a fan-out: its list becomes steps. Again after a crash, nothing is added twice."""
    ctx.spread()


def _built_in(name: str, function: Callable[..., Any], *, is_async: bool = False) -> BuiltIn:
    policy = Policy(retry=Retry(max_attempts=3)) if name == SPREAD_TASK else Policy()
    return BuiltIn(name, function, CallSignature(function, task=name, context_type=Context), is_async, policy)


BUILT_IN: dict[str, Any] = {
    SEED_TASK: _built_in(SEED_TASK, seeded, is_async=True),
    BEGIN_TASK: _built_in(BEGIN_TASK, begin),
    SPREAD_TASK: _built_in(SPREAD_TASK, spread),
}
