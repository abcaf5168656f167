"""DivFL: a diverse cohort that represents everybody.

    Ravikumar Balakrishnan, Tian Li, Tianyi Zhou, Nageen Himayat, Virginia Smith, Jeff Bilmes.
    Diverse Client Selection for Federated Learning via Submodular Maximization. ICLR 2022.

With g_i the newest update of client i, the cohort S should leave nobody far from its nearest member:

    G(S) = sum_i min_{j in S} |g_i - g_j|                                                                          (1)
    j*   = argmax_j  sum_i max( c_i - |g_i - g_j| , 0 ),     c_i = min_{j in S} |g_i - g_j|                        (2)

Greedily, K times; c_i starts at the largest distance. That is within 1 - 1/e of the best in the gain over the start.
Stochastic greedy looks only at a random ceil(n / K ln(1 / epsilon)) of the candidates in each step.

Departures from the paper
    * Written from memory and from reports on its code: one of them is that `argpartition` took the wrong end, so that
      the cohort least like everybody was chosen; here (2) is a maximum, with ties broken at random.
    * The paper asks everybody for a gradient first. Here clients without an update get the same share of the cohort as
      of the available, drawn at random, until all are known.
    * Updates stand in for gradients, as in the paper's version without extra traffic; by default only the last layer.
      The newest `memory` clients are remembered: a choice costs O(memory^2 (d + K)).
    * Updates longer than three median lengths are cut to that: otherwise a liar is far from all, and always chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Interval
from fedcohort.errors import checked
from fedcohort.selectors._parts.update_memory import UpdateMemory, UpdateSignal, remember, squared_distances
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Round, RoundResult

Double = NDArray[np.float64]
LONGEST = 3.0  # median lengths


class DivFL(StatefulSelector[UpdateMemory]):
    """Choose the cohort whose updates are nearest to everybody's.

    Args:
        signal: what is compared, "last_layer_delta" or "delta".
        epsilon: of stochastic greedy [epsilon]; 0 looks at all candidates.
        memory: clients whose newest update is remembered.

    >>> DivFL(epsilon=0.01).needs
    frozenset({'last_layer_delta'})
    """

    exempt: Mapping[str, str] = {"learns": "one of many similar clients is enough: few of the good ones are chosen"}

    @checked
    def __init__(
        self,
        *,
        signal: UpdateSignal = "last_layer_delta",
        epsilon: Annotated[float, Interval(0, 1, ends="[)")] = 0.0,
        memory: Annotated[int, Interval(2)] = 1000,
    ) -> None:
        super().__init__()
        self.signal, self.epsilon, self.memory = signal, epsilon, memory
        self.needs = frozenset({signal})

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 2, and the unknown in proportion."""
        s, k = self.state, min(rnd.size, rnd.available.size)
        if k <= 0:
            return Cohort(np.empty(0, np.int64))
        candidates = np.flatnonzero(np.isin(s.who, rnd.available))  # positions among the remembered
        fresh = np.setdiff1d(rnd.available, s.who, assume_unique=True)
        n_known = min(k - math.ceil(k * fresh.size / rnd.available.size), candidates.size)
        n_known = max(n_known, k - fresh.size)
        picked, gain, represents = np.empty(0, np.int64), np.empty(0), np.empty(0)
        if n_known > 0:
            picked, gain, represents = self._diverse(candidates, n_known, rng)
        new = draw.uniform(fresh, k - picked.size, rng)
        blank = np.full(new.size, np.nan)
        why = {"gain": np.concatenate([gain, blank]), "represents": np.concatenate([represents, blank])}
        return Cohort(np.concatenate([s.who[picked], new]), why=why)

    def observe(self, result: RoundResult) -> None:
        """Keep the newest updates."""
        remember(self.state, result, self.signal, self.memory)

    def _diverse(self, candidates: Index, k: int, rng: np.random.Generator) -> tuple[Index, Double, Double]:
        """Positions of those chosen, the gain of each, and how many of the remembered are nearest to it."""
        rows = shortened(self.state.row.astype(np.float64))
        distance = np.sqrt(squared_distances(rows, rows[candidates]))
        sample = math.ceil(candidates.size / k * -math.log(self.epsilon)) if self.epsilon else candidates.size
        chosen, gain = facility_location(distance, k, sample, rng)
        nearest = np.bincount(np.argmin(distance[:, chosen], axis=1), minlength=k).astype(np.float64)
        return candidates[chosen], gain, nearest


def facility_location(distance: Double, k: int, sample: int, rng: np.random.Generator) -> tuple[Index, Double]:
    """Eq. 2: k columns of a distance matrix (everybody x candidates), greedily, each with its gain."""
    left = np.ones(distance.shape[1], np.bool_)
    cover = np.full(distance.shape[0], float(distance.max(initial=0.0)))  # c_i
    chosen, gains = np.empty(k, np.int64), np.empty(k)
    for j in range(k):
        seen = draw.uniform(np.flatnonzero(left), sample, rng)
        gain = np.maximum(cover[:, None] - distance[:, seen], 0.0).sum(axis=0)
        at = draw.top(gain, 1, rng)[0]
        chosen[j], gains[j], left[seen[at]] = seen[at], gain[at], False
        cover = np.minimum(cover, distance[:, seen[at]])
    return chosen, gains


def shortened(rows: Double) -> Double:
    """Rows longer than three median lengths, cut to that."""
    length = np.sqrt((rows * rows).sum(axis=1))
    most = LONGEST * float(np.median(length))
    long = length > max(most, 1e-300)
    return np.where(long[:, None], rows * (most / np.maximum(length, 1e-300))[:, None], rows)
