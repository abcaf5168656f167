"""FedACS: federated skewness analytics and client selection.

    Zibo Wang, Yifei Zhu, Dan Wang, Zhu Han.
    Federated Analytics Informed Distributed Industrial IoT Learning with Non-IID Data (FedACS). IEEE TNSE.
    First version: FedACS, IWQoS 2021. https://github.com/HuskyW/FedACS

Client i takes one plain full-batch gradient step from the broadcast model; the change of the last layer is its
insight dw_i. With M_i samples at client i and the cohort S of this round:

    mean  = sum_{i in S} M_i dw_i / sum_{i in S} M_i                       what an unskewed client would send      (14)
    Q_i   = sqrt(M_i) || dw_i - mean ||_2                                  skewness, from Hoeffding's bound        (13)
    R_i   = -Q_i                                                           reward                                  (16)

FlexSelfSparring keeps wins A_i and losses B_i of every client. Selection (Alg. 2): P = lambda N times, every client
left draws theta_i ~ Beta(A_i + 1, B_i + 1) and the largest one joins the pool; K of the pool are drawn uniformly.
Update (Alg. 3): each i of this round is compared with every j != i of this round and of the last H rounds (the latest
reward of each): a larger reward adds eta to A_i, a smaller one adds eta to B_i, a tie adds nothing.

Departures from the paper
    * Alg. 2 reads A_i with the loop's index and Alg. 3 compares with R_j instead of R_j^all: taken as misprints.
    * `fast` draws theta once per client and takes the P largest: N draws instead of P N, but another distribution,
      since nothing is drawn again between two picks. By default it is used beyond 500 available clients. Clients whose
      membership is certain up to 1e-13 (posterior 8 deviations away from every possible threshold) draw nothing.
    * P is at least K, and counts available clients.
    * A round with fewer than two insights teaches nothing: a client alone is its own mean and would have Q = 0.
    * In the mean (14), and only there, an insight longer than `clip` times the cohort's median length is shortened to
      that, so that one liar does not shift the reference for the others. clip=inf is the paper.
    * M_i is the profile `samples`, as registered; where it is not known, the mean of those known.
    * From round `stop` on A and B are frozen and no insight is requested; draws continue from the frozen posteriors.
    * insight="network" takes the whole network's change in the extra step, which the paper avoids: a second model is
      uploaded. insight="update" takes it from the ordinary update: nothing more is computed or sent, and the change is
      that of all local epochs.
    * `forget` < 1 multiplies all A and B in every round that teaches, to follow drift; the paper's never forget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, CountOrZero, Factor, Interval, Positive
from fedcohort.core.table import column
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import Samples
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult

EXACT = 500  # available clients up to which the sequential draw is the default: 0.4 * 500^2 Beta draws
REACH = 8.0  # sub-Gaussian deviations of a Beta within which theta lies but for 1e-13
ROUNDING = 1e-6  # distances this small against the insights are zero: float32 has seven digits
LARGEST = 1e30  # rewards are cut here
INSIGHTS = {"step": "insight", "network": "network_insight", "update": "delta"}  # what is compared, and its signal


@dataclass
class FedACSState(Samples):
    """What FedACS remembers of every client."""

    wins: Real = column(0.0)  # A_i, in units of eta per duel
    losses: Real = column(0.0)  # B_i
    reward: Real = column(0.0)  # R_i, eq. 16, the latest
    told: Index = column(-1, np.int64)  # round of that reward; -1: none yet
    rounds: int = 0  # rounds observed


class FedACS(StatefulSelector[FedACSState]):
    """Let clients duel by skewness, keep a pool of the least skewed, and draw the cohort from the pool.

    Args:
        tolerance: share of the clients in the pool [lambda].
        rate: what one duel adds to wins or losses [eta].
        history: rounds whose rewards are still compared with [H]; 0: this round only.
        stop: no analytics from this round on [T_stop]; None: never. The paper's early stop is 200.
        fast: one draw per client instead of the sequential draw; None: beyond 500 available clients.
        forget: factor on wins and losses in every round that teaches; 1 forgets nothing.
        clip: longest insight in the mean, in median lengths; inf is the paper.
        insight: what is compared: "step" (the last layer after an extra full-batch step), "network" (all layers after
            it) or "update" (the whole network's ordinary update).

    >>> sorted(FedACS(tolerance=0.2).needs)
    ['insight', 'samples']
    """

    @checked
    def __init__(
        self,
        *,
        tolerance: Factor = 0.4,
        rate: Positive = 0.2,
        history: CountOrZero = 5,
        stop: Annotated[int, Interval(0, example=200)] | None = None,
        fast: bool | None = None,
        forget: Factor = 1.0,
        clip: Annotated[float, Interval(1)] = 10.0,
        insight: Annotated[str, Choice(*INSIGHTS)] = "step",
    ) -> None:
        super().__init__()
        self.insight = insight
        self.tolerance, self.rate, self.history, self.stop = tolerance, rate, history, stop
        self.fast, self.forget, self.clip = fast, forget, clip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]  # shrinks during a run
        """The insight (P2) until the analytics stop; then the registered number of samples only."""
        ended = self.stop is not None and self.state.rounds >= self.stop
        return frozenset({"samples"} if ended else {"samples", INSIGHTS[self.insight]})

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Alg. 2: draw the pool, then the cohort from the pool."""
        chosen = draw.uniform(self.pool(rnd, rng), rnd.size, rng)
        a, b = self.state.wins[chosen], self.state.losses[chosen]
        return Cohort(chosen, why={"wins": a, "losses": b, "expected": (a + 1) / (a + b + 2)})

    def pool(self, rnd: Round, rng: np.random.Generator) -> Index:
        """S': the clients that this round's cohort is drawn from."""
        self.state.register(rnd)
        n = rnd.available.size
        size = min(n, max(rnd.size, round(self.tolerance * n)))
        if rnd.size <= 0 or size == n:
            return rnd.available if rnd.size > 0 else np.empty(0, np.int64)
        a, b = self.state.wins[rnd.available], self.state.losses[rnd.available]
        once = n > EXACT if self.fast is None else self.fast
        return rnd.available[(single_draw if once else sequential_draw)(a, b, size, rng)]

    def observe(self, result: RoundResult) -> None:
        """Eq. 13, 14 and 16, then Alg. 3."""
        s, index = self.state, result.index
        s.grow_for(result.clients)
        s.rounds = max(s.rounds, index + 1)
        if self.stop is not None and index >= self.stop:
            return
        who, q = reported_skewness(s, result, self.clip, INSIGHTS[self.insight])
        if who.size:
            self._duel(who, np.maximum(-q, -LARGEST).astype(np.float32), index)

    def _duel(self, who: Index, reward: Real, index: int) -> None:
        """Alg. 3, by counting in a sorted column instead of pair by pair."""
        s = self.state
        recent = np.flatnonzero(s.told >= max(index - self.history, 0))
        rivals = s.reward[np.setdiff1d(recent, who, assume_unique=True)]
        everybody = np.sort(np.concatenate([reward, rivals]))
        if self.forget < 1:
            s.wins *= np.float32(self.forget)
            s.losses *= np.float32(self.forget)
        s.wins[who] += np.float32(self.rate) * np.searchsorted(everybody, reward, side="left")
        s.losses[who] += np.float32(self.rate) * (everybody.size - np.searchsorted(everybody, reward, side="right"))
        s.reward[who], s.told[who] = reward, index


def reported_skewness(
    s: Samples, result: RoundResult, clip: float, signal: str = "insight"
) -> tuple[Index, NDArray[np.float64]]:
    """(clients with a usable insight, their Q_i); nobody if fewer than two sent one."""
    nobody = np.empty(0, np.int64), np.empty(0)
    if not result.replied.any():
        return nobody
    insight = result.signals[signal]
    good = np.flatnonzero(result.replied & np.isfinite(insight).all(axis=1))
    if good.size < 2:
        return nobody
    who = result.clients[good]
    return who, skewness(insight[good], known_samples(s.samples[who]), clip)


def known_samples(samples: Real) -> Real:
    """M_i, with the mean of the known instead of the unknown (zeros)."""
    known = samples > 0
    return np.where(known, samples, samples[known].mean() if known.any() else 1.0)


def skewness(insight: Real, samples: Real, clip: float = math.inf) -> NDArray[np.float64]:
    """Q_i of eq. 13 against the weighted mean of eq. 14; rows are clients.

    >>> insight = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 1.0]])
    >>> int(skewness(insight, samples=np.array([10, 10, 10])).argmax())
    2
    """
    dw, m = np.asarray(insight, np.float64), np.asarray(samples, np.float64)
    length = np.sqrt(np.einsum("ij,ij->i", dw, dw))
    weight = m
    if math.isfinite(clip):
        longest = clip * float(np.median(length))
        weight = m * np.minimum(1.0, np.divide(longest, length, out=np.ones_like(length), where=length > longest))
    mean = weight @ dw / m.sum()
    away = dw - mean
    far = np.sqrt(np.einsum("ij,ij->i", away, away))
    far[far <= ROUNDING * (length + float(np.linalg.norm(mean)))] = 0.0
    q: NDArray[np.float64] = np.sqrt(m) * far
    return q


def sequential_draw(wins: Real, losses: Real, size: int, rng: np.random.Generator) -> Index:
    """Alg. 2, lines 3 to 10: positions in the order in which they join; all that are left draw anew for each."""
    a, b = np.asarray(wins, np.float64) + 1, np.asarray(losses, np.float64) + 1
    picked = np.empty(size, np.int64)
    rows = max(1, 100_000 // a.size)  # draws at a time; those of clients already picked are ignored
    for first in range(0, size, rows):
        theta = rng.beta(a, b, (min(rows, size - first), a.size))
        theta[:, picked[:first]] = -1.0
        for row in range(theta.shape[0]):
            best = int(theta[row].argmax())
            picked[first + row] = best
            theta[row:, best] = -1.0
    return picked


def single_draw(wins: Real, losses: Real, size: int, rng: np.random.Generator) -> Index:
    """Positions of the `size` largest of one theta per client; nobody draws whose membership is certain."""
    n, total = wins.size, wins + losses + 2
    mean, reach = (wins + 1) / total, np.float32(REACH / 2) / np.sqrt(total + 1)
    low, high = mean - reach, mean + reach
    least, most = np.partition(low, n - size)[n - size], np.partition(high, n - size)[n - size]
    sure = np.flatnonzero(low > most)
    open_ = np.flatnonzero((low <= most) & (high >= least))
    return np.concatenate([sure, open_[draw.top(_beta(wins[open_], losses[open_], rng), size - sure.size, rng)]])


def _beta(wins: Real, losses: Real, rng: np.random.Generator) -> Real:
    """Beta(A + 1, B + 1) as a ratio of gammas; plain uniforms where nothing is known."""
    theta = rng.random(wins.size, np.float32)
    told = np.flatnonzero(wins + losses > 0)
    a = rng.standard_gamma(wins[told] + 1, dtype=np.float32)
    theta[told] = a / (a + rng.standard_gamma(losses[told] + 1, dtype=np.float32))
    return theta
