"""What typer leaves to be done: descriptions of arguments in every help text, and names that the shell completes.

Since click 8.2 an argument has a `help` of its own, and setting it up erases what older versions of typer (flwr asks
for one) had stored there. So the descriptions are read from the annotations again.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from typer.models import ArgumentInfo

from fedcohort.signals import SIGNALS

KINDS = ("selector", "method", "world", "task")
LISTS = ("selectors", "methods", "worlds", "tasks", "signals", "runs")


def helpful(command: Any) -> Any:
    """The command and everything below it, with descriptions of arguments and with completion."""
    for inner in getattr(command, "commands", {}).values():
        helpful(inner)
    told = _descriptions(command.callback) if command.callback is not None else {}
    for parameter in command.params:
        if parameter.param_type_name == "argument" and not parameter.help:
            parameter.help = told.get(parameter.name)
        options = [option.lstrip("-") for option in parameter.opts]
        names = _completion(command.name, options)
        if names is not None:
            parameter.shell_complete = _completer(names)
    return command


def _descriptions(callback: Callable[..., Any]) -> dict[str, str | None]:
    hints = typing.get_type_hints(inspect.unwrap(callback), include_extras=True)
    return {
        name: note.help
        for name, hint in hints.items()
        for note in getattr(hint, "__metadata__", ())
        if isinstance(note, ArgumentInfo)
    }


def _completion(command: str | None, options: list[str]) -> Callable[[], Iterable[str]] | None:
    """What can stand there, read only when the shell asks."""
    for kind in KINDS:
        if kind in options or f"{kind}s" in options:
            return partial(_names, kind)
    if "metric" in options:
        return _metrics
    if "by" in options:
        return lambda: ("selector", "method")
    if command == "show" and "name" in options:
        return lambda: [*(n for kind in KINDS for n in _names(kind)), *SIGNALS, "config"]
    if command == "list" and "what" in options:
        return lambda: LISTS
    return None


def _names(kind: str) -> list[str]:
    from fedcohort.registry.lookup import names

    return names(kind)


def _metrics() -> Iterable[str]:
    from fedcohort.experiment.metrics.stored_metrics import METRICS

    return METRICS


def _completer(names: Callable[[], Iterable[str]]) -> Callable[[Any, str], list[Any]]:
    def complete(context: Any, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        wanted = incomplete.lower()
        return [CompletionItem(name) for name in names() if name.lower().startswith(wanted)]

    return complete
