"""FedCor: clients whose losses move together.

    Minxue Tang, Xuefei Ning, Yitu Wang, Jingwei Sun, Yu Wang, Hai Li, Yiran Chen.
    FedCor: Correlation-Based Active Client Selection Strategy for Heterogeneous Federated Learning. CVPR 2022.
    https://arxiv.org/abs/2103.13822

The change of all N losses in one round, dL, is taken as Gaussian with a covariance of low rank:

    dL ~ N(mu, S),   S = X'X + s^2 I,   X of shape (D, N)                                                          (1)
    X <- argmax sum_e gamma^(t - e) log N(dL_e; mu, S)      Adam on the stored samples e; mu: their weighted mean  (2)

A cohort is chosen greedily: with data shares p_i, Sigma_kk = sigma_k^2 and alpha_k = beta^(times chosen since a fit)

    k* = argmax_k  alpha_k / sigma_k  sum_i p_i Sigma_ik                                                           (3)
    Sigma <- Sigma - Sigma_:k* Sigma_k*: / Sigma_k*k*                what k* explains is not counted twice         (4)

Rounds 0 .. W are drawn uniformly at random and all losses are probed, then the model is fitted. Every Delta rounds
after that, another round is drawn uniformly to take one more sample, and the model is fitted again.

Departures from the paper
    * Follows the authors' code, not the paper. mu is the weighted mean of the samples (`update_mean`): losses fall
      on average, and with mu = 0 that would be taken for correlation.
    * A sample round is a real one. The code trains M random clients in addition and discards their work, to see an
      unbiased dL; here the round itself is drawn uniformly and its update is used. It costs what any round costs, and
      so do its probes: all available clients before it and again after it. FedCor chooses in Delta - 1 of Delta rounds.
    * Fitting and selection use (1) as it is, by Woodbury and by rank-one corrections: O(N D^2) for a step of (2) and
      O(N (D + M)) for a pick, with no N x N matrix; memory is O(N history). (The code does both densely, in O(N^3).)
    * Clients that did not answer are left out of that sample's likelihood. Against liars, a loss above ten medians
      counts as no answer, and changes are cut at three robust standard deviations from their median. Sigma_kk is at
      least s^2.
    * The first X is N(0, v / D) with v the variance of the samples (the code has v = 1, which takes long to shrink), by
      the generator of the round in which the model is fitted; so are columns of new clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw, lowrank
from fedcohort.core.constraints import Choice, Count, CountOrZero, Factor, Interval, Positive
from fedcohort.core.table import Table, block, column
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import usable
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Probed, Real, Round, RoundResult

Double = NDArray[np.float64]
RANK = 15  # D
CLIP = 3.0  # robust standard deviations at which a change is cut
HIGHEST = 10.0  # medians above which a loss is ignored
PRESETS: dict[str, dict[str, float]] = {
    "fmnist": {"warm_up": 15, "interval": 10, "history": 100, "forget": 0.95, "decay": 0.95},
    "cifar10": {"warm_up": 20, "interval": 50, "history": 500, "forget": 0.99, "decay": 0.9},
}


@dataclass
class FedCorState(Table):
    """The embedding and the samples it is fitted to."""

    embedding: Double = column(0.0, np.float64, width=RANK)  # X'
    alpha: Real = column(1.0)  # alpha_k
    loss: Real = column(0.0)  # L_i as last probed
    asked: NDArray[np.int64] = column(-2, np.int64)  # the round of it
    change: Real = column(0.0, width=1)  # dL_e, one column per sample; `history` wide
    seen: NDArray[np.bool_] = column(False, np.bool_, width=1)  # whether dL_e is known
    when: NDArray[np.int64] = block((1,), -1, np.int64)  # the round of sample e; -1: none yet
    fits: int = 0  # how often the model was fitted


class FedCor(StatefulSelector[FedCorState]):
    """Choose the clients whose training lowers everybody's loss most, judging by correlations of the past.

    Args:
        preset: "fmnist" or "cifar10"; sets the arguments that are None.
        warm_up: first rounds drawn uniformly at random [W].
        interval: rounds between samples [Delta t].
        history: samples kept.
        forget: weight of a sample against the next newer one [gamma].
        decay: factor on a client's gain each time it is chosen, until the next fit [beta].
        noise: standard deviation of the noise of a change [sigma_n].
        step: learning rate of Adam.
        first: steps of the first fit.
        later: steps of the other fits.

    >>> FedCor(preset="cifar10", warm_up=8).interval
    50
    """

    needs = frozenset({"samples", "probe_loss"})

    @checked
    def __init__(
        self,
        *,
        preset: Annotated[str, Choice(*PRESETS)] = "fmnist",
        warm_up: Count | None = None,
        interval: Annotated[int, Interval(2)] | None = None,
        history: Count | None = None,
        forget: Factor | None = None,
        decay: Factor | None = None,
        noise: Positive = 0.01,
        step: Positive = 0.01,
        first: CountOrZero = 1000,
        later: CountOrZero = 100,
    ) -> None:
        default = PRESETS[preset]
        self.warm_up = int(default["warm_up"]) if warm_up is None else warm_up
        self.interval = int(default["interval"]) if interval is None else interval
        self.history = int(default["history"]) if history is None else history
        self.forget = default["forget"] if forget is None else forget
        self.decay = default["decay"] if decay is None else decay
        self.noise, self.step, self.first, self.later = noise, step, first, later
        self.state = FedCorState(
            change=np.zeros((0, self.history), np.float32),
            seen=np.zeros((0, self.history), np.bool_),
            when=np.full(self.history, -1, np.int64),
        )
        self._fit_seed: tuple[int, int] | None = None  # round, seed for new columns of X

    def drawn_uniformly(self, index: int) -> bool:
        """Whether this round is drawn uniformly at random: the warm-up, and a sample round every Delta rounds."""
        return index <= self.warm_up or (index - self.warm_up) % self.interval == 0

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Everybody, before and after a round that is drawn uniformly."""
        del rng
        wanted = self.drawn_uniformly(rnd.index) or (
            rnd.index > 0 and self.drawn_uniformly(rnd.index - 1) and rnd.index - 1 > self.warm_up
        )
        return rnd.available if wanted else np.empty(0, np.int64)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 3 and 4, or uniformly at random."""
        s = self.state
        s.grow(rnd.population)
        k = min(rnd.size, rnd.available.size)
        if self.drawn_uniformly(rnd.index) or not s.fits:
            clients = draw.uniform(rnd.available, k, rng)
            inclusion = np.full(k, k / max(rnd.available.size, 1))
            cohort = Cohort(clients, inclusion=inclusion, why={"gain": np.zeros(k), "alpha": s.alpha[clients]})
        else:
            x, shares = s.embedding[: rnd.population].T, data_shares(rnd)
            picked, gain = correlated(x, self.noise, shares, s.alpha[: rnd.population], rnd.available, k, rng)
            cohort = Cohort(picked, why={"gain": gain, "alpha": s.alpha[picked]})
        self._fit_seed = rnd.index, int(rng.integers(2**62))
        return cohort

    def observe(self, result: RoundResult) -> None:
        """Keep the losses; fit when there is a new sample; let alpha decay."""
        s, told = self.state, result.clients
        s.grow_for(told)
        if not self.drawn_uniformly(result.index) and s.fits:
            s.alpha[told] *= self.decay
        if result.probed is None:
            return
        sampled = self._keep(result.index, result.probed)
        if sampled and result.index >= self.warm_up:
            index, seed = self._fit_seed or (-1, 0)
            self._fit(result.index, np.random.default_rng(seed if index == result.index else result.index))

    def _keep(self, index: int, answers: Probed) -> bool:
        """Store the losses, and dL of the round before if both ends are known. Returns whether that made a sample."""
        s = self.state
        who, loss = usable(answers, "probe_loss")
        s.grow_for(who)
        believed = loss <= HIGHEST * np.median(loss) if loss.size else loss > 0
        who, loss = who[believed], loss[believed]
        both = s.asked[who] == index - 1
        change = (loss - s.loss[who])[both]
        s.loss[who], s.asked[who] = loss, index
        if change.size < 2 or not self.drawn_uniformly(index - 1):
            return False
        e = int(np.argmin(s.when))  # the oldest, or one that is free
        s.change[:, e], s.seen[:, e], s.when[e] = 0.0, False, index - 1
        s.change[who[both], e], s.seen[who[both], e] = _clipped(change), True
        return True

    def _fit(self, now: int, rng: np.random.Generator) -> None:
        """Eq. 2 by Adam, starting from the present X; alpha starts again at 1."""
        s = self.state
        used = np.flatnonzero(s.when >= 0)
        seen = s.seen[:, used].T
        rows = np.flatnonzero(seen.any(axis=0))  # clients that appear in any sample
        weight = self.forget ** (now - s.when[used]).astype(np.float64)
        y = s.change[:, used].T.astype(np.float64)
        total = (weight[:, None] * seen).sum(axis=0)
        mean = (weight[:, None] * y * seen).sum(axis=0) / np.maximum(total, 1e-12)
        y = np.where(seen, y - mean, 0.0)
        new = rows[~s.embedding[rows].any(axis=1)]
        scale = np.sqrt(float((y * y)[seen].mean()) / RANK)
        s.embedding[new] = scale * rng.standard_normal((s.rows, RANK))[new]
        steps = self.later if s.fits else self.first
        x = adam(s.embedding[rows].T, self.noise, y[:, rows], seen[:, rows], weight, steps, self.step)
        if np.isfinite(x).all():
            s.embedding[rows] = x.T
            s.fits += 1
            s.alpha[:] = 1.0


def adam(
    x: Double, noise: float, y: Double, seen: NDArray[np.bool_], weight: Double, steps: int, rate: float
) -> Double:
    """Maximise the weighted log-likelihood over X."""
    x, first, second = x.copy(), np.zeros_like(x), np.zeros_like(x)
    for t in range(1, steps + 1):
        _, gradient = lowrank.log_likelihood(x, noise, y, seen, weight)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        x += rate * first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return x


def correlated(
    x: Double, noise: float, shares: Double, alpha: Real, available: Index, k: int, rng: np.random.Generator
) -> tuple[Index, Double]:
    """Eq. 3 and 4: clients in the order chosen, and their gains. Sigma is held as X'X + s^2 I minus rank-one terms."""
    floor = noise**2
    spread = x.T @ (x @ shares) + floor * shares  # (Sigma p)_k
    variance = (x * x).sum(axis=0) + floor  # Sigma_kk
    past = np.empty((k, x.shape[1]))  # the vectors of the rank-one terms
    left = np.zeros(x.shape[1], np.bool_)
    left[available] = True
    chosen, gains = np.empty(k, np.int64), np.empty(k)
    for j in range(k):
        here = np.flatnonzero(left)
        gain = alpha[here] * spread[here] / np.sqrt(np.maximum(variance[here], floor))
        at = draw.top(gain, 1, rng)[0]
        best = int(here[at])
        chosen[j], gains[j], left[best] = best, gain[at], False
        covariance = x.T @ x[:, best] - past[:j].T @ past[:j, best]
        covariance[best] += floor
        past[j] = covariance / np.sqrt(max(float(covariance[best]), floor))
        spread = spread - past[j] * float(past[j] @ shares)
        variance = variance - past[j] ** 2
    return chosen, gains


def data_shares(rnd: Round) -> Double:
    """p_i = n_i / n over all registered clients; all equal if nothing is registered."""
    n = np.ones(rnd.population)
    if "samples" in rnd.profiles:
        given = np.asarray(rnd.profiles["samples"], np.float64)
        n = np.where(np.isfinite(given), np.maximum(given, 0.0), 0.0)
    return n / max(float(n.sum()), 1e-12)


def _clipped(change: Real) -> Real:
    """Within three robust standard deviations of the median."""
    middle = np.median(change)
    reach = CLIP * 1.4826 * max(float(np.median(np.abs(change - middle))), 1e-6)
    out: Real = np.clip(change, middle - reach, middle + reach)
    return out
