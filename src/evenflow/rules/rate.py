"""How many starts a rate still has room for: exact in every sliding window, with a state of bounded size.

The promise: no window [t, t + W) holds more than `count` starts. A plain GCRA (one theoretical arrival time,
here `paced_until`) lets up to burst + count - 1 starts into one window. So there are two forms, both exact:

- paced: GCRA with the interval W / (count - burst + 1). That gives away (burst - 1) / count of the rate,
  so it serves small bursts; `burst=1` is plain even spacing and gives away nothing.
- logged: the starts of the last window are kept, one entry per instant. Counts above 64 round a start *up* to
  a 64th of the window: it is held a little too long, never too short, and no state exceeds 66 entries.
  A burst below the count adds GCRA with the interval W / count on top.

Both speak of the instant that is charged, the claim's. A body starts a little later, and not all of them equally late,
so a window that is measured at bodies could hold more. `charged_us` closes that gap: see there.
"""

from collections.abc import Sequence

import msgspec

from evenflow.limits import Rate

# Rounding by W / SLICES costs at most that share of the throughput, and bounds the entries of one state.
SLICES = 64

# A body may start so much later than its claim: a twentieth of the window, within these bounds. Below the lower one hardly
# any body could start in time, and above the upper one a longer wait would only make long windows longer.
START_SHARE = 20
LEAST_START_US = 5_000
MOST_START_US = 100_000


class RateState(msgspec.Struct, frozen=True, array_like=True):
    """What one limiter remembers, encoded as `[paced_until, last, [[at, starts], …]]`; new: `RateState()`.

    >>> msgspec.json.encode(charge(Rate("60/minute"), RateState(), now=7, starts=2))
    b'[0,7,[[7,2]]]'
    """

    paced_until: int = 0
    last: int = 0
    log: tuple[tuple[int, int], ...] = ()


class Admission(msgspec.Struct, frozen=True):
    """How many of the wanted starts were granted, the state after them, and when one more may start."""

    granted: int
    state: RateState
    next_at: int


def start_within_us(window_us: int) -> int:
    """How long after its claim the body of a job under a rate may start; one that is later is given back unstarted.

    >>> start_within_us(1_000_000), start_within_us(60_000_000)
    (50000, 100000)
    """
    return min(MOST_START_US, max(LEAST_START_US, window_us // START_SHARE))


def charged_us(window_us: int) -> int:
    """For how long a start is charged, counted from its claim, so that the window holds for bodies as well.

    A claim at c has its body at s with c <= s <= c + m, where m is `start_within_us`. The claim that takes its place comes
    at c + W + m or later, and its body not before it: a window or more after s. So whatever the delays are, a window of
    bodies holds no more than a charge of W + m lets claims into it.

    >>> charged_us(1_000_000)
    1050000
    """
    return window_us + start_within_us(window_us)


def admit(rate: Rate, state: RateState, now: int, wanted: int) -> Admission:
    """Grant as many of `wanted` starts as have room at `now`, and charge them.

    >>> admit(Rate("2/minute"), RateState(), now=0, wanted=5).granted
    2
    """
    granted = min(wanted, room(rate, state, now))
    after = charge(rate, state, now, granted)
    return Admission(granted, after, next_at(rate, after, now))


def admit_all(
    limits: Sequence[tuple[Rate, RateState]], now: int, wanted: int
) -> tuple[int, list[RateState], int]:
    """Several rates on one target: a start needs room in all of them, and is charged to all of them.

    >>> admit_all([(Rate("5/s"), RateState()), (Rate("2/minute"), RateState())], now=0, wanted=9)[0]
    2
    """
    granted = min([wanted, *(room(rate, state, now) for rate, state in limits)])
    after = [charge(rate, state, now, granted) for rate, state in limits]
    opens = [next_at(rate, state, now) for (rate, _), state in zip(limits, after, strict=True)]
    return granted, after, max([now, *opens])


def room(rate: Rate, state: RateState, now: int) -> int:
    """How many may start at `now`. Asking charges nothing.

    >>> room(Rate("60/minute", burst=10), RateState(), now=0)
    10
    """
    now = max(now, state.last)
    unpaced = _paced_room(rate, state, now)
    # Below 0 when the rate was lowered under starts that it had already allowed.
    return unpaced if _is_paced(rate) else max(0, min(unpaced, rate.count - _logged(rate, state, now)))


def charge(rate: Rate, state: RateState, now: int, starts: int) -> RateState:
    """The state after `starts` that really happened at `now`; 0 leaves it as it is.

    >>> room(Rate("60/minute"), charge(Rate("60/minute"), RateState(), now=0, starts=60), now=59_999_999)
    0
    """
    if starts == 0:
        return state
    # A clock that steps back stands still here until it has caught up: windows get longer, never shorter.
    now = max(now, state.last)
    paced_until = state.paced_until
    if rate.at_once < rate.count:
        paced_until = max(paced_until, now) + starts * _interval_us(rate)
    log = () if _is_paced(rate) else _with_starts(rate, state, now, starts)
    return RateState(paced_until, now, log)


def next_at(rate: Rate, state: RateState, now: int) -> int:
    """The earliest instant, not before `now`, at which one more start has room.

    >>> next_at(Rate("1/minute"), charge(Rate("1/minute"), RateState(), now=5, starts=1), now=6)
    60000005
    """
    now = max(now, state.last)
    opens = now
    if rate.at_once < rate.count:
        opens = max(opens, state.paced_until - (rate.at_once - 1) * _interval_us(rate))
    return opens if _is_paced(rate) else max(opens, _log_opens(rate, state, now))


def used(rate: Rate, state: RateState, now: int) -> int:
    """How much of `rate.count` is taken at `now`: what `app.rate_usage` shows.

    >>> used(Rate("60/minute"), charge(Rate("60/minute"), RateState(), now=0, starts=3), now=1)
    3
    """
    now = max(now, state.last)
    if not _is_paced(rate):
        return _logged(rate, state, now)
    return min(rate.count, -(-max(0, state.paced_until - now) // _interval_us(rate)))


def _is_paced(rate: Rate) -> bool:
    return (rate.at_once - 1) * SLICES <= rate.count and rate.at_once < rate.count


def _interval_us(rate: Rate) -> int:
    if _is_paced(rate):
        return -(-rate.window_us // (rate.count - rate.at_once + 1))
    # Rounded down: the log keeps the promise here, pacing only shapes it.
    return max(1, rate.window_us // rate.count)


def _paced_room(rate: Rate, state: RateState, now: int) -> int:
    if rate.at_once == rate.count:
        return rate.count
    interval = _interval_us(rate)
    ahead = max(0, state.paced_until - now)
    return max(0, rate.at_once - -(-ahead // interval))


def _logged(rate: Rate, state: RateState, now: int) -> int:
    return sum(starts for at, starts in state.log if at + rate.window_us > now)


def _with_starts(rate: Rate, state: RateState, now: int, starts: int) -> tuple[tuple[int, int], ...]:
    at = now
    if rate.count > SLICES:
        slice_us = -(-rate.window_us // SLICES)
        at = -(-now // slice_us) * slice_us
    kept = [entry for entry in state.log if entry[0] + rate.window_us > now]
    if kept and kept[-1][0] >= at:
        at, before = kept.pop()
        starts += before
    return (*kept, (at, starts))


def _log_opens(rate: Rate, state: RateState, now: int) -> int:
    surplus = _logged(rate, state, now) - rate.count + 1
    opens = now
    for at, starts in state.log:
        if surplus <= 0:
            break
        if at + rate.window_us > now:
            surplus -= starts
            opens = at + rate.window_us
    return opens
