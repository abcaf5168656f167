"""Power-of-choice: of d candidates, the K with the largest loss.

    Yae Jee Cho, Jianyu Wang, Gauri Joshi. Towards Understanding Biased Client Selection in Federated Learning.
    AISTATS 2022. https://arxiv.org/abs/2010.01243

With p_k = n_k / sum n over the available clients:

    A = d clients, drawn one after the other without replacement with odds p_k        K <= d <= N     (1)
    S = the K clients of A with the largest F_k(w^t)                                                  (2)

    pow-d      F_k is asked of every candidate: its loss on all its data
    cpow-d     the same on one mini-batch
    rpow-d     nobody is asked: the mean loss of k's last local training, infinite before its first
    adapow-d   d = N in the first half of the run, d = K in the second

d = K draws K clients with odds p_k; d = N is greedy. The paper's aggregation is the plain mean of the selected.

Departures from the paper
    * The paper's text was not available; this follows public reproductions of it, adapow-d included.
    * d is raised to K and lowered to the number of available clients. Where it equals K all candidates are chosen, so
      nobody is probed and nothing is spent.
    * A candidate that does not answer is not chosen by its loss. Places left empty are drawn with odds p_k from the
      other available clients.
    * The reproductions draw the first cohort uniformly: `opening` gives the number of such rounds, 0 by default.
    * d is 2 K unless given (the reproductions use 2 K to 5 K). For rpow-d, whose candidates cost nothing, it is N: then
      everybody is visited once before anybody is visited twice.
    * rpow-d: a client that was asked and never reported counts as the mean of the known losses, not as infinite.
    * Clients without samples are drawn only when nobody else is left.
    * Losses are compared by rank, so that a liar wins at most a place for itself and does not reorder the others.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Count, CountOrZero
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import NewestLoss
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult

LOSS = {"pow-d": "probe_loss", "cpow-d": "probe_batch_loss", "rpow-d": "train_loss", "adapow-d": "probe_loss"}


class PowerOfChoice(StatefulSelector[NewestLoss]):
    """Ask a few random clients how badly the model does on their data, and train where it does worst.

    Args:
        mode: "pow-d", "cpow-d" (losses of one mini-batch), "rpow-d" (losses of the last training, no probes) or
            "adapow-d" (d shrinks).
        d: candidates [d]; None: 2 K, and everybody for rpow-d.
        rounds: length of the run, for adapow-d.
        opening: this many first rounds are drawn uniformly, without candidates.

    >>> sorted(PowerOfChoice(mode="rpow-d").needs)
    ['samples', 'train_loss']
    """

    @checked
    def __init__(
        self,
        *,
        mode: Annotated[str, Choice(*LOSS)] = "pow-d",
        d: Count | None = None,
        rounds: Count = 100,
        opening: CountOrZero = 0,
    ) -> None:
        super().__init__()
        self.mode, self.d, self.rounds, self.opening = mode, d, rounds, opening
        self.needs = frozenset({"samples", LOSS[mode]})

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Eq. 1: the candidates, if their losses at this model are needed."""
        d = self._candidates(rnd)
        if self.mode == "rpow-d" or d <= rnd.size or rnd.size <= 0:
            return np.empty(0, np.int64)
        return np.sort(rnd.available[draw.weighted(_samples(rnd), d, rng)])

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 2."""
        self.state.grow(rnd.population)
        if rnd.index < self.opening:
            blank = np.full(min(rnd.size, rnd.available.size), np.nan)
            return Cohort(draw.uniform(rnd.available, rnd.size, rng), why={"loss": blank})
        who, loss = self._known(rnd, rng)
        best = draw.top(loss, rnd.size, rng)
        chosen = who[best]
        weight = _samples(rnd)
        if chosen.size < min(rnd.size, rnd.available.size):
            others = np.flatnonzero(~np.isin(rnd.available, chosen))
            fill = rnd.available[others[draw.weighted(weight[others], rnd.size - chosen.size, rng)]]
            return Cohort(
                np.concatenate([chosen, fill]), why={"loss": np.concatenate([loss[best], np.full(fill.size, np.nan)])}
            )
        return Cohort(chosen, why={"loss": loss[best]})

    def observe(self, result: RoundResult) -> None:
        """rpow-d keeps the newest training loss of each client, F_k; the other modes keep nothing."""
        if self.mode == "rpow-d":
            self.state.keep(result)

    def _candidates(self, rnd: Round) -> int:
        """d of eq. 1 in this round."""
        everybody = int(rnd.available.size)
        if rnd.index < self.opening:
            return 0
        if self.mode == "adapow-d":
            d = everybody if 2 * rnd.index < self.rounds else rnd.size
        elif self.d is None:
            d = everybody if self.mode == "rpow-d" else 2 * rnd.size
        else:
            d = self.d
        return min(max(d, rnd.size), everybody)

    def _known(self, rnd: Round, rng: np.random.Generator) -> tuple[Index, Real]:
        """Candidates with a loss: those that answered; for rpow-d, candidates drawn here and their last reports."""
        if self.mode == "rpow-d":
            at = draw.weighted(_samples(rnd), self._candidates(rnd), rng)
            return rnd.available[at], self._stored(rnd.available[at])
        if rnd.probed is None:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        who, loss = rnd.probed.clients, rnd.probed.signals[LOSS[self.mode]]
        there = np.flatnonzero(np.isfinite(loss) & np.isin(who, rnd.available))
        return who[there], np.asarray(loss[there], np.float64)

    def _stored(self, who: Index) -> Real:
        """Last training loss: infinite if never asked, the mean if asked without an answer."""
        loss = self.state.loss[who]
        silent = np.flatnonzero(loss < 0)
        if silent.size == 0:
            return loss
        known = np.flatnonzero(loss >= 0)
        mean = float(loss[known].mean(dtype=np.float64)) if known.size else 0.0
        loss[silent] = np.where(self.state.asked[who[silent]], np.float32(mean), np.float32(np.inf))
        return loss


def _samples(rnd: Round) -> Real:
    """n_k of the available, as odds; what is not a positive number is 0."""
    n = np.asarray(rnd.profiles["samples"])[rnd.available].astype(np.float32)
    return np.where(np.isfinite(n) & (n > 0), n, np.float32(0))
