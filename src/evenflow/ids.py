"""Job ids: 63-bit integers inside, 13 characters of text outside; both sort in the order of time.

An id is `milliseconds << 22 | number`. Clients make their ids before they insert, so that an enqueue whose commit got no
answer can be repeated. On PostgreSQL the numbers come from blocks of a sequence: two clients can share a number only if
4 million ids are handed out while one of them still holds its block, and a block is dropped after two seconds.
On SQLite all processes share one host and one clock, so a random number is enough: a clash is refused by the primary key.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable

from evenflow.errors import JobNotFound

EPOCH_MS = 1_735_689_600_000  # 2025-01-01: 41 bits of milliseconds last until 2094
NUMBER_BITS = 22
BLOCK = 32
BLOCK_LIFE_S = 2.0
MAX_BLOCKS = 512
_ALPHABET = (
    "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts like the numbers, no letters to confuse
)
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LENGTH = 13


def id_text(number: int) -> str:
    """The id as users see it.

    >>> id_text(0), id_text(2**63 - 1)
    ('0000000000000', '7zzzzzzzzzzzz')
    """
    return "".join([_ALPHABET[number >> shift & 31] for shift in range(60, -1, -5)])


def id_number(text: str) -> int:
    """The id inside; ValueError where the text cannot be one.

    >>> id_number("7zzzzzzzzzzzz") == 2**63 - 1
    True
    """
    if not isinstance(text, str) or len(text) != _LENGTH or text[0] not in "01234567":
        raise ValueError(f"expected a job id of {_LENGTH} small letters and digits, got {text!r}")
    number = 0
    for letter in text:
        if letter not in _VALUES:
            raise ValueError(f"expected a job id of {_LENGTH} small letters and digits, got {text!r}")
        number = number << 5 | _VALUES[letter]
    return number


def job_number(text: str) -> int:
    """The id of a job that somebody asks for. What cannot be an id answers like one that is not there: JobNotFound."""
    try:
        return id_number(text)
    except ValueError as wrong:
        raise JobNotFound(str(wrong)) from None


class IdSource:
    """Hands out ids that grow within one process. `reserve(n)` gives n fresh block numbers.

    Safe to share between threads: the reservation runs outside of the lock, and what two threads reserve at once is
    used by both.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._dies_at = 0.0
        self._last = 0
        self._blocks = 1
        _sources.add(self)

    def take(self, count: int, reserve: Callable[[int], list[int]]) -> list[int]:
        """`count` fresh ids, ascending."""
        ids = self.take_reserved(count)
        if ids is None:
            with self._lock:
                blocks = self.blocks_needed(count)
            self.add_blocks(reserve(blocks))
            ids = self.take_reserved(count)
        while ids is None:  # another thread was quicker: reserve for this call alone
            self.add_blocks(reserve(-(-count // BLOCK)))
            ids = self.take_reserved(count)
        return ids

    def take_reserved(self, count: int) -> list[int] | None:
        """`count` ids from blocks at hand, or None where a reservation is needed first."""
        with self._lock:
            if time.monotonic() >= self._dies_at:
                self._free.clear()
            if len(self._free) < count:
                return None
            first = len(self._free) - count
            numbers = self._free[first:]
            del self._free[first:]
            return self._stamped(numbers)

    def take_one(self) -> int | None:
        """`take_reserved` of one, without lists: as a rule ids are made one by one."""
        with self._lock:
            if not self._free or time.monotonic() >= self._dies_at:
                return None
            number = self._free.pop()
            made = _stamp() | number
            if made <= self._last:
                made = _stamp_after(self._last) | number
            self._last = made
            return made

    def blocks_needed(self, count: int) -> int:
        """How many blocks to ask for: more while they are used up quickly, so that single enqueues rarely wait."""
        alive = time.monotonic() < self._dies_at
        self._blocks = min(self._blocks * 2, MAX_BLOCKS) if alive else 1
        return max(self._blocks, -(-count // BLOCK))

    def add_blocks(self, blocks: list[int]) -> None:
        """Take in freshly reserved blocks; what is left of older ones is dropped."""
        mask = (1 << NUMBER_BITS) - 1
        numbers = [(block * BLOCK + place) & mask for block in blocks for place in range(BLOCK)]
        numbers.reverse()
        with self._lock:
            self._free = numbers
            self._dies_at = time.monotonic() + BLOCK_LIFE_S

    def _stamped(self, numbers: list[int]) -> list[int]:
        stamp = _stamp()
        ids = []
        last = self._last
        for number in reversed(numbers):
            candidate = stamp | number
            if candidate <= last:
                stamp = _stamp_after(last)
                candidate = stamp | number
            ids.append(candidate)
            last = candidate
        self._last = last
        return ids

    def _begin_after_fork(self) -> None:
        # The blocks are the parent's, which goes on to use them; and whoever held the lock is not here any more.
        self._lock = threading.Lock()
        self._free, self._dies_at = [], 0.0


def _stamp() -> int:
    return time.time_ns() // 1_000_000 - EPOCH_MS << NUMBER_BITS


def _stamp_after(last: int) -> int:
    """The next millisecond: the numbers wrapped, or the clock stepped back."""
    return (last >> NUMBER_BITS) + 1 << NUMBER_BITS


_sources: "weakref.WeakSet[IdSource]" = weakref.WeakSet()


def _begin_all_after_fork() -> None:
    for source in _sources:
        source._begin_after_fork()


os.register_at_fork(after_in_child=_begin_all_after_fork)
