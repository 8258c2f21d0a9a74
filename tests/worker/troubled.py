"""A database that fails on purpose: each call of a pump may fail before it is carried out, or after, its answer lost."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import pytest

from evenflow.errors import StoreUnavailable
from evenflow.store.engine import Parameters, Row, Steps
from evenflow.worker.patience import Impatient

Fate = Literal["pass", "lost", "answer lost"]
T = TypeVar("T")


class Trouble:
    """Stands between pumps and their engine. `fate` decides about each call by the name of its (last) unit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.fate: Callable[[str], Fate] = lambda name: "pass"
        run, run_all, together = Impatient.run, Impatient.run_all, Impatient.together

        def run_or_fail(
            engine: Impatient, name: str, parameters: Parameters, *, deadline_s: float = 30.0
        ) -> list[Row]:
            return self._meet(name, lambda: run(engine, name, parameters, deadline_s=deadline_s))

        def run_all_or_fail(
            engine: Impatient, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
        ) -> list[list[Row]]:
            # A round with ends of steps goes out as a whole, the claim last.
            name = "advance" if units[0][0] == "finish_steps" else units[-1][0]
            return self._meet(name, lambda: run_all(engine, units, deadline_s=deadline_s))

        def together_or_fail(
            engine: Impatient, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0
        ) -> T:
            # A round that is made in turn is a round: what is asked for last writes its ends.
            name = "advance" if make_steps.__qualname__.startswith("_in_turn.") else "together"
            return self._meet(name, lambda: together(engine, make_steps, deadline_s=deadline_s))

        monkeypatch.setattr(Impatient, "together", together_or_fail)
        monkeypatch.setattr(Impatient, "run", run_or_fail)
        monkeypatch.setattr(Impatient, "run_all", run_all_or_fail)

    def once(self, name: str, fate: Fate, *, after: int = 0) -> threading.Event:
        """The next call of this unit, or one after so many, meets its fate; the event says that it has."""
        has_come = threading.Event()
        passed = 0

        def decide(called: str) -> Fate:
            nonlocal passed
            if called != name or has_come.is_set():
                return "pass"
            passed += 1
            if passed <= after:
                return "pass"
            has_come.set()
            return fate

        self.fate = decide
        return has_come

    def _meet(self, name: str, act: Callable[[], T]) -> T:
        for form in ("_plainly", "_onward", "_still"):  # one unit, in a smaller form where it can be
            name = name.removesuffix(form)
        name = name.removeprefix("plain_")
        self.calls[name] += 1
        fate = self.fate(name)
        if fate == "lost":
            raise StoreUnavailable(f"trouble: {name} was not carried out")
        answer = act()
        if fate == "answer lost":
            raise StoreUnavailable(f"trouble: the answer to {name} was lost")
        return answer
