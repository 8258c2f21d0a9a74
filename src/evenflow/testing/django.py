"""Django's TestCase with a testing kit inside of the test's own transaction: its rollback takes the jobs along."""

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

try:
    from django.db import connections
except ImportError as missing:
    raise ImportError(
        "evenflow.testing.django needs Django; run: pip install 'evenflow[django]'"
    ) from missing

from evenflow import Evenflow
from evenflow.store.borrowed import make_tables
from evenflow.testing.kit import Kit, Mode, inline, manual

if TYPE_CHECKING:
    from unittest import TestCase as _Base
else:
    _Base = object


class EvenflowTestMixin(_Base):
    """Gives a Django TestCase `self.evenflow`, the kit of its app. Everything happens on Django's own connection.

    >>> class TestSignUp(EvenflowTestMixin, TestCase):                         # doctest: +SKIP
    ...     evenflow_app = app
    ...     def test_a_new_user_is_welcomed(self):
    ...         self.client.post("/sign-up", {"address": "bob@example.org"})
    ...         self.evenflow.assert_enqueued(welcome, {"address": "bob@example.org"})
    ...         self.evenflow.drain()
    """

    evenflow_app: ClassVar[Evenflow]
    evenflow_mode: ClassVar[Mode] = "manual"
    evenflow_database: ClassVar[str] = "default"
    """The alias of the Django database that holds the jobs."""
    evenflow: Kit

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()  # begins the transaction of the class: the tables go with it, if they are ours
        make_tables(connections[cls.evenflow_database], cls.evenflow_app.settings.schema)

    def setUp(self) -> None:
        super().setUp()
        modes: dict[Mode, Any] = {"manual": manual, "inline": inline}
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        kit = modes[self.evenflow_mode](self.evenflow_app, connection=connections[self.evenflow_database])
        self.evenflow = stack.enter_context(kit)
