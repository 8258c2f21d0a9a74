"""Texts: secrets hidden, terminals safe, times in words."""

import doctest

import pytest

from evenflow.cli import texts
from evenflow.cli.texts import count_of, masked, printable, shortened, span


def test_the_examples_hold() -> None:
    assert doctest.testmod(texts).failed == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no address", "no address"),
        ("at postgresql://bob:s%40cret@db:5432/x\nline 2", "at postgresql://bob:***@db:5432/x\nline 2"),
        (
            "two postgres://a:b@c/d and postgres://e:f@g/h",
            "two postgres://a:***@c/d and postgres://e:***@g/h",
        ),
        ("'postgresql://db/x?password=secret'", "'postgresql://db/x?password=***"),
        ("write postgresql://user:password@host/database", "write postgresql://user:password@host/database"),
    ],
)
def test_passwords_are_hidden_wherever_they_stand(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_what_steers_a_terminal_is_made_visible() -> None:
    assert printable("a\x1b]0;title\x07b\r\n\x9bc") == r"a\x1b]0;title\x07b\r\n\x9bc"
    assert printable("a\n\tb\x1b", keep_lines=True) == "a\n\tb\\x1b"
    assert printable("Grüße, 世界\u00a0✓") == "Grüße, 世界\u00a0✓"
    assert printable("right\u202eleft") == r"right\u202eleft"


@pytest.mark.parametrize(
    ("length_us", "words"),
    [
        (-5, "0 ms"),
        (999, "1 ms"),
        (59_940_000, "59.9 s"),
        (60_000_000, "1 min"),
        (61_000_000, "1 min 1 s"),
        (3_600_000_000, "1 h"),
        (400 * 86_400_000_000, "400 d"),
    ],
)
def test_a_span_has_its_two_largest_units(length_us: int, words: str) -> None:
    assert span(length_us) == words


def test_a_long_text_is_cut_and_a_short_one_is_not() -> None:
    assert (shortened("abcd", 4), shortened("abcde", 4)) == ("abcd", "abc…")


def test_a_noun_follows_its_number() -> None:
    assert [count_of(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
