"""One step of a workflow that is being built, and its output: what stands for its result before there is one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from evenflow.client.options import When
from evenflow.client.task import AnyTask
from evenflow.job import NewJob

T_co = TypeVar("T_co", covariant=True)

OnError = Literal["fail", "pause"]
JoinRule = Literal["all", "any"] | int
Condition = str | Callable[..., Any]
NOT_SPREAD: Final = object()
"""What a step goes over that is no fan-out."""


class Steps(Protocol):
    """A workflow as another one sees it that has it as a step."""

    name: str
    steps: "list[Step[Any]]"

    @property
    def cases(self) -> list[list[str]] | None: ...
    @property
    def outputs(self) -> "list[Step[Any] | str] | None": ...
    def labelled_outputs(self, prefix: str) -> list[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Output(Generic[T_co]):
    """The result of a step, as an argument of another one: whoever takes it waits for the step."""

    step: "Step[T_co]"


@dataclass(slots=True, eq=False)
class Step(Generic[T_co]):
    """One step of a workflow that is being built. `step.output` stands for its result."""

    name: str
    task: AnyTask | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    after: tuple["Step[Any] | str", ...] = ()
    join: JoinRule = "all"
    allow_failed_deps: bool = False
    run_when: Condition | None = None
    skip_when: Condition | None = None
    call: NewJob | None = None
    over: Any = NOT_SPREAD
    needs: int | None = None
    sub: Steps | None = None
    good_until: When | None = None
    wrong: tuple[str, ...] = ()
    """Mistakes that were found when it was added; told with the others."""

    @property
    def output(self) -> Output[T_co]:
        """What the step returns, for use as an argument of another step."""
        return Output(self)

    @property
    def kind(self) -> str:
        return "sub" if self.sub is not None else "map" if self.over is not NOT_SPREAD else "job"

    def __repr__(self) -> str:
        return f"<Step {self.name}>"


def outputs_in(value: Any) -> Iterator[Output[Any]]:
    """All outputs inside of a value, at any depth of lists, tuples and dicts."""
    if isinstance(value, Output):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from outputs_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from outputs_in(each)
