"""Tasks that every worker knows without an app's word: the jobs of `evenflow seed`, which do nothing for a while."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenflow.client.options import Policy
from evenflow.codec import CallSignature

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


BUILT_IN: dict[str, Any] = {
    SEED_TASK: BuiltIn(SEED_TASK, seeded, CallSignature(seeded, task=SEED_TASK), True, Policy())
}
