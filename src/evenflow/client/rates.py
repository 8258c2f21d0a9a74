"""Rates by hand: how far they are used up, and starts that are counted without a job."""

from evenflow.client.keyed import rate_limits
from evenflow.codec import check_text
from evenflow.errors import ConfigError, RateLimited
from evenflow.limits import Rate
from evenflow.rules.keys import scope_key
from evenflow.store import limits, reads
from evenflow.store.engine import Engine
from evenflow.store.limits import Limiter


def rate_usage(engine: Engine, name: str) -> list[Limiter]:
    """The rates of the queue and of the task of this name."""
    return [
        row
        for prefix in (f"rate:queue:{name}", f"rate:task:{scope_key(name)}")
        for row in limits.limiters(engine, prefix=prefix)
        if row.name[len(prefix)] in "/:"  # not another one whose name only begins like this
    ]


def take_start(engine: Engine, name: str, rate: Rate) -> None:
    """Count one start, or raise RateLimited."""
    if rate.key is not None:
        raise ConfigError(
            f"throttle {name!r}: expected a Rate without key, got key={rate.key!r}; put its value into the name"
        )
    # The spacing of a burst is asked first: a call that it refuses must not use up the count.
    for limit in reversed(rate_limits(f"rate:throttle:{check_text('name', name)}", rate)):
        assert limit.window_us is not None
        granted, free_at = limits.take_token(engine, limit.name, limit.most, limit.window_us)
        if not granted:
            wait_us = 0 if free_at is None else free_at - reads.now_us(engine)
            raise RateLimited(f"rate {name!r} is used up: {rate.limit}", retry_after=max(0.0, wait_us / 1e6))
