"""Names to objects: an explicit catalogue, plus entry points of other packages.

    make_selector("oort(explore=0.8)")      ->  Oort(explore=0.8)
    make_method("fedca(inner='fedprox')")   ->  FedCA(inner=FedProx())
    make_world_spec("dirichlet-0.1-v1(clients=20)")

Arguments are Python literals, read without evaluating anything. Unknown names are answered with the nearest.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedcohort.core import spec_string
from fedcohort.errors import BadParameter, FedcohortError, UnknownName
from fedcohort.protocols import Method, Selector
from fedcohort.registry.catalogue import ENTRIES, CatalogueEntry

if TYPE_CHECKING:
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

KINDS = ("selector", "method", "world", "task")


@cache
def entries(kind: str) -> dict[str, CatalogueEntry]:
    """Selectors or methods by name: the catalogue, then entry points in the groups fedcohort.selectors, .methods."""
    found = {e.name: e for e in ENTRIES if e.kind == kind}
    for point in entry_points(group=f"fedcohort.{kind}s"):
        found.setdefault(point.name, CatalogueEntry(kind, point.name, point.value, "third party", point.value))
    return found


def names(kind: str) -> list[str]:
    """All names of a kind: selector, method, world or task.

    >>> names("selector")[:3]
    ['uniform', 'proportional', 'round-robin']
    """
    if kind in ("selector", "method"):
        return list(entries(kind))
    if kind in ("world", "task"):
        found: list[str] = importlib.import_module(f"fedcohort.{kind}s.catalogue").names()
        return found
    raise UnknownName.among("kind", kind, KINDS)


def entry(kind: str, name: str) -> CatalogueEntry:
    """The catalogue entry of a selector or method.

    >>> entry("selector", "oort").paper
    'Lai et al. 2021'
    """
    try:
        return entries(kind)[name.replace("_", "-")]
    except KeyError:
        raise UnknownName.among(kind, name, entries(kind)) from None


def load(kind: str, name: str) -> type[Any]:
    """The class behind a name.

    >>> load("method", "fedavg").__name__
    'FedAvg'
    """
    module, _, attribute = entry(kind, name).target.partition(":")
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split "name(key=literal, ...)" into a name and keyword arguments; a text of another form is a BadParameter."""
    try:
        return spec_string.parse(text)
    except spec_string.SpecStringError as error:
        raise BadParameter(error.value, error.rule, error.remedy) from None


def make_selector(text: str) -> Selector:
    """A fresh selector from its text: a name of `fedcohort list selectors`, with arguments in brackets where wanted.

    >>> make_selector("oort(explore=0.8)").explore
    0.8
    >>> make_selector("ort")
    Traceback (most recent call last):
        ...
    fedcohort.errors.UnknownName: selector 'ort': there is no selector of this name; did you mean oort...
    """
    made: Selector = _make("selector", text)
    return made


def make_method(text: str) -> Method:
    """A fresh method from its text: a name of `fedcohort list methods`, with arguments in brackets where wanted.

    >>> make_method("fedprox(mu=0.1)").mu
    0.1
    """
    made: Method = _make("method", text)
    return made


def make_world_spec(text: str) -> WorldSpec:
    """The specification of a world of the catalogue, with overrides, or of your own in a .toml or .json file.

    >>> make_world_spec("dirichlet-0.1-v1(clients=20)").clients
    20
    """
    from fedcohort.worlds import catalogue

    if text.endswith((".toml", ".json")):
        return catalogue.load(text)
    name, arguments = parse(text)
    return catalogue.get(name, **arguments)


def make_task_spec(text: str) -> TaskSpec:
    """A task of the catalogue, with overrides.

    >>> make_task_spec("quadratic").name
    'quadratic'
    """
    from fedcohort.tasks import catalogue

    name, arguments = parse(text)
    return catalogue.get(name, **arguments)


def _make(kind: str, text: str) -> Any:
    name, arguments = parse(text)
    made = load(kind, name)
    known = parameters(made)
    for key in arguments:
        if key not in known:
            raise UnknownName.among(f"parameter of {name}", key, known)
    if isinstance(arguments.get("inner"), str):
        arguments["inner"] = _make(kind, arguments["inner"])
    return _call(name, made, arguments)


def _call(name: str, made: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return made(**arguments)
    except FedcohortError:
        raise
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        rule = "a value is of the wrong kind" if isinstance(error, TypeError) else str(error).rstrip(".")
        raise BadParameter(f"{name}({given})", rule, f"see the defaults in `fedcohort show {name}`") from None


def parameters(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The constructor's keyword parameters."""
    return {n: p for n, p in inspect.signature(made).parameters.items() if p.kind is not p.VAR_KEYWORD}
