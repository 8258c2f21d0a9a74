"""The command line. Each command is a module of this folder, imported when it is used; nothing below imports this."""

from evenflow.cli.program import main

__all__ = ["main"]
