"""What the server can recognise again: signed cookies, tokens of forms, and who tried or wrote too much."""

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from evenflow.web.access import Principal

SESSION_S = 12 * 3600
NOTICE_S = 60
MOST_TRIES = 5
PER_S = 60.0
MOST_REMEMBERED = 10_000


class Session(msgspec.Struct, frozen=True):
    """Who logged in, until when."""

    name: str
    role: str
    ends_at: int
    nonce: str


class Seal:
    """Signs what goes to a browser and is to come back unchanged. The key is the site's own, new with each start."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def sealed(self, purpose: str, value: object) -> str:
        """A text that `opened` takes back, for this purpose only."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")
        return f"{body}.{self._mark(purpose, body)}"

    def opened(self, purpose: str, text: str) -> bytes | None:
        """What was sealed, or None where it was not ours."""
        body, _, mark = text.partition(".")
        if not hmac.compare_digest(self._mark(purpose, body).encode(), mark.encode("utf-8", "replace")):
            return None
        return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))

    def session(self, who: Principal) -> str:
        """The cookie of somebody who has logged in."""
        ends_at = int(time.time()) + SESSION_S
        return self.sealed("session", Session(who.name, str(who.role), ends_at, secrets.token_hex(8)))

    def session_of(self, cookie: str) -> Session | None:
        """The session of a cookie, while it lasts."""
        body = self.opened("session", cookie)
        if body is None:
            return None
        session = msgspec.json.decode(body, type=Session)
        return session if session.ends_at > time.time() else None

    def form_token(self, whose: str) -> str:
        """What a form of ours carries and a form of somebody else cannot: it belongs to one session."""
        return self._mark("form", whose)

    def is_form_token(self, whose: str, token: str) -> bool:
        return hmac.compare_digest(self._mark("form", whose).encode(), token.encode("utf-8", "replace"))

    def _mark(self, purpose: str, body: str) -> str:
        return hmac.new(
            self._key, f"{purpose}\0{body}".encode("utf-8", "replace"), hashlib.sha256
        ).hexdigest()


class Tries:
    """Counts wrong passwords by address: after a few, the next has to wait. Bounded in memory."""

    def __init__(self, most: int = MOST_TRIES, per_s: float = PER_S) -> None:
        self._most, self._per_s = most, per_s
        self._lock = threading.Lock()
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """How long this address has to wait before its next try; 0 where it need not."""
        now = time.monotonic()
        with self._lock:
            recent = [at for at in self._failed.get(address, ()) if at > now - self._per_s]
            return max(0.0, recent[-self._most] + self._per_s - now) if len(recent) >= self._most else 0.0

    def failed(self, address: str) -> None:
        now = time.monotonic()
        with self._lock:
            recent = [at for at in self._failed.pop(address, ()) if at > now - self._per_s]
            self._failed[address] = [*recent, now][-self._most :]
            while len(self._failed) > MOST_REMEMBERED:
                self._failed.popitem(last=False)


class Allowance:
    """How much each login or token may still write: so many at once, as many again within a minute. Bounded in memory."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = per_minute, clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, whose: str) -> float:
        """Take one; 0, or where nothing is left for how many seconds to wait."""
        if self._most is None:
            return 0.0
        now, per_s = self._clock(), self._most / 60.0
        with self._lock:
            left, at = self._left.pop(whose, (float(self._most), now))
            left = min(float(self._most), left + (now - at) * per_s)
            self._left[whose] = (left - 1 if left >= 1 else left, now)
            while len(self._left) > MOST_REMEMBERED:
                self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / per_s
