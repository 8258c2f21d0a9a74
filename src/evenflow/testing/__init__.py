"""Testing kit: look at what was enqueued, run it when the test says so, and move the clock.

>>> from evenflow.testing import manual
>>> with manual(app) as kit:                                # doctest: +SKIP
...     register("bob@example.org")
...     kit.assert_enqueued(welcome, {"address": "bob@example.org"})
...     assert kit.drain()["succeeded"] == 1
"""

from evenflow.testing.clock import FakeClock
from evenflow.testing.draining import Drained
from evenflow.testing.kit import Kit, inline, manual

__all__ = ["Drained", "FakeClock", "Kit", "inline", "manual"]
