"""Lists as literals of PostgreSQL's arrays: read four times as fast as JSON there."""

from collections.abc import Sequence

from evenflow.store.engine import as_json


def as_array(values: Sequence[int | float | str | None]) -> str:
    """A list parameter, as units take it that say so. Its numbers and nulls are written as in JSON, and so are texts without control
    characters. Results are such texts: JSON themselves, they have escaped theirs.

    >>> print(as_array([1, 2]), as_array(["a", None, 'b"']))
    {1,2} {"a",null,"b\\""}
    """
    return f"{{{as_json(values)[1:-1]}}}" if values else "{}"
