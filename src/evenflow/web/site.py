"""What all requests of a dashboard share: the app, its own engine, who may come in, and what is hidden."""

import hashlib
import threading
from collections.abc import Iterable, Sequence

from starlette.requests import Request

from evenflow import Evenflow
from evenflow.client.history import minute_rows, task_rows
from evenflow.metrics import Scraped
from evenflow.store.deadlines import reads_within
from evenflow.store.open import AnyEngine
from evenflow.web import shapes
from evenflow.web.access import LOCAL, Basic, Credentials, Hook, Token, credentials
from evenflow.web.live import Ticker
from evenflow.web.looks import Looker
from evenflow.web.rows import point, task_shape
from evenflow.web.sessions import Allowance, Seal, Tries
from evenflow.web.texts import SECRET_NAMES, Redaction

SESSION_COOKIE = "evenflow_session"
WRITES_PER_MINUTE = 600
READ_S = 5.0
"""How long one statement of a look may take: nobody waits longer for a page, and no page may burden the database."""


class Site:
    """What all requests share."""

    def __init__(
        self, app: Evenflow, engine: AnyEngine, *, auth: Sequence[Basic | Token] | Hook | None = None,
        redact: Iterable[str] = SECRET_NAMES, enqueue: bool = False, secret: str | None = None,
        writes_per_minute: int | None = WRITES_PER_MINUTE,
    ) -> None:  # fmt: skip
        self.app = app
        self.engine = engine
        self.read_s = READ_S
        self.takes_jobs = enqueue
        self.redaction = Redaction(tuple(redact))
        self.seal = Seal(None if secret is None else hashlib.sha256(secret.encode()).digest())
        self.tries = Tries()
        self.writes = Allowance(writes_per_minute)
        self.hook: Hook | None = auth if callable(auth) else None
        self.credentials: Credentials | None = None if auth is None or callable(auth) else credentials(auth)
        self.ticker = Ticker(self._pulse)
        self.scrape = Scraped(app)
        self._ready_lock = threading.Lock()
        self._is_ready = False

    @property
    def is_open(self) -> bool:
        """Whether nobody has to log in: then only this machine is answered."""
        return self.hook is None and self.credentials is None

    @property
    def has_login(self) -> bool:
        """Whether there is a login page."""
        return self.credentials is not None and bool(self.credentials.logins)

    def make_ready(self) -> None:
        """Before the first look: tables up to date."""
        if not self._is_ready:
            with self._ready_lock:
                self.app.prepare()
                self._is_ready = True

    def points(self, minutes: int) -> list[shapes.Point]:
        """The last minutes, oldest first."""
        return [point(row) for row in minute_rows(self.engine, minutes, None, None)]

    def busiest(self, minutes: int, top: int) -> list[shapes.TaskShape]:
        """The tasks that took most time in the last minutes."""
        rows = sorted(task_rows(self.engine, minutes), key=lambda row: -(row.run_mean or 0.0) * row.started)
        return [task_shape(row, minutes) for row in rows[:top]]

    def _pulse(self) -> shapes.Pulse:
        with reads_within(self.read_s):
            return Looker(self.app, self.engine, LOCAL, self.redaction).pulse()

    def cookie_name(self, request: Request) -> tuple[str, bool]:
        """The name of the session's cookie, and whether it is for TLS alone: a browser holds `__Host-` to our origin."""
        is_secure = request.url.scheme == "https"
        return (f"__Host-{SESSION_COOKIE}" if is_secure else SESSION_COOKIE), is_secure

    def cookie(self, request: Request) -> str:
        """The session's cookie, or an empty text."""
        return request.cookies.get(self.cookie_name(request)[0], "")
