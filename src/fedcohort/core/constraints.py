"""What a constructor accepts, declared once in its signature and checked in one style.

::

    @checked                                                      # fedcohort.errors.checked
    def __init__(self, *, share: Share = 0.1, rounds: Count = 5, mode: Annotated[str, Choice("a", "b")] = "a")

A plain `int`, `float`, `bool` or `str` is checked for its kind; `X | None` accepts None; the entries of `tuple[X, ...]`
and `tuple[X, Y]` are checked one by one; anything else is let through.
The answer to a bad value has three parts: the value, the rule, the remedy.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from typing import Annotated, Any

import numpy as np

KINDS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: ((int, np.integer), "a whole number"),
    float: ((int, float, np.integer, np.floating), "a number"),
    str: ((str,), "a text"),
}


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`. `ends` is "[]", "(]", "[)" or "()": a round bracket leaves its end out.

    >>> Interval(0, 1, ends="(]").rule()
    'it must be between 0 and 1 (0 is not allowed)'
    """

    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"
    example: Any = None  # what the remedy proposes, where the default is not a good answer

    def holds(self, value: Any) -> bool:
        """Whether the value lies inside; NaN never does."""
        above = value > self.low if self.ends[0] == "(" else value >= self.low
        return bool(above and (value < self.high if self.ends[1] == ")" else value <= self.high))

    def rule(self) -> str:
        """The rule as part of a sentence."""
        low, high = _number(self.low), _number(self.high)
        if math.isinf(self.low) and math.isinf(self.high):
            return "it must be finite" if self.ends == "()" else "it must be a number"
        if math.isinf(self.high):
            finite = " and finite" if self.ends[1] == ")" else ""
            if self.low == 0 and self.ends[0] == "(":
                return f"it must be positive{finite}"
            return f"it must be {'more than' if self.ends[0] == '(' else 'at least'} {low}{finite}"
        if math.isinf(self.low):
            return f"it must be {'less than' if self.ends[1] == ')' else 'at most'} {high}"
        left = ["", f"{low} is not allowed"][self.ends[0] == "("]
        right = ["", f"{high} is not allowed"][self.ends[1] == ")"]
        but = " and ".join(part for part in (left, right) if part)
        return f"it must be between {low} and {high}" + (f" ({but})" if but else "")


class Choice:
    """One of a few values. With `counted="sample"`, also the text "sample:k" for a whole number k from 1.

    >>> Choice("all", counted="sample").holds("sample:20"), Choice("all").holds("none")
    (True, False)
    """

    __slots__ = ("counted", "example", "options")

    def __init__(self, *options: Any, counted: str = "") -> None:
        self.options, self.counted, self.example = options, counted, None

    def holds(self, value: Any) -> bool:
        """Whether it is one of them."""
        if self.counted and isinstance(value, str) and counted(value, self.counted):
            return True
        return any(value == option and isinstance(value, type(option)) for option in self.options)

    def rule(self) -> str:
        """The rule as part of a sentence."""
        words = ", ".join(str(o) for o in self.options)
        return f"it must be one of {words}" + (f" or {self.counted}:k with k at least 1" if self.counted else "")


def counted(text: str, word: str) -> int:
    """k of "word:k", or 0 for any other text."""
    head, _, tail = text.partition(":")
    return int(tail) if head == word and tail.isascii() and tail.isdigit() else 0


class Either:
    """A number in an interval, or one of a few words.

    >>> Either(Interval(0, ends="()"), Choice("auto")).rule()
    "it must be positive and finite, or 'auto'"
    """

    __slots__ = ("choice", "example", "interval")

    def __init__(self, interval: Interval, choice: Choice) -> None:
        self.interval, self.choice, self.example = interval, choice, interval.example

    def holds(self, value: Any) -> bool:
        """Whether one of the two holds."""
        if isinstance(value, str):
            return self.choice.holds(value)
        return isinstance(value, KINDS[float][0]) and not isinstance(value, bool) and self.interval.holds(value)

    def rule(self) -> str:
        """The rule as part of a sentence."""
        words = " or ".join(repr(o) for o in self.choice.options)
        return f"{self.interval.rule()}, or {words}"


class Entries:
    """A tuple or list: of any length, all alike, for `tuple[X, ...]`; otherwise one entry per part."""

    __slots__ = ("any_length", "example", "parts")

    def __init__(self, parts: tuple[Declared, ...], any_length: bool) -> None:
        self.parts, self.any_length, self.example = parts, any_length, None

    def holds(self, value: Any) -> bool:
        """Whether every entry is accepted."""
        if not isinstance(value, (tuple, list)) or not (self.any_length or len(value) == len(self.parts)):
            return False
        parts = self.parts * len(value) if self.any_length else self.parts
        return all(part.problem("", entry) is None for part, entry in zip(parts, value, strict=True))

    def rule(self) -> str:
        """The rule as part of a sentence."""
        if self.any_length:
            return self.parts[0].rule().replace("it must", "every entry must", 1)
        each = [part.rule().replace("it must", f"entry {k + 1} must", 1) for k, part in enumerate(self.parts)]
        return f"it must have {len(each)} entries: {', '.join(each)}"


@dataclass(frozen=True, slots=True)
class Text:
    """Any text. `example` is what the remedy proposes, where the default is empty."""

    example: str

    def holds(self, value: Any) -> bool:
        """Whether it is a text."""
        return isinstance(value, str)

    def rule(self) -> str:
        """The rule as part of a sentence."""
        return f"it must be {KINDS[str][1]}"


Constraint = Interval | Choice | Either | Entries | Text
Finite = Annotated[float, Interval(ends="()")]
Share = Annotated[float, Interval(0, 1)]
Factor = Annotated[float, Interval(0, 1, ends="(]")]  # a share or a decay of which 0 makes no sense
Positive = Annotated[float, Interval(0, ends="()")]
NotNegative = Annotated[float, Interval(0, ends="[)")]
Count = Annotated[int, Interval(1)]
CountOrZero = Annotated[int, Interval(0)]
Moderate = Annotated[float, Interval(0, 1e9)]  # a weight that can be squared and summed up
ModerateCount = Annotated[int, Interval(1, 1_000_000)]  # rounds or steps that are gone through one by one
Problem = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Declared:
    """What one parameter accepts."""

    kind: type | None  # of KINDS; None: not checked
    none: bool
    constraint: Constraint | None
    default: Any

    def problem(self, name: str, value: Any) -> Problem | None:
        """Value, rule and remedy, or None when the value is fine."""
        if value is None and (self.none or (self.kind is None and self.constraint is None)):
            return None
        shown = f"{name} = {value!r}"[:200]
        if self.kind is not None:
            accepted, words = KINDS[self.kind]
            if not isinstance(value, accepted) or (isinstance(value, (bool, np.bool_)) and self.kind is not bool):
                return shown, f"it must be {words}", self.remedy()
        if self.constraint is not None and not self.constraint.holds(value):
            return shown, self.constraint.rule(), self.remedy()
        return None

    def rule(self) -> str:
        """The rule as part of a sentence."""
        if self.constraint is not None:
            return self.constraint.rule()
        return "it may be anything" if self.kind is None else f"it must be {KINDS[self.kind][1]}"

    def remedy(self) -> str:
        """Something that would be accepted."""
        example = self.constraint.example if self.constraint is not None else None
        if example is None and self.default is not Parameter.empty:
            example = self.default
        if example is None and isinstance(self.constraint, Choice):
            example = self.constraint.options[0]
        if example is None and isinstance(self.constraint, Interval) and math.isfinite(self.constraint.low):
            example = _number(self.constraint.low + (self.constraint.ends[0] == "("))
        return "leave it out" if example is None or example == "" else f"use e.g. {example}"


@cache
def declared(function: Callable[..., Any]) -> Mapping[str, Declared]:
    """What each annotated parameter of a function (or field of a dataclass) accepts."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in signature(function).parameters.items():
        if name in hints:
            found[name] = _declared(hints[name], parameter.default)
    return found


def first_problem(function: Callable[..., Any], values: Mapping[str, Any]) -> Problem | None:
    """The first of these values that its declaration refuses."""
    known = declared(function)
    for name, value in values.items():
        problem = known[name].problem(name, value) if name in known else None
        if problem is not None:
            return problem
    return None


def _declared(hint: Any, default: Any) -> Declared:
    none, constraint = False, None
    parts = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        none = len(parts) < len(typing.get_args(hint))
    if len(parts) == 1 and typing.get_origin(parts[0]) is Annotated:
        base, *extras = typing.get_args(parts[0])
        constraint = next((e for e in extras if isinstance(e, Constraint)), None)
        inner = _declared(base, default)
        return Declared(inner.kind, none or inner.none, constraint, default)
    if len(parts) == 1 and typing.get_origin(parts[0]) is tuple:
        entries = [part for part in typing.get_args(parts[0]) if part is not ...]
        each = tuple(_declared(part, Parameter.empty) for part in entries)
        return Declared(None, none, Entries(each, len(entries) < len(typing.get_args(parts[0]))), default)
    kind = parts[0] if len(parts) == 1 and isinstance(parts[0], type) and parts[0] in KINDS else None
    return Declared(kind, none, constraint, default)


def _number(value: float) -> str:
    return f"{value:g}" if not float(value).is_integer() or abs(value) >= 1e15 else str(int(value))
