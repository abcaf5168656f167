"""Proportional: draw with odds proportional to the number of samples.

    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith.
    Federated Optimization in Heterogeneous Networks. MLSys 2020.
    https://arxiv.org/abs/1812.06127

With p(i) = n(i) / sum over the available clients of n, K draws are made

    without replacement   pi(i) = min(1, c p(i)),  c such that the pi sum to K           (1)
    with replacement      m(i) ~ Multinomial(K, p),  pi(i) = 1 - (1 - p(i))^K            (2)

(1) is drawn by systematic sampling over a random order, so that the inclusion probabilities hold exactly and an
aggregation by 1 / pi is unbiased. In (2), the paper's scheme, a client drawn m(i) times trains once; the directive
`multiplicity` carries m(i), and the plain mean of the paper is the mean weighted by it.

Departures from the paper
    * Without replacement is the default; the paper's own scheme is `replacement=True`.
    * The draw is from those that are available; p is scaled to sum to 1 among them.
    * Clients that own nothing are drawn only when nobody else is left (1), or never, unless all own nothing (2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.errors import checked
from fedcohort.selectors.base import NoState, StatefulSelector
from fedcohort.types import Cohort, Index, Round, RoundResult


class Proportional(StatefulSelector[NoState]):
    """Ask clients with more data more often.

    Args:
        replacement: draw with replacement, as in the paper; a client drawn twice trains once and counts twice.

    >>> Proportional(replacement=True).needs
    frozenset({'samples'})
    """

    needs = frozenset({"samples"})

    @checked
    def __init__(self, *, replacement: bool = False) -> None:
        super().__init__()
        self.replacement = replacement

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1 or eq. 2."""
        if rnd.available.size == 0 or rnd.size <= 0:
            return Cohort(np.empty(0, np.int64))
        samples = rnd.profiles["samples"][rnd.available].astype(np.float64)
        return self._repeated(rnd, samples, rng) if self.replacement else self._once(rnd, samples, rng)

    def observe(self, result: RoundResult) -> None:
        """Nothing to learn."""

    def _once(self, rnd: Round, samples: NDArray[np.float64], rng: np.random.Generator) -> Cohort:
        """Eq. 1."""
        inclusion = draw.capped_inclusion(samples, rnd.size)
        at = draw.depround(inclusion, rng)
        why = {"samples": samples[at], "inclusion": inclusion[at]}
        return Cohort(rnd.available[at], inclusion=inclusion[at], why=why)

    def _repeated(self, rnd: Round, samples: NDArray[np.float64], rng: np.random.Generator) -> Cohort:
        """Eq. 2."""
        total = float(samples.sum())
        p = samples / total if total > 0 else np.full(samples.size, 1.0 / samples.size)
        times: Index = rng.multinomial(rnd.size, p)
        at = np.flatnonzero(times)
        inclusion = -np.expm1(rnd.size * np.log1p(-np.minimum(p[at], 1.0 - 1e-16)))
        why = {"samples": samples[at], "inclusion": inclusion}
        return Cohort(rnd.available[at], {"multiplicity": times[at]}, inclusion, why)
