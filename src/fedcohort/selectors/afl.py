"""AFL: active federated learning.

    Jack Goetz, Kshitiz Malik, Duc Bui, Seungwhan Moon, Honglei Liu, Anuj Kumar. Active Federated Learning. 2019.
    https://arxiv.org/abs/1909.12641

A client is worth what the model still gets wrong on its data, as last seen in training (mean loss L_k, n_k samples):

    v_k = sqrt(n_k) L_k                                                    value, new only for those that trained   (1)
    the alpha_1 N clients of smallest v_k are set aside,
    (1 - alpha_3) K of the others are drawn with odds exp(alpha_2 v_k),                                             (2)
    alpha_3 K are drawn uniformly from all that are left                                                            (3)

Departures from the paper
    * Constants and formulas are from memory [MEM] of the paper and from public re-implementations.
    * N counts available clients. Never so many are set aside that fewer than K are left.
    * alpha_3 K need not be whole: the fraction is decided by lot, so that the share is right on average and a cohort of
      one is not always uniform.
    * Values are clipped at the quantile `clip` of those known before (2), so that a liar's odds are those of the
      upper few percent. clip=1 is plain.
    * Never asked: the largest known value, so that nobody is set aside unheard. Asked without an answer: the mean.
    * n_k is the registered number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.errors import check
from fedcohort.selectors._parts.flash_context import sample
from fedcohort.selectors._parts.last_reports import NewestLoss
from fedcohort.types import Arrays, Cohort, Real, Round, RoundResult


class AFL:
    """Draw by how badly the model did on a client's data when it last trained.

    The paper's symbol for each parameter is given in brackets.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"train_loss", "samples"})

    def __init__(
        self,
        *,
        set_aside: float = 0.75,  # [alpha_1]
        scale: float = 0.01,  # [alpha_2]
        uniform: float = 0.1,  # [alpha_3]
        clip: float = 0.95,
    ) -> None:
        check(0 <= set_aside < 1, f"set_aside = {set_aside}", "a share below 1", "0.75 is the paper's")
        check(scale >= 0, f"scale = {scale}", "it must not be negative", "0.01 is the paper's")
        check(0 <= uniform <= 1, f"uniform = {uniform}", "a share lies between 0 and 1", "0.1 is the paper's")
        check(0.5 <= clip <= 1, f"clip = {clip}", "a quantile of at least 0.5", "use e.g. 0.95, or 1 for none")
        self.set_aside, self.scale, self.uniform, self.clip = set_aside, scale, uniform, clip
        self.state = NewestLoss()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eqs. 2 and 3."""
        self.state.grow(rnd.population)
        who = rnd.available
        k = max(min(rnd.size, who.size), 0)
        lots = min(math.floor(self.uniform * k + rng.random()), k)
        value = self._value(rnd)
        kept = draw.top(value, max(who.size - math.floor(self.set_aside * who.size), k - lots), rng)
        active = kept[draw.softmax(np.float32(self.scale) * value[kept], k - lots, 1.0, rng)]
        rest = np.ones(who.size, np.bool_)
        rest[active] = False
        at = np.concatenate([active, draw.uniform(np.flatnonzero(rest), lots, rng)])
        return Cohort(who[at], why={"value": value[at], "by_value": np.arange(at.size) < active.size})

    def observe(self, result: RoundResult) -> None:
        """Keep the newest loss of each client, L_k."""
        self.state.keep(result)

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

    def _value(self, rnd: Round) -> Real:
        """Eq. 1, clipped, with a stand-in for those that never reported."""
        s = self.state
        who = rnd.available
        rows = slice(0, who.size) if who.size == rnd.population else who  # everybody: a view, not a copy
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
