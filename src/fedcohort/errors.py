"""Every error fedcohort raises on purpose, drawn as a tree.

::

    FedcohortError
    ├── ConfigError            what you asked for cannot be built       (also a ValueError)
    │   ├── UnknownName        no such selector, method, world, task, signal or key
    │   ├── BadParameter       a value outside its rule
    │   └── MissingExtra       an optional dependency is not installed
    ├── ContractError          a promise between two parts was broken
    │   ├── CohortError        a selector chose wrongly (twice, unavailable, too many)
    │   ├── UndeclaredSignal   a signal was read that `needs` does not name
    │   ├── MissingSignal      a declared signal that nobody here can provide
    │   ├── OutOfTurn          ask, tell and close in the wrong order
    │   └── StateMismatch      saved state of another shape, version or selector
    ├── DataError              a dataset is missing, damaged or of the wrong form
    ├── TrainingError          a model or a batch the engine cannot take
    └── StoreError             a run folder or a journal
        ├── RunExists          the folder already holds a run
        ├── RunLocked          another process owns the folder
        ├── JournalDamaged     the journal does not check out
        └── VersionMismatch    written by another version

Each message is one sentence in three parts: the value, the rule, the remedy.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from fedcohort.core.constraints import first_problem

P = ParamSpec("P")
R = TypeVar("R")
EXTRAS = {
    "flwr": "flower",
    "torch": "torch",
    "ray": "ray",
    "pyarrow": "parquet",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
}


class FedcohortError(Exception):
    """Base of all errors raised on purpose. `value`, `rule` and `remedy` make the message.

    >>> from fedcohort import make_selector
    >>> try:
    ...     make_selector("oort(explore=2)")
    ... except FedcohortError as error:
    ...     print(error.value, "|", error.rule, "|", error.remedy)
    explore = 2 | it must be between 0 and 1 | use e.g. ...
    """

    def __init__(self, value: str, rule: str, remedy: str) -> None:
        super().__init__(f"{value}: {rule}; {remedy}.")
        self.value, self.rule, self.remedy = value, rule, remedy

    def __reduce__(self) -> tuple[type[FedcohortError], tuple[str, str, str]]:
        return type(self), (self.value, self.rule, self.remedy)


class RunWarning(UserWarning):
    """A run works, but does not mean what it seems to: parts that do not fit, a model that diverged, lost replies."""


class ConfigError(FedcohortError, ValueError):
    """What was asked for cannot be built."""


class UnknownName(ConfigError):
    """No such name; the message offers the nearest ones."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        """Make the error for `name`, which is not among the `known` names of this kind."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        remedy = f"did you mean {' or '.join(near)}" if near else f"choose from {', '.join(names)}"
        remedy = remedy if names else "leave it out: there is none"
        return cls(f"{kind} {name!r}", f"there is no {kind} of this name", remedy)


class BadParameter(ConfigError):
    """A value outside its rule."""


class MissingExtra(ConfigError, ImportError):
    """An optional dependency is needed and not installed."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        """Say which extra `what` needs."""
        return cls(what, f"needs the extra {extra!r}", f"install it with: pip install 'fedcohort[{extra}]'")

    @classmethod
    def instead_of(cls, what: str, error: ModuleNotFoundError) -> Exception:
        """The error that names the extra which holds the missing module, or `error` itself where no extra does."""
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        return error if extra is None else cls.of(what, extra)


class ContractError(FedcohortError):
    """A promise between two parts of the program was broken."""


class CohortError(ContractError):
    """A selector chose a client twice, an unavailable one, or too many."""


class UndeclaredSignal(ContractError, KeyError):
    """A signal was read that the selector's `needs` does not name."""

    def __str__(self) -> str:
        return str(self.args[0])


class MissingSignal(ContractError):
    """A declared signal that this federation cannot provide."""


class OutOfTurn(ContractError):
    """ask, tell and close came in the wrong order."""


class StateMismatch(ContractError):
    """Saved state does not fit the object that should load it."""


class DataError(FedcohortError):
    """A dataset is missing, damaged, or of the wrong form."""


class TrainingError(FedcohortError):
    """A model or batch that the engine cannot take."""


class StoreError(FedcohortError):
    """A run folder or journal cannot be used."""


class RunExists(StoreError):
    """The folder already holds a run."""


class RunLocked(StoreError):
    """Another process owns the run folder."""


class JournalDamaged(StoreError):
    """The journal is truncated, altered, or not a journal."""


class VersionMismatch(StoreError):
    """The run folder was written by another version."""


def check(ok: bool, value: str, rule: str, remedy: str) -> None:
    """Raise :class:`BadParameter` unless `ok`.

    >>> check(3 > 5, "rounds = 3", "this study needs more than 5", "use e.g. 10")
    Traceback (most recent call last):
        ...
    fedcohort.errors.BadParameter: rounds = 3: this study needs more than 5; use e.g. 10.
    """
    if not ok:
        raise BadParameter(value, rule, remedy)


def shown(name: str, given: Any) -> str:
    """An argument as an error shows it, on one line.

    >>> shown("selector", [1, 2])
    'selector = [1, 2]'
    """
    return " ".join(f"{name} = {given!r}".split())[:120]


def check_object(name: str, given: Any) -> None:
    """Raise :class:`BadParameter` for a class where an object of it is meant.

    >>> check_object("selector", int)
    Traceback (most recent call last):
        ...
    fedcohort.errors.BadParameter: selector = <class 'int'>: this is a class; give an object of it, e.g. int().
    """
    made = f"give an object of it, e.g. {getattr(given, '__name__', '')}()"
    check(not isinstance(given, type), shown(name, given), "this is a class", made)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a constructor (or any function): arguments that break their declaration raise :class:`BadParameter`.

    >>> from fedcohort.core.constraints import Share
    >>> @checked
    ... def explore(share: Share = 0.1): ...
    >>> explore(2)
    Traceback (most recent call last):
        ...
    fedcohort.errors.BadParameter: share = 2: it must be between 0 and 1; use e.g. 0.1.
    """
    shape = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **keys: P.kwargs) -> R:
        problem = first_problem(function, shape.bind(*args, **keys).arguments)
        if problem is not None:
            raise BadParameter(*problem)
        return function(*args, **keys)

    return call


def check_fields(made: Any) -> None:
    """As :func:`checked`, for the fields of a dataclass; call it in `__post_init__`."""
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    problem = first_problem(type(made), fields)
    if problem is not None:
        raise BadParameter(*problem)
