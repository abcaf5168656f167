"""The commands by name. A command's module is imported when the command is used, not to list it in the help."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedcohort.cli.command_help import helpful

# Name -> module and function; an `app` is a group of commands. In the order of the help.
COMMANDS = {
    "demo": ("demo_command", "demo"),
    "run": ("run_command", "run_command"),
    "resume": ("run_command", "resume_command"),
    "list": ("list_command", "list_command"),
    "show": ("list_command", "show_command"),
    "sweep": ("sweep_command", "sweep_command"),
    "compare": ("compare_command", "compare_command"),
    "report": ("report_command", "report_command"),
    "dashboard": ("dashboard_command", "dashboard_command"),
    "export": ("export_command", "export_command"),
    "reproduce": ("reproduce_command", "reproduce_command"),
    "verify": ("journal_command", "verify_command"),
    "skew": ("skew_command", "skew"),
    "advise": ("advise_command", "advise_command"),
    "arena": ("arena_command", "app"),
    "world": ("world_command", "app"),
    "data": ("data_command", "app"),
    "journal": ("journal_command", "app"),
    "flower": ("flower_command", "app"),
}


class CommandGroup(TyperGroup):
    """The root of all commands."""

    _listing = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "suggest_commands": False})  # click does so itself
        self.commands: Any = dict.fromkeys(COMMANDS)  # the names are what click looks at after a typing error

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; for the help only its name and its text."""
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=summary(*COMMANDS[cmd_name]), rich_markup_mode="rich")
        return loaded(cmd_name)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Names of commands and options, without importing a command."""
        self._listing = True
        try:
            found: list[Any] = super().shell_complete(ctx, incomplete)
            return found
        finally:
            self._listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the whole program."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def loaded(name: str) -> Any:
    """The command of this name, imported."""
    module, attribute = COMMANDS[name]
    found = getattr(importlib.import_module(f"fedcohort.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        alone.command(name)(found)
        found = alone
    found.rich_markup_mode, found._add_completion = "rich", False
    command = typer.main.get_command(found)
    command.name = name
    return helpful(command)


def summary(module: str, attribute: str) -> str:
    """What a command says of itself, read off its source: the text of a function, or the help of a group."""
    for node in ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node) or ""
        named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == attribute
        if named and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            return "".join(str(ast.literal_eval(k.value)) for k in node.value.keywords if k.arg == "help")
    return ""
