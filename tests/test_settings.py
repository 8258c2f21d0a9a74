"""Settings: defaults, the environment, and one error with every mistake."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from evenflow.errors import ConfigError, UnknownQueue
from evenflow.limits import Rate
from evenflow.queues import Queue
from evenflow.settings import Resilience, Retention, Settings


def built(url: str | None = None, *, environ: dict[str, str] | None = None, **options: Any) -> Settings:
    return Settings.build(url, environ=environ or {}, **options)


def mistakes_of(
    url: str | None = None, *, environ: dict[str, str] | None = None, **options: Any
) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        built(url, environ=environ, **options)
    return refused.value.mistakes


def test_without_anything_said_there_are_sane_defaults() -> None:
    settings = built()
    assert settings.database.path == "evenflow.db"
    assert (settings.heartbeat_ms, settings.lease_ms, settings.max_payload_bytes) == (2_000, 10_000, 262_144)
    assert (settings.queue_mode, settings.schema, settings.wake_in_transaction) == ("open", "evenflow", True)
    assert settings.warnings == ()


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        built().schema = "other"  # type: ignore[misc]


def test_the_url_comes_from_the_argument_then_the_environment() -> None:
    environ = {"EVENFLOW_URL": "sqlite:///env.db"}
    assert built(environ=environ).database.path == "env.db"
    assert built("sqlite:///arg.db", environ=environ).database.path == "arg.db"


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFLOW_URL", "sqlite:///process.db")
    assert Settings.build().database.path == "process.db"


def test_options_come_from_the_environment_unless_they_are_given() -> None:
    environ = {"EVENFLOW_CLUSTER_WIDE_CAP": "7", "EVENFLOW_REQUIRE_SIGNED": "no", "EVENFLOW_SCHEMA": "jobs"}
    assert built(environ=environ).cluster_wide_cap == 7
    assert built(environ=environ).schema == "jobs"
    assert built(environ=environ, cluster_wide_cap=9).cluster_wide_cap == 9


def test_none_given_is_not_the_same_as_nothing_given() -> None:
    assert built(environ={"EVENFLOW_CLUSTER_WIDE_CAP": "7"}, cluster_wide_cap=None).cluster_wide_cap is None


def test_resilience_and_retention_come_from_the_environment_too() -> None:
    settings = built(environ={"EVENFLOW_DB_RETRY_MAX_MS": "5000", "EVENFLOW_RETENTION_FAILED": "2 days"})
    assert settings.resilience == Resilience(db_retry_max_ms=5_000)
    assert settings.retention.kept_us("failed") == 2 * 86_400_000_000
    assert settings.retention.kept_us("succeeded") == 86_400_000_000


def test_signing_keys_come_from_the_environment_and_are_not_shown() -> None:
    settings = built(environ={"EVENFLOW_SIGNING_KEYS": "k1:hunter2hunter2hunter2"}, require_signed=True)
    assert settings.signing_keys == {"k1": "hunter2hunter2hunter2"}
    assert "hunter2" not in repr(settings)


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in repr(built("postgresql://bob:hunter2@db/jobs"))


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("EVENFLOW_CLUSTER_WIDE_CAP", "many"), ("EVENFLOW_CLUSTER_WIDE_CAP", ""),
        ("EVENFLOW_PREFETCH_BUFFER", "1.5"),
        ("EVENFLOW_REQUIRE_SIGNED", "perhaps"), ("EVENFLOW_DB_RETRY_MAX_MS", "5s"), ("EVENFLOW_URL", "mysql://db"),
        ("EVENFLOW_RETENTION_FAILED", "a while"), ("EVENFLOW_SIGNING_KEYS", "x"), ("EVENFLOW_URL", ""),
    ],
)  # fmt: skip
def test_a_malformed_variable_is_a_mistake_that_names_it(variable: str, text: str) -> None:
    (mistake,) = mistakes_of(environ={variable: text})
    assert mistake.startswith(f"{variable}: expected")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cluster_wide_cap": 0}, "cluster_wide_cap: expected a whole number of 1 or more, got 0"),
        ({"cluster_wide_cap": -5}, "cluster_wide_cap: expected"),
        ({"cluster_wide_cap": True}, "cluster_wide_cap: expected"),
        ({"cluster_wide_cap": 5, "prefetch_buffer": 4, "claim_lease_ms": 5_000}, "with prefetch_buffer=4"),
        ({"prefetch_buffer": 4}, "prefetch_buffer=4 needs claim_lease_ms"),
        ({"claim_lease_ms": 5_000}, "claim_lease_ms=5000 needs prefetch_buffer"),
        ({"claim_lease_ms": 5_000, "prefetch_buffer": 0}, "claim_lease_ms=5000 needs prefetch_buffer"),
        ({"prefetch_buffer": -1}, "prefetch_buffer: expected"),
        ({"prefetch_buffer": 4, "claim_lease_ms": 3_999}, "at least two heartbeats, 4000 ms"),
        ({"prefetch_buffer": 4, "claim_lease_ms": 0}, "claim_lease_ms: expected"),
        ({"heartbeat_ms": 0}, "heartbeat_ms: expected"),
        ({"lease_ms": 3_000}, "lease_ms: expected at least two heartbeats"),
        ({"max_payload_bytes": 0}, "max_payload_bytes: expected"),
        ({"schema": "Jobs"}, "schema: expected"),
        ({"schema": "pg_jobs"}, "schema: expected"),
        ({"schema": 'x"; drop'}, "schema: expected"),
        ({"require_signed": True}, "require_signed needs signing_keys"),
        ({"signing_keys": "short"}, "signing_keys: "),
        ({"signing_keys": 5}, "signing_keys: expected a secret, a list of secrets, or secrets by key id, got int"),
        ({"signing_keys": {}}, "signing_keys: expected at least one"),
        ({"signing_keys": {"a": "k" * 16, "b": "weak"}, "require_signed": True}, "signing_keys: "),
        ({"require_signed": "yes", "signing_keys": "k" * 16}, "require_signed: expected True or False"),
        ({"wake_in_transaction": 1}, "wake_in_transaction: expected True or False"),
        ({"queue_mode": "closed"}, "queue_mode: expected 'open' or 'custom' or 'default', got 'closed'"),
        ({"queue_mode": "custom"}, "queue_mode='custom' needs queues"),
        ({"queue_mode": "default", "queues": [Queue("mail")]}, "queue_mode='default' has only"),
        ({"queues": [Queue("mail"), Queue("docs"), Queue("mail")]}, "queue 'mail' is declared 2 times"),
        ({"queues": ["mail"]}, "queues: expected Queue, got 'mail'"),
        ({"queues": Queue("mail")}, "queues: expected a list of Queue"),
        ({"queues": [Queue("no way")]}, "queue 'no way': expected a letter"),
        ({"queues": [Queue("mail", max_concurrency=-1)]}, "queue 'mail': max_concurrency: expected"),
        ({"queues": [Queue("mail", rate=Rate("5/s", key="a"))]}, "expected a Rate without key"),
        ({"resilience": None}, "resilience: expected Resilience, got None"),
        ({"resilience": 5}, "resilience: expected Resilience, got 5"),
        ({"resilience": Resilience(db_retry_initial_ms=900, db_retry_max_ms=600)}, "up to db_retry_max_ms"),
        ({"retention": 5}, "retention: expected Retention"),
        ({"retention": Retention(failed=-1)}, "retention.failed: expected"),
        ({"retention": Retention(failed="long")}, "retention.failed: expected"),
        ({"qeues": []}, "qeues: not an option; did you mean queues?"),
    ],
)  # fmt: skip
def test_each_wrong_setting_is_one_mistake(options: dict[str, Any], text: str) -> None:
    found = mistakes_of(**options)
    assert [text in mistake for mistake in found] == [True]


def test_every_mistake_is_reported_at_once() -> None:
    found = mistakes_of(
        "mysql://db", environ={"EVENFLOW_LEASE_MS": "soon"}, cluster_wide_cap=0, schema="9",
        queues=[Queue("1"), Queue("mail", priority=0), Queue("mail")],
        resilience=Resilience(db_retry_initial_ms=99, notify_poll_interval_ms=999),
    )  # fmt: skip
    starts = [mistake.split(":")[0] for mistake in found]
    assert sorted(starts) == [
        "EVENFLOW_LEASE_MS", "cluster_wide_cap", "queue '1'", "queue 'mail'",
        "queue 'mail' is declared 2 times; keep one",
        "resilience.db_retry_initial_ms", "resilience.notify_poll_interval_ms", "schema", "url",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "default", "low", "high"),
    [
        ("db_retry_initial_ms", 500, 100, 60_000),
        ("db_retry_max_ms", 30_000, 500, 300_000),
        ("db_retry_max_attempts", 0, 0, 10_000),
        ("notify_poll_interval_ms", 5_000, 1_000, 300_000),
        ("circuit_breaker_threshold", 5, 1, 10_000),
        ("circuit_breaker_cooldown_s", 60, 1, 86_400),
    ],
)
def test_resilience_has_defaults_and_ranges(name: str, default: int, low: int, high: int) -> None:
    roomy: dict[str, Any] = {"db_retry_initial_ms": 100, "db_retry_max_ms": 300_000}
    assert getattr(Resilience(), name) == default
    for inside in (low, high):
        other = {"db_retry_initial_ms": 100} if name == "db_retry_max_ms" else roomy
        assert getattr(built(resilience=Resilience(**(other | {name: inside}))).resilience, name) == inside
    for outside in (low - 1, high + 1):
        (mistake,) = mistakes_of(resilience=Resilience(**(roomy | {name: outside})))
        assert mistake.startswith(f"resilience.{name}: expected a whole number from {low:,} to {high:,}")


def test_prefetch_is_accepted_with_a_lease_of_two_heartbeats() -> None:
    assert built(prefetch_buffer=4, claim_lease_ms=5_000).claim_lease_ms == 5_000
    assert built(prefetch_buffer=4, claim_lease_ms=4_000).prefetch_buffer == 4


def test_declared_queues_make_the_mode_custom() -> None:
    assert built(queues=[Queue("mail")]).queue_mode == "custom"
    assert built(queues=[Queue("mail")], queue_mode="open").queue_mode == "open"


def test_an_open_app_has_any_well_named_queue() -> None:
    settings = built(queues=[Queue("mail", priority=1)], queue_mode="open")
    assert settings.queue("mail").priority == 1
    assert settings.queue("docs") == Queue("docs")
    with pytest.raises(UnknownQueue, match="expected a letter"):
        settings.queue("no way")


def test_a_custom_app_has_its_declared_queues_only() -> None:
    settings = built(queues=[Queue("mail")])
    with pytest.raises(UnknownQueue, match=r"'docs' is not declared .* has 'mail'.*queue_mode='open'"):
        settings.queue("docs")


def test_a_default_app_has_one_queue() -> None:
    settings = built(queue_mode="default")
    assert settings.queue("default") == Queue("default")
    with pytest.raises(UnknownQueue):
        settings.queue("mail")


def test_retention_takes_every_form_of_a_duration_and_none() -> None:
    kept = Retention(succeeded=0, failed=timedelta(days=1), expired="1h", quarantined=None)
    outcomes = ("succeeded", "failed", "expired", "quarantined", "cancelled")
    assert [kept.kept_us(each) for each in outcomes] == [
        0, 86_400_000_000, 3_600_000_000, None, 604_800_000_000,
    ]  # fmt: skip
    assert built(retention=kept).retention == kept


def test_what_looks_unintended_is_a_warning_and_no_error() -> None:
    settings = built(
        queues=[Queue("Mail", max_concurrency=9), Queue("mail")], cluster_wide_cap=5,
        signing_keys="k" * 32,
        environ={"EVENFLOW_LEASEMS": "1", "EVENFLOW_SOMETHING_ELSE": "1", "PATH": "/bin"},
    )  # fmt: skip
    assert len(settings.warnings) == 4
    assert any("did you mean EVENFLOW_LEASE_MS?" in warning for warning in settings.warnings)
