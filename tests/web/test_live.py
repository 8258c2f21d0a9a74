"""Live numbers: one look for all who watch, and none where nobody does."""

import asyncio
from collections.abc import Iterator

import msgspec

from evenflow.store.dashboard import Count
from evenflow.web.live import Ticker
from evenflow.web.shapes import Pulse

PULSE = Pulse(
    ready=Count(1), in_flight=Count(2), scheduled=Count(0), held=Count(0), failed=Count(10_000, True), oldest_ready_s=1.5,
    workers=1, slots=10,
)  # fmt: skip


async def test_all_who_watch_get_what_one_look_has_seen() -> None:
    looks = 0

    def look() -> Pulse:
        nonlocal looks
        looks += 1
        return msgspec.structs.replace(PULSE, workers=looks)

    ticker = Ticker(look, every_s=0.01)
    first, second = ticker.events(), ticker.events()
    seen = await asyncio.gather(anext(first), anext(second))
    assert seen[0] == seen[1]
    data = msgspec.json.decode(seen[0]["data"])
    assert (data["failed"], data["workers"]) == ("10,000+", "1"), "the first look was for both"
    await first.aclose()
    await second.aclose()
    await asyncio.wait_for(asyncio.shield(ticker._task), 30)  # type: ignore[arg-type]
    assert ticker._task is None or ticker._task.done(), "nobody is left who would look"


async def test_a_look_that_fails_is_followed_by_another() -> None:
    answers: Iterator[Exception | Pulse] = iter([RuntimeError("away"), PULSE])

    def look() -> Pulse:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ticker = Ticker(look, every_s=0.01)
    events = ticker.events()
    event = await asyncio.wait_for(anext(events), 30)
    assert event["event"] == "pulse"
    await events.aclose()


async def test_a_stream_ends_when_the_server_does_also_between_two_looks() -> None:
    ticker, ending = Ticker(lambda: PULSE, every_s=600), asyncio.Event()
    events = ticker.events(ending=ending)
    await asyncio.wait_for(anext(events), 30)
    waiting = asyncio.ensure_future(anext(events, None))
    await asyncio.sleep(0)
    ending.set()
    assert await asyncio.wait_for(waiting, 30) is None
    assert not ticker._watchers
    ticker._task.cancel()  # type: ignore[union-attr]
