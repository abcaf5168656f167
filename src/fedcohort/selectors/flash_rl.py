"""FLASH-RL: multi-action double deep Q-learning for slow devices and skewed data.

    Sofiane Bouaziz, Hadjer Benmeziane, Youcef Imine, Leila Hamdad, Smail Niar, Hamza Ouarnoughi.
    FLASH-RL: Federated Learning Addressing System and Static Heterogeneity using Reinforcement Learning. ICCD 2023.

With the local weights w_k, the new global model w, its validation score P_t and the duration l_k of a client's round:

    d_k    = mean_j |(w_k^j - w^j) / w^j|                                divergence                              (5)
    zeta_k = exp(-d_k)  if P_t > P_(t-1)  else  1 - exp(-d_k)            utility                                 (6)
    Psi_k <- lambda (alpha1 zeta_k - alpha2 l~_k) + (1 - lambda) Psi_k   reputation = reward of sub-action k     (8)
    s_t    = blocks (weights on k axes, n_k, c_k, f_k, b_k) of all clients (`weight_state.py`)                   (9, 10)
    S_t    : for each place, with probability eps a client by lot, else the next best by Q(s_t, .)              (11)

The agent (`double_dqn.py`, `q_learner.py`) learns from every sub-action of the rounds it draws from memory (12, 13).

Departures from the paper (numbers of the list of errors in `docs/selectors/flash-rl.md`)
    * A1: (5) has no mean where weights pass zero; d_k = sum|w_k - w| / sum|w| by default. "eq5" bounds the
      denominator below by a tenth of the mean |w|; "repo" is the authors' |mean of signed ratios|, which is noise.
    * A2: l~ is l between the 5th and 95th percentile of the clients' last durations (or between `fastest` and
      `slowest`), in [0, 1]: in seconds it would swamp zeta. With alphas up to 1, rewards lie in [-1, 1].
    * A3-A5: the argmax of the target is on the next state; all sub-actions are learned from, and only these.
    * A6, A7, A11: n_k counts samples; only the last of `horizon` rounds is terminal; every input is standardised.
    * A8: P_t is the score on the server's validation data. A9: `min_delta` is the rise that counts as one.
    * A12: lambda weighs the new utility, as in (8). The first score counts as a rise.
    * A client that does not reply has utility 0 and the duration we waited for it (`failure="skip"`: no reward).
    * Weights are taken relative to the new model, the state has the client's l~ (the paper estimates durations,
      we measure them), and device profiles are means and opt-in (`device=True`), for few worlds have them.
    * preset "paper" has eps and steps of the authors' code and (5) as printed, with its denominator bounded. Ours
      lowers eps faster, takes four Adam steps a round, and counts rewards from their mean.
    * network="shared" is ours, for more than some ten thousand clients; its blocks also hold Psi.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import column
from fedcohort.errors import check
from fedcohort.selectors._parts import weight_embedding as blocks
from fedcohort.selectors._parts.dqn_agent import Learner, LearnerState, learn_profiles
from fedcohort.types import Arrays, Cohort, Index, Mask, Real, Round, RoundResult

PRESETS: dict[str, dict[str, Any]] = {
    "robust": {"divergence": "relative", "explore_min": 0.1, "explore_rounds": 40, "steps": 4, "centre": True},
    "paper": {"divergence": "eq5", "explore_min": 0.2, "explore_rounds": 500, "steps": 1, "centre": False},
}
UNITS = {"robust": 64, "paper": 512}
FORMS = ("relative", "eq5", "repo")
UNKNOWN = 0.5  # [l~] of a client that was never timed


@dataclass
class FlashRLState(LearnerState):
    """What the agent knows, and each client's standing."""

    reputation: Real = column(0.01)  # [Psi]
    seconds: Real = column(0.0)  # [l] as last measured; 0: never
    score: float = -np.inf  # [P_(t-1)]


class FlashRL:
    """Q-learning over cohorts: clients whose weights agree with progress, and who are quick.

    The paper's symbol for each parameter is given in brackets. `None` takes the preset's value.
    """

    def __init__(
        self,
        *,
        preset: str = "robust",
        mix: float = 0.6,  # [lambda]
        utility: float = 1.0,  # [alpha1]
        latency: float = 1.0,  # [alpha2]
        divergence: str | None = None,  # [d] relative, eq5 or repo
        min_delta: float = 0.0,
        fastest: float | None = None,  # seconds, where known
        slowest: float | None = None,
        failure: str = "penalise",  # or "skip"
        explore: float = 0.9,  # [eps] at first
        explore_min: float | None = None,
        explore_rounds: int | None = None,  # from the first eps to the last
        profiles: bool = True,  # n_k in the state
        device: bool = False,  # c_k, f_k, b_k in the state
        network: str = "joint",  # or "shared"
        warmup: str = "probe",  # or "none"
        reference: str = "model",  # or "fit"
        components: int | None = None,  # axes of the weights; None: as many as fit
        hidden: int | None = None,  # units; shared: 32
        lr: float = 0.01,
        discount: float = 0.9,  # [gamma]
        memory: int = 1000,  # rounds
        batch: int = 50,  # rounds
        steps: int | None = None,  # Adam steps a round
        copy_every: int = 10,  # rounds between copies of the network
        centre: bool | None = None,  # rewards against their mean
        horizon: int = 0,  # rounds of the run, where known: the last one is terminal
        seed: int = 0,  # of the first weights and of the batches
    ) -> None:
        check(preset in PRESETS, f"preset = {preset!r}", "FLASH-RL has no such preset", f"use {', '.join(PRESETS)}")
        default = PRESETS[preset]
        self.divergence = divergence or str(default["divergence"])
        self.explore, self.explore_min = explore, default["explore_min"] if explore_min is None else explore_min
        self.explore_rounds = default["explore_rounds"] if explore_rounds is None else explore_rounds
        self.mix, self.utility, self.latency, self.min_delta = mix, utility, latency, min_delta
        self.failure, self.fastest, self.slowest = failure, fastest, slowest
        self._check()
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

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Warm-up: one epoch of everybody, once."""
        return self.learner.probe(self.state, rnd)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 11; by lot until there is a state to look at."""
        s = self.state
        learn_profiles(s, rnd, self.names)
        if not self.learner.ready(s):
            return Cohort(draw.uniform(rnd.available, rnd.size, rng))
        q = self.learner.q(s, rnd.available)
        picked, lot = places(q, rnd.size, self.epsilon(rnd.index), rng)
        clients = rnd.available[picked]
        why = {"q": q[picked], "reputation": s.reputation[clients], "draw_uniform": lot}
        return Cohort(clients, why=why)

    def observe(self, result: RoundResult) -> None:
        """Reward every sub-action (eqs. 5 to 8), renew the blocks, let the agent learn."""
        s = self.state
        s.grow(int(result.clients.max(initial=-1)) + 1)
        self.learner.begin(s, result.probed, self._extras())
        told, d = self._divergences(result)
        self._time(result)
        earned = self._reward(result, told, d)
        self.learner.remember(s, result.clients[earned], s.reputation[result.clients[earned]])
        self.learner.refresh(s, result, told, self._extras())
        if self.shared and s.now.size:
            blocks.write_common(s, s.now.mean(axis=0, dtype=np.float64).astype(np.float32), s.step)
        self.learner.learn(s, result.index)

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process: network, copy, moments, memory, blocks, standing."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.learner.load(self.state, arrays)

    def epsilon(self, index: int) -> float:
        """[eps] falls on a line."""
        fall = (self.explore - self.explore_min) / max(self.explore_rounds, 1)
        return max(self.explore - fall * index, min(self.explore, self.explore_min))

    def _divergences(self, result: RoundResult) -> tuple[Index, Real]:
        """(rows with usable weights, their d): eq. 5 in one of its forms."""
        if result.model is None or not np.isfinite(result.model).all():
            return np.empty(0, np.int64), np.empty(0)
        weights = np.asarray(result.signals["weights"])
        rows = np.flatnonzero(result.replied & np.isfinite(weights).all(axis=1))
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

    def _check(self) -> None:
        """Refuse what the formulas cannot take."""
        for name in ("mix", "utility", "latency", "explore", "explore_min"):
            value = getattr(self, name)
            check(0 <= value <= 1, f"{name} = {value}", "it lies between 0 and 1", "use a share")
        for name, value, allowed in (
            ("divergence", self.divergence, FORMS),
            ("failure", self.failure, ("penalise", "skip")),
        ):
            check(value in allowed, f"{name} = {value!r}", f"it is one of {', '.join(allowed)}", f"use {allowed[0]!r}")
        known = self.fastest is None or self.slowest is None or self.fastest < self.slowest
        check(known, f"fastest = {self.fastest}, slowest = {self.slowest}", "in this order", "swap them")
        check(self.explore_rounds >= 1, f"explore_rounds = {self.explore_rounds}", "at least 1", "use e.g. 40")


def divergence(weights: Real, model: Real, form: str) -> Real:
    """Eq. 5 for every row of weights: "relative", "eq5" or "repo"."""
    w = np.asarray(model, np.float64)
    gap, size = weights - w, np.abs(w)
    if form == "relative":
        return np.asarray(np.abs(gap).sum(axis=1) / (size.sum() + 1e-12))
    if form == "eq5":
        return np.asarray((np.abs(gap) / np.maximum(size, max(0.1 * float(size.mean()), 1e-12))).mean(axis=1))
    live = np.flatnonzero(size)
    return np.abs((gap[:, live] / w[live]).mean(axis=1)) if live.size else np.zeros(weights.shape[0])


def places(q: Real, size: int, eps: float, rng: np.random.Generator) -> tuple[Index, Mask]:
    """Eq. 11: (positions chosen place by place, which of them by lot). Ties are broken by the generator."""
    best = draw.top(q, size, rng)
    best = best[np.lexsort((rng.random(best.size), -q[best]))]
    lot = rng.permutation(draw.uniform(np.arange(q.size), size, rng))
    blind = rng.random(best.size) < eps
    taken: dict[int, bool] = {}
    for chance in blind:
        source = lot if chance else best
        taken[next(int(i) for i in source if int(i) not in taken)] = bool(chance)
    return np.fromiter(taken, np.int64, len(taken)), np.fromiter(taken.values(), np.bool_, len(taken))
