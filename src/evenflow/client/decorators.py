"""What the decorators of an app are to a type checker: which task comes of which function. Nothing here runs."""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from evenflow.client.task import Task
from evenflow.context import Context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Unasked:
    """For type checkers alone. No function asks for one, so whose first parameter takes it takes anything: that is no
    Context, and its calls go unchecked rather than be held to a signature without their first argument."""


class Declare:
    """What `@app.task(...)` with options is to a type checker; never instantiated."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Unasked, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Unasked, P], T], /) -> Task[..., T, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    def __call__(self, function: Any, /) -> Any:
        return function


class DeclareRecurring:
    """What `@app.recurring(...)` is to a type checker; never instantiated."""

    @overload
    def __call__(self, function: Task[P, R, T], /) -> Task[P, R, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(
        self, function: Callable[Concatenate[Unasked, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Unasked, P], T], /) -> Task[..., T, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    def __call__(self, function: Any, /) -> Any:
        return function
