"""FAVOR: a double deep Q-network picks clients by the weights of their models.

    Hao Wang, Zakhary Kaplan, Di Niu, Baochun Li. Optimizing Federated Learning on Non-IID Data with Reinforcement
    Learning. INFOCOM 2020.

With the validation accuracy omega_t of the new model and a target Omega:

    s_t = ( E w^t, E w_1, ..., E w_N )      weights on the principal axes of one epoch of all clients        (1)
    r_t = Xi^(omega_t - Omega) - 1          one reward for the whole cohort                                  (2)
    Y   = r_t + gamma Q'(s', argmax_a Q(s', a)),     loss = mean over sub-actions of (Y - Q(s, a))^2         (3)
    online:      S_t drawn without replacement with odds exp(Q / T); every member is a sub-action with reward r_t
    train:       one client a round, a random one with probability eps, else the best
    pretrained:  S_t the M best of Q; nothing is learned any more

State, agent and memory are those of FLASH-RL (`_parts/weight_embedding.py`, `double_dqn.py`, `dqn_agent.py`).

Departures from the paper
    * The paper's text was not available: (1) to (3), Xi = 64 and the way of training are from a study note.
    * "online" is our way to do without a simulator: all M sub-actions are learned from, and Q is standardised over the
      available clients before the odds are computed, because differences of Q are far below T = 1.
    * preset "flash-rl" is the comparison version of FLASH-RL's authors: odds exp(Q), and only the first client drawn is
      stored as action. The order of the draws is not known any more when a round ends, so the first is drawn again with
      odds exp(Q) from those that replied. Their off-by-one (client k's block in row k although row 0 is the global
      model) and the argmax on the current state are not repeated.
    * Rewards are taken relative to their mean in the memory: with a common negative reward, a client that is asked more
      often would look worse.
    * E w is taken relative to the new global model for clients, to the fit's mean for the global model itself.
    * With no score (NaN), or nobody who replied, the round teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Count, CountOrZero, Finite, Interval, Positive, Share
from fedcohort.core.rng import generator
from fedcohort.core.stats import zscore
from fedcohort.core.table import column
from fedcohort.errors import checked
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
from fedcohort.types import Arrays, Cohort, Index, Real, Round, RoundResult

PRESETS: dict[str, dict[str, Any]] = {
    "robust": {"steps": 4, "centre": True, "hidden": 64, "reference": "model"},
    "flash-rl": {"steps": 1, "centre": False, "hidden": 512, "reference": "fit"},
}
REWARD_MAX = 1e3  # a cap for unusual choices of Xi


@dataclass
class FavorState(LearnerState):
    """What the agent knows, and how often each client was asked."""

    asked: Real = column(0.0)


class Favor(AgentSelector[FavorState]):
    """Q-learning on the weights of clients, rewarded by the accuracy of the model they make together.

    Args:
        preset: "robust", or "flash-rl" for the version of FLASH-RL's authors; sets the arguments that are None.
        mode: "online", "train" (see :func:`pretrain`) or "pretrained".
        base: of the reward [Xi].
        target: accuracy [Omega].
        temperature: of the draw [T]; None: 0.3 of standardised Q, 1 in preset "flash-rl".
        explore: probability of a random client in mode "train" [eps].
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

    >>> sorted(Favor(target=0.95).needs)
    ['model', 'probe_weights', 'weights']
    """

    @checked
    def __init__(
        self,
        *,
        preset: Annotated[str, Choice(*PRESETS)] = "robust",
        mode: Annotated[str, Choice("online", "train", "pretrained")] = "online",
        base: Annotated[float, Interval(1, ends="()")] = 64.0,
        target: Finite = 0.99,
        temperature: Positive | None = None,
        explore: Share = 0.2,
        network: Network = "joint",
        warmup: WarmUpMode = "probe",
        reference: Reference | None = None,
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
        self.needs, self.reads_score = self.learner.needs, mode != "pretrained"
        self.state = FavorState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Uniformly at random until there is a state to look at; then as the mode says."""
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
        """Eq. 2 for every sub-action, new blocks, and the agent learns."""
        s = self.state
        s.grow_for(result.clients)
        s.asked[result.clients] += 1
        self.learner.begin(s, result.probed, ())
        told = usable_weights(result)
        if told.size and np.isfinite(result.score) and self.mode != "pretrained":
            who = self._first(result.clients[told]) if self.literal else result.clients[told]
            self.learner.remember(s, who, np.full(who.size, self.reward(result.score)))
        self.learner.refresh(s, result, told, ())
        if result.model is not None and s.started and np.isfinite(result.model).all():
            row = blocks.block(s, result.model[None], s.centre)[0]
            blocks.write_common(s, row, s.step)
        self.learner.learn(s, result.index, frozen=self.mode == "pretrained")

    def reward(self, score: float) -> float:
        """Eq. 2."""
        return float(min(self.base ** min(score - self.target, 100.0) - 1.0, REWARD_MAX))

    def end_episode(self) -> None:
        """The federation starts again: the last step was terminal, and nothing is known of the clients."""
        s = self.state
        if s.step:
            s.ends = np.append(s.ends, s.step - 1)
        if s.now.size:
            everybody = np.arange(s.now.shape[0])
            blocks.write(s, everybody, np.zeros_like(s.now), s.step - 1, s.rows, count=False)
        s.started = False

    def _first(self, clients: Index) -> Index:
        """The one action of preset "flash-rl"."""
        odds = self.learner.q(self.state, clients) if self.learner.ready(self.state) else np.zeros(clients.size)
        return clients[draw.softmax(odds, 1, 1.0, generator(self.learner.seed, "first", self.state.step))]


@checked
def pretrain(play: Callable[[Favor, int], object], episodes: Count, **options: Any) -> Arrays:
    """Train an agent over episodes, one client a round, and return its state for ``mode="pretrained"``.

    Args:
        play: runs one episode, ``play(selector, episode)``, in a simulator of your choice, e.g.
            ``lambda favor, e: simulate(favor, world="dirichlet-0.1-v1", cohort_size=1, rounds=50, seed=e)``.
        episodes: how many.
        options: those of :class:`Favor`; use the same ones for the agent that loads the state.

    >>> sorted(pretrain(lambda favor, episode: None, 1))[:3]
    ['act_client', 'act_reward', 'act_step']
    """
    favor = Favor(mode="train", **options)
    for episode in range(episodes):
        play(favor, episode)
        favor.end_episode()
    return favor.state_dict()
