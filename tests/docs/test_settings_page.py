"""The page on settings agrees with the code: every option, variable, range and default."""

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, cast

import pytest

from evenflow import Evenflow
from evenflow.client.options import CallOptions, Policy, TaskOptions
from evenflow.durations import duration_us
from evenflow.errors import ConfigError
from evenflow.limits import Breaker, Rate
from evenflow.queues import Queue
from evenflow.settings import Options, Resilience, Retention, Settings
from tests.docs.pages import ROOT, page, plain

SETTINGS = page("settings")
APP = SETTINGS.table("App")
RESILIENCE = SETTINGS.table("Resilience")
RETENTION = SETTINGS.table("Retention")
QUEUE = SETTINGS.table("Queue")
TASK = SETTINGS.table("Task")
ONE_CALL = SETTINGS.table("One call")
OTHER = SETTINGS.table("Other variables")

_VARIABLE = re.compile(r"(?<!\w)EVENFLOW_[A-Z][A-Z_]*[A-Z](?!\w)")
_RANGE = re.compile(r"(−?[\d,]+)(?: to ([\d,]+)| or more)")


def options(table: list[dict[str, str]]) -> list[str]:
    return [name for row in table for name in plain(row["option"]).split(", ")]


def default_of(kind: type, name: str) -> Any:
    field = next(each for each in fields(kind) if each.name == name)
    return None if field.default is MISSING else field.default


def as_number(text: str) -> int:
    return int(text.replace(",", "").replace("−", "-"))


def build(**given: Any) -> Settings:
    return Settings.build(environ={}, **given)


def test_every_option_of_an_app_stands_in_the_table_once() -> None:
    assert sorted(options(APP)) == sorted(["url", *Options.__annotations__])


@pytest.mark.parametrize(("table", "kind"), [(RESILIENCE, Resilience), (RETENTION, Retention)])
def test_every_field_of_a_group_of_settings_stands_in_its_table(
    table: list[dict[str, str]], kind: type
) -> None:
    assert options(table) == [field.name for field in fields(kind)]


def test_every_option_of_a_queue_stands_in_the_table() -> None:
    assert sorted(options(QUEUE)) == sorted(field.name for field in fields(Queue) if field.name != "name")


def test_every_option_of_a_task_stands_in_its_table_and_on_its_page() -> None:
    assert sorted(options(TASK)) == sorted(TaskOptions.__annotations__)
    assert sorted(options(page("tasks").table("Options"))) == sorted(TaskOptions.__annotations__)


def test_every_option_of_a_call_stands_in_the_table() -> None:
    assert sorted(options(ONE_CALL)) == sorted(CallOptions.__annotations__)


def test_every_variable_of_the_code_stands_on_the_page() -> None:
    documented = {plain(row["variable"]) for table in (APP, RESILIENCE, RETENTION, OTHER) for row in table}
    documented = {name for name in documented if name.startswith("EVENFLOW_")}
    named = {
        name
        for folder in ("src", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for name in _VARIABLE.findall(path.read_text())
    }
    assert named <= documented
    read = {f"EVENFLOW_{name.upper()}" for name in (*options(APP), *options(RESILIENCE))}
    read |= {f"EVENFLOW_RETENTION_{name.upper()}" for name in options(RETENTION)}
    read -= {"EVENFLOW_QUEUES", "EVENFLOW_RESILIENCE", "EVENFLOW_RETENTION"}
    assert documented - {plain(row["variable"]) for row in OTHER} == read


@pytest.mark.parametrize(
    "row",
    [row for row in (*APP, *RESILIENCE) if row["variable"].startswith("`")],
    ids=lambda row: plain(row["option"]),
)
def test_a_variable_sets_the_option_beside_it(row: dict[str, str]) -> None:
    name, variable = plain(row["option"]), plain(row["variable"])
    nonsense = {"url": "nowhere", "schema": "Not A Schema"}.get(name, "no such value")
    with pytest.raises(ConfigError, match=f"{variable}|{name}"):
        Settings.build(environ={variable: nonsense})


@pytest.mark.parametrize("row", [*APP, *RESILIENCE], ids=lambda row: plain(row["option"]))
def test_a_default_on_the_page_is_that_of_the_code(row: dict[str, str]) -> None:
    name, said = plain(row["option"]), plain(row["default"])
    settings = build()
    if name in ("queue_mode", "url"):  # decided by other settings; each case below
        assert build().queue_mode == "open" and build(queues=[Queue("mail")]).queue_mode == "custom"
        assert settings.database.masked() == "sqlite:///evenflow.db"
        return
    kind = Resilience if row in RESILIENCE else Settings
    default = default_of(kind, name)
    if isinstance(default, bool):
        assert said == str(default).lower()
    elif isinstance(default, int):
        assert as_number(said) == default
    elif name not in ("resilience", "retention"):
        assert said == (default or "none")


@pytest.mark.parametrize("row", RETENTION, ids=lambda row: plain(row["option"]))
def test_a_retention_on_the_page_is_that_of_the_code(row: dict[str, str]) -> None:
    assert Retention().kept_us(plain(row["option"])) == duration_us(row["default"])


@pytest.mark.parametrize(
    "row",
    [row for row in (*APP, *RESILIENCE) if _RANGE.match(row["values"])],
    ids=lambda row: plain(row["option"]),
)
def test_a_range_on_the_page_is_that_of_the_code(row: dict[str, str]) -> None:
    name = plain(row["option"])
    found = _RANGE.match(row["values"])
    assert found is not None
    low, high = as_number(found[1]), as_number(found[2]) if found[2] else None
    assert _is_accepted(name, low)
    assert not _is_accepted(name, low - 1)
    if high is not None:
        assert _is_accepted(name, high)
        assert not _is_accepted(name, high + 1)


@pytest.mark.parametrize("row", [*QUEUE, *TASK], ids=lambda row: plain(row["option"]))
def test_a_default_of_a_queue_or_a_task_is_that_of_the_code(row: dict[str, str]) -> None:
    name, said = plain(row["option"]), plain(row["default"])
    if name in ("name", "retry", "weights", "keep_result", "concurrency", "rate"):  # said in words
        return
    default = default_of(Queue if row in QUEUE else Policy, name)
    assert said == str("none" if default is None else default)


@pytest.mark.parametrize("row", [*QUEUE, *TASK], ids=lambda row: plain(row["option"]))
def test_the_words_on_the_page_are_those_of_the_code(row: dict[str, str]) -> None:
    words = re.match(r"(`[a-z-]+`(?:, `[a-z-]+`)+)", row["values"])
    if words is None:
        return
    annotation = str((Queue if row in QUEUE else Policy).__annotations__[plain(row["option"])])
    assert sorted(plain(words[1]).split(", ")) == sorted(re.findall(r"'([a-z-]+)'", annotation))


@pytest.mark.parametrize("row", QUEUE, ids=lambda row: plain(row["option"]))
def test_what_is_not_available_yet_is_refused_and_nothing_else_is(row: dict[str, str]) -> None:
    values: dict[str, Any] = {
        "priority": 1, "max_concurrency": 1, "fair": "fifo", "weights": {"gold": 2}, "rate": Rate("1/s"),
        "group_concurrency": 1, "by_weight": True, "max_ready": 1, "on_full": "reject", "breaker": Breaker(),
        "tasks": ["mail.*"],
    }  # fmt: skip
    name = plain(row["option"])
    queue = Queue("mail", **{name: values[name]})
    if "not available yet" in row["values"]:
        with pytest.raises(ConfigError, match=f"{name} is not available"):
            Evenflow("sqlite:///:memory:", queues=[queue])
    else:
        Evenflow("sqlite:///:memory:", queues=[queue])


@pytest.mark.parametrize("table", [QUEUE, RESILIENCE], ids=["queue", "resilience"])
def test_every_option_that_is_accepted_is_read_somewhere(table: list[dict[str, str]]) -> None:
    homes = {"queues.py", "limits.py", "settings.py", "checks.py", "errors.py"}
    paths = [path for path in (ROOT / "src" / "evenflow").rglob("*.py") if path.name not in homes]
    sources = re.sub(r"^(?:from|import) .*$", "", "\n".join(map(Path.read_text, paths)), flags=re.MULTILINE)
    accepted = [row for row in table if "available" not in row["values"] and "max_ready" not in row["values"]]
    assert [name for name in options(accepted) if not re.search(rf"\.{name}\b", sources)] == []


def _is_accepted(name: str, value: int) -> bool:
    given: dict[str, Any] = {name: value}
    if name in options(RESILIENCE):
        # The two delays have to fit each other.
        other = {
            "db_retry_initial_ms": {"db_retry_max_ms": 300_000},
            "db_retry_max_ms": {"db_retry_initial_ms": 100},
        }
        given = {"resilience": Resilience(**{**other.get(name, {}), **given})}
    elif name == "heartbeat_ms":
        given["lease_ms"] = 3_600_000
    elif name == "lease_ms":
        given["heartbeat_ms"] = 10
    elif name == "prefetch_buffer" and value > 0:
        given["claim_lease_ms"] = 5_000
    try:
        build(**cast(Any, given))
    except ConfigError:
        return False
    return True
