"""FedCor: clients whose losses move together.

    Minxue Tang, Xuefei Ning, Yitu Wang, Jingwei Sun, Yu Wang, Hai Li, Yiran Chen.
    FedCor: Correlation-Based Active Client Selection Strategy for Heterogeneous Federated Learning. CVPR 2022.
    https://arxiv.org/abs/2103.13822

The change of all N losses in one round, dL, is taken as Gaussian with a covariance of low rank:

    dL ~ N(mu, S),   S = X'X + s^2 I,   X of shape (D, N)                                                          (1)
    X <- argmax sum_e gamma^(t - e) log N(dL_e; mu, S)      Adam on the stored samples e; mu: their weighted mean  (2)

A cohort is chosen greedily: with data shares p_i, Sigma_kk = sigma_k^2 and alpha_k = beta^(times chosen since a fit)

    k* = argmax_k  alpha_k / sigma_k  sum_i p_i Sigma_ik                                                           (3)
    Sigma <- Sigma - Sigma_:k* Sigma_k*: / Sigma_k*k*                what k* is known to do is not counted twice   (4)

Rounds 0 .. W are drawn by lot, and all losses asked for, then the model is fitted. Every Delta rounds after that one
more sample is taken from a round drawn by lot, and the model fitted again.

Departures from the paper
    * Read in the authors' code, not in the paper. mu is the weighted mean of the samples (`update_mean`): losses fall
      on average, and with mu = 0 that would be taken for correlation.
    * A sample round is a real one. The code trains M random clients besides and throws their work away, to see an
      unbiased dL; here the round itself is drawn by lot and its update is used. It is paid for like any round, and so
      are its probes: all available clients before it and again after it. FedCor chooses in Delta - 1 of Delta rounds.
    * Fitting and selection use (1) as it is, by Woodbury and by rank-one corrections: O(N D^2) for a step of (2) and
      O(N (D + M)) for a pick, with no N x N matrix; memory is O(N history). (The code does both densely, in O(N^3).)
    * Clients that did not answer are left out of that sample's likelihood. Against liars, a loss above ten medians is
      no answer, and changes count up to three robust standard deviations around their median. Sigma_kk is at least s^2.
    * The first X is N(0, v / D) with v the variance of the samples (the code has v = 1, from where small changes take
      long to reach), by the generator of the round in which the model is fitted; so are columns of new clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw, lowrank
from fedcohort.core.table import Table, block, column
from fedcohort.errors import UnknownName, check
from fedcohort.selectors.feel import heard
from fedcohort.types import Arrays, Cohort, Index, Probed, Real, Round, RoundResult

Double = NDArray[np.float64]
RANK = 15  # D
CLIP = 3.0  # robust standard deviations that a change may be off
HIGHEST = 10.0  # medians above which a loss is not believed
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


class FedCor:
    """Choose clients whose training lowers most of everybody's loss, by the correlations of the past.

    The paper's symbol for each parameter is given in brackets. `None` takes the preset's value.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"samples", "probe_loss"})

    def __init__(
        self,
        *,
        preset: str = "fmnist",
        warm_up: int | None = None,  # [W] rounds
        interval: int | None = None,  # [Delta t] rounds between samples
        history: int | None = None,  # samples kept
        forget: float | None = None,  # [gamma]
        decay: float | None = None,  # [beta]
        noise: float = 0.01,  # [sigma_n]
        step: float = 0.01,  # learning rate of Adam
        first: int = 1000,  # steps of the first fit
        later: int = 100,  # steps of the others
    ) -> None:
        if preset not in PRESETS:
            raise UnknownName.among("preset", preset, PRESETS)
        default = PRESETS[preset]
        self.warm_up = int(default["warm_up"]) if warm_up is None else warm_up
        self.interval = int(default["interval"]) if interval is None else interval
        self.history = int(default["history"]) if history is None else history
        self.forget = default["forget"] if forget is None else forget
        self.decay = default["decay"] if decay is None else decay
        self.noise, self.step, self.first, self.later = noise, step, first, later
        check(self.warm_up >= 1, f"warm_up = {warm_up}", "one change needs two rounds", "use e.g. 15")
        check(self.interval >= 2, f"interval = {interval}", "a sample takes two rounds", "use e.g. 10")
        check(self.history >= 1, f"history = {history}", "at least one sample is kept", "use e.g. 100")
        check(0 < self.forget <= 1, f"forget = {forget}", "it lies in (0, 1]", "use e.g. 0.95")
        check(0 < self.decay <= 1, f"decay = {decay}", "it lies in (0, 1]", "use e.g. 0.95")
        check(noise > 0, f"noise = {noise}", "it is positive", "use e.g. 0.01")
        self.state = FedCorState(
            change=np.zeros((0, self.history), np.float32),
            seen=np.zeros((0, self.history), np.bool_),
            when=np.full(self.history, -1, np.int64),
        )
        self._lot: tuple[int, int] | None = None  # round, seed for new columns of X

    def draw_uniform(self, index: int) -> bool:
        """Whether this round is drawn by lot: the warm-up, and a sample every Delta rounds."""
        return index <= self.warm_up or (index - self.warm_up) % self.interval == 0

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Everybody before and after a round that is drawn by lot."""
        del rng
        wanted = self.draw_uniform(rnd.index) or (
            rnd.index > 0 and self.draw_uniform(rnd.index - 1) and rnd.index - 1 > self.warm_up
        )
        return rnd.available if wanted else np.empty(0, np.int64)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 3 and 4, or by lot."""
        s = self.state
        s.grow(rnd.population)
        k = min(rnd.size, rnd.available.size)
        if self.draw_uniform(rnd.index) or not s.fits:
            clients = draw.uniform(rnd.available, k, rng)
            inclusion = np.full(k, k / max(rnd.available.size, 1))
            cohort = Cohort(clients, inclusion=inclusion, why={"gain": np.zeros(k), "alpha": s.alpha[clients]})
        else:
            x, shares = s.embedding[: rnd.population].T, data_shares(rnd)
            picked, gain = correlated(x, self.noise, shares, s.alpha[: rnd.population], rnd.available, k, rng)
            cohort = Cohort(picked, why={"gain": gain, "alpha": s.alpha[picked]})
        self._lot = rnd.index, int(rng.integers(2**62))
        return cohort

    def observe(self, result: RoundResult) -> None:
        """Keep the losses; fit when a sample has come in; let alpha decay."""
        s, told = self.state, result.clients
        s.grow(int(told.max(initial=-1)) + 1)
        if not self.draw_uniform(result.index) and s.fits:
            s.alpha[told] *= self.decay
        if result.probed is None:
            return
        sampled = self._keep(result.index, result.probed)
        if sampled and result.index >= self.warm_up:
            seed = self._lot[1] if self._lot is not None and self._lot[0] == result.index else result.index
            self._fit(result.index, np.random.default_rng(seed))

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

    def _keep(self, index: int, answers: Probed) -> bool:
        """Store the losses, and dL of the round before where both ends are known. Whether that made a sample."""
        s = self.state
        who, loss = heard(answers, "probe_loss")
        s.grow(int(who.max(initial=-1)) + 1)
        believed = loss <= HIGHEST * np.median(loss) if loss.size else loss > 0
        who, loss = who[believed], loss[believed]
        both = s.asked[who] == index - 1
        change = (loss - s.loss[who])[both]
        s.loss[who], s.asked[who] = loss, index
        if change.size < 2 or not self.draw_uniform(index - 1):
            return False
        e = int(np.argmin(s.when))  # the oldest, or one that is free
        s.change[:, e], s.seen[:, e], s.when[e] = 0.0, False, index - 1
        s.change[who[both], e], s.seen[who[both], e] = _clipped(change), True
        return True

    def _fit(self, now: int, rng: np.random.Generator) -> None:
        """Eq. 2 by Adam, from where X is; alpha starts anew."""
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
    """p_i = n_i / n over all registered clients; all alike where nobody says."""
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
