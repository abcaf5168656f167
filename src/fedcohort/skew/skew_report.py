"""What the analytics found: one row per client, and what may be said about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Share
from fedcohort.core.stats import js_divergence, rank
from fedcohort.errors import checked
from fedcohort.skew.confidence import comparisons_needed, confidence_of, radius, settled_after
from fedcohort.skew.evenness import Evenness, evenness
from fedcohort.types import Arrays, Index, Mask, Real

Double = NDArray[np.float64]


@dataclass(frozen=True)
class SkewReport:
    """Clients by skewness. Rank 1 is the least skewed; arrays have one entry per client.

    :func:`~fedcohort.skew.rank_clients` makes it: `statement()` says what is certain, `best()` names the least skewed
    clients, and `columns()` is the whole table.

    >>> six, won = np.full(6, 20), np.linspace(0, 1, 6)
    >>> report = SkewReport("mine", "owners", rounds=20, samples=six, compared=six, win_share=won, q=1 - won)
    >>> report.best(), report.rank
    (array([5, 4]), array([6., 5., 4., 3., 2., 1.]))
    """

    task: str
    world: str
    rounds: int
    samples: Index  # M_i
    compared: Index  # n_i: rounds in which the client was compared with others
    win_share: Double  # w_i: mean share of the others in its rounds that it beat; NaN where never compared
    q: Double  # Q_i over the median Q of its rounds, mean; NaN where never compared
    share: float = 0.4  # which part counts as the least skewed (FedACS's lambda)
    delta: float = 0.05  # allowed probability of being wrong
    independent: bool = True  # rounds were: fresh cohorts and fresh models
    truth: Real | None = None  # distance of the true class mix from everybody's, in bits, where all labels are at hand
    names: tuple[str, ...] = ()  # of the clients, where the data name them
    counts: Index | None = None  # (clients, classes) training samples of each class, where all labels are at hand
    class_names: tuple[int | str, ...] = ()

    @property
    def population(self) -> int:
        """How many clients there are."""
        return int(self.samples.size)

    def name(self, slot: int) -> str:
        """How a client is called: its name in the data, or its slot."""
        return self.names[slot] if self.names else str(slot)

    @cached_property
    def evenness(self) -> Evenness | None:
        """Whether the mixes of classes are even; None where the labels are not at hand."""
        return None if self.counts is None else evenness(self.counts, self.delta)

    def distances(self) -> Double | None:
        """Jensen-Shannon divergence in bits between the class mixes of any two clients, where labels are at hand."""
        if self.counts is None:
            return None
        mix = self.counts / np.maximum(self.counts.sum(axis=1), 1)[:, None]
        return np.stack([js_divergence(mix, row) for row in mix])

    @property
    def known(self) -> Mask:
        """Who was compared at all."""
        return np.greater(self.compared, 0)

    @cached_property
    def rank(self) -> Double:
        """1 for the least skewed: by duels won, then by Q; equal clients share their mean rank. NaN: never compared."""
        at = np.flatnonzero(self.known)
        _, first = np.unique(-self.win_share[at], return_inverse=True)
        q = rank(self.q[at])
        out = np.full(self.population, np.nan)
        out[at] = rank(first + q / (2.0 * max(at.size, 1))) + 1
        return out

    @cached_property
    def border(self) -> float:
        """The share of duels won that divides the least skewed from the rest: halfway between the two at the cut."""
        shares = np.sort(self.win_share[self.known])[::-1]
        k = self._kept
        if k == 0 or k >= shares.size:
            return math.nan
        return float(shares[k - 1] + shares[k]) / 2

    @cached_property
    def confidence(self) -> Double:
        """Lower bound on the probability that the client is on the right side of the border (Hoeffding, one side)."""
        if math.isnan(self.border):
            return np.where(self.known, 1.0, 0.0)  # everybody is on the same side
        gap = np.where(self.known, np.abs(self.win_share - self.border), 0.0)
        return confidence_of(gap, self.compared)

    @property
    def radius(self) -> Double:
        """Half the width of the interval around each win share; together they hold with probability 1 - delta."""
        return radius(self.compared, self.delta, max(self.population, 1))

    @cached_property
    def settled(self) -> Mask:
        """Whose side of the border is certain up to delta, each for itself."""
        return np.greater_equal(self.confidence, 1 - self.delta)

    @checked
    def best(self, share: Share | None = None) -> Index:
        """The clients of the least skewed share, best first."""
        return self.order()[: self._kept if share is None else round(share * int(self.known.sum()))]

    def order(self) -> Index:
        """Compared clients from the least to the most skewed."""
        return np.argsort(self.rank, kind="stable")[: int(self.known.sum())]

    def needed(self, eps: float = 0.1, delta: float | None = None) -> int:
        """How often every client must be compared so that all win shares are within eps with probability 1 - delta."""
        return comparisons_needed(eps, self.delta if delta is None else delta, max(self.population, 1))

    def statement(self) -> str:
        """What may be said with confidence, in a few lines."""
        known, n = int(self.known.sum()), self.compared[self.known]
        if known == 0:
            return "No client was compared with another: nothing can be said."
        often = f"{n.min()}" if n.min() == n.max() else f"{n.min()} to {n.max()}"
        lines = [f"{known} of {self.population} clients were compared, each in {often} of {self.rounds} rounds."]
        lines = [*self._about_evenness(), *lines]
        wide = float(self.radius[self.known].max())
        sure = f"{1 - self.delta:.0%}"
        lines.append(
            f"With probability {sure} every share of duels won is within {wide:.2f} of its expectation (Hoeffding, all "
            f"clients at once); within 0.10 it needs {self.needed(0.1)} comparisons of each client."
        )
        if not math.isnan(self.border):
            lines += self._about_the_border(sure, known)
        if not self.independent:
            lines.append("One model was trained on: rounds are not independent, and the bounds are approximate.")
        return "\n".join(lines)

    def columns(self) -> Arrays:
        """The table as arrays, in rank order, compared clients first."""
        order = np.concatenate([self.order(), np.flatnonzero(~self.known)])
        out: Arrays = {"client": order, "samples": self.samples[order], "q": self.q[order], "rank": self.rank[order]}
        out |= {"win_share": self.win_share[order], "compared": self.compared[order]}
        out |= {"confidence": self.confidence[order], "settled": self.settled[order]}
        if self.names:
            out = {"client": out.pop("client"), "name": np.array(self.names)[order], **out}
        if self.counts is not None:
            labels = self.class_names or range(self.counts.shape[1])
            out |= {f"samples of {label}": self.counts[order, k] for k, label in enumerate(labels)}
        return out if self.truth is None else {**out, "truth": self.truth[order]}

    @property
    def _kept(self) -> int:
        return round(self.share * int(self.known.sum()))

    def _about_evenness(self) -> list[str]:
        found = self.evenness
        if found is None:
            return []
        lines = [found.text()]
        if found.odd.size and self.truth is not None:
            some = ", ".join(f"{self.name(int(c))} ({self.truth[c]:.3f} bits)" for c in found.odd[:5])
            more = f" and {found.odd.size - 5} more" if found.odd.size > 5 else ""
            lines.append(f"Different from everybody's mix beyond chance: {some}{more}.")
        if found.verdict == "even":
            lines.append(
                "The ranking names a last one, as every ranking does: that is not a reason to leave anybody out."
            )
        return lines

    def _about_the_border(self, sure: str, known: int) -> list[str]:
        settled = int((self.settled & self.known).sum())
        wrong = float((1 - self.confidence[self.known]).sum())
        lines = [
            f"Least skewed {self.share:.0%}: {self._kept} clients that win more than {self.border:.2f} of their duels. "
            f"{settled} of {known} clients are on their side of this border with {sure} confidence each."
        ]
        joint = "no more than half a client" if wrong < 0.5 else f"at most {wrong:.1f}"
        lines.append(f"Expected number on the wrong side: {joint} (sum of the bounds).")
        need = settled_after(np.abs(self.win_share[self.known] - self.border), self.delta)
        if settled < known:
            typical = float(np.median(need))
            often = f"{typical:.0f} comparisons" if math.isfinite(typical) else "infinitely many comparisons"
            lines.append(f"To settle half of the clients takes {often} of each.")
        return lines
