"""What a process that is too busy to start jobs under a rate in time may claim: less each time, more as time passes. No I/O.

A job whose body would start too long after its claim goes back, and would be claimed again at once by the process that
has no time for it. So each time that happens the queue gives this process half as much, after a pause that gets longer.
"""

import dataclasses
from collections.abc import Sequence

import msgspec

from evenflow.store.advance import Want

# Jobs of one claim are found late one after the other: they count as one time.
SAME_TIME_S = 0.1
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
DOUBLES_EVERY_S = 0.5


@dataclasses.dataclass(slots=True)
class _Share:
    top: int
    times: int
    late_at: float

    def pauses_until(self) -> float:
        return self.late_at + min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** min(self.times - 1, 10))

    def now_top(self, now: float) -> int:
        doublings = (now - self.pauses_until()) / DOUBLES_EVERY_S
        return int(self.top * 2 ** min(max(doublings, 0.0), 30.0))


class Lateness:
    """How much of each queue one process may claim. A queue that was never late is not in here."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    def note(self, queues: Sequence[str], most: int, now: float) -> None:
        """Jobs of these queues were too late; `most` is how many this process may claim of a queue at best."""
        for queue in set(queues):
            share = self._shares.get(queue)
            if share is None:
                self._shares[queue] = _Share(max(1, most // 2), 1, now)
            elif now - share.late_at >= SAME_TIME_S:
                top = max(1, min(most, share.now_top(now)) // 2)
                self._shares[queue] = _Share(top, share.times + 1, now)

    def cut(self, wants: Sequence[Want], now: float) -> Sequence[Want]:
        """What may be claimed now; queues that pause are left out."""
        if not self._shares:
            return wants
        for queue in [queue for queue, share in self._shares.items() if _is_over(share, wants, now)]:
            del self._shares[queue]
        return [
            msgspec.structs.replace(want, top=min(want.top, self._top(want.queue, now)))
            for want in wants
            if self._top(want.queue, now) > 0
        ]

    def resumes_at(self, now: float) -> float | None:
        """When the first queue that pauses may be claimed from again."""
        ends = [share.pauses_until() for share in self._shares.values() if share.pauses_until() > now]
        return min(ends, default=None)

    def _top(self, queue: str, now: float) -> int:
        share = self._shares.get(queue)
        if share is None:
            return 2**31
        return 0 if now < share.pauses_until() else share.now_top(now)


def _is_over(share: _Share, wants: Sequence[Want], now: float) -> bool:
    return share.now_top(now) > max((want.top for want in wants), default=0) and now > share.pauses_until()
