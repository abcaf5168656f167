"""Who was asked, and whose work was used: a client can be asked for ever and never be heard.

Over-selection closes a round when the fastest have answered, so the model is made by those. Counts per client show it,
and give the round three remedies (`RoundPolicy`):

    wait_for_slow = s   the round waits for a share s of those whom it asked beyond `close_after`
    use_floor = f       whoever would fall below f uses per ask is waited for:   used(i) < f (asked(i) + 1)       (1)
    weight_by_use = a   weights are divided by the probability of being used:    w(i) <- w(i) p(i)^-a             (2)

with p(i) = (used(i) + 2 r) / (asked(i) + 2) and r the share of all asks that were used, both before this round. The
weights of (2) keep their sum, and p(i) is at least 0.05, so that no update counts more than twenty times as much as it
would. Nothing brings back a client that is never used: weighting needs one of the other two beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fedcohort.core.table import Table, column
from fedcohort.types import Index, Mask, Updates

OFTEN = 3  # asks after which a client that was never used is worth a word
NOTABLE = 0.05  # share of those asked that were never used, from which on it is said
DOUBT = 2.0  # asks that the share of all clients counts for in a client's own
LEAST = 0.05  # probability of being used that weights reckon with


@dataclass
class Usage(Table):
    """How often each client was asked and used.

    >>> usage = Usage.of(4, [[0, 1, 2], [0, 1, 2], [0, 1, 2]], [[0, 1], [0], [0, 1]])
    >>> usage.asked.tolist(), usage.used.tolist(), usage.never.tolist()
    ([3, 3, 3, 0], [3, 2, 0, 0], [2])
    """

    asked: Index = column(0, np.int64)
    used: Index = column(0, np.int64)

    @classmethod
    def of(cls, population: int, cohorts: Iterable[Index], used: Iterable[Index]) -> Usage:
        """Counted from the rounds of a run."""
        found = cls()
        found.grow(population)
        for asked, came in zip(cohorts, used, strict=True):
            found.add(np.asarray(asked, np.int64), np.asarray(came, np.int64))
        return found

    def add(self, asked: Index, used: Index) -> None:
        """One more round."""
        self.grow_for(asked)
        self.asked[asked] += 1
        self.used[used] += 1

    @property
    def never(self) -> Index:
        """Clients that were asked time and again, and never used."""
        return np.flatnonzero((self.asked >= OFTEN) & (self.used == 0))

    @property
    def never_share(self) -> float:
        """Their share of all clients that were ever asked."""
        return self.never.size / max(int((self.asked > 0).sum()), 1)

    def owed(self, clients: Index, floor: float) -> Mask:
        """Eq. 1: those of these clients that a round should wait for."""
        self.grow_for(clients)
        return np.asarray(self.used[clients] < floor * (self.asked[clients] + 1))

    def weighted(self, updates: Updates, strength: float) -> Updates:
        """Eq. 2: the updates with other weights, or as they are where `strength` is 0."""
        clients, weight = updates.clients, np.asarray(updates.weight, np.float64)
        if not strength or not clients.size:
            return updates
        self.grow_for(clients)
        usual = float(self.used.sum()) / max(float(self.asked.sum()), 1.0) or 1.0
        likely = (self.used[clients] + DOUBT * usual) / (self.asked[clients] + DOUBT)
        found = weight * np.maximum(likely, LEAST) ** -strength
        return replace(updates, weight=found * (weight.sum() / found.sum()))

    def sentence(self, *, early: bool) -> str:
        """What to tell a person at the end of a run; empty where nothing is wrong. `early`: rounds close early."""
        never = self.never
        if self.never_share < NOTABLE or not never.size:
            return ""
        known, some = int((self.asked > 0).sum()), ", ".join(map(str, never[:5].tolist()))
        remedy = (
            "rounds close before they answer: set wait_for_slow or use_floor, or over_select=1"
            if early
            else "see why in `fedcohort journal show`, or allow a longer deadline"
        )
        slots, least = f"slots {some}{', ...' if never.size > 5 else ''}", int(self.asked[never].min())
        said = f"{never.size} of {known} clients that were asked were never used"
        return f"{said}, each asked {least} times or more ({slots}); {remedy}."
