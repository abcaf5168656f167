"""Sections of a world: frozen, checked parameters under a `kind`, to and from plain dictionaries.

A section is a dataclass whose fields are numbers, words, flags or tuples of numbers, each declared with what it accepts
(:mod:`fedcohort.core.constraints`). Values are checked when the object is made, so a section that exists can be built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedcohort.core import spec_string
from fedcohort.core.constraints import Declared, Entries, declared
from fedcohort.errors import BadParameter, UnknownName, check_fields

S = TypeVar("S", bound="Section")


@dataclass(frozen=True)
class Section:
    """Base of all sections."""

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        canonical_fields(self)
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Raise BadParameter where values do not fit each other; the base has no such rule."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the kind and every field."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"kind": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}}


def table(*kinds: type[S]) -> dict[str, type[S]]:
    """Kinds by name."""
    return {k.kind: k for k in kinds}


def from_dict(what: str, known: Mapping[str, type[S]], data: Mapping[str, Any]) -> S:
    """The section described by plain data. Unknown kinds and keys are refused with the nearest name."""
    kind = next(iter(known)) if len(known) == 1 else None  # a section of one kind need not name it
    if isinstance(data, Mapping):
        kind = data.get("kind", kind)
    if not isinstance(data, Mapping) or kind is None:
        raise BadParameter(f"{what} = {data!r}", "it must be a table with a `kind`", f"choose from {', '.join(known)}")
    if kind not in known:
        raise UnknownName.among(f"{what} kind", str(kind), known)
    names = {f.name for f in fields(known[kind])}
    for key in data:
        if key != "kind" and key not in names:
            raise UnknownName.among(f"parameter of {what} {kind!r}", str(key), names)
    return known[kind](**{k: v for k, v in data.items() if k != "kind"})


def from_text(what: str, known: Mapping[str, type[S]], text: str) -> S:
    """The section described by a kind, with its parameters in brackets where it has some; words need no quotes.

    A kind that reads a file takes its name alone: "given(fleet.csv)".
    """
    kind, bracket, inside = (part.strip() for part in text.partition("("))
    filed = [k for k, cls in known.items() if any(f.name == "path" for f in fields(cls))]
    if not bracket:
        if kind not in known and filed and Path(kind).suffix:
            raise UnknownName(f"{what} {text!r}", f"there is no {what} of this name", f"write {filed[0]}({text})")
        return from_dict(what, known, {"kind": kind})
    inside = inside.removesuffix(")").strip()
    if kind in filed and "=" not in inside:
        return from_dict(what, known, {"kind": kind, "path": inside.strip("'\"")})
    bare = re.sub(r"""\bpath\s*=\s*([^'",\s][^,]*)""", lambda m: f"path={m[1].strip()!r}", inside)
    try:
        found = spec_string.parse(f"{kind}({bare})")[1]
    except spec_string.SpecStringError:
        rule = "it must have the form kind(key=value, ...)"
        raise BadParameter(f"{what} = {text!r}", rule, f"write e.g. {next(iter(known))}") from None
    return from_dict(what, known, {"kind": kind, **found})


def canonical_fields(made: Any) -> None:
    """Give the values of a frozen dataclass the types of its declarations: 3.0 becomes 3 and 3 becomes 3.0 as needed.

    So specifications that mean the same are equal, however they were written. Values that do not fit stay as they are.
    """
    kind: Callable[..., Any] = type(made)
    for name, known in declared(kind).items():
        object.__setattr__(made, name, _canonical(known, getattr(made, name)))


def _canonical(known: Declared, value: Any) -> Any:
    if isinstance(known.constraint, Entries):
        given = value if isinstance(value, (tuple, list, np.ndarray)) else (value,)
        return tuple(_canonical(known.constraint.parts[0], entry) for entry in given)
    if isinstance(value, np.generic):
        value = value.item()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if known.kind is float and number:
        return float(value)
    return int(value) if known.kind is int and isinstance(value, float) and value.is_integer() else value
