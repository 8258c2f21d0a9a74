"""Job ids: text and number, order in time, and blocks that no two clients share."""

import threading
import time

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from evenflow.clock import from_us
from evenflow.errors import JobNotFound
from evenflow.ids import (
    BLOCK,
    BLOCK_LIFE_S,
    EPOCH_MS,
    MAX_BLOCKS,
    NUMBER_BITS,
    IdSource,
    id_number,
    id_text,
    job_number,
)
from tests.store.crowd import in_fork

numbers = st.integers(0, 2**63 - 1)


class Blocks:
    """A sequence of blocks, as a database hands them out."""

    def __init__(self) -> None:
        self.next = 0
        self.asked: list[int] = []
        self._lock = threading.Lock()

    def reserve(self, count: int) -> list[int]:
        with self._lock:
            self.asked.append(count)
            self.next += count
            return list(range(self.next - count, self.next))


@given(numbers)
def test_text_and_number_are_each_other_s_inverse(number: int) -> None:
    assert id_number(id_text(number)) == number


def test_what_cannot_be_an_id_is_a_job_that_is_not_there() -> None:
    assert job_number(id_text(17)) == 17
    with pytest.raises(JobNotFound, match="expected a job id of 13"):
        job_number("nonsense")


@given(numbers, numbers)
def test_texts_sort_as_their_numbers(one: int, other: int) -> None:
    assert (id_text(one) < id_text(other)) == (one < other)


def test_a_text_has_13_characters_that_cannot_be_confused() -> None:
    texts = [id_text(number) for number in (0, 1, 2**62, 2**63 - 1)]
    assert {len(text) for text in texts} == {13}
    assert not set("".join(texts)) & set("iloIOLuU")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "0" * 12,
        "0" * 14,
        "8000000000000",
        "000000000000u",
        "00000000000 0",
        "000000000000A",
        "-000000000001",
    ],
)
def test_a_text_that_cannot_be_an_id_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"expected a job id of 13 small letters and digits, got "):
        id_number(wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"0000000000000"])
def test_a_value_that_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a job id"):
        id_number(wrong)  # type: ignore[arg-type]


def test_an_id_carries_the_millisecond_in_which_it_was_made() -> None:
    with time_machine.travel(1_800_000_123, tick=False):
        (made,) = IdSource().take(1, Blocks().reserve)
    assert (made >> NUMBER_BITS) + EPOCH_MS == 1_800_000_123_000


def test_ids_of_one_source_ascend() -> None:
    source, blocks = IdSource(), Blocks()
    made = [number for count in (1, 3, 40, 2, 500, 1) for number in source.take(count, blocks.reserve)]
    assert made == sorted(set(made))
    assert len(made) == 547


def test_nothing_may_be_asked_for() -> None:
    source, blocks = IdSource(), Blocks()
    assert source.take(0, blocks.reserve) == []
    source.take(1, blocks.reserve)
    assert source.take(0, blocks.reserve) == []
    assert len(source.take(BLOCK - 1, blocks.reserve)) == BLOCK - 1
    assert blocks.asked == [1]


def test_ids_ascend_over_the_wrap_of_their_numbers() -> None:
    source = IdSource()
    last_block = (1 << NUMBER_BITS) // BLOCK - 1
    source.add_blocks([last_block, last_block + 1])
    made = source.take_reserved(2 * BLOCK)
    assert made is not None
    assert made == sorted(set(made))
    assert made[BLOCK] & ((1 << NUMBER_BITS) - 1) == 0


def test_ids_ascend_when_the_clock_steps_back() -> None:
    source, blocks = IdSource(), Blocks()
    with time_machine.travel(1_800_000_000, tick=False):
        before = source.take(10, blocks.reserve)
    with time_machine.travel(1_799_999_000, tick=False):
        after = source.take(10, blocks.reserve)
    assert [*before, *after] == sorted({*before, *after})


def test_ids_that_are_made_one_by_one_ascend_like_those_of_batches() -> None:
    source = IdSource()
    last_block = (1 << NUMBER_BITS) // BLOCK - 1
    source.add_blocks([last_block, last_block + 1])
    with time_machine.travel(1_800_000_000, tick=False):
        made = [source.take_one() for _ in range(BLOCK + 1)]  # over the wrap of their numbers
        made += source.take_reserved(2) or []
    with time_machine.travel(1_799_999_000, tick=False):  # the clock steps back
        made += [source.take_one()]
    known = [number for number in made if number is not None]
    assert len(known) == BLOCK + 4
    assert known == sorted(set(known))
    assert known[0] >> NUMBER_BITS == 1_800_000_000_000 - EPOCH_MS


def test_two_sources_of_one_database_never_make_the_same_id() -> None:
    blocks = Blocks()
    with time_machine.travel(1_800_000_000, tick=False):
        made = [
            number
            for _ in range(20)
            for source in (IdSource(), IdSource())
            for number in source.take(7, blocks.reserve)
        ]
    assert len(set(made)) == len(made)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, standing still at its only item."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_block_is_dropped_after_its_life(seconds: list[float]) -> None:
    source, blocks = IdSource(), Blocks()
    source.take(1, blocks.reserve)
    seconds[0] += BLOCK_LIFE_S - 0.001
    assert source.take_reserved(1) is not None
    assert source.take_one() is not None
    seconds[0] += 0.001
    assert source.take_one() is None
    assert source.take_reserved(1) is None


def test_one_id_needs_a_block_like_any_other() -> None:
    source = IdSource()
    assert source.take_one() is None
    source.add_blocks([7])
    made = [source.take_one() for _ in range(BLOCK + 1)]
    assert None not in made[:BLOCK] and made[BLOCK] is None


def test_blocks_are_asked_for_in_growing_numbers_while_they_are_used_up_quickly(seconds: list[float]) -> None:
    source, blocks = IdSource(), Blocks()
    for _ in range(6):
        source.take(BLOCK, blocks.reserve)
        while source.take_reserved(1):
            pass
    assert blocks.asked == [1, 2, 4, 8, 16, 32]
    seconds[0] += 60
    source.take(1, blocks.reserve)
    assert blocks.asked[-1] == 1


def test_a_large_batch_gets_all_its_blocks_at_once() -> None:
    source, blocks = IdSource(), Blocks()
    assert len(source.take(BLOCK * MAX_BLOCKS * 2 + 1, blocks.reserve)) == BLOCK * MAX_BLOCKS * 2 + 1
    assert blocks.asked == [MAX_BLOCKS * 2 + 1]


def test_a_batch_in_one_go_stays_in_its_millisecond() -> None:
    with time_machine.travel(1_800_000_000, tick=False):
        made = IdSource().take(10_000, Blocks().reserve)
    assert {number >> NUMBER_BITS for number in made} == {1_800_000_000_000 - EPOCH_MS}


def test_threads_that_share_a_source_get_ids_of_their_own() -> None:
    source, blocks = IdSource(), Blocks()
    made: list[int] = []
    together = threading.Barrier(8)

    def take() -> None:
        together.wait(60)
        mine = [number for _ in range(50) for number in source.take(3, blocks.reserve)]
        assert mine == sorted(mine)
        made.extend(mine)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(made)) == len(made) == 1200


def test_ids_are_young_for_the_rest_of_this_century() -> None:
    assert from_us((EPOCH_MS + (1 << 41)) * 1000).year > 2090


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    source, blocks = IdSource(), Blocks()
    source.take(1, blocks.reserve)
    left = source.take_reserved(BLOCK - 3)
    assert left is not None

    def child() -> str:
        # No block of the child's own is at hand, and none of the parent's is left to it.
        return str(source.take_reserved(1))

    source._lock.acquire()  # as if another thread were at it while we fork
    try:
        said = in_fork(child)
    finally:
        source._lock.release()
    assert said == "None"
    assert source.take_reserved(2) is not None, "the parent keeps what it has"
