"""Are the clients' mixes of classes even, or is there skew beyond what chance makes of samples of this size?

The mean distance of a client's mix from everybody's (Jensen-Shannon, bits, weighted by samples) is compared with that
of clients of the same sizes who draw from one common mix. What is left, with the upper end of its interval, decides;
and each client on its own is tested by the likelihood ratio G = 2 sum o ln(o / e) against everybody's mix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.stats import js_divergence
from fedcohort.types import Index

Double = NDArray[np.float64]
EVEN = 0.01  # bits; e.g. two classes in the ratio 62 : 38 at one half of the clients and 38 : 62 at the other
DRAWS = 300


@dataclass(frozen=True)
class Evenness:
    """What the class counts say. `verdict` is "even", "skewed" or "open"."""

    mean: float  # bits: mean distance of a client's mix from everybody's
    chance: float  # bits: what chance alone makes of it
    most: float  # bits: upper end of the interval for the difference of the two
    p: float  # probability of such a mean by chance alone
    delta: float
    odd: Index  # clients that differ from everybody on their own, the farthest first

    @property
    def verdict(self) -> str:
        """Even where the interval stays below what counts as even and nobody stands out."""
        if self.odd.size or (self.p <= self.delta and self.most > EVEN):
            return "skewed"
        return "even" if self.most <= EVEN else "open"

    def text(self) -> str:
        """The verdict in a sentence."""
        sure = f"{1 - self.delta:.0%}"
        tail = f"mean distance {self.mean:.3f} bits, {self.chance:.3f} by chance alone, p = {self.p:.2g}"
        if self.verdict == "even":
            return (
                f"Practically even: with {sure} confidence the mixes of classes are within {self.most:.3f} bits of "
                f"everybody's on average beyond chance, and up to {EVEN} counts as even ({tail})."
            )
        if self.verdict == "skewed":
            return f"Not even: the mixes of classes differ more than chance makes them ({tail})."
        return (
            f"Undecided: no skew was found, but with so few samples up to {self.most:.3f} bits beyond chance cannot be "
            f"excluded with {sure} confidence ({tail})."
        )


def evenness(counts: ArrayLike, delta: float = 0.05, seed: int = 0) -> Evenness:
    """Judge the class counts (clients, classes); clients of fewer than two samples do not count: they have no mix.

    >>> evenness([[500, 500], [510, 490], [495, 505]]).verdict, evenness([[900, 100], [100, 900]]).verdict
    ('even', 'skewed')
    """
    table = np.asarray(counts, np.int64)
    some = np.flatnonzero(table.sum(axis=1) > 1)
    if some.size < 2:
        return Evenness(0.0, 0.0, 1.0, 1.0, delta, some[:0])  # a distance of up to one bit
    table = table[some]
    n = table.sum(axis=1)
    whole = table.sum(axis=0) / max(int(table.sum()), 1)
    rng = np.random.default_rng([seed, 7])
    mean = _mean(table, n)
    null = np.array([_mean(rng.multinomial(n, whole), n) for _ in range(DRAWS)])
    again = np.array([_mean(rng.multinomial(n, table / n[:, None]), n) for _ in range(DRAWS)])
    chance = float(null.mean())
    spread = max(float(again.std()), float(null.std()))
    most = max(mean - chance, 0.0) + NormalDist().inv_cdf(1 - delta) * spread
    p = (1 + int((null >= mean).sum())) / (DRAWS + 1)
    return Evenness(mean, chance, most, p, delta, some[_odd(table, n, whole, delta)])


def _mean(table: NDArray[np.int64], n: NDArray[np.int64]) -> float:
    whole = table.sum(axis=0) / max(int(n.sum()), 1)
    return float(np.average(js_divergence(table / n[:, None], whole), weights=n))


def _odd(table: NDArray[np.int64], n: NDArray[np.int64], whole: Double, delta: float) -> Index:
    """Clients whose G is beyond the limit for all clients together; the chi-square tail by Wilson and Hilferty."""
    expected = n[:, None] * whole[None, :]
    ratio = np.where(table > 0, table / np.maximum(expected, 1e-300), 1.0)
    g = 2.0 * (table * np.log(ratio)).sum(axis=1)
    free = max(int((whole > 0).sum()) - 1, 1)
    z = (np.cbrt(g / free) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    limit = NormalDist().inv_cdf(1 - delta / max(len(n), 1))
    far = js_divergence(table / n[:, None], whole)
    found = np.flatnonzero((z > limit) & (far > EVEN))
    return found[np.argsort(-far[found], kind="stable")]
