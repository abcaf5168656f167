"""The parameters of a class: meaning and the paper's symbol from its docstring, default and range from its signature.

A docstring describes them under "Args:", one line `name: meaning [symbol].` each; what a class does not describe is
looked up in the classes that it extends.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any

from fedcohort.core.constraints import Declared, declared
from fedcohort.registry.lookup import parameters

_LINE = re.compile(r"(\w+(?:, \w+)*): (.*)")
_SYMBOL = re.compile(r"\s*\[([^\[\]]+)\](?=[.;,]?$|[.;,] )")


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One line of the table."""

    name: str
    default: str
    range: str
    symbol: str
    meaning: str


def parameter_rows(made: Any) -> list[ParameterRow]:
    """Every keyword of a constructor, or of a function that makes something.

    >>> from fedcohort.selectors import Oort
    >>> row = parameter_rows(Oort)[1]
    >>> row.name, row.default, row.range, row.symbol, row.meaning
    ('explore', '0.9', 'between 0 and 1', 'eps', 'share of the cohort for never-tried clients, at first.')
    """
    constructor: Any = made.__init__ if inspect.isclass(made) else made
    known, told = declared(constructor), described(made)
    out = []
    for name, parameter in parameters(made).items():
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        meaning = told.get(name, "")
        symbol = _SYMBOL.search(meaning)
        accepted = range_words(known[name]) if name in known else ""
        out.append(
            ParameterRow(name, default, accepted, symbol[1] if symbol else "", _SYMBOL.sub("", meaning, count=1))
        )
    return out


def described(made: Any) -> dict[str, str]:
    """Parameter -> what the docstrings of the class and of those it extends say about it."""
    out: dict[str, str] = {}
    for each in reversed(made.__mro__ if isinstance(made, type) else (made,)):
        text = inspect.cleandoc(each.__doc__ or "")
        _, there, section = text.partition("\nArgs:\n")
        found: list[list[str]] = []
        for line in section.splitlines() if there else ():
            if not line.startswith("    "):
                break
            begins = _LINE.fullmatch(line.strip()) if not line.startswith("     ") else None
            if begins:
                found.append([begins[1], begins[2]])
            elif found:
                found[-1][1] += f" {line.strip()}"
        out |= {name: meaning for names, meaning in found for name in names.split(", ")}
    return out


def range_words(what: Declared) -> str:
    """What a parameter accepts, short enough for a table."""
    rule = what.rule().removeprefix("it must be ").removeprefix("it must ").removeprefix("one of ")
    rule = "" if rule == "it may be anything" else rule
    return f"{rule}, or None" if what.none and rule else rule


def world_rows(spec: Any) -> list[tuple[str, str, str, str]]:
    """(name, value, range, part) of everything that can be changed in a world."""
    out = []
    kind: Any = type(spec)
    whole = declared(kind)
    for name, value in vars(spec).items():
        made: Any = type(value)
        own = declared(made) if is_dataclass(value) else {}
        if not own and name in ("clients", "allocation"):
            out.append((name, repr(value), range_words(whole[name]), ""))
        part = f"{name}: {getattr(value, 'kind', '')}"
        out += [(key, repr(getattr(value, key)), range_words(rule), part) for key, rule in own.items()]
    return out


def task_rows(spec: Any, options: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """(name, value, range, meaning) of all that can be changed in a task; no value where only the model knows it."""
    from fedcohort.tasks.catalogue import MEANINGS, check_plan

    kind: Any = type(spec)
    known, plan = declared(kind), declared(check_plan)
    out = []
    for name in options:
        holder = spec.default if hasattr(spec.default, name) and name not in known else spec
        value = repr(getattr(holder, name)) if hasattr(holder, name) else ""
        rule = known.get(name, plan.get(name))
        out.append((name, value, "" if rule is None else range_words(rule), MEANINGS[name]))
    return out


def prose(made: type[Any]) -> str:
    """What a class says about itself, without its example and without marks for other programs."""
    text = inspect.cleandoc(made.__doc__ or "").partition("\n>>>")[0]
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", " ".join(text.split()))
