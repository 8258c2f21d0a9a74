"""Values go through stored text and come back as they were; what could not come back is refused at once."""

import collections
import contextlib
import dataclasses
import doctest
import enum
import importlib
import json
import math
import pkgutil
import sys
import typing
import uuid
from collections import abc
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import evenflow.codec
from evenflow.codec import (
    DEFAULT_MAX_BYTES,
    MAX_DEPTH,
    TAG,
    CallSignature,
    check_text,
    decode_call,
    decode_result,
    encode_call,
    encode_result,
    register_type,
)
from evenflow.errors import (
    ConfigError,
    DecodeError,
    DeserializationError,
    PayloadError,
    ResultError,
)
from tests.thorough import examples


class Color(enum.Enum):
    RED = "red"
    POINT = (1, 2)
    DAY = date(2026, 1, 1)


class Size(enum.StrEnum):
    SMALL = "s"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    at: datetime | None = None


Bare = collections.namedtuple("Bare", "a b")


class Settings(TypedDict):
    name: str
    until: NotRequired[date]


@dataclasses.dataclass
class Order:
    number: int
    placed: datetime
    price: Decimal
    tags: set[str] = dataclasses.field(default_factory=set)
    children: "list[Order]" = dataclasses.field(default_factory=list)
    total: Decimal = dataclasses.field(init=False, default=Decimal(0))


@dataclasses.dataclass(frozen=True, slots=True)
class Refund:
    number: int


class Parcel(msgspec.Struct, rename="camel"):
    weight_in_grams: int
    sent_at: datetime
    note: str | msgspec.UnsetType = msgspec.UNSET


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(alias="customerName")
    since: date
    spent: Decimal = Decimal(0)


class Secretive(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclasses.dataclass
class WithInitVar:
    a: int
    b: dataclasses.InitVar[int]


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


class Later:
    """Stands in for a value that is not there yet."""

    def __init__(self, step: str) -> None:
        self.step = step


class Unlisted:
    pass


UserId = NewType("UserId", int)
Bound = TypeVar("Bound", bound=int)


@pytest.fixture(autouse=True)
def _registered_types() -> None:
    register_type(Money, lambda money: money.cents, Money, tag="test.money")
    register_type(Later, lambda later: later.step, Later, tag="test.later", stands_in=True)


def taking(annotation: Any) -> CallSignature:
    def task(x): ...  # type: ignore[no-untyped-def]

    if annotation is not None:
        task.__annotations__["x"] = annotation
    return CallSignature(task)


UNDECLARED = taking(None)


def through_call(value: Any, signature: CallSignature) -> Any:
    args, kwargs = decode_call(encode_call(signature, (value,), {}), signature)
    assert kwargs == {}
    return args[0]


def is_same(left: Any, right: Any) -> bool:
    """Equality that also tells 1 from True, a list from a tuple, and one zone from another."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, datetime | time):
        return is_same_moment(left, right)
    return bool(left == right)


def is_same_moment(left: datetime | time, right: datetime | time) -> bool:
    is_zone = isinstance(left.tzinfo, ZoneInfo)
    return (
        left.replace(tzinfo=None, fold=0) == right.replace(tzinfo=None, fold=0)
        and left.utcoffset() == right.utcoffset()
        and (left.tzinfo is right.tzinfo if is_zone else True)
        and (left.tzinfo is None) == (right.tzinfo is None)
        and (left.tzinfo is not None or left.fold == right.fold)
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
ZONES: st.SearchStrategy[tzinfo] = st.sampled_from(
    [
        ZoneInfo("Europe/Berlin"),
        ZoneInfo("America/New_York"),
        ZoneInfo("Australia/Lord_Howe"),
        ZoneInfo("UTC"),
        UTC,
    ]
)
FOLDS = st.sampled_from([0, 1])
NAIVE = st.builds(lambda moment, fold: moment.replace(fold=fold), st.datetimes(), FOLDS)
AWARE = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)),  # noqa: DTZ001
    ZONES | OFFSETS,
    FOLDS,
)
TIMES = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold if zone is None else 0),
    st.times(),
    st.none() | ZONES | OFFSETS,
    FOLDS,
)
BIG_INTS = st.integers() | st.integers(-(1 << 2100), 1 << 2100)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
PATHS = TEXT.map(Path)

SINGLE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: BIG_INTS,
    float: FLOATS,
    bool: st.booleans(),
    None: st.none(),
    bytes: st.binary(),
    datetime: NAIVE | AWARE,
    date: st.dates(),
    time: TIMES,
    timedelta: st.timedeltas(),
    Decimal: DECIMALS,
    uuid.UUID: st.uuids(),
    Path: PATHS,
}
HASHABLE = st.one_of(*SINGLE.values())
ORDERS: st.SearchStrategy[Order] = st.deferred(
    lambda: st.builds(
        Order,
        number=BIG_INTS,
        placed=AWARE,
        price=DECIMALS,
        tags=st.sets(TEXT, max_size=3),
        children=st.lists(ORDERS, max_size=2),
    )
)
PARCELS = st.builds(Parcel, st.integers(), AWARE, TEXT | st.just(msgspec.UNSET))

DECLARED: dict[Any, st.SearchStrategy[Any]] = {
    **SINGLE,
    list[int]: st.lists(BIG_INTS),
    list[float]: st.lists(FLOATS | st.integers()),
    list[str]: st.lists(TEXT),
    list[datetime]: st.lists(AWARE),
    list: st.lists(HASHABLE),
    set[date]: st.sets(st.dates()),
    set: st.sets(TEXT | st.integers()),
    frozenset[str]: st.frozensets(TEXT),
    tuple[int, ...]: st.lists(st.integers()).map(tuple),
    tuple[int, str, bytes]: st.tuples(st.integers(), TEXT, st.binary()),
    tuple[()]: st.just(()),
    dict[str, int]: st.dictionaries(TEXT | st.just(TAG), st.integers()),
    dict[int, timedelta]: st.dictionaries(st.integers(), st.timedeltas()),
    dict[Size, Color]: st.dictionaries(st.sampled_from(Size), st.sampled_from(Color)),
    dict[tuple[int, int], str]: st.dictionaries(st.tuples(st.integers(), st.integers()), TEXT),
    dict[Literal["a", "b"], int]: st.dictionaries(st.sampled_from(["a", "b"]), st.integers()),
    dict: st.dictionaries(HASHABLE, HASHABLE),
    abc.Sequence[int]: st.lists(st.integers()) | st.lists(st.integers()).map(tuple),
    abc.Iterable[date]: st.lists(st.dates()) | st.frozensets(st.dates()),
    abc.Mapping[str, Decimal]: st.dictionaries(TEXT, DECIMALS),
    int | None: st.none() | BIG_INTS,
    typing.Optional[datetime]: st.none() | AWARE,  # noqa: UP045 - the old spelling is what is tested
    int | str: BIG_INTS | TEXT,
    datetime | str | None: AWARE | TEXT | st.none(),
    date | Path | bytes: st.dates() | NAIVE | PATHS | st.binary(),
    str | Size: TEXT | st.sampled_from(Size),
    list[int] | dict[str, int]: st.lists(st.integers()) | st.dictionaries(TEXT, st.integers()),
    Order | Refund | None: ORDERS | st.builds(Refund, st.integers()) | st.none(),
    list[Order | Refund]: st.lists(ORDERS | st.builds(Refund, st.integers()), max_size=3),
    Literal["a", 1, None, b"x", Size.SMALL]: st.sampled_from(["a", 1, None, b"x", Size.SMALL]),
    Color: st.sampled_from(Color),
    Size: st.sampled_from(Size),
    Level: st.sampled_from(Level),
    Right: st.sampled_from([Right.READ, Right.READ | Right.WRITE, Right(0)]),
    Point: st.builds(Point, st.integers(), AWARE | st.none()),
    Bare: st.builds(Bare, HASHABLE, HASHABLE),
    Settings: st.builds(lambda name: {"name": name}, TEXT)
    | st.builds(lambda name, day: {"name": name, "until": day}, TEXT, st.dates()),
    Order: ORDERS,
    Refund: st.builds(Refund, st.integers()),
    Parcel: PARCELS,
    Customer: st.builds(lambda n, d: Customer(customerName=n, since=d), TEXT, st.dates()),
    list[Customer]: st.lists(st.builds(lambda n, d: Customer(customerName=n, since=d), TEXT, st.dates())),
    Money: st.builds(Money, st.integers()),
    UserId: st.integers(),
    Bound: st.integers(),
    Annotated[int, msgspec.Meta(ge=0)]: st.integers(0, 1 << 62),
    Annotated[int | None, msgspec.Meta(ge=0)]: st.none() | st.integers(0, 1 << 62),
    Annotated[list[Path], msgspec.Meta(max_length=3)]: st.lists(PATHS, max_size=3),
    PurePosixPath: TEXT.map(PurePosixPath),
    PureWindowsPath: TEXT.map(PureWindowsPath),
    abc.Hashable: HASHABLE,
}

ANYTHING = st.recursive(
    HASHABLE | st.builds(Money, st.integers()),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.sets(HASHABLE),
        st.frozensets(HASHABLE),
        st.dictionaries(TEXT | st.just(TAG), inner),
        st.dictionaries(HASHABLE, inner),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("annotation", DECLARED, ids=str)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_declared_argument_comes_back_as_it_was(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(DECLARED[annotation])
    assert is_same(through_call(value, taking(annotation)), value)


@settings(max_examples=examples(40), deadline=None)
@given(value=ANYTHING)
@example(value={TAG: "datetime", "v": "2026-01-01"})
@example(value={TAG: {TAG: "tuple", "v": []}, "v": ({TAG: 1},)})
@example(value=[1, True, 1.0, None, "1"])
@example(value=10**6000)
@example(value="\0")
def test_an_undeclared_argument_comes_back_as_it_was(value: Any) -> None:
    assert is_same(through_call(value, UNDECLARED), value)


@settings(max_examples=examples(40), deadline=None)
@given(annotation=st.sampled_from(list(DECLARED)), value=ANYTHING)
def test_whatever_is_accepted_at_enqueue_can_be_read_at_the_run(annotation: Any, value: Any) -> None:
    signature = taking(annotation)
    try:
        text = encode_call(signature, (value,), {})
    except PayloadError:
        return
    assert decode_call(text, signature) == ((value,), {})


@settings(max_examples=examples(50), deadline=None)
@given(value=ANYTHING)
def test_a_result_comes_back_as_it_was_without_the_task_at_hand(value: Any) -> None:
    assert is_same(decode_result(encode_result(value)), value)


@pytest.mark.parametrize("annotation", DECLARED, ids=str)
@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_a_result_comes_back_as_it_was_by_its_annotation(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(DECLARED[annotation])
    assert is_same(decode_result(encode_result(value), annotation), value)


@settings(max_examples=examples(50), deadline=None)
@given(value=ANYTHING)
def test_stored_text_holds_no_raw_control_character_and_is_plain_json(value: Any) -> None:
    text = encode_call(UNDECLARED, (value,), {})
    assert not any(ord(character) < 32 for character in text)
    text.encode("utf-8")
    args, kwargs = json.loads(text)
    assert len(args) == 1
    assert kwargs == {}


# How values look in stored data -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (datetime, datetime(2026, 5, 1, 8, 30, tzinfo=UTC), '"2026-05-01T08:30:00+00:00"'),
        (
            datetime,
            datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
            '"2026-10-25T02:30:00+01:00[Europe/Berlin]"',
        ),
        (date, date(2026, 5, 1), '"2026-05-01"'),
        (timedelta, timedelta(minutes=1, seconds=30), "90"),
        (timedelta, timedelta(microseconds=1_500_000), "1.5"),
        (timedelta, timedelta.max, "[86399999999999,999999]"),
        (Decimal, Decimal("1.10"), '"1.10"'),
        (set[str], {"b", "a"}, '["a","b"]'),
        (Order | Refund, Refund(7), '{"$evenflow":"as","t":"Refund","v":{"number":7}}'),
        (None, (1, 2), '{"$evenflow":"tuple","v":[1,2]}'),
        (None, date(2026, 5, 1), '{"$evenflow":"date","v":"2026-05-01"}'),
        (None, {TAG: 1}, '{"$evenflow":"dict","v":[["$evenflow",1]]}'),
        (None, {"a": [1, {"b": None}]}, '{"a":[1,{"b":null}]}'),
    ],
)
def test_stored_form_is_plain_where_the_annotation_tells_and_tagged_elsewhere(
    annotation: Any, value: Any, stored: str
) -> None:
    assert encode_call(taking(annotation), (value,), {}) == f"[[{stored}],{{}}]"


@pytest.mark.parametrize("number", [(1 << 2048) - 1, 1 << 2048, -(1 << 2048), 10**6000], ids=int.bit_length)
def test_a_long_int_is_read_even_under_the_strictest_limit_of_digits(number: int) -> None:
    usual = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        assert through_call(number, taking(int)) == number
        assert through_call([number, 1], UNDECLARED) == [number, 1]
    finally:
        sys.set_int_max_str_digits(usual)


def test_the_order_of_a_dict_is_kept() -> None:
    assert list(through_call({"b": 1, "a": 2}, UNDECLARED)) == ["b", "a"]


def test_a_zone_that_only_knows_offsets_keeps_the_instant() -> None:
    class Odd(tzinfo):
        def utcoffset(self, moment: datetime | None) -> timedelta:
            return timedelta(hours=2, seconds=7)

        def dst(self, moment: datetime | None) -> None:
            return None

        def tzname(self, moment: datetime | None) -> None:
            return None

    moment = datetime(2026, 5, 1, 8, tzinfo=Odd())
    assert through_call(moment, taking(datetime)) == moment


def test_a_wall_clock_time_that_never_was_keeps_its_wall_clock() -> None:
    moment = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert through_call(moment, taking(datetime)).isoformat() == moment.isoformat()


def test_a_moment_whose_zone_has_new_rules_keeps_its_instant() -> None:
    stored = '[["2026-07-01T12:00:00+05:00[Europe/Berlin]"],{}]'
    args, _ = decode_call(stored, taking(datetime))
    assert args[0] == datetime(2026, 7, 1, 7, tzinfo=UTC)
    assert args[0].tzinfo == ZoneInfo("Europe/Berlin")


def test_a_datetime_given_for_a_date_stays_a_datetime() -> None:
    moment = datetime(2026, 5, 1, 8, tzinfo=UTC)
    assert is_same(through_call(moment, taking(date)), moment)


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (str, Size.SMALL, "s"),
        (int, Level.LOW, 1),
        (dict[str, int], collections.Counter("aab"), {"a": 2, "b": 1}),
    ],
)
def test_a_subclass_becomes_the_declared_type(annotation: Any, value: Any, back: Any) -> None:
    assert is_same(through_call(value, taking(annotation)), back)


def test_fields_set_by_no_constructor_are_restored() -> None:
    order = Order(1, datetime(2026, 5, 1, tzinfo=UTC), Decimal(2))
    order.total = Decimal(9)
    assert through_call(order, taking(Order)).total == Decimal(9)


def test_a_field_that_is_gone_is_dropped_and_a_new_one_takes_its_default() -> None:
    args, _ = decode_call(
        '[[{"number":1,"placed":"2026-05-01T00:00:00+00:00","price":"1","old":3}],{}]', taking(Order)
    )
    assert args == (Order(1, datetime(2026, 5, 1, tzinfo=UTC), Decimal(1)),)


def test_a_tagged_value_is_read_where_the_type_was_declared_later() -> None:
    text = encode_call(UNDECLARED, (date(2026, 5, 1),), {})
    assert decode_call(text, taking(date)) == ((date(2026, 5, 1),), {})
    assert decode_call(text, taking(date | int)) == ((date(2026, 5, 1),), {})


def test_a_plain_stored_value_is_read_where_the_type_became_a_union() -> None:
    text = encode_call(taking(date), (date(2026, 5, 1),), {})
    assert decode_call(text, taking(date | int)) == ((date(2026, 5, 1),), {})


def test_a_stored_result_can_be_put_in_the_place_of_an_argument() -> None:
    result = encode_result(Order(1, datetime(2026, 5, 1, tzinfo=UTC), Decimal(2), {"a"}))
    args, _ = decode_call(f"[[{result}],{{}}]", taking(Order | None))
    assert args == (Order(1, datetime(2026, 5, 1, tzinfo=UTC), Decimal(2), {"a"}),)


def test_a_call_is_read_without_its_signature_as_far_as_it_tells() -> None:
    def task(a: int, *, when: Any) -> None: ...

    text = encode_call(CallSignature(task), (1,), {"when": date(2026, 5, 1)})
    assert decode_call(text) == ((1,), {"when": date(2026, 5, 1)})


# What is refused at enqueue ---------------------------------------------------------------------------------


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def cyclic_order() -> Order:
    order = Order(1, datetime(2026, 5, 1, tzinfo=UTC), Decimal(2))
    order.children.append(order)
    return order


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (float, NAN, "argument 'x': NaN cannot be stored"),
        (None, INFINITY, "argument 'x': Infinity cannot be stored"),
        (None, -INFINITY, "argument 'x': -Infinity cannot be stored"),
        (list[float], [1.0, NAN], "argument 'x' at [1]: NaN cannot be stored"),
        (None, {"a": [0, {"b": NAN}]}, "argument 'x' at ['a'][1]['b']: NaN cannot be stored"),
        (None, [1.0, NAN], "argument 'x' at [1]: NaN cannot be stored"),
        (datetime, datetime(2026, 5, 1, tzinfo=timezone(timedelta(microseconds=1))), "fractions of a second"),
        (Decimal, Decimal("sNaN"), "argument 'x': sNaN cannot be stored"),
        (None, Decimal("-Infinity"), "argument 'x': -Infinity cannot be stored"),
        (str, "a\ud800", "argument 'x': text with a lone surrogate cannot be stored"),
        (None, ["\udfff"], "argument 'x': text with a lone surrogate cannot be stored"),
        (None, {"\udfff": 1}, "argument 'x': text with a lone surrogate cannot be stored"),
        (None, {"\udfff"}, "argument 'x': text with a lone surrogate cannot be stored"),
        (Path, Path("a\udc80"), "argument 'x': text with a lone surrogate cannot be stored"),
        (None, nested(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels deep"),
        (None, cyclic_list(), f"nested more than {MAX_DEPTH} levels deep"),
        (Order, cyclic_order(), f"nested more than {MAX_DEPTH} levels deep"),
        (str, "a" * DEFAULT_MAX_BYTES, f"bytes of JSON, at most {DEFAULT_MAX_BYTES} are allowed"),
        (None, Unlisted(), "argument 'x': values of type Unlisted cannot be stored"),
        (Unlisted, Unlisted(), "argument 'x': values of type Unlisted cannot be stored"),
        (None, 1j, "argument 'x': values of type complex cannot be stored"),
        (None, bytearray(), "argument 'x': values of type bytearray cannot be stored"),
        (None, len, "argument 'x': values of type builtin_function_or_method cannot be stored"),
        (None, Size.SMALL, "argument 'x': Size needs a declared type to come back as one"),
        (None, Refund(1), "argument 'x': Refund needs a declared type"),
        (None, [Point(1)], "argument 'x' at [0]: Point needs a declared type"),
        (None, collections.Counter("a"), "argument 'x': Counter would come back as dict"),
        (int, "1", "argument 'x': expected int, got str"),
        (int, 1.0, "argument 'x': expected int, got float"),
        (int, None, "argument 'x': expected int, got NoneType"),
        (str, 1, "argument 'x': expected str, got int"),
        (bool, 1, "argument 'x': expected bool, got int"),
        (float, "1", "argument 'x': expected float, got str"),
        (datetime, "2026-05-01", "argument 'x': expected datetime, got str"),
        (datetime, date(2026, 5, 1), "argument 'x': expected datetime, got date"),
        (Decimal, 1, "argument 'x': expected Decimal, got int"),
        (Path, "a", "argument 'x': expected Path, got str"),
        (list[int], (1,), "argument 'x': expected list[int], got tuple"),
        (list[int], [1, "2"], "argument 'x' at [1]: expected int, got str"),
        (tuple[int, str], (1,), "argument 'x': expected tuple[int, str], got 1 items"),
        (tuple[int, str], (1, 2), "argument 'x' at [1]: expected str, got int"),
        (dict[str, int], {"a": "b"}, "argument 'x' at ['a']: expected int, got str"),
        (dict[int, int], {"a": 1}, "argument 'x' at [str key]: expected int, got str"),
        (dict[Literal["a"], int], {"b": 1}, "expected one of 'a', got another str"),
        (set[int], [1], "argument 'x': expected set[int], got list"),
        (int | str, 1.5, "argument 'x': expected int or str, got float"),
        (Literal["a", 1], "b", "argument 'x': expected one of 'a', 1, got another str"),
        (Color, "red", "argument 'x': expected Color, got str"),
        (Order, Refund(1), "argument 'x': expected Order, got Refund"),
        (
            Order,
            Order("1", datetime(2026, 5, 1, tzinfo=UTC), Decimal(1)),  # type: ignore[arg-type]
            "argument 'x' at .number: expected int, got str",
        ),
        (Settings, {}, "argument 'x' at .name: missing"),
        (Settings, {"name": "a", "nme": 1}, "argument 'x': Settings has no key 'nme'"),
        (WithInitVar, WithInitVar(1, 2), "argument 'x': WithInitVar has an InitVar"),
        (Secretive, Secretive(password=pydantic.SecretStr("x")), "Secretive does not come back equal"),
        (Customer, Secretive(password=pydantic.SecretStr("x")), "expected Customer, got Secretive"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "argument 'x': Expected `int` >= 1"),
        (
            Annotated[list[int], msgspec.Meta(max_length=1)],
            [1, 2],
            "argument 'x': Expected `array` of length <= 1",
        ),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) and value.isascii() else type(value).__name__,
)
def test_what_cannot_come_back_is_refused_with_the_argument_and_the_reason(
    annotation: Any, value: Any, reason: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        encode_call(taking(annotation), (value,), {})
    assert str(caught.value).startswith("task 'task': ")
    assert reason in str(caught.value)


def test_the_greatest_allowed_depth_is_stored() -> None:
    value = nested(MAX_DEPTH)
    assert through_call(value, UNDECLARED) == value


def test_a_size_limit_counts_bytes_and_names_the_largest_argument() -> None:
    def task(small: str, large: str) -> None: ...

    signature = CallSignature(task)
    exact = len('[["a",""],{}]') + 2 * 10
    assert encode_call(signature, ("a", "é" * 10), {}, max_bytes=exact)
    with pytest.raises(PayloadError, match=r"argument 'large': the arguments take 34 bytes .* at most 33 "):
        encode_call(signature, ("aa", "é" * 10), {}, max_bytes=exact)


def test_a_zone_without_an_offset_is_refused_rather_than_forgotten() -> None:
    class Shapeless(tzinfo):
        def utcoffset(self, moment: datetime | None) -> None:
            return None

        def dst(self, moment: datetime | None) -> None:
            return None

        def tzname(self, moment: datetime | None) -> None:
            return None

    for value in (time(1, tzinfo=Shapeless()), datetime(2026, 5, 1, tzinfo=Shapeless())):
        with pytest.raises(PayloadError, match="whose zone gives no offset cannot be stored"):
            encode_call(UNDECLARED, (value,), {})


def test_an_error_of_a_type_s_own_function_is_a_refusal() -> None:
    class Broken:
        pass

    def fail(value: Broken) -> str:
        raise LookupError("no rate")

    register_type(Broken, fail, str, tag="test.broken")
    with pytest.raises(PayloadError, match="Broken could not be encoded: LookupError: no rate"):
        encode_call(UNDECLARED, (Broken(),), {})


# Results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "without_task"),
    [
        (Refund(1), {"number": 1}),
        (Point(1), {"x": 1, "at": None}),
        (Size.SMALL, "s"),
        (Parcel(1, datetime(2026, 5, 1, tzinfo=UTC)), None),
        (Customer(customerName="a", since=date(2026, 5, 1)), None),
        (collections.OrderedDict(a=1), {"a": 1}),
        ([Color.POINT], [(1, 2)]),
    ],
)
def test_a_result_of_a_class_can_be_read_with_the_class_and_without(value: Any, without_task: Any) -> None:
    text = encode_result(value)
    assert decode_result(text, type(value) if not isinstance(value, list) else list[Color]) == value
    if without_task is not None:
        assert decode_result(text) == without_task


def test_a_result_that_does_not_keep_to_its_annotation_comes_back_as_it_was_returned() -> None:
    assert decode_result(encode_result(None), int) is None
    assert decode_result(encode_result((1, "a")), list[int]) == (1, "a")
    assert decode_result(encode_result("2026-05-01"), int | None) == "2026-05-01"
    assert decode_result(encode_result(Refund(1)), Order | Parcel) == {"number": 1}
    assert decode_result(encode_result(Refund(1)), Order) == {"number": 1}


def test_a_result_whose_class_has_changed_is_an_error() -> None:
    stored = '[{"$evenflow":"as","t":"Refund","v":{"amount":1}}]'
    with pytest.raises(DecodeError, match=r"at \[0\].number: missing"):
        decode_result(stored, list[Refund])
    with pytest.raises(DecodeError, match=r"at \[0\].number: missing"):
        decode_result(stored, list[Order | Refund])
    assert decode_result(stored) == [{"amount": 1}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (NAN, "result: NaN cannot be stored"),
        ({"a": [INFINITY]}, "result at ['a'][0]: Infinity cannot be stored"),
        (Refund(NAN), "result at ['number']: NaN cannot be stored"),  # type: ignore[arg-type]
        ("\ud800", "result: text with a lone surrogate"),
        (Unlisted(), "result: values of type Unlisted cannot be stored"),
        (iter([]), "result: values of type list_iterator cannot be stored"),
        (nested(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels deep"),
        ("a" * DEFAULT_MAX_BYTES, f"at most {DEFAULT_MAX_BYTES} are kept"),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) and value.isascii() else type(value).__name__,
)
def test_a_result_that_cannot_be_stored_is_a_result_error(value: Any, reason: str) -> None:
    with pytest.raises(ResultError) as caught:
        encode_result(value)
    assert reason in str(caught.value)


def test_a_result_that_fails_while_it_is_read_is_a_result_error() -> None:
    class Sly(list[int]):
        def __iter__(self) -> typing.NoReturn:
            raise LookupError("gone")

    with pytest.raises(ResultError, match="result: could not be encoded: LookupError: gone"):
        encode_result(Sly())


# Reading what others wrote ----------------------------------------------------------------------------------

OWN_TAGS = "int tuple set frozenset dict as bytes datetime date time timedelta decimal uuid path"
TAGS = st.sampled_from([*OWN_TAGS.split(), "test.money", "test.later", "nothing"])
TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | FLOATS
    | TEXT
    | st.sampled_from(["2026-05-01", "1.5", "[", "0x"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXT, inner, max_size=4),
        st.builds(lambda tag, wire: {TAG: tag, "v": wire}, TAGS | inner, inner),
        st.builds(lambda name, wire: {TAG: "as", "t": name, "v": wire}, TEXT | inner, inner),
        st.builds(lambda name, wire: {TAG: "as", "t": name, "v": wire}, st.just("Order"), inner),
        st.builds(lambda key, value: {TAG: key, "number": value, "x": value}, TAGS, inner),
    ),
    max_leaves=15,
)


@settings(max_examples=examples(50), deadline=None)
@given(annotation=st.sampled_from([None, *DECLARED]), tree=TREES)
def test_foreign_trees_are_read_or_give_a_decode_error(annotation: Any, tree: Any) -> None:
    text = msgspec.json.encode([[tree], {}]).decode()
    for read in (
        lambda: decode_call(text, taking(annotation)),
        lambda: decode_call(text),
        lambda: decode_result(text, annotation),
        lambda: decode_result(msgspec.json.encode(tree).decode(), annotation),
    ):
        with contextlib.suppress(DecodeError):
            read()


@settings(max_examples=examples(40), deadline=None)
@given(text=TEXT | st.text('[]{},:"0123456789.eE+-truefalsn\\u$v', max_size=40) | st.text())
@example(text="[" * 100_000)
@example(text="[[1,2],{}")
@example(text="[[" + "9" * 5000 + "],{}]")
@example(text="[[1e999],{}]")
@example(text="\ud800")
@example(text="")
def test_garbage_gives_a_decode_error_and_nothing_else(text: str) -> None:
    try:
        args, kwargs = decode_call(text, UNDECLARED)
    except DecodeError:
        return
    assert len(args) + len(kwargs) == 1


@settings(max_examples=examples(50), deadline=None)
@given(value=ORDERS, data=st.data())
def test_a_damaged_payload_is_read_or_gives_a_decode_error(value: Order, data: st.DataObject) -> None:
    text = encode_call(taking(Order), (value,), {})
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:place] + data.draw(st.sampled_from(["", "x", '"', "}", "1"])) + text[place + 1 :]
    with contextlib.suppress(DecodeError):
        decode_call(damaged, taking(Order))


@pytest.mark.parametrize("stored", ["[]", "{}", "[[1],{},3]", "[1,2]", "[[1],[2]]", "null", "[{},[]]"])
def test_text_that_is_no_call_is_a_decode_error(stored: str) -> None:
    with pytest.raises(DecodeError, match="expected a list of positional arguments"):
        decode_call(stored, UNDECLARED)


@pytest.mark.parametrize(
    ("annotation", "stored", "reason"),
    [
        (int, '"1"', "task 'task': argument 'x': expected int, got str"),
        (datetime, '"yesterday"', "argument 'x': stored str cannot be read as datetime"),
        (
            datetime,
            '"2026-05-01T00:00:00+00:00[Moon/Base]"',
            "time zone 'Moon/Base' is not known on this machine",
        ),
        (time, '"12:00[../etc]"', "argument 'x': stored str cannot be read as time"),
        (Decimal, '"NaN"', "argument 'x': expected a finite decimal number"),
        (bytes, '"?"', "argument 'x': stored str cannot be read as bytes"),
        (Color, '"blue"', "argument 'x': Color has no member with the stored value"),
        (set[int], '{"$evenflow":"set","v":[[]]}', "argument 'x' at [0]: expected int, got list"),
        (None, '{"$evenflow":"set","v":[[]]}', "argument 'x': a stored set or dict holds an item"),
        (
            None,
            '{"$evenflow":"shop.gone","v":1}',
            "nothing is registered here for stored values of type 'shop.gone'",
        ),
        (Order, '{"number":1}', "argument 'x' at .placed: missing"),
        (Annotated[int, msgspec.Meta(gt=0)], "0", "argument 'x': Expected `int` >= 1"),
    ],
)
def test_a_stored_argument_that_does_not_fit_says_why(annotation: Any, stored: str, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_call(f"[[{stored}],{{}}]", taking(annotation))
    assert reason in str(caught.value)


# Registered types -------------------------------------------------------------------------------------------


def test_a_subclass_of_a_registered_class_is_stored_by_its_base() -> None:
    class Euro(Money):
        pass

    assert through_call(Euro(5), UNDECLARED) == Money(5)
    assert encode_call(taking(Money), (Money(5),), {}) == '[[{"$evenflow":"test.money","v":5}],{}]'


def test_a_class_registered_after_the_task_was_declared_is_stored() -> None:
    class Late:
        pass

    signature = taking(Late)
    with pytest.raises(PayloadError, match="values of type Late cannot be stored"):
        encode_call(signature, (Late(),), {})
    register_type(Late, lambda value: None, lambda stored: Late(), tag="test.late")
    assert isinstance(through_call(Late(), signature), Late)


def test_a_value_that_stands_in_is_taken_for_any_annotation() -> None:
    for annotation in DECLARED:
        args, _ = decode_call(encode_call(taking(annotation), (Later("a"),), {}), taking(annotation))
        assert isinstance(args[0], Later)
        assert args[0].step == "a"


def test_a_registered_value_stands_in_for_nothing_by_default() -> None:
    with pytest.raises(PayloadError, match="expected int, got Money"):
        encode_call(taking(int), (Money(1),), {})
    with pytest.raises(DecodeError, match="expected int, got Money"):
        decode_call('[[{"$evenflow":"test.money","v":5}],{}]', taking(int))


def test_a_registered_type_tells_that_its_row_is_gone() -> None:
    class Book:
        pass

    def fetch(key: int) -> Book:
        raise DeserializationError(f"Book {key} is gone")

    register_type(Book, lambda book: 7, fetch, tag="test.book")
    text = encode_call(taking(Book), (Book(),), {})
    with pytest.raises(DeserializationError, match="Book 7 is gone"):
        decode_call(text, taking(Book))


def test_another_error_of_a_registered_type_is_a_decode_error() -> None:
    class Page:
        pass

    register_type(Page, lambda page: "x", lambda stored: int(stored), tag="test.page")
    text = encode_call(taking(Page), (Page(),), {})
    with pytest.raises(
        DecodeError, match=r"argument 'x': a stored test.page could not be decoded: ValueError"
    ):
        decode_call(text, taking(Page))


@pytest.mark.parametrize(
    ("cls", "tag", "reason"),
    [
        (Unlisted, "Bad Tag", "expected a tag like 'shop.money', got 'Bad Tag'"),
        (Unlisted, "datetime", "the tag 'datetime' belongs to Evenflow"),
        (Unlisted, "test.money", "the tag 'test.money' already belongs to Money"),
        (Money, "test.other", "Money is already registered with the tag 'test.money'"),
        (dict, "test.dict", "dict is stored by Evenflow itself"),
    ],
)
def test_a_registration_that_would_be_ambiguous_is_refused(cls: type, tag: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        register_type(cls, str, str, tag=tag)
    assert reason in str(caught.value)


# Texts in columns of their own ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a\0b", "group: NUL (U+0000 at position 1) cannot be stored"),
        ("\ud800", "group: a lone surrogate (U+D800 at position 0)"),
        ("a\n", "group: a control character (U+000A at position 1)"),
        ("\x7f", "group: a control character (U+007F at position 0)"),
        ("\x85", "group: a control character (U+0085 at position 0)"),
        ("a" * 21, "group: expected at most 20 characters, got 21"),
        (7, "group: expected text, got int"),
    ],
)
def test_text_that_no_column_should_hold_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        check_text("group", value, 20)
    assert reason in str(caught.value)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
@example("a b\u00a0\u200d\u2028é")
def test_all_other_text_is_kept(value: str) -> None:
    assert check_text("group", value, 20) is value


# The package as a whole -------------------------------------------------------------------------------------


def test_an_annotation_that_cannot_be_hashed_still_has_a_shape() -> None:
    assert through_call(1, taking(Annotated[int, []])) == 1


@pytest.mark.parametrize("module", [each.name for each in pkgutil.iter_modules(evenflow.codec.__path__)])
def test_the_examples_in_the_docstrings_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"evenflow.codec.{module}")).failed == 0
