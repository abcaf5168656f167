"""FedCM: bandit sampling of the clients that combinatorial averaging keeps.

    Accurate and Fast Federated Learning via Combinatorial Multi-Armed Bandits (KAIST). Algorithms 2 and 3, Appendix C.
    The averaging itself, which finds S_opt, is the method `fedca`.

For every client k of the last cohort S^{t-1}, with r_k = 1 if k is in S_opt^{t-1} and 0 otherwise:

    UCB     mean_k <- (a_k mean_k + r_k) / (a_k + 1),   a_k <- a_k + 1                             (Alg. 2, line 2)
            index_k = mean_k + sqrt( 3 ln t / (2 a_k) )                                            (Alg. 2, line 3)
    TS      (alpha_k, beta_k) <- (alpha_k + r_k, beta_k + 1 - r_k)                                 (Alg. 3, line 2)
            theta_k ~ Beta(alpha_k, beta_k)                                                        (Alg. 3, line 3)
    S^t   = the K clients of largest index_k, or of largest theta_k                                (line 4)

a_k starts at 1, (alpha_k, beta_k) at (1, 1), t counts rounds from 1. r_k is read from the outcome: OK is a member of
S_opt, FILTERED is not. Under a method that filters nobody every reply earns 1, and nothing is learned about quality.

Departures from the paper
    * Index and posterior draw are made for all available clients in every round; the paper's loop is over S^{t-1} only.
    * Line 4 as printed counts ties against everybody tied, so that the first cohort is mostly empty. Here: exactly K of
      the available, ties by lot. Alg. 3 leaves out the division by the number of clients.
    * UCB starts mean_k at a "random binomial" without a parameter, read as Bernoulli(1/2). Such a draw would have to
      outlive the round it is made in, and `select` may keep nothing: initial="mean" starts everybody at its
      expectation 1/2. The first cohort has the same law (uniform); later everybody untried comes before the tried, and
      not only the lucky half. initial="bernoulli" draws as a function of (prior_seed, slot).
    * A client that did not reply (late, failed, rejected) is no evidence about S_opt. It is counted with the reward
      expected of it: its mean stays, its uncertainty shrinks. silence="zero" counts it as left out of S_opt.
    * Beta draws with alpha = 1 or beta = 1 are made in closed form, exp(-E/alpha) and 1 - exp(-E/beta) with E
      exponential: the same law, faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.rng import uniform_at
from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.selectors._parts.flash_context import best
from fedcohort.types import Arrays, Cohort, Index, Real, Round, RoundResult

SILENCE = ("expected", "zero")
INITIAL = ("mean", "bernoulli")
_FILTERS = "learns from a method that filters, such as fedca; the planted federation filters nearly nobody"


@dataclass
class UCBState(Table):
    """What FedCM-UCB remembers of every client."""

    mean: Real = column(0.5)  # mean_k, the estimated chance to be in S_opt
    count: Real = column(1.0)  # a_k


@dataclass
class TSState(Table):
    """What FedCM-TS remembers of every client."""

    alpha: Real = column(1.0)  # alpha_k
    beta: Real = column(1.0)  # beta_k


class FedCMUCB:
    """Ask those that may be kept by combinatorial averaging, with the benefit of the doubt.

    The paper's symbol for each parameter is given in brackets.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    exempt: ClassVar[Mapping[str, str]] = {"learns": _FILTERS}

    def __init__(
        self,
        *,
        explore: float = 1.5,  # the 3/2 under the root
        initial: str = "mean",
        prior_seed: int = 0,  # of the draws of initial="bernoulli"
        silence: str = "expected",
    ) -> None:
        check(explore >= 0, f"explore = {explore}", "it must not be negative", "1.5 is the paper's")
        check(initial in INITIAL, f"initial = {initial!r}", "no such start", f"use one of {', '.join(INITIAL)}")
        check(prior_seed >= 0, f"prior_seed = {prior_seed}", "a seed must not be negative", "use 0 or more")
        _check_silence(silence)
        self.explore, self.initial, self.prior_seed, self.silence = explore, initial, prior_seed, silence
        self.state = UCBState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Lines 3 and 4 of Alg. 2."""
        self._grow(rnd.population)
        doubt = np.float32(self.explore * math.log(rnd.index + 1))

        def index(rows: Index | slice) -> Real:
            out: Real = self.state.mean[rows] + np.sqrt(doubt / self.state.count[rows])
            return out

        chosen = best(rnd.available, rnd.size, index, rng)
        mean = self.state.mean[chosen]
        return Cohort(chosen, why={"score": index(chosen), "mean": mean, "bonus": index(chosen) - mean})

    def observe(self, result: RoundResult) -> None:
        """Line 2 of Alg. 2."""
        s, told = self.state, result.clients
        self._grow(int(told.max(initial=-1)) + 1)
        mean, count = s.mean[told], s.count[told]
        s.mean[told] = (count * mean + _reward(result, mean, self.silence)) / (count + 1)
        s.count[told] = count + 1

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)

    def _grow(self, population: int) -> None:
        """Appendix C: new clients start at their first mean."""
        s, known = self.state, self.state.rows
        s.grow(population)
        if self.initial == "bernoulli" and s.rows > known:
            fresh = np.arange(known, s.rows)
            s.mean[fresh] = uniform_at(self.prior_seed, "fedcm-prior", 0, fresh) < 0.5


class FedCMTS:
    """Ask those that a draw from their Beta posterior says will be kept by combinatorial averaging."""

    needs: ClassVar[frozenset[str]] = frozenset()
    exempt: ClassVar[Mapping[str, str]] = {"learns": _FILTERS}

    def __init__(self, *, silence: str = "expected") -> None:
        _check_silence(silence)
        self.silence = silence
        self.state = TSState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Lines 3 and 4 of Alg. 3."""
        s = self.state
        s.grow(rnd.population)
        who = rnd.available
        rows = slice(0, who.size) if who.size == rnd.population else who  # everybody: a view, not a copy
        alpha, beta = s.alpha[rows], s.beta[rows]
        theta = _log_posterior(alpha, beta, rng)
        at = draw.top(theta, rnd.size, rng)
        return Cohort(who[at], why={"score": np.exp(theta[at]), "mean": alpha[at] / (alpha[at] + beta[at])})

    def observe(self, result: RoundResult) -> None:
        """Line 2 of Alg. 3."""
        s, told = self.state, result.clients
        s.grow(int(told.max(initial=-1)) + 1)
        mean = s.alpha[told] / (s.alpha[told] + s.beta[told])
        reward = _reward(result, mean, self.silence)
        s.alpha[told] += reward
        s.beta[told] += 1 - reward

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.state.load_arrays(arrays)


def _reward(result: RoundResult, mean: Real, silence: str) -> Real:
    """r_k: 1 in S_opt, 0 left out of it; for those that did not reply what was expected of them, or 0."""
    unheard = mean if silence == "expected" else np.zeros_like(mean)
    return np.where(result.replied, result.ok.astype(np.float32), unheard)


def _log_posterior(alpha: Real, beta: Real, rng: np.random.Generator) -> Real:
    """The logarithm of one draw from Beta(alpha, beta) each."""
    e = np.maximum(rng.standard_exponential(alpha.size, np.float32), np.float32(1e-30))
    theta = -e / alpha  # right for beta = 1
    lost = np.flatnonzero((alpha == 1) & (beta > 1))
    theta[lost] = np.log(-np.expm1(-e[lost] / beta[lost]))
    mixed = np.flatnonzero((alpha > 1) & (beta > 1))
    theta[mixed] = np.log(np.maximum(rng.beta(alpha[mixed], beta[mixed]), 1e-300))
    return theta


def _check_silence(silence: str) -> None:
    check(silence in SILENCE, f"silence = {silence!r}", "no such rule", f"use one of {', '.join(SILENCE)}")
