"""Names to objects: an explicit catalogue, plus entry points of other packages.

    make_selector("oort(explore=0.8)")      ->  Oort(explore=0.8)
    make_method("fedca(inner='fedprox')")   ->  FedCA(inner=FedProx())
    make_world_spec("dirichlet-0.1-v1(clients=20)")
    make_selector("mymodule:MySelector(a=1)")           your own, imported from where Python finds it
    make_task_spec("csv:clinic.csv(target=ill, client=site)")

Arguments are Python literals, read without evaluating anything. Unknown names are answered with the nearest.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedcohort.core import spec_string
from fedcohort.errors import BadParameter, ConfigError, FedcohortError, RunWarning, UnknownName
from fedcohort.protocols import Method, Selector
from fedcohort.registry import own_objects
from fedcohort.registry.catalogue import ENTRIES, CatalogueEntry

if TYPE_CHECKING:
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

KINDS = ("selector", "method", "world", "task")
OTHER_NAMES = {  # what the literature also calls them; only errors know these
    "random": "uniform",
    "random-selection": "uniform",
    "pow-d": "power-of-choice",
    "poc": "power-of-choice",
    "active-fl": "afl",
    "thompson": "fedcm-ts",
    "thompson-sampling": "fedcm-ts",
    "fedcm": "fedcm-ucb",
    "rfa": "geometric-median",
    "fedopt": "fedadam",
    "fedasync": "fedbuff",
}


@cache
def entries(kind: str) -> dict[str, CatalogueEntry]:
    """What is found by name: the catalogue of selectors and methods, then what other packages bring.

    Those name it in their entry points, in the groups fedcohort.selectors, .methods, .worlds and .tasks.
    """
    found = {e.name: e for e in ENTRIES if e.kind == kind}
    for point in entry_points(group=f"fedcohort.{kind}s"):
        name = point.name.lower().replace("_", "-")
        found.setdefault(name, CatalogueEntry(kind, name, point.value, "third party", point.value))
    return found


def loaded(kind: str) -> Iterator[tuple[CatalogueEntry, Any]]:
    """Every entry with what is behind it; one that another package brings and that is broken is named and skipped."""
    for found in entries(kind).values():
        try:
            yield found, load(kind, found.name)
        except FedcohortError as error:
            warnings.warn(f"skipped: {error}", RunWarning, stacklevel=2)


def names(kind: str) -> list[str]:
    """All names of a kind: selector, method, world or task.

    >>> names("selector")[:3]
    ['uniform', 'proportional', 'round-robin']
    """
    if kind in ("selector", "method"):
        return list(entries(kind))
    if kind in ("world", "task"):
        found = importlib.import_module(f"fedcohort.{kind}s.catalogue").names()
        return [*found, *(name for name in entries(kind) if name not in found)]
    raise UnknownName.among("kind", kind, KINDS)


def entry(kind: str, name: str) -> CatalogueEntry:
    """The catalogue entry of a selector or method.

    >>> entry("selector", "oort").paper
    'Lai et al. 2021'
    """
    try:
        return entries(kind)[name.lower().replace("_", "-")]
    except KeyError:
        raise unknown(kind, name, entries(kind)) from None


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that there is not; one that is like no other may be meant as one's own.

    >>> print(unknown("selector", "Random", names("selector")))
    selector 'Random': there is no selector of this name; did you mean uniform.
    """
    known, folded = list(known), name.lower().replace("_", "-")
    found = UnknownName.among(kind, name, known)
    if OTHER_NAMES.get(folded) in known:
        return UnknownName(found.value, found.rule, f"did you mean {OTHER_NAMES[folded]}")
    for other in KINDS:
        if other != kind and folded in names(other):
            return UnknownName(
                found.value, f"this is a {other}", f"give it as the {other}; see `fedcohort list {kind}s`"
            )
    if difflib.get_close_matches(name, known, n=1, cutoff=0.7):
        return found
    near = found.remedy if found.remedy.startswith("did you mean") else f"see `fedcohort list {kind}s`"
    return UnknownName(found.value, found.rule, f"{near}, or name your own as module:NAME")


def load(kind: str, name: str) -> Any:
    """The class behind a name, or whatever "module:name" stands for.

    >>> load("method", "fedavg").__name__
    'FedAvg'
    """
    if ":" in name:
        return own_objects.imported(kind, name)
    found = entry(kind, name)
    if found.family != "third party":
        module, _, attribute = found.target.partition(":")
        return getattr(importlib.import_module(module), attribute)
    try:
        return own_objects.imported(kind, found.target)
    except FedcohortError as error:
        rule = f"the package that brings it is broken ({error.rule})"
        raise ConfigError(f"{kind} {name!r}, {found.target}", rule, "update or remove that package") from None


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split "name(key=literal, ...)" into a name and keyword arguments; a text of another form is a BadParameter.

    Names of the catalogue are not case-sensitive.
    """
    other = own_objects.meant(text)
    if other is not None:
        raise other
    try:
        name, arguments = spec_string.parse(text)
    except spec_string.SpecStringError as error:
        raise BadParameter(error.value, error.rule, error.remedy) from None
    return name if ":" in name else name.lower(), arguments


def make_selector(text: str) -> Selector:
    """A fresh selector from its text: a name of `fedcohort list selectors`, with arguments in brackets where wanted.

    >>> make_selector("oort(explore=0.8)").explore
    0.8
    >>> make_selector("ort")
    Traceback (most recent call last):
        ...
    fedcohort.errors.UnknownName: selector 'ort': there is no selector of this name; did you mean oort...
    """
    return own_objects.remember(text, own_objects.checked_selector(text, _make("selector", text)))


def make_method(text: str) -> Method:
    """A fresh method from its text: a name of `fedcohort list methods`, with arguments in brackets where wanted.

    >>> make_method("fedprox(mu=0.1)").mu
    0.1
    """
    return own_objects.remember(text, own_objects.checked_method(text, _make("method", text)))


def make_world_spec(text: str) -> WorldSpec:
    """The specification of a world of the catalogue, with overrides, or of your own in a .toml or .json file.

    >>> make_world_spec("dirichlet-0.1-v1(clients=20)").clients
    20
    """
    from fedcohort.worlds import catalogue

    if text.endswith((".toml", ".json")):
        return catalogue.load(text)
    name, arguments = parse(text)
    if ":" in name or (name in entries("world") and name not in catalogue.WORLDS):
        return own_objects.remember(text, own_objects.as_world(text, load("world", name), arguments))
    if name not in catalogue.WORLDS:
        raise unknown("world", name, names("world"))
    return own_objects.remember(text, catalogue.get(name, **arguments))


def make_task_spec(text: str) -> TaskSpec:
    """A task of the catalogue with overrides, one on a file (csv:FILE, npz:FILE, parquet:FILE), or module:factory.

    >>> make_task_spec("quadratic").name
    'quadratic'
    """
    from fedcohort.tasks import catalogue

    name, arguments = parse(text)
    if spec_string.file_of(name):
        from fedcohort.tasks.own_task import from_file

        return own_objects.remember(text, from_file(name, arguments))
    if ":" in name or (name in entries("task") and name not in catalogue.names()):
        return own_objects.remember(text, own_objects.as_task(text, load("task", name), arguments))
    if name not in catalogue.names():
        raise unknown("task", name, names("task"))
    return own_objects.remember(text, catalogue.get(name, **arguments))


def _make(kind: str, text: str) -> Any:
    name, arguments = parse(text)
    made = load(kind, name)
    own_objects.check_arguments(name, made, arguments)
    if isinstance(arguments.get("inner"), str):
        arguments["inner"] = _make(kind, arguments["inner"])
    return own_objects.call(name, made, arguments)


parameters = own_objects.parameters
