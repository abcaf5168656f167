"""AFL: active federated learning.

    Jack Goetz, Kshitiz Malik, Duc Bui, Seungwhan Moon, Honglei Liu, Anuj Kumar. Active Federated Learning. 2019.
    https://arxiv.org/abs/1909.12641

A client is worth what the model still gets wrong on its data, as last seen in training (mean loss L_k, n_k samples):

    v_k = sqrt(n_k) L_k                                                    value, new only for those that trained   (1)
    the alpha_1 N clients of smallest v_k are left out,
    (1 - alpha_3) K of the others are drawn with odds exp(alpha_2 v_k),                                             (2)
    alpha_3 K are drawn uniformly from all that are left                                                            (3)

Departures from the paper
    * Constants and formulas are from memory of the paper and from public re-implementations.
    * N counts available clients. Never so many are left out that fewer than K remain.
    * alpha_3 K need not be whole: it is rounded up or down at random, so that the share is right on average and a
      cohort of one is not always uniform.
    * Values are clipped at the quantile `clip` of those known before (2), so that a liar's odds are those of the
      upper few percent. clip=1 switches this off.
    * Clients never asked get the largest known value, so that nobody is left out untried; those asked without an answer
      get the mean.
    * n_k is the registered number of samples.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Interval, NotNegative, Share
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import NewestLoss
from fedcohort.selectors._parts.scoring import rows_of, sample, unchosen
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Real, Round, RoundResult


class AFL(StatefulSelector[NewestLoss]):
    """Draw by how badly the model did on a client's data when it last trained.

    Args:
        set_aside: share of the clients, those of smallest value, that is left out [alpha_1].
        scale: weight of the value in the odds [alpha_2].
        uniform: share of the cohort drawn uniformly at random [alpha_3].
        clip: quantile of the known values at which values are cut; 1: not at all.

    >>> sorted(AFL(set_aside=0.5).needs)
    ['samples', 'train_loss']
    """

    needs = frozenset({"train_loss", "samples"})

    @checked
    def __init__(
        self,
        *,
        set_aside: Annotated[float, Interval(0, 1, ends="[)")] = 0.75,
        scale: NotNegative = 0.01,
        uniform: Share = 0.1,
        clip: Annotated[float, Interval(0.5, 1)] = 0.95,
    ) -> None:
        super().__init__()
        self.set_aside, self.scale, self.uniform, self.clip = set_aside, scale, uniform, clip

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eqs. 2 and 3."""
        self.state.grow(rnd.population)
        who = rnd.available
        k = max(min(rnd.size, who.size), 0)
        blind = min(math.floor(self.uniform * k + rng.random()), k)  # places drawn uniformly
        value = self._value(rnd)
        kept = draw.top(value, max(who.size - math.floor(self.set_aside * who.size), k - blind), rng)
        active = kept[draw.softmax(np.float32(self.scale) * value[kept], k - blind, 1.0, rng)]
        at = np.concatenate([active, draw.uniform(unchosen(who.size, active), blind, rng)])
        return Cohort(who[at], why={"value": value[at], "by_value": np.arange(at.size) < active.size})

    def observe(self, result: RoundResult) -> None:
        """Keep the newest loss of each client, L_k."""
        self.state.keep(result)

    def _value(self, rnd: Round) -> Real:
        """Eq. 1, clipped, with a stand-in for those that never reported."""
        s, who, rows = self.state, rnd.available, rows_of(rnd)
        loss = s.loss[rows]
        samples = np.asarray(rnd.profiles["samples"])[rows].astype(np.float32)
        value: Real = np.sqrt(np.where(np.isfinite(samples) & (samples > 0), samples, np.float32(0))) * loss
        known = np.flatnonzero(loss >= 0)
        if known.size == 0:
            return np.where(s.asked[rows], np.float32(0), np.float32(1))
        seen = value[sample(known)]
        top = int(self.clip * (seen.size - 1))
        most = np.partition(seen, top)[top]
        np.minimum(value, most, out=value)
        silent = np.flatnonzero(loss < 0)
        value[silent] = np.where(s.asked[who[silent]], np.minimum(seen, most).mean(dtype=np.float64), most)
        return value
