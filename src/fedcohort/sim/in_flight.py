"""Who is under way in an asynchronous run: one row per client that was dispatched and has not been told yet.

Rows are plain columns, so that they can be cut, joined and written into a snapshot: what the reply will be (the client
has trained on the model that it was sent), when it comes, and what its cohort said about it. Columns of a signal start
with `signal.`, those of what a method asked for with `extra.`; a row without one has NaN there, or zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.methods.fedbuff import STALENESS
from fedcohort.sim.federation import Replies, Traffic
from fedcohort.types import Array, Arrays, Cohort, Index, Mask, Outcome, Plan, Updates

SIGNAL, EXTRA = "signal.", "extra."


@dataclass(slots=True)
class Flight:
    """Columns over those under way, and why some of them will fail."""

    rows: Arrays = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows["client"].size) if self.rows else 0

    def depart(self, replies: Replies, cohort: Cohort, plan: Plan, clock: float, version: int) -> None:
        """Add a cohort that is sent out now; its replies are known to the simulator only."""
        if cohort.clients.size:
            self.rows = _joined(self.rows, _departing(replies, cohort, plan, clock, version))
            self.reasons.update(replies.reasons)

    def running(self, clock: float) -> int:
        """How many are still at work: updates that wait for others to be gathered take up no seat."""
        return int(np.count_nonzero(self.rows["arrival"] > clock)) if self.rows else 0

    def closing(self, buffer_size: int, clock: float) -> tuple[float, Mask]:
        """When the step ends, and who lands then.

        With the `buffer_size`-th valid update, and everybody who has ended. Where fewer are under way, with the first
        that comes to nothing, alone, so that its seat is given away; where nobody does, with the last.
        """
        arrival, good = self.rows["arrival"], self.rows["outcome"] == Outcome.OK
        if good.sum() >= buffer_size:
            end = np.sort(arrival[good])[buffer_size - 1]
        elif good.all():
            end = arrival.max()
        else:
            end = max(float(arrival[~good].min()), clock)
            return end, ~good & (arrival <= end)
        return max(float(end), clock), arrival <= max(float(end), clock)

    def land(self, here: Mask, version: int) -> tuple[Replies, Cohort, Array]:
        """Take these out: the replies, who asked for what, and the learning rates."""
        landed = {name: column[here] for name, column in self.rows.items()}
        self.rows = {name: column[~here] for name, column in self.rows.items()}
        clients: Index = landed["client"]
        reasons = {int(c): self.reasons.pop(int(c)) for c in clients if int(c) in self.reasons}
        signals = {name.removeprefix(SIGNAL): c for name, c in landed.items() if name.startswith(SIGNAL)}
        updates = _updates(landed, version)
        replies = Replies(clients, landed["outcome"], landed["duration"], updates, signals, reasons, 0.0)
        directives = {"multiplicity": landed["multiplicity"]} if (landed["multiplicity"] != 1).any() else {}
        inclusion = landed["inclusion"] if np.isfinite(landed["inclusion"]).all() else None
        return replies, Cohort(clients, directives, inclusion), landed["lr"]


def _departing(replies: Replies, cohort: Cohort, plan: Plan, clock: float, version: int) -> Arrays:
    """The rows of a cohort, in its order."""
    m, sent = cohort.clients.size, replies.updates
    order = np.argsort(cohort.clients, kind="stable")
    at = order[np.searchsorted(cohort.clients[order], sent.clients)]

    def spread(column: Array) -> Array:
        out = _blank(column, m)
        out[at] = column
        return out

    rows: Arrays = {
        "client": cohort.clients,
        "version": np.full(m, version, np.int64),
        "arrival": clock + replies.duration,
        "outcome": replies.outcome,
        "duration": replies.duration,
        "lr": plan.lr_of(m),
        "multiplicity": np.asarray(cohort.directives.get("multiplicity", np.ones(m)), np.int64),
        "inclusion": np.full(m, np.nan) if cohort.inclusion is None else np.asarray(cohort.inclusion, np.float64),
        "delta": spread(sent.delta),
        "weight": spread(np.asarray(sent.weight, np.float64)),
        "steps": spread(sent.steps),
    }
    rows.update({SIGNAL + name: column for name, column in replies.signals.items()})
    rows.update({EXTRA + name: spread(np.asarray(column)) for name, column in sent.extras.items()})
    for name in ("buffers", "counters"):
        column = getattr(sent, name)
        if column is not None:
            rows[name] = spread(column)
    return rows


def _updates(landed: Arrays, version: int) -> Updates:
    """The valid ones among those that landed, in ascending client order, with their age."""
    good = np.flatnonzero(landed["outcome"] == Outcome.OK)
    good = good[np.argsort(landed["client"][good], kind="stable")]
    extras = {name.removeprefix(EXTRA): c[good] for name, c in landed.items() if name.startswith(EXTRA)}
    age: NDArray[np.float64] = (version - landed["version"][good]).astype(np.float64)
    return Updates(
        clients=landed["client"][good],
        delta=landed["delta"][good],
        weight=landed["weight"][good],
        steps=landed["steps"][good],
        buffers=landed["buffers"][good] if "buffers" in landed else None,
        counters=landed["counters"][good] if "counters" in landed else None,
        extras={**extras, STALENESS: age},
    )


def _joined(first: Arrays, second: Arrays) -> Arrays:
    """Both, one below the other; columns that only one of them has are blank in the other."""
    if not first:
        return second
    counts = first["client"].size, second["client"].size
    out: Arrays = {}
    for name in {**first, **second}:
        like = first[name] if name in first else second[name]
        parts = [t[name] if name in t else _blank(like, n) for t, n in zip((first, second), counts, strict=True)]
        out[name] = np.concatenate(parts)
    return out


def _blank(like: Array, rows: int) -> Array:
    fill = np.nan if like.dtype.kind == "f" else 0
    return np.full((rows, *like.shape[1:]), fill, like.dtype)


def costing(replies: Replies, seconds: float, traffic: Traffic) -> Replies:
    """The same replies with what the step has cost."""
    return replace(replies, seconds=seconds, traffic=traffic)
