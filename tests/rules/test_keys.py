"""Keys: compiled at declaration, never blurred, and refused with the task and the option."""

import functools
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from itertools import product
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.errors import ConfigError, EnqueueError
from evenflow.rules.keys import LONGEST_KEY, Key, scope_key

TEXTS = st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
# Every text of up to three of the characters that separate and escape.
AWKWARD = ["".join(each) for size in range(4) for each in product("a/\\:", repeat=size)]


class Plan(Enum):
    GOLD = "gold"
    SIZE = 7


class Tier(StrEnum):
    FREE = "free"


def key(source: Any, scope: str | None = None, **more: Any) -> Key:
    return Key(
        source, parameters=("tenant", "region"), task="bill", option="concurrency", scope=scope, **more
    )


def text(source: Any, tenant: object = "bob", region: object = "eu", scope: str | None = None) -> str | None:
    return key(source, scope).text({"tenant": tenant, "region": region})


def test_a_name_gives_the_argument_s_text() -> None:
    assert text("tenant") == "bob"


def test_a_template_gives_several_arguments() -> None:
    assert text("{tenant}/{region}") == "bob/eu"
    assert text("t-{tenant}, in {{{region}}}!") == "t-bob, in {eu}!"


def test_a_callable_gets_the_arguments_it_names() -> None:
    assert text(lambda tenant: tenant.upper()) == "BOB"
    assert text(lambda region, tenant: f"{tenant}@{region}") == "bob@eu"
    assert text(lambda tenant, *, region="us": region) == "eu"
    assert text(lambda tenant, zone="z": tenant + zone) == "bobz"


def test_a_callable_with_open_keywords_gets_all_arguments() -> None:
    assert text(lambda **call: "-".join(sorted(call))) == "region-tenant"
    assert text(lambda tenant, **_: tenant) == "bob"


def test_a_callable_with_one_other_parameter_gets_a_dict() -> None:
    assert text(lambda call: call["tenant"] + call["region"]) == "bobeu"


def test_a_callable_object_and_a_partial_work_too() -> None:
    def joined(sign: str, tenant: str, region: str) -> str:
        return tenant + sign + region

    assert text(functools.partial(joined, "+")) == "bob+eu"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bob", "bob"), ("", ""), (7, "7"), (True, "true"), (False, "false"), (1.5, "1.5"),
        (Decimal("1.50"), "1.50"), (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"), (Plan.GOLD, "gold"), (Plan.SIZE, "7"),
        (Tier.FREE, "free"), (PurePosixPath("/a/b"), "/a/b"),
    ],
)  # fmt: skip
def test_values_with_one_obvious_text_are_taken(value: object, expected: str) -> None:
    assert text("tenant", tenant=value) == expected
    assert text(lambda tenant: tenant, tenant=value) == expected


@pytest.mark.parametrize("value", [b"bob", object(), ["bob"], {"a": 1}, float("nan"), float("inf"), 1j])
def test_values_without_one_are_refused(value: object) -> None:
    for source in ("tenant", "{tenant}/{region}", lambda tenant: tenant):
        with pytest.raises(EnqueueError, match="task 'bill': concurrency: "):
            text(source, tenant=value)


def test_none_means_that_the_rule_does_not_apply() -> None:
    assert text("tenant", tenant=None) is None
    assert text("tenant", tenant=None, scope="bill") is None
    assert text(lambda tenant: None) is None


def test_none_inside_a_template_is_refused() -> None:
    with pytest.raises(EnqueueError, match="argument 'region' is None"):
        text("{tenant}/{region}", region=None)


@pytest.mark.parametrize(
    "source",
    [
        "user", "tenant ", "{user}", "{tenant}/{user}", lambda user, tenant: user, lambda *, user: user,
        lambda tenant, region, user: user,
    ],
)  # fmt: skip
def test_unknown_arguments_are_refused_with_task_and_option(source: Any) -> None:
    with pytest.raises(
        ConfigError, match="task 'bill': concurrency: expected arguments of the function"
    ) as refused:
        key(source)
    assert "'tenant', 'region'" in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "", "{", "}", "{}", "{0}", "{tenant!r}", "{tenant.name}", "{tenant[0]}", "{tenant:>9}",
        "{tenant}{region}", "{tenant}\\{region}", "{{}}", 7, None, str, lambda tenant, /, region: tenant,
    ],
)  # fmt: skip
def test_malformed_keys_are_refused_at_declaration(source: Any) -> None:
    with pytest.raises(ConfigError, match="task 'bill': concurrency: "):
        key(source)


def test_a_coroutine_function_is_refused() -> None:
    async def wait(tenant: str) -> str:
        return tenant

    with pytest.raises(ConfigError, match="without waiting"):
        key(wait)


def test_a_function_with_open_keywords_may_name_them_in_a_key() -> None:
    named = key("user", takes_any_name=True)
    assert named.text({"tenant": "bob", "user": "eve"}) == "eve"
    with pytest.raises(EnqueueError, match="no argument 'user'"):
        named.text({"tenant": "bob"})


def test_a_callable_that_raises_refuses_the_enqueue() -> None:
    with pytest.raises(EnqueueError, match=r"task 'bill': concurrency: .*KeyError: 'user'") as refused:
        text(lambda call: call["user"])
    assert isinstance(refused.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("value", "reason"), [("x" * 256, "at most 255"), ("a\0b", "without NUL"), ("a\ud800", "surrogate")]
)
def test_keys_that_no_database_could_hold_are_refused(value: str, reason: str) -> None:
    with pytest.raises(EnqueueError, match=reason):
        text("tenant", tenant=value)


def test_the_scope_counts_to_the_length() -> None:
    assert text("tenant", tenant="x" * (LONGEST_KEY - 5), scope="bill") == "bill:" + "x" * 250
    with pytest.raises(EnqueueError, match="at most 255"):
        text("tenant", tenant="x" * (LONGEST_KEY - 4), scope="bill")


def test_a_scope_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 255"):
        scope_key("x" * 256)


@pytest.mark.parametrize("template", ["{tenant}/{region}", "{tenant}::{region}/", "a{tenant}a/{region}"])
def test_a_template_gives_different_arguments_different_keys(template: str) -> None:
    compiled = key(template)
    calls = list(product(AWKWARD, repeat=2))
    keys = {compiled.text({"tenant": tenant, "region": region}) for tenant, region in calls}
    assert len(keys) == len(calls)


def test_equal_keys_of_different_scopes_are_different() -> None:
    keyed = [text("tenant", tenant, scope=scope) for tenant, scope in product(AWKWARD, repeat=2)]
    alone = [scope_key(scope) for scope in AWKWARD]
    assert len({*keyed, *alone}) == len(keyed) + len(alone)


@given(TEXTS, TEXTS)
def test_any_text_is_kept_as_it_is_without_scope(tenant: str, region: str) -> None:
    assert text("tenant", tenant) == tenant
    assert text("{tenant}", tenant) == tenant
    assert (text("x/{region}", region=region) or "")[2:] == region
