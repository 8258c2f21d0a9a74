"""Named SQL statements, read from the twin files of an engine. SQL stays SQL: nothing is spliced, only names are bound.

A file holds units: `-- name: x`, then `-- mode: read` where nothing is written, `-- returns: columns`, the reason,
and one or more statements. The statements of a unit share its parameters and run in one transaction; the rows of all
that return any are its result. With `-- guarded: yes` the first rows are, and what stands behind them does not run. With
`-- counted: yes` there is one write, and behind it a question for the number of its rows, which a driver may know. With
`-- only here: why` it has no twin. The schema name `evenflow.` is replaced where an installation uses another one.

`-- leaves out: part, part of unit`, without statements, makes a smaller unit of one that stands before in the same file:
without what that one has between the lines `-- [part` and `-- part]`. A part may hold others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

Mode = Literal["read", "write", "wake"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_HEADER = re.compile(r"^-- (mode|returns|guarded|counted|only here): (.+)$", re.MULTILINE)
_LESS = re.compile(r"^-- leaves out: (\w+(?:, \w+)*) of (\w+)$", re.MULTILINE)
_TOKEN = re.compile(r"'(?:[^']|'')*'|(?<![:\w]):(\w+)")
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)
_FILES = (
    "enqueue",
    "advance",
    "leases",
    "control",
    "reads",
    "upkeep",
    "limits",
    "logs",
    "gates",
    "schedules",
    "bounds",
    "workflows",
    "durable",
    "spacing",
    "publishing",
    "statistics",
    "dashboard",
    "plain",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with `:name` parameters, and its text in each parameter style."""

    text: str
    parameters: tuple[str, ...] = field(init=False)
    pyformat: str = field(init=False)
    dollar: str = field(init=False)
    dollar_bytes: bytes = field(init=False)
    """`dollar` as it is sent, made once: drivers look statements up by it, and these are long."""

    def __post_init__(self) -> None:
        names = tuple(dict.fromkeys(found[1] for found in _TOKEN.finditer(self.text) if found[1]))
        object.__setattr__(self, "parameters", names)
        object.__setattr__(self, "pyformat", _bind(self.text.replace("%", "%%"), "%({})s"))
        places = {name: f"${place}" for place, name in enumerate(names, start=1)}
        object.__setattr__(self, "dollar", _TOKEN.sub(lambda t: places[t[1]] if t[1] else t[0], self.text))
        object.__setattr__(self, "dollar_bytes", self.dollar.encode())


@dataclass(frozen=True, slots=True)
class Unit:
    """A named operation of the database."""

    name: str
    mode: Mode
    returns: tuple[str, ...]
    statements: tuple[Statement, ...]
    is_guarded: bool = False
    is_counted: bool = False
    is_only_here: bool = False
    """Whether the other engine has none of this name."""
    is_one_statement: bool = field(init=False)
    """Whether it runs as one where the driver counts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_one_statement", self.is_counted or len(self.statements) == 1)

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(name for statement in self.statements for name in statement.parameters)


@cache
def load_units(kind: str, schema: str = "evenflow") -> dict[str, Unit]:
    """All units of one engine, by name."""
    units: dict[str, Unit] = {}
    for stem in _FILES:
        for unit in parse_units(read_sql(kind, f"{stem}.sql", schema)):
            if unit.name in units:
                raise ValueError(f"statement {unit.name!r} stands twice in the {kind} files")
            units[unit.name] = unit
    return units


def read_sql(kind: str, path: str, schema: str = "evenflow") -> str:
    """The text of one SQL file of an engine, for the given schema."""
    text = files("evenflow.store").joinpath("sql", kind, *path.split("/")).read_text("utf-8")
    return with_schema(text, schema) if kind == "postgres" else text


def with_schema(text: str, schema: str) -> str:
    """SQL written for the schema `evenflow`, for another one. The name was checked with the settings."""
    if schema == "evenflow":
        return text
    return re.sub(r"\bevenflow\.", f'"{schema}".', text).replace(
        "create schema if not exists evenflow", f'create schema if not exists "{schema}"'
    )


def parse_units(source: str) -> list[Unit]:
    """The units of one file, in its order."""
    pieces = _NAME.split(source)
    units: list[Unit] = []
    bodies: dict[str, str] = {}
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        bodies[name] = _without_parts(name, body, bodies)
        units.append(_unit(name, bodies[name]))
    return units


def split_statements(source: str) -> list[str]:
    """Statements of a script. A semicolon ends one at the end of a line, outside of `$$` bodies and comments."""
    statements, lines, in_body = [], [], False
    for line in _COMMENT.sub("", source).splitlines():
        lines.append(line)
        in_body ^= line.count("$$") % 2 == 1
        if not in_body and line.rstrip().endswith(";"):
            statements.append("\n".join(lines).strip().removesuffix(";"))
            lines = []
    rest = "\n".join(lines).strip()
    return [text for text in [*statements, rest] if text]


def _without_parts(name: str, body: str, before: Mapping[str, str]) -> str:
    """The body itself, or that of the unit of which it leaves something out."""
    if (said := _LESS.search(body)) is None:
        return body
    parts, whole = said.groups()
    if whole not in before:
        raise ValueError(f"statement {name!r}: {whole!r} does not stand before it")
    own = "".join(f"-- {key}: {value}\n" for key, value in _HEADER.findall(body))
    body = before[whole] + own
    for part in parts.split(", "):
        body, found = re.subn(rf"(?ms)^ *-- \[{part}\n.*?^ *-- {part}\]\n", "", body)
        if not found:
            raise ValueError(f"statement {name!r}: {whole!r} has no part {part!r}")
    return body


def _unit(name: str, body: str) -> Unit:
    header = dict(_HEADER.findall(body))
    mode = header.get("mode", "write")
    if mode not in ("read", "write", "wake"):
        raise ValueError(f"statement {name!r}: unknown mode {mode!r}")
    returns = tuple(column.strip() for column in header["returns"].split(","))
    statements = tuple(Statement(text) for text in split_statements(body))
    return Unit(
        name, mode, returns, statements, header.get("guarded") == "yes", header.get("counted") == "yes",
        "only here" in header,
    )  # fmt: skip


def _bind(text: str, form: str) -> str:
    return _TOKEN.sub(lambda token: form.format(token[1]) if token[1] else token[0], text)
