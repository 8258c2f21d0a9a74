"""Live numbers: one look every few seconds for all who watch, sent to them as events. Nobody watches, nobody looks."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from evenflow.web.shapes import Pulse
from evenflow.web.texts import number, span

log = logging.getLogger("evenflow.web")

EVERY_S = 2.0
LONGEST_STREAM_S = 600.0
"""A stream ends after this time and the browser asks again: whoever may look no more is not let in again."""
MOST_STREAMS = 100


class Ticker:
    """Looks while somebody watches, and tells all of them."""

    def __init__(self, look: Callable[[], Pulse], every_s: float = EVERY_S) -> None:
        self._look = look
        self._every_s = every_s
        self._watchers: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._watchers) >= MOST_STREAMS

    async def events(
        self, *, is_bare: bool = False, ending: asyncio.Event | None = None
    ) -> AsyncGenerator[dict[str, str], None]:
        """What happens from now on: an event at each look, until `ending` is set; without its numbers where it is bare."""
        stop = ending or asyncio.Event()
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=2)
        self._watchers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        ends_at = time.monotonic() + LONGEST_STREAM_S
        try:
            while time.monotonic() < ends_at and (text := await _next(queue, stop)) is not None:
                yield {"event": "pulse", "data": "{}" if is_bare else text}
        finally:
            self._watchers.discard(queue)

    async def _run(self) -> None:
        while self._watchers:
            try:
                text = said(await asyncio.to_thread(self._look))
            except Exception as error:  # the database is away: the next look may find it
                log.warning("live numbers: %s", error)
            else:
                for queue in list(self._watchers):
                    with contextlib.suppress(asyncio.QueueFull):  # a reader that is slow gets the next one
                        queue.put_nowait(text)
            await asyncio.sleep(self._every_s)


async def _next(queue: asyncio.Queue[str], stop: asyncio.Event) -> str | None:
    """What comes next, or None when it is time to end."""
    getting, stopping = asyncio.ensure_future(queue.get()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((getting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return None if stop.is_set() else getting.result()
    finally:
        getting.cancel()
        stopping.cancel()


def said(pulse: Pulse) -> str:
    """The numbers as pages write them."""
    texts = {
        "ready": number(pulse.ready), "in_flight": number(pulse.in_flight), "scheduled": number(pulse.scheduled),
        "held": number(pulse.held), "failed": number(pulse.failed), "workers": number(pulse.workers),
        "oldest": span(None if pulse.oldest_ready_s is None else pulse.oldest_ready_s * 1e6),
    }  # fmt: skip
    return msgspec.json.encode(texts).decode()
