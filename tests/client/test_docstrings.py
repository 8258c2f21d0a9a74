"""Docstrings carry examples: those that can run do run."""

import doctest
import importlib
import pkgutil

import pytest

import evenflow
from tests.contrib.django import project

# Running it is what importing it does.
PROGRAMS = {"evenflow.__main__", "evenflow.worker.child"}
MODULES = sorted(
    {module.name for module in pkgutil.walk_packages(evenflow.__path__, "evenflow.")} - PROGRAMS
    | {"evenflow"}
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    if name.startswith("evenflow.contrib.django"):
        project.configure()  # models and commands can be imported only where Django is set up
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_the_client_s_examples_are_found() -> None:
    finder = doctest.DocTestFinder()
    examples = [test for name in ("evenflow.app", "evenflow.context", "evenflow.unique")
                for test in finder.find(importlib.import_module(name)) if test.examples]  # fmt: skip
    assert {test.name for test in examples} >= {
        "evenflow.app.Evenflow",
        "evenflow.context.Context",
        "evenflow.unique.Unique",
    }
