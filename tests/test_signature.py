"""A call is bound to the task's function at enqueue; every misfit is named with its task and argument."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.codec import CallSignature, decode_call, encode_call
from evenflow.errors import ConfigError, DecodeError, PayloadError

if TYPE_CHECKING:
    from elsewhere import Context as HiddenContext  # type: ignore[import-not-found]
    from elsewhere import Hidden


class Context:
    pass


class SpecialContext(Context):
    pass


def add(a: int, b: int) -> int:
    return a + b


def report(name: str, pages: int = 1, *, colour: bool = False, title: str | None = None) -> None: ...


def collect(first: int, *rest: int, **named: str) -> None: ...


def strict(a: int, /, b: int = 2) -> None: ...


def keyword_needed(a: int, *, b: int) -> None: ...


ADD, REPORT, COLLECT, STRICT = (CallSignature(each) for each in (add, report, collect, strict))
KEYWORD_NEEDED = CallSignature(keyword_needed)


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "bound"),
    [
        (ADD, (1, 2), {}, ((1, 2), {})),
        (ADD, (1,), {"b": 2}, ((1, 2), {})),
        (ADD, (), {"b": 2, "a": 1}, ((1, 2), {})),
        (REPORT, ("x",), {}, (("x",), {})),
        (REPORT, (), {"title": None, "name": "x", "colour": True}, (("x",), {"colour": True, "title": None})),
        (COLLECT, (1, 2, 3), {"a": "x"}, ((1, 2, 3), {"a": "x"})),
        (COLLECT, (), {"first": 1}, ((1,), {})),
        (STRICT, (1,), {"b": 3}, ((1, 3), {})),
        (KEYWORD_NEEDED, (1,), {"b": 3}, ((1,), {"b": 3})),
        (KEYWORD_NEEDED, (), {"b": 3, "a": 1}, ((1,), {"b": 3})),
    ],
)
def test_a_call_has_one_usual_form_however_it_was_written(
    signature: CallSignature, args: tuple[Any, ...], kwargs: dict[str, Any], bound: Any
) -> None:
    assert signature.bind(args, kwargs) == bound
    assert decode_call(encode_call(signature, args, kwargs), signature) == bound


def test_a_gap_left_to_its_default_stays_a_gap() -> None:
    def task(a: int, b: int = 2, c: int = 3) -> None: ...

    assert CallSignature(task).bind((1,), {"c": 5}) == ((1,), {"c": 5})


def test_a_keyword_may_have_the_name_of_a_positional_parameter_where_python_allows_it() -> None:
    def task(a: int, /, **named: int) -> None: ...

    signature = CallSignature(task)
    assert signature.bind((1,), {"a": 2}) == ((1,), {"a": 2})
    assert signature.arguments((1,), {"a": 2}) == {"a": 1, "named": {"a": 2}}


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "reason"),
    [
        (ADD, (1,), {}, "task 'add': argument 'b' is missing"),
        (ADD, (), {}, "task 'add': argument 'a' is missing"),
        (ADD, (1, 2, 3), {}, "task 'add': takes at most 2 positional arguments, got 3"),
        (ADD, (1, 2), {"a": 3}, "task 'add': argument 'a' is given twice"),
        (ADD, (1, 2), {"c": 3}, "task 'add': unknown argument 'c'; it takes a, b"),
        (ADD, (1,), {"c": 3}, "task 'add': unknown argument 'c'; it takes a, b"),
        (ADD, ("1", 2), {}, "task 'add': argument 'a': expected int, got str"),
        (ADD, (1,), {"b": 2.5}, "task 'add': argument 'b': expected int, got float"),
        (REPORT, ("x", None), {}, "task 'report': argument 'pages': expected int, got NoneType"),
        (REPORT, ("x",), {"colour": 1}, "task 'report': argument 'colour': expected bool, got int"),
        (COLLECT, (1, 2, "3"), {}, "task 'collect': argument '*rest': expected int, got str"),
        (COLLECT, (1,), {"a": 1}, "task 'collect': argument 'a': expected str, got int"),
        (STRICT, (), {"a": 1}, "task 'strict': argument 'a' can only be given by position"),
        (KEYWORD_NEEDED, (1,), {}, "task 'keyword_needed': argument 'b' is missing"),
        (KEYWORD_NEEDED, (1, 2), {}, "takes at most 1 positional arguments, got 2"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_name(
    signature: CallSignature, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    for act in (signature.bind, functools.partial(encode_call, signature)):
        with pytest.raises(PayloadError) as caught:
            act(args, kwargs)
        assert reason in str(caught.value)


def test_a_stored_call_of_an_older_function_is_a_decode_error() -> None:
    text = encode_call(REPORT, ("x", 2), {"title": "t"})
    with pytest.raises(DecodeError, match="task 'add': unknown argument 'title'; it takes a, b"):
        decode_call(text, ADD)
    with pytest.raises(DecodeError, match="task 'add': argument 'b' is missing"):
        decode_call("[[1],{}]", ADD)
    with pytest.raises(DecodeError, match="takes at most 2 positional arguments, got 3"):
        decode_call("[[1,2,3],{}]", ADD)


def test_arguments_are_bound_by_name_with_defaults() -> None:
    assert ADD.arguments((1, 2), {}) == {"a": 1, "b": 2}
    assert ADD.arguments((1,), {"b": 2}) == {"a": 1, "b": 2}
    expected = {"name": "x", "pages": 1, "colour": True, "title": None}
    assert REPORT.arguments(("x",), {"colour": True}) == expected
    assert COLLECT.arguments((1, 2), {"a": "b"}) == {"first": 1, "rest": (2,), "named": {"a": "b"}}
    with pytest.raises(PayloadError, match="argument 'b' is missing"):
        ADD.arguments((1,), {})


NAMES = ["a", "b", "c", "d"]


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., dict[str, Any]]:
    """Functions of every mix of parameter kinds; each gives its arguments by name."""
    names = iter(NAMES)
    positional = [next(names) for _ in range(draw(st.integers(0, 2)))]
    with_default = draw(st.integers(0, len(positional)))
    parts = [f"{name}=-1" if index >= with_default else name for index, name in enumerate(positional)]
    has_slash = draw(st.booleans())
    if parts and has_slash:
        parts.insert(draw(st.integers(1, len(parts))), "/")
    starred = draw(st.sampled_from(["", "*", "*rest"]))
    keywords = [next(names) + draw(st.sampled_from(["", "=-2"])) for _ in range(draw(st.integers(0, 2)))]
    parts += [starred] if starred == "*rest" or (starred and keywords) else []
    parts += keywords if starred else []
    parts += draw(st.sampled_from([[], ["**extra"]]))
    function: Callable[..., dict[str, Any]] = eval(f"lambda {', '.join(parts)}: dict(locals())")
    return function


@settings(deadline=None)
@given(
    task=functions(),
    args=st.lists(st.integers(), max_size=4),
    kwargs=st.dictionaries(st.sampled_from([*NAMES, "e"]), st.integers(), max_size=4),
)
def test_binding_agrees_with_python(
    task: Callable[..., dict[str, Any]], args: list[int], kwargs: dict[str, int]
) -> None:
    signature = CallSignature(task)
    try:
        expected = task(*args, **kwargs)
    except TypeError:
        with pytest.raises(PayloadError):
            signature.bind(args, kwargs)
        return
    placed, named = signature.bind(args, kwargs)
    assert task(*placed, **named) == expected
    assert signature.arguments(args, kwargs) == expected
    assert decode_call(encode_call(signature, args, kwargs), signature) == (placed, named)


# Reading annotations ----------------------------------------------------------------------------------------


def test_texts_as_annotations_are_resolved() -> None:
    def task(a: "int", b: "str | None" = None) -> "list[int]":
        return [a]

    signature = CallSignature(task)
    assert signature.return_annotation == list[int]
    with pytest.raises(PayloadError, match="argument 'a': expected int, got str"):
        signature.bind(("x",), {})


def test_an_annotation_that_is_hidden_at_run_time_leaves_the_others_in_force() -> None:
    def task(a: "Hidden", b: "int") -> "Hidden": ...

    signature = CallSignature(task)
    assert signature.bind((object.__name__, 1), {}) == (("object", 1), {})
    with pytest.raises(PayloadError, match="argument 'b': expected int, got str"):
        signature.bind((1, "x"), {})


def test_a_default_of_none_lets_none_in() -> None:
    def task(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert CallSignature(task).bind((None,), {}) == ((None,), {})
    with pytest.raises(PayloadError, match="argument 'a': expected int, got str"):
        CallSignature(task).bind(("x",), {})


def test_decorated_partial_and_callable_objects_are_read_through() -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    class Adder:
        def __call__(self, a: int) -> int:
            return a

        def method(self, a: int) -> int:
            return a

    @decorated
    def echo(a: int) -> int:
        return a

    for function in (echo, Adder().method, Adder(), functools.partial(add, b=2)):
        with pytest.raises(PayloadError, match="argument 'a': expected int, got str"):
            CallSignature(function).bind(("x",), {})


def test_something_without_readable_parameters_is_a_mistake_in_the_declaration() -> None:
    with pytest.raises(ConfigError, match="task 'odd': expected a function whose parameters can be read"):
        CallSignature(type, task="odd")


def test_the_registered_name_is_the_one_in_messages() -> None:
    with pytest.raises(PayloadError, match=r"task 'shop.add': argument 'a' is missing"):
        CallSignature(add, task="shop.add").bind((), {})


# The context ------------------------------------------------------------------------------------------------


def ctx_first(ctx: Context, a: int, b: int = 2) -> Any:
    return ctx, a, b


def ctx_between(a: int, ctx: Context, b: int = 2) -> Any:
    return ctx, a, b


def ctx_last(a: int, b: int = 2, ctx: Context | None = None) -> Any:
    return ctx, a, b


def ctx_keyword(a: int, b: int = 2, *, ctx: SpecialContext) -> Any:
    return ctx, a, b


def ctx_after_default(a: int, b: int = 2, ctx: Context = None, /) -> Any:  # type: ignore[assignment]
    return ctx, a, b


def ctx_text(a: int, ctx: "Context", b: int = 2) -> Any:
    return ctx, a, b


WITH_CONTEXT = [ctx_first, ctx_between, ctx_last, ctx_keyword, ctx_after_default, ctx_text]


BY_POSITION: list[Any] = [((1,), {}), ((1, 5), {})]
BY_NAME: list[Any] = [((1,), {"b": 5}), ((), {"b": 5, "a": 1})]
TAKING_NAMES = [each for each in WITH_CONTEXT if each is not ctx_after_default]


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        *[(each, *call) for each in WITH_CONTEXT for call in BY_POSITION],
        *[(each, *call) for each in TAKING_NAMES for call in BY_NAME],
    ],
)
def test_the_context_is_no_part_of_a_call_and_reaches_the_function(
    function: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    signature = CallSignature(function, context_type=Context)
    assert signature.names == ("a", "b")
    context = SpecialContext()
    stored = decode_call(encode_call(signature, args, kwargs), signature)
    placed, named = signature.inject(*stored, context)
    assert function(*placed, **named) == (context, 1, 5 if kwargs or len(args) == 2 else 2)


def test_the_context_stands_before_the_rest_of_the_positional_arguments() -> None:
    def task(a: int, ctx: Context, *rest: int) -> Any:
        return a, ctx, rest

    signature = CallSignature(task, context_type=Context)
    args, kwargs = signature.inject(*signature.bind((1, 2, 3), {}), "context")
    assert task(*args, **kwargs) == (1, "context", (2, 3))


def test_a_function_without_context_is_called_as_stored() -> None:
    assert CallSignature(add, context_type=Context).inject((1,), {"b": 2}, Context()) == ((1,), {"b": 2})
    assert CallSignature(add, context_type=Context).context is None


def test_a_context_is_not_taken_from_the_caller() -> None:
    signature = CallSignature(ctx_last, context_type=Context)
    with pytest.raises(PayloadError, match="argument 'ctx' is filled by the worker; leave it out"):
        signature.bind((1,), {"ctx": None})
    with pytest.raises(PayloadError, match="takes at most 2 positional arguments, got 3"):
        signature.bind((1, 2, None), {})


def test_a_context_imported_for_type_checkers_only_is_known_by_its_name() -> None:
    def task(a: int, ctx: "HiddenContext") -> None: ...

    task.__annotations__["ctx"] = "elsewhere.Context | None"
    signature = CallSignature(task, context_type=Context)
    assert signature.names == ("a",)
    assert signature.inject((1,), {}, "context") == ((1, "context"), {})


def test_two_contexts_or_a_starred_one_are_a_mistake_in_the_declaration() -> None:
    def two(a: Context, b: Context) -> None: ...

    def starred(*all: Context) -> None: ...

    with pytest.raises(ConfigError, match="task 'two': expected one Context parameter, got a, b"):
        CallSignature(two, context_type=Context)
    with pytest.raises(ConfigError, match=r"task 'starred': \*all: .*Context cannot be a Context"):
        CallSignature(starred, context_type=Context)
