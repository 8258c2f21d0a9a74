"""Wake-ups: LISTEN/NOTIFY on PostgreSQL, PRAGMA data_version on SQLite. Only hints: whoever waits also looks by itself.

Channels are `<schema>_work` (jobs can be claimed; the payload is a short hash of their queue, so that no name leaks to other
users of the database), `<schema>_wake` (there is something to be done before jobs can be claimed; services hear this one alone,
and sleep while jobs come and go) and `<schema>_done` (an awaited job has ended; no payload).
"""

import contextlib
import logging
import os
import select
import threading
import time
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from evenflow.errors import StoreError
from evenflow.store.enqueue_parameters import Wake
from evenflow.store.file_watch import FileWatch
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger("evenflow.store")

ARRIVAL = "+"  # something arrived inside a caller's transaction and wants to be admitted
SCHEDULES = "@"  # schedules were changed at run time
CANARY = "?"
COALESCE_S = 0.02
CANARY_EVERY_S = 15.0
CANARY_WITHIN_S = 5.0
RECONNECT_S = 5.0
LONGEST_RECONNECT_S = 300.0
SEND_WITHIN_S = 3.0
_FIRST_NAP_S = 0.001
_LONGEST_NAP_S = 0.01
_TOLD_NAP_S = 0.2
_LOOK_FOR_S = 0.1


def queue_mark(queue: str) -> str:
    """What a wake-up says instead of the queue's name."""
    return f"{zlib.crc32(queue.encode()):08x}"


def channel(schema: str, kind: str) -> str:
    return f"{schema}_{kind}"


def _kind_of(payload: str) -> str:
    """The kind of hint that has this payload."""
    return "wake" if payload in (ARRIVAL, SCHEDULES) else "work"


class Signals(Protocol):
    """Waits for hints of some kinds."""

    def wait(self, timeout_s: float) -> set[str]:
        """Payloads that came, as soon as one does; empty after the timeout or an interruption."""

    def interrupt(self) -> None:
        """End the wait that is under way, from another thread."""


class Watcher(Signals, Protocol):
    """Waits also for something else than hints."""

    def wait_for(self, descriptor: int, timeout_s: float) -> bool:
        """Whether this can be read, as soon as it can; False after the timeout or an interruption. Hints stay."""


@contextlib.contextmanager
def watch_signals(engine: AnyEngine, *kinds: str, most: int = 100) -> Iterator[Watcher]:
    """Hints of these kinds ("work", "wake" or "done"), for as long as the block lasts."""
    watcher = Listener(engine, kinds, most) if isinstance(engine, PostgresEngine) else VersionWatch(engine)
    try:
        yield watcher
    finally:
        watcher.close()


class Interrupt:
    """A pipe that ends a wait. Setting it after its end does nothing."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        # Reentrant: signal handlers set it too, and one may begin while another is at it in the same thread.
        self._lock = threading.RLock()
        self._is_open = True
        self._is_set = False

    def set(self) -> None:
        if self._is_set:
            return  # whoever waits has not looked yet: of a hundred ends one costs a call of the system
        self._is_set = True
        # Under the lock: a descriptor that was closed meanwhile may be somebody else's file by now.
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._is_open:
                os.write(self._writer, b"!")

    def clear(self) -> None:
        """For whoever waits, before it looks at what it waits for: what is set meanwhile writes nothing, and is seen then."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
        self._is_set = False  # after the read, which would swallow what a set before it had written

    def wait(self, timeout_s: float) -> bool:
        """True if it was set within the time; cleared then."""
        if readable([self.reader], timeout_s):
            self.clear()
            return True
        return False

    def wait_for(self, descriptor: int, timeout_s: float) -> bool:
        """Whether this can be read, as soon as it can; ends also when it is set, and clears it then."""
        ready = readable([descriptor, self.reader], timeout_s)
        if self.reader in ready:
            self.clear()
        return descriptor in ready

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self.reader)
            os.close(self._writer)


def readable(descriptors: list[int], timeout_s: float) -> set[int]:
    """Which of these can be read, as soon as one can. Unlike select(), also beyond descriptor 1023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)}


class VersionWatch:
    """SQLite: look whether another connection has committed. Costs microseconds, reads no page, naps in between.

    Where the system tells of writes to the log, naps are long until there is one. Its commit shows a moment later, once
    the disk has it: so from then on the looks are many for a while. A commit on this very connection does not show at
    all: whoever shares it has to give a hint.
    """

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._interrupt = Interrupt()
        self._log = FileWatch(f"{engine.path}-wal" if engine.path else "")
        self._look_until = 0.0
        self._seen = self._version()
        self._is_hinted = False
        engine.watchers.append(self)

    def wait(self, timeout_s: float) -> set[str]:
        ends_at = time.monotonic() + timeout_s
        nap = _FIRST_NAP_S
        while (left := ends_at - (now := time.monotonic())) > 0:
            version = self._version()
            if version != self._seen:
                self._seen = version
                return {ARRIVAL}
            is_told = self._log.descriptor is not None and now >= self._look_until
            if self._is_interrupted(min(_TOLD_NAP_S if is_told else nap, left)):
                is_hinted, self._is_hinted = self._is_hinted, False
                return {ARRIVAL} if is_hinted else set()
            nap = _FIRST_NAP_S if is_told else min(nap * 1.5, _LONGEST_NAP_S)
        return set()

    def interrupt(self) -> None:
        self._interrupt.set()

    def wait_for(self, descriptor: int, timeout_s: float) -> bool:
        return self._interrupt.wait_for(descriptor, timeout_s)

    def hint(self) -> None:
        """End the wait that is under way with a hint, from another thread."""
        self._is_hinted = True
        self._interrupt.set()

    def close(self) -> None:
        self._engine.watchers.remove(self)
        self._interrupt.close()
        self._log.close()

    def _is_interrupted(self, nap_s: float) -> bool:
        """Nap until the time is over, the log is written to, or somebody interrupts."""
        log = self._log.descriptor
        if log is None:
            self._log.renew()
            return self._interrupt.wait(nap_s)
        ready = readable([self._interrupt.reader, log], nap_s)
        if log in ready:
            self._log.clear()
            self._look_until = time.monotonic() + _LOOK_FOR_S
        elif not ready:
            self._log.renew()
        if self._interrupt.reader in ready:
            self._interrupt.clear()
            return True
        return False

    def _version(self) -> int:
        with contextlib.suppress(StoreError):
            return self._engine.data_version()
        return -1


class Listener:
    """PostgreSQL: LISTEN on a connection of its own, with a canary: a connection that is dead in silence is replaced.

    Where LISTEN is impossible (a pooler in transaction mode, a standby), waits simply last until their timeout. When it
    begins to hear, also after a loss, a wait ends with ARRIVAL: what came while nobody listened was told to nobody.
    """

    def __init__(self, engine: PostgresEngine, kinds: Sequence[str], most: int) -> None:
        self._engine = engine
        self._channels = [channel(engine.schema, kind) for kind in kinds]
        self._most = most
        self._interrupt = Interrupt()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._connect_at = 0.0
        self._reconnect_s = RECONNECT_S
        self._heard_at = self._asked_at = 0.0
        self.is_listening = False

    def wait(self, timeout_s: float) -> set[str]:
        ends_at = time.monotonic() + timeout_s
        while (left := ends_at - time.monotonic()) > 0:
            connection = self._connected()
            if connection is None:
                self._interrupt.wait(min(left, RECONNECT_S))
                return set()
            try:
                found = self._heard(connection)
                if found:
                    return found
                ready = readable([connection.fileno(), self._interrupt.reader], min(left, CANARY_WITHIN_S))
                if self._interrupt.reader in ready:
                    self._interrupt.clear()
                    return set()
            except Exception:
                # Whatever a dying connection says, the answer is a new one, and polling meanwhile.
                self._drop()
                return set()
        return set()

    def interrupt(self) -> None:
        self._interrupt.set()

    def wait_for(self, descriptor: int, timeout_s: float) -> bool:
        return self._interrupt.wait_for(descriptor, timeout_s)

    def close(self) -> None:
        self._drop()
        self._interrupt.close()

    def _connected(self) -> "psycopg.Connection[tuple[object, ...]] | None":
        now = time.monotonic()
        if self._connection is None and now >= self._connect_at:
            self._connect_at = now + self._reconnect_s
            with contextlib.suppress(Exception):
                self._connection = self._listening()
                self._heard_at = now
                self._ask()
        return self._connection

    def _listening(self) -> "psycopg.Connection[tuple[object, ...]] | None":
        connection = self._engine.connect()
        if self._engine.has_pooler:
            connection.close()
            self._be_deaf("a pooler stands before the database")
            return None
        try:
            with self._engine.within(CANARY_WITHIN_S, connection):
                connection.execute("; ".join(f'listen "{each}"' for each in self._channels).encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def _be_deaf(self, why: str) -> None:
        """Nothing can be heard here: polling alone finds work. Looked at again from time to time, less and less often."""
        if self._reconnect_s == RECONNECT_S:
            log.warning("wake-up: poll (%s)", why)
        self._reconnect_s = min(self._reconnect_s * 2, LONGEST_RECONNECT_S)
        self._connect_at = time.monotonic() + self._reconnect_s

    def _heard(self, connection: "psycopg.Connection[tuple[object, ...]]") -> set[str]:
        """What has come, at most so many at once. Asked before each wait: what came in one packet with others, or with the
        answer to a statement, makes no socket ready."""
        # By the driver's own means: the road through its generators took a tenth of a millisecond of an idle worker's pickup.
        connection.pgconn.consume_input()
        payloads: set[str] = set()
        for _ in range(self._most):
            notify = connection.pgconn.notifies()
            if notify is None:
                break
            payloads.add(notify.extra.decode())
        if payloads and not self.is_listening:
            payloads.add(ARRIVAL)
        self._check_canary(is_heard=bool(payloads))
        return payloads - {CANARY}

    def _ask(self) -> None:
        # On another connection: what a session tells itself comes back along with the answer, also through a pooler that
        # brings nothing else, and a statement on this one could wait for ever.
        self._asked_at = time.monotonic()
        with contextlib.suppress(StoreError):
            wake = {"channel": self._channels[0], "payload": CANARY}
            self._engine.run("wake", wake, deadline_s=SEND_WITHIN_S)

    def _check_canary(self, *, is_heard: bool) -> None:
        now = time.monotonic()
        if is_heard:
            self._heard_at, self.is_listening, self._reconnect_s = now, True, RECONNECT_S
        if self._heard_at >= self._asked_at:
            if now - self._heard_at > CANARY_EVERY_S:
                self._ask()
        elif now - self._asked_at > CANARY_WITHIN_S:
            # Not asked again meanwhile: that would start the time anew.
            was_listening = self.is_listening
            self._drop()
            if not was_listening:
                self._be_deaf("notifications do not arrive")

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
        # Whoever hears again is told that something may have come.
        self._connection, self.is_listening = None, False


class Waker:
    """Sends wake-ups after commits: the first at once, then at most one per queue in 20 ms, the last one never lost."""

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._sends = isinstance(engine, PostgresEngine)
        # Of this process, on SQLite: a commit on their own connection does not show.
        self._watchers: list[VersionWatch] = [] if isinstance(engine, PostgresEngine) else engine.watchers
        self._lock = threading.Lock()
        self._sent_at: dict[str, float] = {}
        self._pending: set[str] = set()
        self._thread: threading.Thread | None = None
        with _wakers_lock:
            _wakers.add(self)

    def wake(self, *queues: str) -> None:
        """Work has come to these queues. Never fails: a lost hint costs latency, never work."""
        if not queues:
            return  # a hint for nothing would wake whoever looked, found nothing and said so
        if self._sends:
            self._send_or_delay({queue_mark(queue) for queue in queues})
        else:
            for watcher in tuple(self._watchers):
                watcher.hint()

    def with_commit(self, *queues: str) -> list[Wake]:
        """The wake-ups for these queues that may go out with a commit, at once. `wake` knows of them then."""
        if not self._sends:
            return []
        with self._lock:
            due = self._due({queue_mark(queue) for queue in queues})
        return [Wake(channel(self._engine.schema, _kind_of(payload)), payload) for payload in sorted(due)]

    def wake_dispatchers(self) -> None:
        """Something arrived that has to be admitted first."""
        if self._sends:
            self._send_or_delay({ARRIVAL})
        else:
            for watcher in tuple(self._watchers):
                watcher.hint()

    def wake_schedulers(self) -> None:
        """Schedules have changed. SQLite's schedulers see it at their next look."""
        if self._sends:
            self._send_or_delay({SCHEDULES})

    def announce_ends(self) -> None:
        """Jobs that somebody waits for have ended."""
        if self._sends:
            self._notify("done", "")
        else:
            for watcher in tuple(self._watchers):
                watcher.interrupt()

    def settle(self) -> None:
        """Wait until nothing is delayed any more."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join()

    def serves(self, engine: AnyEngine) -> bool:
        return self._engine is engine

    def _send_or_delay(self, payloads: set[str]) -> None:
        with self._lock:
            self._pending |= payloads
            due = self._take_due()
            if self._pending and (self._thread is None or not self._thread.is_alive()):
                # It has ended, or was left behind by a fork.
                self._thread = threading.Thread(
                    target=self._send_pending, name="evenflow-waker", daemon=False
                )
                self._thread.start()
        for payload in due:
            self._notify(_kind_of(payload), payload)

    def _send_pending(self) -> None:
        while True:
            with self._lock:
                due = self._take_due()
                if not due and not self._pending:
                    self._thread = None
                    return
                soonest = min((self._sent_at[payload] for payload in self._pending), default=0.0)
            for payload in due:
                self._notify(_kind_of(payload), payload)
            time.sleep(max(0.0, soonest + COALESCE_S - time.monotonic()))

    def _take_due(self) -> set[str]:
        """What may be sent now. It counts as sent from here on: what comes later waits for its own turn."""
        due = self._due(self._pending)
        self._pending -= due
        return due

    def _due(self, payloads: set[str]) -> set[str]:
        now = time.monotonic()
        due = {payload for payload in payloads if now - self._sent_at.get(payload, -1.0) >= COALESCE_S}
        self._sent_at.update(dict.fromkeys(due, now))
        return due

    def _notify(self, kind: str, payload: str) -> None:
        with contextlib.suppress(StoreError):
            assert isinstance(self._engine, PostgresEngine)
            wake = {"channel": channel(self._engine.schema, kind), "payload": payload}
            self._engine.run("wake", wake, deadline_s=SEND_WITHIN_S)


_wakers: "weakref.WeakSet[Waker]" = weakref.WeakSet()
_wakers_lock = threading.Lock()


def settle_wakers(engine: AnyEngine) -> None:
    """Before an engine is closed: let its delayed wake-ups leave, or they would open it again."""
    with _wakers_lock:
        wakers = [waker for waker in _wakers if waker.serves(engine)]
    for waker in wakers:
        waker.settle()
