"""The pytest plugin of Evenflow: the fixtures `evenflow_app` and `evenflow_testing`, and the mark `evenflow`.

Loaded by pytest itself in every project that has Evenflow installed, so it imports nothing of it before a test asks.
"""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evenflow import Evenflow
    from evenflow.testing import Kit

MARK = (
    'evenflow(mode="manual", url="sqlite:///:memory:", now=None): how `evenflow_testing` sets the app up; '
    'mode is "manual" or "inline"'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("evenflow_app", "the app for the fixture evenflow_app, as MODULE:APP", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def evenflow_app(request: pytest.FixtureRequest) -> "Evenflow":
    """The app under test: what `evenflow_app = MODULE:APP` in pytest's settings names. Or define a fixture of this name."""
    locator: str = request.config.getini("evenflow_app")
    module, _, name = locator.partition(":")
    if not module or not name:
        raise pytest.UsageError(
            f"evenflow_app: expected MODULE:APP, got {locator!r}; write it into pytest's settings (evenflow_app = "
            '"shop.tasks:app"), or define a fixture evenflow_app that returns the app'
        )
    app: Evenflow = getattr(importlib.import_module(module), name)
    return app


@pytest.fixture
def evenflow_testing(request: pytest.FixtureRequest, evenflow_app: "Evenflow") -> "Iterator[Kit]":
    """The testing kit of `evenflow_app`, in manual mode and on a database in memory unless the mark `evenflow` says else."""
    from evenflow.testing import inline, manual

    options: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("evenflow"))):  # the nearest one last
        options |= mark.kwargs
    modes = {"manual": manual, "inline": inline}
    mode = options.pop("mode", "manual")
    if mode not in modes:
        raise pytest.UsageError(f'evenflow: mode: expected "manual" or "inline", got {mode!r}')
    with modes[mode](evenflow_app, **options) as kit:
        yield kit
