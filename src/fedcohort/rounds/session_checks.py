"""What a session checks: the selector it is given, what it is asked with, the cohort, and the result it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedcohort import signals as catalogue
from fedcohort.errors import (
    BadParameter,
    CohortError,
    ContractError,
    MissingSignal,
    OutOfTurn,
    check,
    check_object,
    shown,
)
from fedcohort.protocols import Frugal, Selector
from fedcohort.types import Arrays, Cohort, Index, Outcome, Round, RoundResult, Signals


def check_selector(selector: Any) -> None:
    """Refuse what cannot be a selector: a name, a class, an object without its members."""
    given = shown("selector", selector)
    name = f"write make_selector({selector!r})"
    check(not isinstance(selector, str), given, "a session takes a selector, not its name", name)
    check_object("selector", selector)
    lacking = [name for name in ("needs", "select", "observe") if not hasattr(selector, name)]
    check(not lacking, given, f"it lacks {', '.join(lacking)}", "inherit from fedcohort.StatefulSelector")
    needs = selector.needs
    check(
        isinstance(needs, frozenset | set),
        f"needs = {needs!r} of {type(selector).__name__}",
        "it must be a frozenset with the names of signals",
        "write e.g. needs = frozenset({'train_loss'})",
    )


def check_needs(selector: Selector, provides: frozenset[str] | None, level: int) -> None:
    """Every signal that the selector reads can be had, up to this privacy level."""
    privacy = {signal: catalogue.get(signal).privacy for signal in sorted(selector.needs)}
    missing = selector.needs - provides if provides is not None else frozenset()
    refused = [signal for signal in privacy if privacy[signal] > level or signal in missing]
    if not refused:
        return
    name, first, less = type(selector).__name__, refused[0], _reading_less(selector, refused)
    if privacy[first] > level:
        raise MissingSignal(
            f"selector {name} reads {first!r} (privacy P{privacy[first]})",
            f"at most P{level} is allowed here",
            f"{less}allow it with max_privacy='P{privacy[first]}' or choose another selector",
        )
    raise MissingSignal(
        f"selector {name} reads {first!r}",
        "nobody provides this signal here",
        f"{less}choose another task or selector",
    )


def _reading_less(selector: Selector, refused: list[str]) -> str:
    """The arguments with which none of these signals is read, as the beginning of a remedy, where there are such."""
    known = selector.does_without if isinstance(selector, Frugal) else {}
    needed = dict.fromkeys(known[signal] for signal in refused) if set(refused) <= set(known) else {}
    return f"use {', '.join(needed)}, or " if needed else ""


def slots_of(slots: ArrayLike, what: str = "available") -> Index:
    """Slots as they were given, or the reason why they are none."""
    given = np.asarray(slots)
    whole = given.ndim == 1 and (given.size == 0 or given.dtype.kind in "iu")
    check(whole, f"{what} of {given.dtype}{given.shape}", "it must be a list of slots", "give whole numbers from 0")
    return given.astype(np.int64)


def ask_size(size: Any) -> int:
    """How many are wanted, as it was given for one round."""
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0
    check(bool(whole), f"size = {size!r}", "it must be a whole number of clients", "use 0 or more")
    return int(size)


def profile_columns(profiles: Mapping[str, ArrayLike] | None, population: int, available: Index) -> Arrays:
    """Profiles as arrays of known signals, one row per slot, and numbers for whoever can be asked."""
    columns = {}
    for name, given in (profiles or {}).items():
        column, side = np.asarray(given), catalogue.get(name).side
        check(side == "profile", f"profile {name!r}", f"this is a signal of side {side}", "give it with the result")
        check(
            column.ndim >= 1 and len(column) >= population,
            f"profile {name!r} of shape {column.shape}",
            f"one row per slot is needed, and there are {population}",
            "give a row for every slot, or pass the population",
        )
        check(column.dtype.kind in "iufb", f"profile {name!r} of {column.dtype}", "it must be numbers", "convert it")
        known = np.isfinite(column)
        bad = available[:0] if known.all() else available[~known.all(axis=tuple(range(1, known.ndim)))[available]]
        check(
            bad.size == 0,
            f"profile {name!r} of slot {bad[0] if bad.size else ''}",
            "it must be a finite number for every client that is available",
            "fill it in, or leave the client out of available",
        )
        columns[name] = column
    return columns


def checked_cohort(cohort: Any, rnd: Round, name: str) -> Cohort:
    """The cohort with clean types, or the reason why it breaks the contract."""
    if not isinstance(cohort, Cohort):
        what = "nothing" if cohort is None else f"{type(cohort).__name__} {cohort!r}"[:80]
        raise CohortError(f"{name}.select returned {what}", "it must return a Cohort", "write: return Cohort(clients)")
    clients = np.asarray(cohort.clients)
    if clients.ndim != 1 or (clients.size and clients.dtype.kind not in "iu"):
        raise CohortError(
            f"{name} chose {clients.dtype}{clients.shape}", "a cohort is a list of slots", "return integers"
        )
    clients = clients.astype(np.int64)
    if np.unique(clients).size != clients.size:
        raise CohortError(f"{name} chose {clients[:20]}", "each client at most once", "draw without replacement")
    if not np.isin(clients, rnd.available).all():
        raise CohortError(f"{name} chose {clients[:20]}", "only available clients", "choose from round.available")
    if clients.size > rnd.size:
        raise CohortError(f"{name} chose {clients.size} clients", f"at most {rnd.size} were asked for", "choose fewer")
    columns = {
        **cohort.directives,
        **cohort.why,
        **({} if cohort.inclusion is None else {"inclusion": cohort.inclusion}),
    }
    for key, value in columns.items():
        if np.shape(value)[:1] != clients.shape:
            raise CohortError(
                f"{name}'s column {key!r}", "it needs one entry per chosen client", "align it with clients"
            )
    return Cohort(clients, cohort.directives, cohort.inclusion, cohort.why)


def result_arrays(result: Any) -> RoundResult:
    """The result with arrays where lists were given, and signals where a mapping was."""
    if not isinstance(result, RoundResult):
        raise ContractError(
            f"tell({type(result).__name__})", "it must be a RoundResult", "write RoundResult(index, clients, ...)"
        )
    signals = result.signals.columns() if isinstance(result.signals, Signals) else dict(result.signals)
    return replace(
        result,
        clients=slots_of(result.clients, "clients"),
        outcome=np.asarray(result.outcome),
        duration=np.asarray(result.duration),
        signals=Signals({name: np.asarray(column) for name, column in signals.items()}),
    )


def check_result(result: RoundResult, index: int, out: Index, *, all_of_them: bool) -> None:
    """One row for everybody who was dispatched."""
    if result.index != index:
        raise OutOfTurn(f"result of round {result.index}", f"round {index} is open", "tell the rounds in order")
    rows = result.clients.size
    once = np.unique(result.clients).size == rows and bool(np.isin(result.clients, out).all())
    if not once or (all_of_them and rows != out.size):
        raise ContractError(
            f"{rows} rows for {out.size} dispatched clients",
            "one row for each of them, whatever its outcome" + ("" if all_of_them else ", when it has ended"),
            "add them" if once else "leave out whoever was not dispatched or was told before",
        )
    if result.outcome.shape != (rows,) or result.duration.shape != (rows,):
        raise ContractError("outcome or duration", "one entry per dispatched client", "align them with clients")
    if not np.isin(result.outcome, list(Outcome)).all():
        raise BadParameter("an outcome", "it must be one of the five", "use fedcohort.types.Outcome")
    if not (np.isfinite(result.duration) & (np.asarray(result.duration) >= 0)).all():
        raise BadParameter("a duration", "it must be finite and not negative", "measure it at the server")
    for name, column in result.signals.columns().items():
        if np.shape(column)[:1] != (rows,):
            raise ContractError(f"signal {name!r}", "one row per dispatched client", "align it with clients")
