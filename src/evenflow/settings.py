"""The settings of an app: one frozen value, read from arguments or the environment and checked once.

Every mistake is reported together. Opens nothing and writes nothing.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from evenflow.checks import instance, is_whole, one_of, true_or_false, whole
from evenflow.database_url import DatabaseUrl, parse_url
from evenflow.durations import Duration, duration_us
from evenflow.environment import Readers, kept_for, key_ring, read_environment, truth, whole_number
from evenflow.errors import ConfigError, UnknownQueue
from evenflow.limits import Breaker
from evenflow.queues import DEFAULT_QUEUE, Queue, name_mistakes, queue_mistakes, queue_warnings
from evenflow.signing import KeyRing

__all__ = [
    "DatabaseUrl",
    "Options",
    "Queue",
    "QueueMode",
    "Resilience",
    "Retention",
    "Settings",
    "SigningKeys",
    "parse_url",
]

QueueMode: TypeAlias = Literal["open", "custom", "default"]
SigningKeys: TypeAlias = str | bytes | Sequence[str | bytes] | Mapping[str, str | bytes]

DEFAULT_URL = "sqlite:///evenflow.db"
_SCHEMA_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_DAY_S = 86_400
_RESILIENCE_RANGES = {
    "db_retry_initial_ms": (100, 60_000),
    "db_retry_max_ms": (500, 300_000),
    "db_retry_max_attempts": (0, 10_000),
    "notify_poll_interval_ms": (1_000, 300_000),
    "circuit_breaker_threshold": (1, 10_000),
    "circuit_breaker_cooldown_s": (1, 86_400),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """How a worker bears a failing database. `db_retry_max_attempts=0` never gives up.

    >>> Resilience(db_retry_max_ms=5_000).db_retry_initial_ms
    500
    """

    db_retry_initial_ms: int = 500
    db_retry_max_ms: int = 30_000
    db_retry_max_attempts: int = 0
    notify_poll_interval_ms: int = 5_000
    circuit_breaker_threshold: int = 5
    circuit_breaker_cooldown_s: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long ended jobs are kept, per outcome. None keeps them for ever, 0 leaves no row. `statistics` is for the
    counts per minute that `app.history()` shows.

    >>> Retention(failed="90 days").succeeded
    86400
    """

    succeeded: Duration | None = _DAY_S
    failed: Duration | None = 30 * _DAY_S
    cancelled: Duration | None = 7 * _DAY_S
    expired: Duration | None = 7 * _DAY_S
    skipped: Duration | None = 7 * _DAY_S
    discarded: Duration | None = 7 * _DAY_S
    quarantined: Duration | None = 90 * _DAY_S
    statistics: Duration | None = 7 * _DAY_S

    def kept_us(self, outcome: str) -> int | None:
        """How long jobs that ended in `outcome` are kept, in microseconds; None is for ever.

        >>> Retention(failed="2h").kept_us("failed")
        7200000000
        """
        kept: Duration | None = getattr(self, outcome)
        return None if kept is None else duration_us(kept)


class Options(TypedDict, total=False):
    """What `Settings.build` takes by name. An option that is left out may come from the environment."""

    queues: Iterable[Queue]
    queue_mode: QueueMode | None
    cluster_wide_cap: int | None
    prefetch_buffer: int
    claim_lease_ms: int | None
    heartbeat_ms: int
    lease_ms: int
    resilience: Resilience
    retention: Retention
    signing_keys: SigningKeys | None
    require_signed: bool
    schema: str
    max_payload_bytes: int
    wake_in_transaction: bool
    concurrency_maintenance_interval_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an app was told, checked. Make it with `build`.

    `warnings` holds what works but looks unintended.

    >>> Settings.build("sqlite:///jobs.db", cluster_wide_cap=50, environ={}).cluster_wide_cap
    50
    """

    database: DatabaseUrl
    queues: tuple[Queue, ...] = ()
    queue_mode: QueueMode = "open"
    cluster_wide_cap: int | None = None
    prefetch_buffer: int = 0
    claim_lease_ms: int | None = None
    heartbeat_ms: int = 2_000
    lease_ms: int = 10_000
    resilience: Resilience = Resilience()
    retention: Retention = Retention()
    signing_keys: SigningKeys | None = field(default=None, repr=False)
    require_signed: bool = False
    schema: str = "evenflow"
    max_payload_bytes: int = 262_144
    wake_in_transaction: bool = True
    concurrency_maintenance_interval_s: int = 5
    warnings: tuple[str, ...] = ()

    @classmethod
    def build(
        cls, url: str | None = None, *, environ: Mapping[str, str] | None = None, **options: Unpack[Options]
    ) -> "Settings":
        """Settings from arguments, else from `EVENFLOW_*` variables, else defaults.

        Raises one ConfigError with every mistake.

        >>> Settings.build(environ={"EVENFLOW_URL": "sqlite:///env.db"}).database.path
        'env.db'
        """
        environ = os.environ if environ is None else environ
        mistakes: list[str] = []
        values = _from_environment(environ, mistakes)
        values |= _known_options(dict(options), mistakes)
        database = _database(url, environ, mistakes)
        values["queues"] = _queue_tuple(values.get("queues", ()), mistakes)
        if values.get("queue_mode") is None:
            values["queue_mode"] = "custom" if values["queues"] else "open"
        settings = cls(database=database, **values)
        mistakes += _mistakes(settings)
        if mistakes:
            raise ConfigError(mistakes)
        object.__setattr__(settings, "warnings", tuple(_warnings(settings, environ)))
        return settings

    @property
    def queue_breakers(self) -> dict[str, Breaker | None]:
        """What the declared queues say about breakers, by their names."""
        return {queue.name: queue.breaker for queue in self.queues}

    def queue(self, name: str) -> Queue:
        """The queue of that name, with the rules of a plain one where it is not declared; or UnknownQueue.

        >>> Settings.build(environ={}).queue("mail").max_concurrency is None
        True
        """
        for queue in self.queues:
            if queue.name == name:
                return queue
        plain = _plain_queue(name)
        if self.queue_mode == "open" or (self.queue_mode == "default" and name == DEFAULT_QUEUE):
            return plain
        declared = ", ".join(repr(queue.name) for queue in self.queues) or repr(DEFAULT_QUEUE)
        raise UnknownQueue(
            f"queue {name!r} is not declared (queue_mode={self.queue_mode!r} has {declared}); "
            "add it to queues= or use queue_mode='open'"
        )


@lru_cache(maxsize=1024)  # asked for at every enqueue
def _plain_queue(name: str) -> Queue:
    if wrong := name_mistakes(name):
        raise UnknownQueue(wrong[0])
    return Queue(name)


_PLAIN: Readers = {
    "queue_mode": str,
    "cluster_wide_cap": whole_number,
    "prefetch_buffer": whole_number,
    "claim_lease_ms": whole_number,
    "heartbeat_ms": whole_number,
    "lease_ms": whole_number,
    "signing_keys": key_ring,
    "require_signed": truth,
    "schema": str,
    "max_payload_bytes": whole_number,
    "wake_in_transaction": truth,
    "concurrency_maintenance_interval_s": whole_number,
}
_RESILIENCE: Readers = dict.fromkeys((each.name for each in fields(Resilience)), whole_number)
_RETENTION: Readers = dict.fromkeys((each.name for each in fields(Retention)), kept_for)


def _from_environment(environ: Mapping[str, str], mistakes: list[str]) -> dict[str, Any]:
    values = read_environment(environ, "EVENFLOW_", _PLAIN, mistakes)
    resilience = read_environment(environ, "EVENFLOW_", _RESILIENCE, mistakes)
    retention = read_environment(environ, "EVENFLOW_RETENTION_", _RETENTION, mistakes)
    if resilience:
        values["resilience"] = Resilience(**resilience)
    if retention:
        values["retention"] = Retention(**retention)
    return values


def _known_options(options: dict[str, Any], mistakes: list[str]) -> dict[str, Any]:
    known = Options.__annotations__
    for name in [name for name in options if name not in known]:
        del options[name]
        near = difflib.get_close_matches(name, known, n=1)
        mistakes.append(f"{name}: not an option; {f'did you mean {near[0]}?' if near else 'leave it out'}")
    return options


def _database(url: str | None, environ: Mapping[str, str], mistakes: list[str]) -> DatabaseUrl:
    source = "EVENFLOW_URL" if url is None else "url"
    try:
        return parse_url(environ.get("EVENFLOW_URL", DEFAULT_URL) if url is None else url)
    except ValueError as wrong:
        mistakes.append(f"{source}: {wrong}")
        return parse_url(DEFAULT_URL)


def _queue_tuple(queues: object, mistakes: list[str]) -> tuple[Queue, ...]:
    if isinstance(queues, Queue | str) or not isinstance(queues, Iterable):
        mistakes.append(f"queues: expected a list of Queue, got {queues!r}; write queues=[Queue('mail')]")
        return ()
    listed = list(queues)
    for other in [each for each in listed if not isinstance(each, Queue)]:
        mistakes.append(f"queues: expected Queue, got {other!r}; write Queue('mail')")
    return tuple(each for each in listed if isinstance(each, Queue))


def _mistakes(settings: Settings) -> list[str]:
    found = [
        *whole(
            "cluster_wide_cap", settings.cluster_wide_cap, 1, None, "leave it out for no cap", optional=True
        ),
        *whole("prefetch_buffer", settings.prefetch_buffer, 0),
        *whole("claim_lease_ms", settings.claim_lease_ms, 1, optional=True),
        *whole("heartbeat_ms", settings.heartbeat_ms, 10, 60_000),
        *whole("lease_ms", settings.lease_ms, 20, 3_600_000),
        *whole("max_payload_bytes", settings.max_payload_bytes, 1, 67_108_864),
        *whole("concurrency_maintenance_interval_s", settings.concurrency_maintenance_interval_s, 1, 86_400),
        *one_of("queue_mode", settings.queue_mode, get_args(QueueMode)),
        *true_or_false("require_signed", settings.require_signed),
        *true_or_false("wake_in_transaction", settings.wake_in_transaction),
        *_schema_mistakes(settings.schema),
        *_signing_mistakes(settings.signing_keys),
        *_prefetch_mistakes(settings),
        *_lease_mistakes(settings),
        *_queue_list_mistakes(settings),
    ]
    if settings.require_signed is True and not settings.signing_keys:
        found.append("require_signed needs signing_keys: without a key no job could be signed or accepted")
    for queue in settings.queues:
        found += queue_mistakes(queue)
    return found + _resilience_mistakes(settings.resilience) + _retention_mistakes(settings.retention)


def _schema_mistakes(schema: object) -> list[str]:
    if isinstance(schema, str) and _SCHEMA_NAME.fullmatch(schema):
        return []
    expected = "expected up to 63 lower-case letters, digits and '_', no digit first and no 'pg_'"
    return [f"schema: {expected}, got {schema!r}"]


def _signing_mistakes(signing_keys: Any) -> list[str]:
    if signing_keys is None:
        return []
    if not isinstance(signing_keys, str | bytes | Sequence | Mapping):
        expected = "a secret, a list of secrets, or secrets by key id"
        return [f"signing_keys: expected {expected}, got {type(signing_keys).__name__}"]
    try:
        KeyRing.build(signing_keys)
    except ConfigError as wrong:
        return wrong.mistakes
    return []


def _prefetch_mistakes(settings: Settings) -> list[str]:
    found = []
    prefetch, lease = settings.prefetch_buffer, settings.claim_lease_ms
    prefetches = is_whole(prefetch) and prefetch > 0
    if prefetches and settings.cluster_wide_cap is not None:
        found.append(
            f"cluster_wide_cap with prefetch_buffer={prefetch}: prefetched jobs would use up the cap while "
            "they wait; set prefetch_buffer=0 or drop the cap"
        )
    if prefetches and lease is None:
        found.append(f"prefetch_buffer={prefetch} needs claim_lease_ms: how long a prefetched job may wait")
    if prefetch == 0 and lease is not None:
        found.append(f"claim_lease_ms={lease!r} needs prefetch_buffer above 0; set that or drop the lease")
    return found


def _lease_mistakes(settings: Settings) -> list[str]:
    found = []
    least = 2 * settings.heartbeat_ms if is_whole(settings.heartbeat_ms) else 0
    for name, value in (("claim_lease_ms", settings.claim_lease_ms), ("lease_ms", settings.lease_ms)):
        if is_whole(value) and 0 < value < least:
            found.append(
                f"{name}: expected at least two heartbeats, {least} ms, got {value}; "
                "one lost heartbeat must not cost a lease"
            )
    return found


def _queue_list_mistakes(settings: Settings) -> list[str]:
    names = [queue.name for queue in settings.queues]
    found = [
        f"queue {name!r} is declared {names.count(name)} times; keep one"
        for index, name in enumerate(names)
        if names.count(name) > 1 and names.index(name) == index
    ]
    if settings.queue_mode == "custom" and not names:
        found.append("queue_mode='custom' needs queues: only declared queues can be used")
    if settings.queue_mode == "default" and any(name != DEFAULT_QUEUE for name in names):
        found.append(
            f"queue_mode='default' has only the queue {DEFAULT_QUEUE!r}, got {names!r}; use 'custom'"
        )
    return found


def _resilience_mistakes(resilience: Resilience) -> list[str]:
    if wrong := _missing_or_other("resilience", resilience, Resilience, "Resilience(db_retry_max_ms=5_000)"):
        return wrong
    found = []
    for name, (low, high) in _RESILIENCE_RANGES.items():
        found += whole(f"resilience.{name}", getattr(resilience, name), low, high)
    if not found and resilience.db_retry_initial_ms > resilience.db_retry_max_ms:
        found.append(
            f"resilience.db_retry_initial_ms: expected up to db_retry_max_ms ({resilience.db_retry_max_ms}), "
            f"got {resilience.db_retry_initial_ms}"
        )
    return found


def _retention_mistakes(retention: Retention) -> list[str]:
    if wrong := _missing_or_other("retention", retention, Retention, "Retention(failed='30 days')"):
        return wrong
    found = []
    for outcome in _RETENTION:
        try:
            retention.kept_us(outcome)
        except ValueError as wrong_length:
            found.append(f"retention.{outcome}: {wrong_length}; None keeps jobs for ever")
    return found


def _missing_or_other(what: str, value: object, kind: type, example: str) -> list[str]:
    if value is None:
        return [f"{what}: expected {kind.__name__}, got None; leave it out or write {example}"]
    return instance(what, value, kind, example)


def _warnings(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    found = []
    first_spelling: dict[str, str] = {}
    for queue in settings.queues:
        found += queue_warnings(queue, settings.cluster_wide_cap)
        twin = first_spelling.setdefault(queue.name.lower(), queue.name)
        if twin != queue.name:
            found.append(f"queues {twin!r} and {queue.name!r} differ only in case and are two queues")
    if settings.signing_keys and not settings.require_signed:
        found.append("signing_keys without require_signed: unsigned jobs still run")
    return found + _unread_variables(environ)


def _unread_variables(environ: Mapping[str, str]) -> list[str]:
    known = {"EVENFLOW_URL"} | {f"EVENFLOW_{name.upper()}" for name in (*_PLAIN, *_RESILIENCE)}
    known |= {f"EVENFLOW_RETENTION_{name.upper()}" for name in _RETENTION}
    found = []
    for variable in sorted(name for name in environ if name.startswith("EVENFLOW_") and name not in known):
        # Only what looks like a slip: other programs may have variables with this prefix too.
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.9)
        found += [f"{variable} is not read; did you mean {near[0]}?"] if near else []
    return found
