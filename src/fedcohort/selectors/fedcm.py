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
      the available, ties broken at random. Alg. 3 leaves out the division by the number of clients.
    * UCB starts mean_k at a "random binomial" without a parameter, read as Bernoulli(1/2). Such a draw would have to
      be remembered, and `select` must not change the state: initial="mean" starts everybody at its expectation 1/2.
      The first cohort has the same distribution (uniform); later all untried clients come before the tried ones, not
      only those that drew a 1. initial="bernoulli" draws as a function of (prior_seed, slot).
    * A client that did not reply (late, failed, rejected) says nothing about S_opt. It is counted with the reward
      expected of it: its mean stays, its uncertainty shrinks. silence="zero" counts it as left out of S_opt.
    * Beta draws with alpha = 1 or beta = 1 are made in closed form, exp(-E/alpha) and 1 - exp(-E/beta) with E
      exponential: the same distribution, faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, CountOrZero, NotNegative
from fedcohort.core.rng import uniform_at
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.selectors._parts.scoring import best, rows_of
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult

Silence = Annotated[str, Choice("expected", "zero")]
_FILTERS = "learns from a method that filters, such as fedca; the synthetic federation filters nearly nobody"


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


class FedCMUCB(StatefulSelector[UCBState]):
    """Ask the clients that combinatorial averaging is likely to keep, with a bonus for the little known.

    Args:
        explore: the 3/2 under the root of the index.
        initial: "mean" starts every mean at 1/2; "bernoulli" draws 0 or 1.
        prior_seed: of the draws of initial="bernoulli".
        silence: what a client that did not reply counts as, "expected" or "zero".

    >>> FedCMUCB(explore=0.15).needs  # use it with a method that filters, such as fedca
    frozenset()
    """

    exempt: Mapping[str, str] = {"learns": _FILTERS}

    @checked
    def __init__(
        self,
        *,
        explore: NotNegative = 1.5,
        initial: Annotated[str, Choice("mean", "bernoulli")] = "mean",
        prior_seed: CountOrZero = 0,
        silence: Silence = "expected",
    ) -> None:
        super().__init__()
        self.explore, self.initial, self.prior_seed, self.silence = explore, initial, prior_seed, silence

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

    def _grow(self, population: int) -> None:
        """Appendix C: new clients start at their first mean."""
        s, known = self.state, self.state.rows
        s.grow(population)
        if self.initial == "bernoulli" and s.rows > known:
            fresh = np.arange(known, s.rows)
            s.mean[fresh] = uniform_at(self.prior_seed, "fedcm-prior", 0, fresh) < 0.5


class FedCMTS(StatefulSelector[TSState]):
    """Ask the clients that combinatorial averaging will keep, according to a draw from each Beta posterior.

    Args:
        silence: what a client that did not reply counts as, "expected" or "zero".

    >>> FedCMTS(silence="zero").needs  # use it with a method that filters, such as fedca
    frozenset()
    """

    exempt: Mapping[str, str] = {"learns": _FILTERS}

    @checked
    def __init__(self, *, silence: Silence = "expected") -> None:
        super().__init__()
        self.silence = silence

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Lines 3 and 4 of Alg. 3."""
        s = self.state
        s.grow(rnd.population)
        rows = rows_of(rnd)
        alpha, beta = s.alpha[rows], s.beta[rows]
        theta = _log_posterior(alpha, beta, rng)
        at = draw.top(theta, rnd.size, rng)
        return Cohort(rnd.available[at], why={"score": np.exp(theta[at]), "mean": alpha[at] / (alpha[at] + beta[at])})

    def observe(self, result: RoundResult) -> None:
        """Line 2 of Alg. 3."""
        s, told = self.state, result.clients
        s.grow_for(told)
        mean = s.alpha[told] / (s.alpha[told] + s.beta[told])
        reward = _reward(result, mean, self.silence)
        s.alpha[told] += reward
        s.beta[told] += 1 - reward


def _reward(result: RoundResult, mean: Real, silence: str) -> Real:
    """r_k: 1 in S_opt, 0 left out of it; for those that did not reply what was expected of them, or 0."""
    silent = mean if silence == "expected" else np.zeros_like(mean)
    return np.where(result.replied, result.ok.astype(np.float32), silent)


def _log_posterior(alpha: Real, beta: Real, rng: np.random.Generator) -> Real:
    """The logarithm of one draw from Beta(alpha, beta) each."""
    e = np.maximum(rng.standard_exponential(alpha.size, np.float32), np.float32(1e-30))
    theta = -e / alpha  # right for beta = 1
    lost = np.flatnonzero((alpha == 1) & (beta > 1))
    theta[lost] = np.log(-np.expm1(-e[lost] / beta[lost]))
    mixed = np.flatnonzero((alpha > 1) & (beta > 1))
    theta[mixed] = np.log(np.maximum(rng.beta(alpha[mixed], beta[mixed]), 1e-300))
    return theta
