"""A Sphinx extension: the directive `commands` writes the reference of the command line from the program itself.

Reads click's own objects, so the page cannot differ from what `--help` says.
"""

import re
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from evenflow.cli.program import COMMANDS, main

PROGRAM = "evenflow"


class Commands(SphinxDirective):
    """`commands`: one section per command, in the order of the program's help."""

    def run(self) -> list[nodes.Node]:
        return [self._section(command, path) for command, path in all_commands()]

    def _section(self, command: click.Command, path: list[str]) -> nodes.Node:
        title = " ".join(path)
        section = nodes.section(ids=[nodes.make_id(title)], names=[title])
        section += nodes.title(text=title)
        context = _context(command, path)
        usage = f"{title} {' '.join(command.collect_usage_pieces(context))}"
        section += nodes.literal_block(usage, usage, language="text")
        section += [_text(part) for part in parts(command.help or "")]
        if rows := list(_rows(command, context)):
            section += _table(rows)
        self.state.document.note_implicit_target(section)
        return section


def all_commands() -> Iterator[tuple[click.Command, list[str]]]:
    """Every command with its path, those of groups after their group."""
    context = _context(main, [PROGRAM])
    for names in COMMANDS.values():
        for name in names:
            command = main.get_command(context, name)
            assert command is not None, name
            yield from _with_children(command, [PROGRAM, name])


def _with_children(command: click.Command, path: list[str]) -> Iterator[tuple[click.Command, list[str]]]:
    yield command, path
    if isinstance(command, click.Group):
        context = _context(command, path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from _with_children(child, [*path, name])


def parts(text: str) -> list[str]:
    """The paragraphs of a help text; those that begin with click's mark keep their lines."""
    return [part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip()]


def _text(part: str) -> nodes.Node:
    if "\b" in part:
        lines = "\n".join(line.strip() for line in part.replace("\b", "").strip().splitlines())
        return nodes.literal_block(lines, lines, language="text")
    return paragraph(" ".join(part.split()))


def paragraph(text: str) -> nodes.paragraph:
    """A paragraph in which `code` and bare --options are code."""
    node = nodes.paragraph()
    for part in re.split(r"(`[^`]+`|(?<!\S)--?[a-z][\w-]*)", text):
        is_code = part.startswith(("`", "-")) and len(part) > 1
        node += nodes.literal(text=part.strip("`")) if is_code else nodes.Text(part)
    return node


def _context(command: click.Command, path: list[str]) -> click.Context:
    return click.Context(command, info_name=" ".join(path), max_content_width=110)


def _rows(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and parameter.name not in ("help", "debug", "show_help"):
            yield record


def _table(rows: list[tuple[str, str]]) -> nodes.table:
    group = nodes.tgroup(cols=2)
    group += [nodes.colspec(colwidth=35), nodes.colspec(colwidth=65)]
    head = nodes.thead()
    head += _row(nodes.paragraph(text="option"), nodes.paragraph(text="meaning"))
    body = nodes.tbody()
    for names, text in rows:
        code = nodes.paragraph()
        code += nodes.literal(text=names)
        body += _row(code, paragraph(text))
    group += [head, body]
    table = nodes.table()
    table += group
    return table


def _row(*cells: nodes.Node) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += cell
        row += entry
    return row


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
