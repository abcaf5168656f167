"""The text that makes an object of your own again: so a run folder can be resumed that was started with objects.

An object that came from a text keeps it. A selector or method is its class and the arguments of its constructor, where
they are kept under their names; a world is data. Anything else is "given:NAME", and must be given again to resume.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from fedcohort.errors import FedcohortError
from fedcohort.experiment import texts
from fedcohort.registry import lookup as registry
from fedcohort.registry import own_objects
from fedcohort.worlds import catalogue as worlds
from fedcohort.worlds.world_spec import WorldSpec

_PROSE = ("name", "about", "version")


def text_of(kind: str, made: Any) -> str:
    """A text from which an object like this is made; "given:NAME" where there is none.

    >>> from fedcohort.selectors import Oort
    >>> text_of("selector", Oort(explore=0.5))
    'oort(explore=0.5)'
    """
    found = own_objects.remembered(made)
    if found is None and kind == "world":
        found = _world_text(made)
    if kind in ("selector", "method"):
        found = found or _class_text(kind, made)
        found = found if found is not None and _alike(kind, found, made) else None
    label = str(getattr(made, "name", "") or type(made).__name__)
    return found or own_objects.GIVEN + "".join(c if c.isalnum() or c in "_." else "_" for c in label)


def _class_text(kind: str, made: Any) -> str | None:
    """Its class and the arguments of its constructor that are not the defaults."""
    cls = type(made)
    place = f"{cls.__module__}:{cls.__qualname__}"
    known = next((e.name for e in registry.entries(kind).values() if e.target == place), None)
    if known is None and (cls.__module__ == "__main__" or "<" in cls.__qualname__):
        return None
    arguments = {}
    for name, parameter in registry.parameters(cls).items():
        if not hasattr(made, name):
            if parameter.default is inspect.Parameter.empty:
                return None
            continue  # perhaps the default: `_alike` looks at everything that the object does keep
        value = getattr(made, name)
        if name == "inner" and not isinstance(value, str):
            value = text_of(kind, value)
            if value.startswith(own_objects.GIVEN):
                return None
        if parameter.default is inspect.Parameter.empty or not _equal(value, parameter.default):
            arguments[name] = value
    try:
        for name in list(arguments):  # a preset may have set what looks like an argument
            rest = {k: v for k, v in arguments.items() if k != name}
            arguments = rest if _alike(kind, texts.write(known or place, rest), made) else arguments
        return texts.write(known or place, arguments)
    except FedcohortError:
        return None


def _alike(kind: str, text: str, made: Any) -> bool:
    """Whether the text makes an object with the same numbers and words, in the same state: not one that has learned."""
    try:
        again = registry.make_selector(text) if kind == "selector" else registry.make_method(text)
        one, other = made.state_dict(), again.state_dict()
        plain = [k for k, v in vars(made).items() if v is None or isinstance(v, (bool, int, float, str, tuple))]
        same = all(hasattr(again, k) and _equal(getattr(made, k), getattr(again, k)) for k in plain)
        return same and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    except Exception:  # whatever an object of somebody's own raises: then it must be given again
        return False


def _equal(a: Any, b: Any) -> bool:
    try:
        first, second = np.asarray(a), np.asarray(b)
        nan = first.dtype.kind == second.dtype.kind == "f"
        return type(a) is type(b) and bool(np.array_equal(first, second, equal_nan=nan))
    except (TypeError, ValueError):
        return False


def _world_text(made: Any) -> str | None:
    """The name in the catalogue, or that of the even world with every difference."""
    if not isinstance(made, WorldSpec):
        return None
    plain = {k: v for k, v in made.to_dict().items() if k not in _PROSE}
    for name, known in worlds.WORLDS.items():
        if {k: v for k, v in known.to_dict().items() if k not in _PROSE} == plain:
            return name
    base = worlds.WORLDS["iid-v1"].to_dict()
    keys = ("partition", *(k for k in plain if k != "partition"))  # only natural partitions take clients = 0
    try:
        text = texts.write("iid-v1", {k: plain[k] for k in keys if plain[k] != base[k]})
        again = registry.make_world_spec(text).to_dict()
    except FedcohortError:
        return None
    return text if {k: v for k, v in again.items() if k not in _PROSE} == plain else None
