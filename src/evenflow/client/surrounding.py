"""What surrounds an enqueue: instrumentation that sees the calls and gives their jobs headers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from evenflow.client.handle import Job
from evenflow.client.task import Call

Publishing = Callable[[Sequence[Call[Any]], list[Job[Any]]], AbstractContextManager[Sequence[Call[Any]]]]
"""Surrounds an enqueue: is given the calls and a list that holds the jobs afterwards, gives the calls as they are stored."""


def both(outer: Publishing, inner: Publishing) -> Publishing:
    """Two that surround an enqueue; each sees the calls as they were made, and its headers are added to the other's."""

    @contextmanager
    def surround(calls: Sequence[Call[Any]], placed: list[Job[Any]]) -> Iterator[Sequence[Call[Any]]]:
        with outer(calls, placed) as first, inner(calls, placed) as second:
            yield [_with_headers_of(one, other) for one, other in zip(first, second, strict=True)]

    return surround


def _with_headers_of(one: Call[Any], other: Call[Any]) -> Call[Any]:
    texts = [call.new.headers for call in (one, other) if call.new.headers]
    if len(texts) < 2:
        return one if one.new.headers else other
    merged: dict[str, str] = {}
    for text in texts:
        merged |= msgspec.json.decode(text, type=dict[str, str])
    return Call(one.task, msgspec.structs.replace(one.new, headers=msgspec.json.encode(merged).decode()))
