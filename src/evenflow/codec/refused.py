"""The one exception inside the codec: a value that cannot be stored, or a stored tree that does not fit.

It carries the reason and the place; the codec's edge adds the argument's name and makes a public error of it.
"""


class Refused(Exception):
    """Raised deep inside a value; each container on the way out adds where it was.

    `is_broken` marks a stored value that names the very class it should become, and yet does not fit it.

    >>> refused = Refused("NaN cannot be stored")
    >>> refused.under("['x']")
    >>> refused.under("[3]")
    >>> str(refused)
    "at [3]['x']: NaN cannot be stored"
    """

    def __init__(self, reason: str, *, is_broken: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""
        self.is_broken = is_broken

    def under(self, step: str) -> None:
        """Put `step` before the place known so far."""
        self.path = step + self.path

    def __str__(self) -> str:
        return f"at {self.path}: {self.reason}" if self.path else self.reason
