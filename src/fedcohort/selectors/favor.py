"""FAVOR: a double deep Q-network picks clients by the weights of their models.

    Hao Wang, Zakhary Kaplan, Di Niu, Baochun Li. Optimizing Federated Learning on Non-IID Data with Reinforcement
    Learning. INFOCOM 2020.

With the validation accuracy omega_t of the new model and a target Omega:

    s_t = ( E w^t, E w_1, ..., E w_N )      weights on the principal axes of one epoch of all clients        (1)
    r_t = Xi^(omega_t - Omega) - 1          one reward for the whole cohort                                  (2)
    Y   = r_t + gamma Q'(s', argmax_a Q(s', a)),     loss = mean over sub-actions of (Y - Q(s, a))^2         (3)
    online:      S_t drawn without replacement with odds exp(Q / T); every member is a sub-action with reward r_t
    train:       one client a round, by lot with probability eps, else the best
    pretrained:  S_t the M best of Q; nothing is learned any more

State, agent and memory are those of FLASH-RL (`weight_state.py`, `double_dqn.py`, `q_learner.py`).

Departures from the paper
    * The paper's text was not at hand: (1) to (3), Xi = 64 and the way of training are from a study note [REC].
    * "online" is the recommended way without a simulator [REC]: all M sub-actions are learned from, and Q is
      standardised over the available before the odds are made, for differences of Q are far below T = 1.
    * preset "flash-rl" is the comparison version of FLASH-RL's authors: odds exp(Q), and only the first client drawn is
      stored as action. A selector is not told the order of its draws, so the first is drawn again, by lot with odds
      exp(Q), from those that replied. Their off-by-one (client k's block in row k although row 0 is the global model)
      and the argmax on the current state are not repeated.
    * Rewards count from their mean in the memory: with a common negative reward, who is asked more is worth less.
    * E w is taken relative to the new global model for clients, to the fit's mean for the global model itself.
    * With no score (NaN), or nobody who replied, the round teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.rng import generator
from fedcohort.core.stats import zscore
from fedcohort.core.table import column
from fedcohort.errors import check
from fedcohort.selectors._parts import weight_embedding as blocks
from fedcohort.selectors._parts.dqn_agent import Learner, LearnerState, learn_profiles
from fedcohort.types import Arrays, Cohort, Index, Real, Round, RoundResult

PRESETS: dict[str, dict[str, Any]] = {
    "robust": {"steps": 4, "centre": True, "hidden": 64, "reference": "model"},
    "flash-rl": {"steps": 1, "centre": False, "hidden": 512, "reference": "fit"},
}
MODES = ("online", "train", "pretrained")
REWARD_MAX = 1e3  # a cap for odd choices of Xi


@dataclass
class FavorState(LearnerState):
    """What the agent knows, and how often each client was asked."""

    asked: Real = column(0.0)


class Favor:
    """Q-learning on the weights of clients, rewarded by the accuracy of the model they make together.

    The paper's symbol for each parameter is given in brackets. `None` takes the preset's value.
    """

    def __init__(
        self,
        *,
        preset: str = "robust",
        mode: str = "online",  # or "train", "pretrained"
        base: float = 64.0,  # [Xi]
        target: float = 0.99,  # [Omega]
        temperature: float | None = None,  # [T]; None: 0.3 of standardised Q, 1 in preset "flash-rl"
        explore: float = 0.2,  # [eps] of mode "train"
        network: str = "joint",  # or "shared"
        warmup: str = "probe",  # or "none"
        reference: str | None = None,  # model or fit
        components: int | None = None,
        hidden: int | None = None,
        lr: float = 0.01,
        discount: float = 0.9,  # [gamma]
        memory: int = 1000,  # rounds
        batch: int = 50,  # rounds
        steps: int | None = None,  # Adam steps a round
        copy_every: int = 10,
        centre: bool | None = None,
        horizon: int = 0,
        seed: int = 0,
    ) -> None:
        check(preset in PRESETS, f"preset = {preset!r}", "FAVOR has no such preset", f"use {', '.join(PRESETS)}")
        check(mode in MODES, f"mode = {mode!r}", f"it is one of {', '.join(MODES)}", "use 'online'")
        check(base > 1, f"base = {base}", "the base of the reward is above 1", "use 64")
        check(0 <= explore <= 1, f"explore = {explore}", "a share lies between 0 and 1", "use 0.2")
        check(temperature is None or temperature > 0, f"temperature = {temperature}", "it is positive", "use 0.3")
        default = PRESETS[preset]
        self.mode, self.base, self.target, self.explore = mode, base, target, explore
        self.literal = preset == "flash-rl"
        self.temperature = temperature if temperature is not None else 1.0 if self.literal else 0.3
        units = hidden if hidden is not None else default["hidden"] if network == "joint" else None
        self.learner = Learner(
            network, warmup, default["reference"] if reference is None else reference, components, units, lr, discount,
            memory, batch, default["steps"] if steps is None else steps, copy_every,
            default["centre"] if centre is None else centre, horizon, True, seed,
        )  # fmt: skip
        self.needs = self.learner.needs
        self.state = FavorState()

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Warm-up: one epoch of everybody, once."""
        return self.learner.probe(self.state, rnd)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """By lot until there is a state to look at; then as the mode says."""
        s, size = self.state, min(rnd.size, 1) if self.mode == "train" else rnd.size
        learn_profiles(s, rnd, ())
        if not self.learner.ready(s) or (self.mode == "train" and rng.random() < self.explore):
            return Cohort(draw.uniform(rnd.available, size, rng))
        q = self.learner.q(s, rnd.available)
        if self.mode == "online":
            score = q if self.literal else zscore(q, clip=3.0)
            picked = draw.softmax(score, size, self.temperature, rng)
        else:
            picked = draw.top(q, size, rng)
        return Cohort(rnd.available[picked], why={"q": q[picked]})

    def observe(self, result: RoundResult) -> None:
        """Eq. 2 for every sub-action, new blocks, and a lesson."""
        s = self.state
        s.grow(int(result.clients.max(initial=-1)) + 1)
        s.asked[result.clients] += 1
        self.learner.begin(s, result.probed, ())
        told = self._told(result)
        if told.size and np.isfinite(result.score) and self.mode != "pretrained":
            who = self._first(result.clients[told]) if self.literal else result.clients[told]
            self.learner.remember(s, who, np.full(who.size, self.reward(result.score)))
        self.learner.refresh(s, result, told, ())
        if result.model is not None and s.started and np.isfinite(result.model).all():
            row = blocks.block(s, result.model[None], s.centre)[0]
            blocks.write_common(s, row, s.step)
        self.learner.learn(s, result.index, frozen=self.mode == "pretrained")

    def state_dict(self) -> Arrays:
        """All that is needed to go on in another process."""
        return self.state.to_arrays()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.learner.load(self.state, arrays)

    def reward(self, score: float) -> float:
        """Eq. 2."""
        return float(min(self.base ** min(score - self.target, 100.0) - 1.0, REWARD_MAX))

    def end_episode(self) -> None:
        """The federation starts anew: the last step was terminal, and everybody is to be heard of again."""
        s = self.state
        if s.step:
            s.ends = np.append(s.ends, s.step - 1)
        if s.now.size:
            everybody = np.arange(s.now.shape[0])
            blocks.write(s, everybody, np.zeros_like(s.now), s.step - 1, s.rows, count=False)
        s.started = False

    def _told(self, result: RoundResult) -> Index:
        """Rows with usable weights."""
        if result.model is None or not np.isfinite(result.model).all():
            return np.empty(0, np.int64)
        good = result.replied & np.isfinite(np.asarray(result.signals["weights"])).all(axis=1)
        return np.flatnonzero(good)

    def _first(self, clients: Index) -> Index:
        """The one action of preset "flash-rl"."""
        odds = self.learner.q(self.state, clients) if self.learner.ready(self.state) else np.zeros(clients.size)
        return clients[draw.softmax(odds, 1, 1.0, generator(self.learner.seed, "first", self.state.step))]


def pretrain(play: Callable[[Favor, int], object], episodes: int, **options: Any) -> Arrays:
    """Train an agent over episodes, one client a round, and return its state for ``mode="pretrained"``.

    `play(selector, episode)` runs one episode with the given selector in a simulator of your choice, e.g.
    ``lambda favor, e: simulate(favor, world="dirichlet-0.1-v1", cohort_size=1, rounds=50, seed=e)``. `options` are
    those of :class:`Favor`; use the same ones for the agent that loads the state.
    """
    check(episodes >= 1, f"episodes = {episodes}", "there is at least one", "use e.g. 20")
    favor = Favor(mode="train", **options)
    for episode in range(episodes):
        play(favor, episode)
        favor.end_episode()
    return favor.state_dict()
