"""FLASH-RL: multi-action double deep Q-learning for slow devices and skewed data.

    Sofiane Bouaziz, Hadjer Benmeziane, Youcef Imine, Leila Hamdad, Smail Niar, Hamza Ouarnoughi.
    FLASH-RL: Federated Learning Addressing System and Static Heterogeneity using Reinforcement Learning. ICCD 2023.

With the local weights w_k, the new global model w, its validation score P_t and the duration l_k of a client's round:

    d_k    = mean_j |(w_k^j - w^j) / w^j|                                divergence                              (5)
    zeta_k = exp(-d_k)  if P_t > P_(t-1)  else  1 - exp(-d_k)            utility                                 (6)
    Psi_k <- lambda (alpha1 zeta_k - alpha2 l~_k) + (1 - lambda) Psi_k   reputation = reward of sub-action k     (8)
    s_t    = blocks (weights on k axes, n_k, c_k, f_k, b_k) of all clients (`_parts/weight_embedding.py`)        (9, 10)
    S_t    : for each place, with probability eps a random client, else the next best by Q(s_t, .)              (11)

The agent (`_parts/double_dqn.py`, `_parts/dqn_agent.py`) learns from every sub-action of the rounds it draws from
memory (12, 13).

Departures from the paper (numbers of the list of errors in `docs/selectors/flash-rl.md`)
    * A1: (5) has no mean when weights are near zero; d_k = sum|w_k - w| / sum|w| by default. "eq5" bounds the
      denominator below by a tenth of the mean |w|, "printed" does not (weights that are zero are left out); "repo" is
      the authors' |mean of signed ratios|, which is noise.
    * A2: l~ is l between the 5th and 95th percentile of the clients' last durations (or between `fastest` and
      `slowest`), in [0, 1]: in seconds it would swamp zeta. With alphas up to 1, rewards lie in [-1, 1].
    * A3-A5: the argmax of the target is on the next state; all sub-actions are learned from, and only these.
    * A6, A7, A11: n_k counts samples; only the last of `horizon` rounds is terminal; every input is standardised.
    * A8: P_t is measured on the server's validation data: accuracy, or what a run's key `score` names (F1).
    * A9: `min_delta` is the rise that counts as one.
    * A12: lambda weighs the new utility, as in (8). The first score counts as a rise.
    * A client that does not reply has utility 0 and the time that the server waited for it (`failure="skip"`: no
      reward).
    * Weights are taken relative to the new model, the state has the client's l~ (the paper estimates durations,
      we measure them), and device profiles are means and opt-in (`device=True`), because few worlds have them.
    * preset "paper" has eps and steps of the authors' code and (5) as printed, with its denominator bounded. Ours
      lowers eps faster, takes four Adam steps a round, and takes rewards relative to their mean.
    * network="shared" is ours, for more than some ten thousand clients; its blocks also hold Psi.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Count, CountOrZero, Finite, Interval, NotNegative, Positive, Share
from fedcohort.core.table import column
from fedcohort.errors import check, checked
from fedcohort.selectors._parts import weight_embedding as blocks
from fedcohort.selectors._parts.dqn_agent import (
    AgentSelector,
    Discount,
    Learner,
    LearnerState,
    Network,
    Reference,
    WarmUpMode,
    learn_profiles,
    usable_weights,
)
from fedcohort.types import Cohort, Index, Mask, Real, Round, RoundResult

PRESETS: dict[str, dict[str, Any]] = {
    "robust": {"divergence": "relative", "explore_min": 0.1, "explore_rounds": 40, "steps": 4, "centre": True},
    "paper": {"divergence": "eq5", "explore_min": 0.2, "explore_rounds": 500, "steps": 1, "centre": False},
}
UNITS = {"robust": 64, "paper": 512}
UNKNOWN = 0.5  # [l~] of a client that was never timed


@dataclass
class FlashRLState(LearnerState):
    """What the agent knows, and each client's reputation."""

    reputation: Real = column(0.01)  # [Psi]
    seconds: Real = column(0.0)  # [l] as last measured; 0: never
    score: float = -np.inf  # [P_(t-1)]


class FlashRL(AgentSelector[FlashRLState]):
    """Q-learning over cohorts: clients whose weights agree with progress, and that are fast.

    Args:
        preset: "robust" or "paper"; sets the arguments that are None.
        mix: weight of the new utility in the reputation [lambda].
        utility: weight of the utility in the reward [alpha1].
        latency: weight of the duration in the reward [alpha2].
        divergence: form of eq. 5 [d], "relative", "eq5" (denominator bounded below), "printed" or "repo".
        min_delta: the score must rise by more than this to count as a rise.
        fastest: seconds at which l~ is 0, if known.
        slowest: seconds at which l~ is 1, if known.
        failure: "penalise" clients that do not reply, or "skip" them.
        explore: probability that a place goes to a random client, at first [eps].
        explore_min: the same at last.
        explore_rounds: rounds from the first probability to the last.
        profiles: the state has the number of samples n_k.
        device: the state has the device profiles c_k, f_k, b_k.
        network: "joint" (the paper's, for some ten thousand clients) or "shared" (any number of clients).
        warmup: "probe" trains everybody for one epoch once; "none" uses what comes in.
        reference: weights are taken relative to the new "model" or to the mean of the "fit".
        components: axes of the weights [k]; None: as many as fit.
        hidden: hidden units [H].
        lr: learning rate of Adam.
        discount: of future rewards [gamma].
        memory: rounds kept for learning.
        batch: rounds in a batch.
        steps: Adam steps a round.
        copy_every: rounds between copies of the network.
        centre: rewards are taken against their mean.
        horizon: rounds of the run, if known: the last one is terminal; 0: not known.
        seed: of the first weights and of the batches.

    >>> sorted(FlashRL(warmup="none").needs)
    ['model', 'samples', 'weights']
    """

    reads_score = True

    @checked
    def __init__(
        self,
        *,
        preset: Annotated[str, Choice(*PRESETS)] = "robust",
        mix: Share = 0.6,
        utility: Share = 1.0,
        latency: Share = 1.0,
        divergence: Annotated[str, Choice("relative", "eq5", "printed", "repo")] | None = None,
        min_delta: Finite = 0.0,
        fastest: NotNegative | None = None,
        slowest: NotNegative | None = None,
        failure: Annotated[str, Choice("penalise", "skip")] = "penalise",
        explore: Share = 0.9,
        explore_min: Share | None = None,
        explore_rounds: Count | None = None,
        profiles: bool = True,
        device: bool = False,
        network: Network = "joint",
        warmup: WarmUpMode = "probe",
        reference: Reference = "model",
        components: Count | None = None,
        hidden: CountOrZero | None = None,
        lr: Positive = 0.01,
        discount: Discount = 0.9,
        memory: Count = 1000,
        batch: Count = 50,
        steps: Annotated[int, Interval(1, 10_000)] | None = None,
        copy_every: Count = 10,
        centre: bool | None = None,
        horizon: CountOrZero = 0,
        seed: CountOrZero = 0,
    ) -> None:
        ordered = fastest is None or slowest is None or fastest < slowest
        check(ordered, f"fastest = {fastest}, slowest = {slowest}", "fastest must be below slowest", "swap them")
        default = PRESETS[preset]
        self.divergence = divergence or str(default["divergence"])
        self.explore, self.explore_min = explore, default["explore_min"] if explore_min is None else explore_min
        self.explore_rounds = default["explore_rounds"] if explore_rounds is None else explore_rounds
        self.mix, self.utility, self.latency, self.min_delta = mix, utility, latency, min_delta
        self.failure, self.fastest, self.slowest = failure, fastest, slowest
        self.names = ("samples",) * profiles + ("cores", "frequency", "bandwidth") * device
        self.shared = network == "shared"
        units = hidden if hidden is not None else None if self.shared else UNITS[preset]
        self.learner = Learner(
            network, warmup, reference, components, units, lr, discount, memory, batch,
            default["steps"] if steps is None else steps, copy_every,
            default["centre"] if centre is None else centre, horizon, self.shared, seed,
        )  # fmt: skip
        self.needs = self.learner.needs | frozenset(self.names)
        self.state = FlashRLState(profile=np.zeros((0, len(self.names)), np.float32))

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 11; uniformly at random until there is a state to look at."""
        s = self.state
        learn_profiles(s, rnd, self.names)
        if not self.learner.ready(s):
            return Cohort(draw.uniform(rnd.available, rnd.size, rng))
        q = self.learner.q(s, rnd.available)
        picked, explored = places(q, rnd.size, self.epsilon(rnd.index), rng)
        clients = rnd.available[picked]
        why = {"q": q[picked], "reputation": s.reputation[clients], "explored": explored}
        return Cohort(clients, why=why)

    def observe(self, result: RoundResult) -> None:
        """Reward every sub-action (eqs. 5 to 8), renew the blocks, let the agent learn."""
        s = self.state
        s.grow_for(result.clients)
        self.learner.begin(s, result.probed, self._extras())
        told, d = self._divergences(result)
        self._time(result)
        earned = self._reward(result, told, d)
        self.learner.remember(s, result.clients[earned], s.reputation[result.clients[earned]])
        self.learner.refresh(s, result, told, self._extras())
        if self.shared and s.now.size:
            blocks.write_common(s, s.now.mean(axis=0, dtype=np.float64).astype(np.float32), s.step)
        self.learner.learn(s, result.index)

    def epsilon(self, index: int) -> float:
        """[eps] falls on a line."""
        fall = (self.explore - self.explore_min) / max(self.explore_rounds, 1)
        return max(self.explore - fall * index, min(self.explore, self.explore_min))

    def _divergences(self, result: RoundResult) -> tuple[Index, Real]:
        """(rows with usable weights, their d): eq. 5 in one of its forms."""
        rows = usable_weights(result)
        if rows.size == 0:
            return rows, np.empty(0)
        weights = np.asarray(result.signals["weights"])
        return rows, divergence(np.asarray(weights[rows], np.float64), np.asarray(result.model), self.divergence)

    def _time(self, result: RoundResult) -> None:
        """Keep the newest duration of each client."""
        good = np.isfinite(result.duration) & (result.duration >= 0)
        self.state.seconds[result.clients[good]] = np.maximum(result.duration[good], 1e-9)

    def _late(self, clients: Index | None = None) -> Real:
        """[l~] of these clients (all): 0 at the fast end, 1 at the slow end."""
        seconds = self.state.seconds
        timed = seconds[np.flatnonzero(seconds)]
        low, high = np.quantile(timed, (0.05, 0.95)) if timed.size else (0.0, 0.0)
        low = low if self.fastest is None else self.fastest
        high = high if self.slowest is None else self.slowest
        own = seconds if clients is None else seconds[clients]
        late = np.clip((own - low) / (high - low), 0.0, 1.0) if high > low else np.zeros(own.size)
        return np.where(own > 0, late, UNKNOWN).astype(np.float32)

    def _reward(self, result: RoundResult, told: Index, d: Real) -> Index:
        """Eqs. 6 and 8 for those who replied, and for those who did not; returns the rows that got a reward."""
        s = self.state
        zeta = np.zeros(result.clients.size)
        earned: Mask = ~result.replied if self.failure == "penalise" else np.zeros(result.clients.size, np.bool_)
        if np.isfinite(result.score):
            close = np.exp(-d)
            zeta[told] = close if result.score > s.score + self.min_delta else 1.0 - close
            earned[told] = True
            s.score = float(result.score)
        rows = np.flatnonzero(earned)
        who = result.clients[rows]
        gain = self.utility * zeta[rows] - self.latency * self._late(who)
        s.reputation[who] = self.mix * gain + (1.0 - self.mix) * s.reputation[who]
        return rows

    def _extras(self) -> tuple[Real, ...]:
        """Measured numbers of every client that go into its block."""
        return (self._late(), self.state.reputation) if self.shared else (self._late(),)


def divergence(weights: Real, model: Real, form: str) -> Real:
    """Eq. 5 for every row of weights: "relative", "eq5", "printed" or "repo"."""
    w = np.asarray(model, np.float64)
    gap, size = weights - w, np.abs(w)
    if form == "relative":
        return np.asarray(np.abs(gap).sum(axis=1) / (size.sum() + 1e-12))
    if form == "eq5":
        return np.asarray((np.abs(gap) / np.maximum(size, max(0.1 * float(size.mean()), 1e-12))).mean(axis=1))
    live = np.flatnonzero(size)
    if form == "printed":
        return (np.abs(gap[:, live]) / size[live]).mean(axis=1) if live.size else np.zeros(weights.shape[0])
    return np.abs((gap[:, live] / w[live]).mean(axis=1)) if live.size else np.zeros(weights.shape[0])


def places(q: Real, size: int, eps: float, rng: np.random.Generator) -> tuple[Index, Mask]:
    """Eq. 11: (positions chosen place by place, which of them at random). Ties are broken by the generator."""
    best = draw.top(q, size, rng)
    best = best[np.lexsort((rng.random(best.size), -q[best]))]
    anybody = rng.permutation(draw.uniform(np.arange(q.size), size, rng))
    blind = rng.random(best.size) < eps
    taken: dict[int, bool] = {}
    for chance in blind:
        source = anybody if chance else best
        taken[next(int(i) for i in source if int(i) not in taken)] = bool(chance)
    return np.fromiter(taken, np.int64, len(taken)), np.fromiter(taken.values(), np.bool_, len(taken))
