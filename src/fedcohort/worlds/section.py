"""Sections of a world: frozen, checked parameters under a `kind`, to and from plain dictionaries.

A section is a dataclass whose fields are numbers, words, flags or tuples of numbers. Values are checked when the
object is made, so a section that exists is a section that can be built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedcohort.errors import BadParameter, UnknownName, check

S = TypeVar("S", bound="Section")


@dataclass(frozen=True)
class Section:
    """Base of all sections."""

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, coerce(f.name, str(f.type), getattr(self, f.name)))
        self.check()

    def check(self) -> None:
        """Raise BadParameter where the values break a rule; the base has none."""

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
        raise BadParameter(f"{what}={data!r}", "must be a table with a `kind`", f"choose from {', '.join(known)}")
    if kind not in known:
        raise UnknownName.among(f"{what} kind", str(kind), known)
    names = {f.name for f in fields(known[kind])}
    for key in data:
        if key != "kind" and key not in names:
            raise UnknownName.among(f"parameter of {what} {kind!r}", str(key), names)
    return known[kind](**{k: v for k, v in data.items() if k != "kind"})


def coerce(name: str, annotation: str, value: Any) -> Any:
    """The value in the type that the annotation names, or BadParameter."""
    kind, _, rest = annotation.partition(" | ")
    if value is None and rest == "None":
        return None
    if kind == "tuple[float, ...]" and isinstance(value, (tuple, list, np.ndarray)):
        return tuple(coerce(name, "float", v) for v in value)
    if kind == "tuple[float, ...]":
        return (coerce(name, "float", value),)
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))
    if kind == "float" and number and math.isfinite(value):
        return float(value)
    if kind == "int" and number and math.isfinite(value) and int(value) == value:
        return int(value)
    if kind == "bool" and isinstance(value, (bool, np.bool_)):
        return bool(value)
    if kind == "str" and isinstance(value, str):
        return value
    wanted = {"float": "a finite number", "int": "a whole number", "bool": "true or false", "str": "a word"}
    raise BadParameter(f"{name}={value!r}", f"must be {wanted[kind]}", f"change {name}")


def positive(name: str, value: float) -> None:
    """Refuse zero and below."""
    check(value > 0, f"{name}={value:g}", "must be greater than 0", f"raise {name}")


def share(name: str, value: float) -> None:
    """Refuse what is not a share between 0 and 1."""
    check(0.0 <= value <= 1.0, f"{name}={value:g}", "must be a share between 0 and 1", f"change {name}")


def at_least(name: str, value: float, least: float) -> None:
    """Refuse values below a bound."""
    check(value >= least, f"{name}={value:g}", f"must be at least {least:g}", f"raise {name}")


def among(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse words that are not in the list, with the nearest one."""
    if value not in known:
        raise UnknownName.among(name, value, known)
