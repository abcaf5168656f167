"""Who is out: one row per client that was dispatched and has not been told yet, and what its reply holds.

Rows are plain columns, so that they can be cut, joined and stored. In synchronous rounds all rows belong to one cohort
and leave together; in asynchronous ones they may be of many cohorts and leave when their part has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.columns import part, prefixed
from fedcohort.rounds.backend import Arrivals
from fedcohort.rounds.validation import Limits, validate
from fedcohort.types import Array, Arrays, Cohort, Index, Mask, Outcome, Plan, Real, Updates

OUT = -1  # the outcome of a client that is still at work
SIGNAL, EXTRA = "signal.", "extra."
_OPTIONAL = ("buffers", "counters")


@dataclass(frozen=True, slots=True)
class Landed:
    """Clients whose part has ended, in the order in which they were asked; `updates` in ascending client order."""

    cohort: Cohort
    outcome: NDArray[np.int8]
    seconds: NDArray[np.float64]
    updates: Updates
    signals: Arrays  # one row per client of the cohort, NaN where nobody reported
    reasons: dict[int, str]
    version: Index  # of the model that each row of `updates` was computed on
    lr: NDArray[np.float64]


@dataclass(slots=True)
class Outstanding:
    """Columns over those that are out, and the accepted replies that wait to be aggregated."""

    rows: Arrays = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    replies: list[tuple[Updates, Arrays]] = field(default_factory=list)

    def __len__(self) -> int:
        return int(self.rows["client"].size) if self.rows else 0

    @property
    def clients(self) -> Index:
        """Everybody that is out."""
        return self.rows["client"] if self.rows else np.empty(0, np.int64)

    @property
    def running(self) -> Mask:
        """Rows of those that are still at work."""
        return np.equal(self.rows["outcome"], OUT) if self.rows else np.empty(0, np.bool_)

    @property
    def accepted(self) -> int:
        """Accepted replies that wait to be aggregated."""
        return sum(len(updates) for updates, _ in self.replies)

    def depart(self, cohort: Cohort, plan: Plan, clock: float, version: int) -> None:
        """Add a cohort that is sent out now."""
        m = cohort.clients.size
        blank = np.full(m, np.nan)
        inclusion = blank if cohort.inclusion is None else np.asarray(cohort.inclusion, np.float64)
        new: Arrays = {
            "client": cohort.clients,
            "version": np.full(m, version, np.int64),
            "departed": np.full(m, clock),
            "outcome": np.full(m, OUT, np.int8),
            "seconds": blank,
            "lr": plan.lr_of(m),
            "multiplicity": np.asarray(cohort.directives.get("multiplicity", np.ones(m)), np.int64),
            "inclusion": inclusion,
        }
        self.rows = joined(self.rows, new)

    def take(self, arrivals: Arrivals, limits: Limits, sent: Real | None = None) -> Counter[str]:
        """Every reply on its own: accepted, or refused with a reason. The reasons of all that was refused."""
        refused: Counter[str] = Counter()
        at, fresh = self._places(arrivals.clients, refused)
        outcome, clients = arrivals.outcome.copy(), arrivals.clients
        replied = np.flatnonzero(outcome == Outcome.OK)
        verdict = validate(arrivals.updates, arrivals.signals, limits, sent)
        good = verdict.accepted & fresh[replied]
        outcome[replied[~verdict.accepted]] = Outcome.REJECTED
        reasons = {**arrivals.reasons, **verdict.reasons}
        for row in np.flatnonzero(fresh):
            client = int(clients[row])
            if client in reasons and outcome[row] != Outcome.OK:
                self.reasons[client] = reasons[client]
                refused[reasons[client].partition(":")[0]] += 1
        if fresh.any():
            self.rows["outcome"][at[fresh]] = outcome[fresh]
            self.rows["seconds"][at[fresh]] = arrivals.seconds[fresh]
        if good.any():
            columns = {n: np.asarray(c) for n, c in arrivals.signals.items()}
            self.replies.append((arrivals.updates, columns))
            if not good.all():
                self.replies[-1] = _rows(arrivals.updates, columns, np.flatnonzero(good))
        return refused

    def _places(self, clients: Index, refused: Counter[str]) -> tuple[Index, Mask]:
        """Row of each client, and whether it is out; whoever was not asked or has answered before is refused."""
        known = self.rows["client"] if self.rows else np.empty(0, np.int64)
        order = np.argsort(known, kind="stable")
        at = np.searchsorted(known, clients, sorter=order)
        found = at < known.size
        at = order[np.where(found, at, 0)] if known.size else np.zeros(clients.size, np.int64)
        found &= known[at] == clients if known.size else False
        first = np.zeros(clients.size, np.bool_)
        first[np.unique(clients, return_index=True)[1]] = True
        waiting = found & (self.rows["outcome"][at] == OUT) if known.size else found
        refused["not-asked"] += int((~found).sum())
        refused["duplicate"] += int((found & ~(waiting & first)).sum())
        return at, waiting & first

    def reject(self, reasons: Mapping[int, str]) -> None:
        """These accepted replies are refused after all."""
        if not reasons:
            return
        out = np.array(sorted(reasons), np.int64)
        self.rows["outcome"][np.isin(self.rows["client"], out)] = Outcome.REJECTED
        self.reasons.update(reasons)
        self.replies = [_without(updates, columns, out) for updates, columns in self.replies]

    def expire(self, at: Mask, seconds: NDArray[np.float64]) -> Index:
        """Nobody waits for these rows any more: they are late. The clients."""
        if self.rows:
            self.rows["outcome"][at], self.rows["seconds"][at] = Outcome.LATE, seconds[at]
        return self.clients[at]

    def fail(self, reasons: Mapping[int, str]) -> None:
        """These late clients are known to be lost."""
        if reasons:
            lost = np.isin(self.rows["client"], np.array(sorted(reasons), np.int64))
            self.rows["outcome"][lost] = Outcome.FAILED
            self.reasons.update(reasons)

    def land(self, here: Mask, params: int) -> Landed:
        """Take these rows out, with their replies."""
        if not self.rows:
            self.depart(Cohort(np.empty(0, np.int64)), Plan(), 0.0, 0)
        landed = {name: column[here] for name, column in self.rows.items()}
        self.rows = {name: column[~here] for name, column in self.rows.items()} if not here.all() else {}
        clients: Index = landed["client"]
        updates, columns = self._replies_of(clients, params)
        order = np.argsort(clients, kind="stable")
        at = order[np.searchsorted(clients, updates.clients, sorter=order)]
        directives = {"multiplicity": landed["multiplicity"]} if (landed["multiplicity"] != 1).any() else {}
        inclusion = landed["inclusion"] if np.isfinite(landed["inclusion"]).all() else None
        return Landed(
            cohort=Cohort(clients, directives, inclusion),
            outcome=landed["outcome"],
            seconds=landed["seconds"],
            updates=updates,
            signals={n: scattered(c, at, clients.size) for n, c in columns.items()},
            reasons={int(c): self.reasons.pop(int(c)) for c in clients if int(c) in self.reasons},
            version=landed["version"][at],
            lr=landed["lr"],
        )

    def _replies_of(self, clients: Index, params: int) -> tuple[Updates, Arrays]:
        """The replies of these clients in ascending order; those of others stay."""
        if len(self.replies) == 1:
            updates, columns = self.replies[0]
        else:
            table = self._table(params)
            updates, columns = replies_from(table)
        here = np.isin(updates.clients, clients)
        rest = np.flatnonzero(~here)
        self.replies = [_rows(updates, columns, rest)] if rest.size else []
        rows = np.flatnonzero(here)
        return _rows(updates, columns, rows[np.argsort(updates.clients[rows], kind="stable")])

    def waiting(self, params: int) -> Updates:
        """The accepted replies as one matrix."""
        return _updates(self._table(params))

    def _table(self, params: int) -> Arrays:
        """All waiting replies as one table."""
        table: Arrays = {}
        for updates, columns in self.replies:
            table = joined(table, reply_table(updates, columns))
        if not table:
            table = {"client": np.empty(0, np.int64), "delta": np.empty((0, params), np.float32)}
            table |= {"weight": np.empty(0), "steps": np.empty(0, np.int64)}
        return table

    def state_dict(self, params: int) -> Arrays:
        """Everything as arrays; the reasons belong to the record's text."""
        if not self.rows:
            return {}
        return {**{f"row.{n}": c for n, c in self.rows.items()}, **prefixed("reply.", self._table(params))}

    def load_state_dict(self, arrays: Mapping[str, Array], reasons: Mapping[int, str]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.rows = {n: np.array(c) for n, c in part(arrays, "row.").items()}
        table = {n: np.array(c) for n, c in part(arrays, "reply.").items()}
        self.replies = [replies_from(table)] if table and table["client"].size else []
        self.reasons = dict(reasons)


def joined(first: Arrays, second: Arrays) -> Arrays:
    """Both, one below the other; columns that only one of them has are blank in the other."""
    if not first or not first["client"].size:
        return second
    counts = first["client"].size, second["client"].size
    out: Arrays = {}
    for name in {**first, **second}:
        like = first[name] if name in first else second[name]
        parts = [t[name] if name in t else _blank(like, n) for t, n in zip((first, second), counts, strict=True)]
        out[name] = np.concatenate(parts)
    return out


def scattered(column: Array, at: Index, m: int) -> Array:
    """Rows of those that replied, NaN for the others."""
    out = np.full((m, *column.shape[1:]), np.nan, np.float32 if column.ndim > 1 else np.float64)
    out[at] = column
    return out


def reply_table(updates: Updates, signals: Arrays) -> Arrays:
    """Replies as one table of columns; inverse of :func:`replies_from`."""
    table: Arrays = {
        "client": updates.clients,
        "delta": updates.delta,
        "weight": np.asarray(updates.weight, np.float64),
        "steps": updates.steps,
    }
    table |= {name: getattr(updates, name) for name in _OPTIONAL if getattr(updates, name) is not None}
    return table | prefixed(SIGNAL, signals) | prefixed(EXTRA, dict(updates.extras))


def _updates(table: Arrays) -> Updates:
    return Updates(
        clients=table["client"],
        delta=table["delta"],
        weight=table["weight"],
        steps=table["steps"],
        buffers=table.get("buffers"),
        counters=table.get("counters"),
        extras=part(table, EXTRA),
    )


def replies_from(table: Arrays) -> tuple[Updates, Arrays]:
    """Updates and signals of a table of replies."""
    return _updates(table), part(table, SIGNAL)


def _without(updates: Updates, columns: Arrays, clients: Index) -> tuple[Updates, Arrays]:
    return _rows(updates, columns, np.flatnonzero(~np.isin(updates.clients, clients)))


def _rows(updates: Updates, columns: Arrays, at: Index) -> tuple[Updates, Arrays]:
    return updates.rows(at), {n: c[at] for n, c in columns.items()}


def _blank(like: Array, rows: int) -> Array:
    fill = np.nan if like.dtype.kind == "f" else 0
    return np.full((rows, *like.shape[1:]), fill, like.dtype)


def with_extras(updates: Updates, extras: Mapping[str, Array]) -> Updates:
    """The updates with further columns for the method."""
    return replace(updates, extras={**extras, **updates.extras})
