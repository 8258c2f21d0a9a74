"""Texts as a terminal may show them: no secrets, no control characters, spans and moments in words."""

import re
import unicodedata

from evenflow.clock import from_us
from evenflow.database_url import mask_secrets

_PLACEHOLDER = "user:password@"  # of our own advice on how to write an address: no secret
_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


def masked(text: str) -> str:
    """Any text with the passwords of the addresses in it hidden.

    >>> masked("cannot reach postgresql://bob:secret@db/jobs today")
    'cannot reach postgresql://bob:***@db/jobs today'
    """
    words = re.split(r"(\s+)", text)
    return "".join(word if _PLACEHOLDER in word else mask_secrets(word) for word in words)


def printable(text: str, *, keep_lines: bool = False) -> str:
    r"""Text that came from users of the queue, with what could steer a terminal made visible.

    >>> printable("red\x1b[31m")
    'red\\x1b[31m'
    """
    return "".join(
        letter if _is_harmless(letter) or (keep_lines and letter in "\n\t") else _escaped(letter)
        for letter in text
    )


def shortened(text: str, longest: int) -> str:
    """The beginning of a text that is too long for its place.

    >>> shortened("a long story", 7)
    'a long…'
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def span(length_us: float) -> str:
    """A length of time in its two largest units, or down to milliseconds where it is short.

    >>> span(4_200), span(4_512_000), span(3_700_000_000), span(90_000_000_000)
    ('4 ms', '4.5 s', '1 h 1 min', '1 d 1 h')
    """
    if length_us < 1_000_000:
        return f"{max(length_us, 0) / 1000:.0f} ms"
    if length_us < 60_000_000:
        return f"{length_us / 1_000_000:.1f} s"
    place = next(place for place, (_, unit_us) in enumerate(_UNITS) if length_us >= unit_us)
    (large, large_us), (small, small_us) = _UNITS[place], _UNITS[place + 1]
    rest = int(length_us % large_us // small_us)
    return f"{int(length_us // large_us)} {large}" + (f" {rest} {small}" if rest else "")


def moment(stored: int | None) -> str | None:
    """A stored moment as text, for documents and details.

    >>> moment(1_000_000)
    '1970-01-01T00:00:01+00:00'
    """
    return None if stored is None else from_us(stored).isoformat()


def count_of(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count_of(1, "job"), count_of(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()
