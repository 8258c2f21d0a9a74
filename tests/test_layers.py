"""The folder is the layer: imports go one way, in no circle, and never from inside a function.

Reads the syntax tree of every module; imports nothing of the package. A new top-level module fails here until
it is given a layer.
"""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "evenflow"
FACADE = "evenflow"

LAYERS: dict[int, set[str]] = {
    0: {
        "checks",
        "clock",
        "codec",
        "conditions",
        "context",
        "database_url",
        "durable",
        "durations",
        "error_kinds",
        "environment",
        "errors",
        "events",
        "hooks",
        "ids",
        "job",
        "limits",
        "module_names",
        "queues",
        "schedule",
        "settings",
        "signing",
        "signals",
        "unique",
    },
    1: {"rules"},
    2: {"store"},
    3: {"client", "services"},
    4: {"worker"},
    5: {"app", "metrics", "tracing"},  # client and worker under one name; what an app shows of itself
    6: {"__init__"},  # what users import: it gathers names from below, and only the edges may use it
    7: {"cli", "web", "contrib", "testing", "demo", "__main__"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
# Above the values, two folders of one layer do not know each other; these may, because one shows the other.
SIDEWAYS = {("cli", "web"), ("cli", "demo"), ("__main__", "cli"), ("contrib", "cli")}
# Who may import it at all, where that is fewer than its layer allows: everybody else has the face of the package.
ONLY_FOR = {"app": {"__init__", "cli"}}

IMPURE = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
IMPURE_CALLS = {
    "now", "utcnow", "today", "monotonic", "time_ns", "uuid1", "uuid4", "open", "print", "input",
    "read_text", "read_bytes", "write_text", "write_bytes",
}  # fmt: skip
DRIVERS = {"sqlite3", "psycopg", "psycopg_pool", "psycopg2", "asyncpg"}
DRIVER_HOMES = {"store", "contrib"}
OPTIONAL = {
    "asyncpg", "django", "django_tasks", "jinja2", "opentelemetry", "pebble", "prometheus_client", "psycopg",
    "psycopg2", "psycopg_pool", "pydantic", "rich", "sentry_sdk", "sqlalchemy", "sse_starlette", "starlette",
    "textual", "uvicorn", "uvloop",
}  # fmt: skip
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {"os.system", "os.popen", "builtins.eval", "builtins.exec"}


def part_of(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


@dataclass(frozen=True)
class Module:
    """One parsed source file; `name` is dotted and starts with `evenflow`."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def part(self) -> str:
        """The top-level module or folder below the package, `__init__` for the package itself."""
        return part_of(self.name)


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, and whether the statement stands inside a function."""

    target: str
    line: int
    is_in_function: bool


def parsed(path: Path) -> Module:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), ast.parse(path.read_text()), is_package)


@functools.cache
def modules() -> dict[str, Module]:
    """By name. Not at import: every test process would read the whole package to collect its tests."""
    return {module.name: module for module in map(parsed, sorted(PACKAGE.rglob("*.py")))}


def offences(look: Callable[[Module], Iterable[object]]) -> dict[str, list[object]]:
    """Module -> what a look finds in it, for those in which it finds anything."""
    found = {name: list(look(module)) for name, module in modules().items()}
    return {name: each for name, each in found.items() if each}


def test_every_module_has_a_layer() -> None:
    unknown = {module.part for module in modules().values()} - set(LAYER_OF)
    assert unknown == set(), f"give them a layer in {Path(__file__).name}"


def test_imports_go_down() -> None:
    assert offences(upward_imports) == {}


def test_only_optional_packages_are_imported_inside_functions() -> None:
    assert offences(hidden_imports) == {}


def test_nothing_unpickles_evaluates_or_calls_a_shell() -> None:
    assert offences(dangerous_code) == {}


def test_rules_are_pure() -> None:
    assert any(module.part == "rules" for module in modules().values())
    assert offences(lambda module: impure_code(module) if module.part == "rules" else ()) == {}


def test_database_drivers_stay_in_the_store_and_at_the_edges() -> None:
    def drivers(module: Module) -> list[str]:
        used = [entry.target for entry in imports_of(module) if entry.target.split(".")[0] in DRIVERS]
        return [] if module.part in DRIVER_HOMES else used

    assert offences(drivers) == {}


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: direct_dependencies(module) for name, module in modules().items()}
    assert find_cycle(graph) is None


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("evenflow.rules.fair", "from evenflow.store import engine"),
        ("evenflow.rules.fair", "def f():\n    import evenflow.client.app"),
        ("evenflow.store.engine", "from evenflow import Evenflow"),
        ("evenflow.store.engine", "from evenflow import worker"),
        ("evenflow.store.engine", "from ..worker import pump"),
        ("evenflow.services.pruner", "from evenflow.client.app import Evenflow"),
        ("evenflow.web.app", "from evenflow.cli import main"),
        ("evenflow.client.app", "from evenflow.app import Evenflow"),
        ("evenflow.worker.child", "from evenflow.app import Evenflow"),
        ("evenflow.web.pages", "from evenflow.app import Evenflow"),
        ("evenflow.contrib.django", "import evenflow.app"),
        ("evenflow.app", "from evenflow import Job"),
        ("evenflow.errors", "if TYPE_CHECKING:\n    from evenflow.rules import retry"),
    ],
)
def test_the_checker_sees_an_import_that_goes_up_or_sideways(importer: str, source: str) -> None:
    assert list(upward_imports(Module(importer, ast.parse(source))))


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("evenflow.store.engine", "from evenflow.errors import EvenflowError\nimport sqlite3"),
        ("evenflow.store.engine", "from . import statements\nfrom .statements import read"),
        ("evenflow.cli.main", "from evenflow.web import serve\nfrom evenflow import Evenflow"),
        ("evenflow", "from evenflow.app import Evenflow\nfrom evenflow.client.handle import Job"),
        ("evenflow.cli.worker", "from evenflow.app import Evenflow"),
        ("evenflow.web.pages", "from evenflow import Evenflow"),
        (
            "evenflow.app",
            "from evenflow.client.app import Client\nfrom evenflow.worker.local import LocalWorker",
        ),
    ],
)
def test_the_checker_lets_a_downward_import_pass(importer: str, source: str) -> None:
    assert list(upward_imports(Module(importer, ast.parse(source)))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "run(x, shell=True)",
        "os.system('ls')",
        "exec(a)",
    ],
)
def test_the_checker_sees_dangerous_code(source: str) -> None:
    assert list(dangerous_code(Module("evenflow.job", ast.parse(source))))


@pytest.mark.parametrize(
    "source",
    ["import random", "from time import time", "datetime.now(UTC)", "print(1)"],
)
def test_the_checker_sees_an_impure_rule(source: str) -> None:
    assert list(impure_code(Module("evenflow.rules.fair", ast.parse(source))))


def test_the_checker_sees_a_hidden_import() -> None:
    hidden = ast.parse("def f():\n    import json\n    import psycopg\n    from . import job")
    found = [line.split(":")[0] for line in hidden_imports(Module("evenflow.codec.wire", hidden))]
    assert found == ["json", "evenflow.codec"]


def test_the_checker_finds_a_circle() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def imports_of(module: Module) -> Iterator[Import]:
    """Every import with its absolute target; `from package import module` yields `package.module`."""
    for node, is_in_function in walk_with_functions(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_in_function)
        elif isinstance(node, ast.ImportFrom):
            yield from imports_from(module, node, is_in_function)


def imports_from(module: Module, node: ast.ImportFrom, is_in_function: bool) -> Iterator[Import]:
    base = absolute_base(module, node)
    submodules = [f"{base}.{alias.name}" for alias in node.names if is_submodule(base, alias.name)]
    # `from evenflow import worker` needs the folder, not the face of the package
    targets = submodules if len(submodules) == len(node.names) else [base, *submodules]
    for target in targets:
        yield Import(target, node.lineno, is_in_function)


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_submodule(base: str, name: str) -> bool:
    return f"{base}.{name}" in modules() or (base == FACADE and name in LAYER_OF)


def walk_with_functions(tree: ast.AST, is_in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(tree):
        yield child, is_in_function
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk_with_functions(child, is_in_function or is_function)


def upward_imports(module: Module) -> Iterator[str]:
    for entry in imports_of(module):
        if entry.target.split(".")[0] != FACADE:
            continue
        target = part_of(entry.target)
        if not may_import(module.part, target):
            yield f"line {entry.line}: {module.name} ({module.part}) must not import {entry.target}"


def may_import(importer: str, target: str) -> bool:
    if importer == target or (importer, target) in SIDEWAYS:
        return True
    if importer not in ONLY_FOR.get(target, {importer}):
        return False
    above, below = LAYER_OF.get(importer, -1), LAYER_OF.get(target, len(LAYERS))
    return below < above or above == below == 0


def hidden_imports(module: Module) -> Iterator[str]:
    for entry in imports_of(module):
        if entry.is_in_function and entry.target.split(".")[0] not in OPTIONAL:
            yield f"{entry.target}: imported inside a function at line {entry.line}"


def dangerous_code(module: Module) -> Iterator[str]:
    for entry in imports_of(module):
        if entry.target.split(".")[0] in FORBIDDEN_IMPORTS:
            yield f"line {entry.line}: imports {entry.target}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and is_dangerous_call(node):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def is_dangerous_call(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_BUILTINS:
        return True
    if ast.unparse(node.func) in FORBIDDEN_CALLS:
        return True
    return any(keyword.arg == "shell" and not is_false(keyword.value) for keyword in node.keywords)


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def impure_code(module: Module) -> Iterator[str]:
    for entry in imports_of(module):
        if entry.target.split(".")[0] in IMPURE:
            yield f"line {entry.line}: a rule must not import {entry.target}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and called_name(node) in IMPURE_CALLS:
            yield f"line {node.lineno}: a rule must not call {ast.unparse(node.func)}"


def called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def direct_dependencies(module: Module) -> set[str]:
    targets = {entry.target for entry in imports_of(module)}
    return {target for target in targets if target in modules() and target != module.name}


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """A path that ends where it started, or None."""
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return None
        for following in sorted(graph.get(name, ())):
            if found := visit(following, [*path, name]):
                return found
        finished.add(name)
        return None

    return next((found for name in sorted(graph) if (found := visit(name, []))), None)
