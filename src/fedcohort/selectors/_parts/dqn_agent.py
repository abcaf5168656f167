"""What FLASH-RL and FAVOR share: the agent at work on the state of weights, its memory, and two shapes of network.

"joint" is the papers' network: the blocks of all clients in, one value per client out. Its first layer has N f H
weights, which limits it to some ten thousand clients. "shared" evaluates every client by one small network of its own
block and the common row: N f H multiplications for a choice, any number of clients, and new clients are judged by their
blocks. In "shared", the maximum of eq. 2 of `double_dqn.py` is over `CANDIDATES` random clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, CountOrZero, Interval, Positive
from fedcohort.core.rng import generator
from fedcohort.core.table import column, ragged
from fedcohort.core.threads import one_thread
from fedcohort.errors import BadParameter, StateMismatch, check_fields
from fedcohort.selectors._parts import weight_embedding as blocks
from fedcohort.selectors._parts.double_dqn import AgentState, DoubleDQN
from fedcohort.selectors._parts.weight_embedding import WeightState
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Index, Probed, Real, Round, RoundResult

Single = NDArray[np.float32]
Network = Annotated[str, Choice("joint", "shared")]
WarmUpMode = Annotated[str, Choice("probe", "none")]
Reference = Annotated[str, Choice("model", "fit")]
Discount = Annotated[float, Interval(0, 1, ends="[)")]
INPUTS = 2**11  # of the joint network, that the number of components is chosen for
MAX_WEIGHTS = 2**24  # weights of the first layer at most
CANDIDATES = 64  # clients behind the value of a state in the shared network
ROWS = 256  # sub-actions in a batch of the shared network
CHUNK = 8_192  # clients evaluated at a time


@dataclass
class LearnerState(AgentState, WeightState):
    """Agent, blocks and replay memory: one row per sub-action, oldest first."""

    profile: Single = column(0.0, width=0)  # (N, q) what is known of each client, as logarithms
    act_step: Index = ragged(np.int64)  # the step in which it was taken
    act_client: Index = ragged(np.int64)
    act_reward: Single = ragged(np.float32)
    ends: Index = ragged(np.int64)  # steps that were the last of an episode
    step: int = 0  # steps so far
    started: bool = False  # there are blocks of this episode


@dataclass(frozen=True)
class Learner:
    """Options of the agent, its memory and its state. What it knows is in the :class:`LearnerState` handed in."""

    network: Network = "joint"
    warmup: WarmUpMode = "probe"  # one epoch of all clients, once; "none": random projection of what comes in
    reference: Reference = "model"
    components: Count | None = None  # [k]; None: as many as fit
    hidden: CountOrZero | None = None  # [H]; None: 64 joint, 32 shared
    lr: Positive = 0.01
    discount: Discount = 0.9  # [gamma]
    memory: Count = 1000  # steps
    batch: Count = 50  # steps in a batch
    steps: Count = 4  # Adam steps a round
    copy_every: Count = 10  # rounds
    centre: bool = True  # rewards are taken against their mean in the memory
    horizon: CountOrZero = 0  # rounds of an episode; 0: not known
    common: bool = False  # the state has a row that belongs to no client
    seed: CountOrZero = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @cached_property
    def agent(self) -> DoubleDQN:
        """The network and how it learns."""
        hidden = self.hidden if self.hidden is not None else 64 if self.network == "joint" else 32
        return DoubleDQN(hidden, self.lr, self.discount)

    @property
    def needs(self) -> frozenset[str]:
        """Weights that arrive, the new model, and the weights after one epoch of everybody if warmup="probe"."""
        return frozenset({"weights", "model"} | ({"probe_weights"} if self.warmup == "probe" else set()))

    def ready(self, s: LearnerState) -> bool:
        """There is an agent, and a state to look at."""
        return s.started and s.b2.size > 0

    def q(self, s: LearnerState, clients: Index) -> Single:
        """Q(s, i) of these clients in the present state; 0 for those the agent has no output for."""
        with one_thread():
            return self._q(s, clients)

    def _q(self, s: LearnerState, clients: Index) -> Single:
        if self.network == "joint":
            n = s.now.shape[0]
            every = self._joint(s, blocks.standard(s, s.now)[None], self._now_common(s))
            value = np.zeros(max(n, int(clients.max(initial=-1)) + 1), np.float32)
            value[:n] = self.agent.q(s, every)[0]
            return value[clients]
        out = np.zeros(clients.size, np.float32)
        common, moments = self._now_common(s)[0], self._profile_moments(s)
        for lo in range(0, clients.size, CHUNK):
            part = clients[lo : lo + CHUNK]
            rows = s.now.take(part, axis=0, mode="clip")
            rows[part >= s.now.shape[0]] = 0
            own = np.concatenate([blocks.standard(s, rows), self._known(s, part, moments)], axis=1)
            out[lo : lo + CHUNK] = self.agent.values(s, common, own)
        return out

    def begin(self, s: LearnerState, probed: Probed | None, extras: tuple[Real, ...]) -> None:
        """The first blocks of an episode, from one epoch of those who answered. `extras`: columns over clients."""
        if s.started or probed is None or "probe_weights" not in probed.signals:
            return
        weights = np.asarray(probed.signals["probe_weights"], np.float32)
        if weights.ndim != 2:  # nobody answered
            return
        good = np.flatnonzero(np.isfinite(weights).all(axis=1))
        if good.size == 0:
            return
        who, weights = probed.clients[good], weights[good]
        s.grow(int(who.max()) + 1)
        if s.basis.size == 0:
            blocks.fit(s, weights, self._components(s, len(extras)), "probe", self.seed)
        ref = weights.mean(axis=0) if self.reference == "model" else s.centre
        rows = blocks.block(s, weights, ref, *(e[who] for e in extras))
        blocks.write(s, who, rows, s.step - 1, s.rows)
        s.started = True

    def refresh(self, s: LearnerState, result: RoundResult, rows: Index, extras: tuple[Real, ...]) -> None:
        """New blocks of those who replied; `rows` are their rows in the result."""
        if rows.size == 0 or result.model is None or (not s.started and self.warmup == "probe"):
            return
        weights, who = np.asarray(result.signals["weights"], np.float32)[rows], result.clients[rows]
        if s.basis.size == 0:
            blocks.fit(s, weights, self._components(s, len(extras)), "none", self.seed)
        ref = result.model if self.reference == "model" else s.centre
        blocks.write(s, who, blocks.block(s, weights, ref, *(e[who] for e in extras)), s.step, s.rows)
        s.started = True

    def remember(self, s: LearnerState, clients: Index, reward: Real) -> None:
        """These sub-actions were taken in this step, with these rewards."""
        s.act_step = np.concatenate([s.act_step, np.full(clients.size, s.step)])
        s.act_client = np.concatenate([s.act_client, clients])
        s.act_reward = np.concatenate([s.act_reward, np.asarray(reward, np.float32)])

    def learn(self, s: LearnerState, index: int, *, frozen: bool = False) -> None:
        """Build or widen the network, take some Adam steps (unless frozen), end the step."""
        if self.horizon and index + 1 >= self.horizon:
            s.ends = np.append(s.ends, s.step)
        s.step += 1
        if not s.started:
            s.act_step, s.act_client, s.act_reward = s.act_step[:0], s.act_client[:0], s.act_reward[:0]
            return
        oldest = s.step - self.memory
        keep = int(np.searchsorted(s.act_step, oldest))
        s.act_step, s.act_client, s.act_reward = s.act_step[keep:], s.act_client[keep:], s.act_reward[keep:]
        s.ends = s.ends[s.ends >= oldest]
        blocks.forget(s, oldest)
        self._fit_size(s)
        rng = generator(self.seed, "replay", s.step)
        lesson = self._joint_step if self.network == "joint" else self._shared_step
        with one_thread():
            for _ in range(0 if frozen or s.act_step.size == 0 else self.steps):
                lesson(s, rng)
        if s.step % self.copy_every == 0:
            self.agent.copy(s)

    def check_size(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Refuse the saved state of an agent of another size."""
        units, outputs = (np.asarray(arrays[k]).shape[-1] if k in arrays else 0 for k in ("b1", "b2"))
        if outputs and (units != self.agent.hidden or (self.network == "shared" and outputs != 1)):
            raise StateMismatch(
                f"an agent with {units} hidden units and {outputs} outputs",
                f"this one has network={self.network!r} with {self.agent.hidden} hidden units",
                "use the options it was saved with",
            )

    def _joint_step(self, s: LearnerState, rng: np.random.Generator) -> None:
        """A batch of steps with all their sub-actions."""
        taken = np.unique(s.act_step)
        steps = np.sort(taken[rng.integers(0, taken.size, min(self.batch, taken.size))])
        first, last = np.searchsorted(s.act_step, steps), np.searchsorted(s.act_step, steps, side="right")
        row = np.repeat(np.arange(steps.size), last - first)
        at = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
        everybody = np.arange(s.now.shape[0])
        x = self._joint(s, blocks.past(s, steps, everybody), self._past_common(s, steps))
        after = self._joint(s, blocks.past(s, steps + 1, everybody), self._past_common(s, steps + 1))
        future = self.agent.best(s, after) * ~np.isin(steps, s.ends)
        self.agent.fit(s, x, row, s.act_client[at], self._target(s, at, future[row]))

    def _shared_step(self, s: LearnerState, rng: np.random.Generator) -> None:
        """A batch of sub-actions, from any steps."""
        n = s.act_step.size
        at = rng.integers(0, n, min(ROWS, self.batch * 10, n))
        steps, who = s.act_step[at], s.act_client[at]
        x = self._own(s, blocks.past(s, steps, who[:, None]), self._past_common(s, steps), who[:, None])[:, 0]
        later, turn = np.unique(steps + 1, return_inverse=True)
        some = rng.integers(0, s.now.shape[0], (later.size, min(CANDIDATES, s.now.shape[0])))
        after = self._own(s, blocks.past(s, later, some), self._past_common(s, later), some)
        choice = self.agent.q(s, after.reshape(-1, after.shape[-1])).reshape(some.shape).argmax(axis=1)
        future = self.agent.q(s, after[np.arange(later.size), choice], 1)[:, 0] * ~np.isin(later - 1, s.ends)
        self.agent.fit(s, x, np.arange(at.size), np.zeros(at.size, np.int64), self._target(s, at, future[turn]))

    def _target(self, s: LearnerState, at: Index, future: Real) -> Single:
        """Eq. 2 of the agent, with rewards against their mean if `centre`."""
        middle = float(s.act_reward.mean()) if self.centre else 0.0
        return (s.act_reward[at] - middle + self.discount * future).astype(np.float32)

    def _joint(self, s: LearnerState, rows: Single, common: Single) -> Single:
        """(B, D): the common row, then everybody's block with what is known of them, client by client."""
        known = self._known(s, np.arange(rows.shape[1]), self._profile_moments(s))
        both = [rows, np.broadcast_to(known, (*rows.shape[:2], known.shape[1]))]
        flat = np.concatenate(both, axis=2).reshape(rows.shape[0], -1)
        return np.concatenate([common, flat], axis=1).astype(np.float32)

    def _own(self, s: LearnerState, rows: Single, common: Single, who: Index) -> Single:
        """(B, C, d): for each client the common row, its block, and what is known of it."""
        wide = np.broadcast_to(common[:, None], (*rows.shape[:2], common.shape[1]))
        known = self._known(s, who.reshape(-1), self._profile_moments(s)).reshape(*who.shape, -1)
        return np.concatenate([wide, rows, known], axis=2).astype(np.float32)

    def _now_common(self, s: LearnerState) -> Single:
        return self._past_common(s, np.array([s.step]))

    def _past_common(self, s: LearnerState, steps: Index) -> Single:
        if s.common_step.size == 0:
            return np.zeros((steps.size, s.now.shape[1] if self.common else 0), np.float32)
        return blocks.past_common(s, steps)

    def _profile_moments(self, s: LearnerState) -> tuple[Real, Real]:
        if s.profile.size == 0:
            return np.zeros(s.profile.shape[1], np.float32), np.ones(s.profile.shape[1], np.float32)
        sd = s.profile.std(axis=0, dtype=np.float64)
        return s.profile.mean(axis=0, dtype=np.float64), np.where(sd > 1e-6, sd, np.inf)

    def _known(self, s: LearnerState, who: Index, moments: tuple[Real, Real]) -> Single:
        """Standardised profiles of these clients."""
        out = (s.profile[who] - moments[0].astype(np.float32)) / moments[1].astype(np.float32)
        return np.clip(out, -blocks.LIMIT, blocks.LIMIT)

    def _components(self, s: LearnerState, extras: int) -> int:
        """[k]: as given, or as many as keep the inputs of the joint network few."""
        if self.components is not None:
            return self.components
        if self.network == "shared":
            return 8
        spare = INPUTS // max(s.rows, 1) - extras - 1 - s.profile.shape[1]
        return int(np.clip(spare, 2, 64))

    def _fit_size(self, s: LearnerState) -> None:
        """Build the network when the first blocks are there; widen it when clients have registered."""
        f, n = s.now.shape[1], s.rows
        s.now, s.base = (np.concatenate([a, np.zeros((n - a.shape[0], f), np.float32)]) for a in (s.now, s.base))
        common, own = f if self.common else 0, f + s.profile.shape[1]
        inputs, outputs = (common + n * own, n) if self.network == "joint" else (common + own, 1)
        if inputs * max(self.agent.hidden, 1) > MAX_WEIGHTS:
            raise BadParameter(
                f"{n} clients",
                f"the joint network would have {inputs * self.agent.hidden:,} weights, more than {MAX_WEIGHTS:,}",
                "use network='shared', or fewer components and hidden units",
            )
        if s.b2.size == 0:
            self.agent.build(s, inputs, outputs, generator(self.seed, "double-dqn"))
        else:
            self.agent.grow(s, inputs, outputs)


L = TypeVar("L", bound=LearnerState)


class AgentSelector(StatefulSelector[L]):
    """Base of FLASH-RL and FAVOR: an agent at work on the weights of the clients."""

    learner: Learner

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Warm-up: one epoch of everybody, until the first blocks are there."""
        del rng
        warm = self.learner.warmup == "probe" and not self.state.started
        return rnd.available if warm else np.empty(0, np.int64)

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_dict`; refuses an agent of another size."""
        self.learner.check_size(arrays)
        super().load_state_dict(arrays)


def usable_weights(result: RoundResult) -> Index:
    """Rows that replied with finite weights, if there is a new model to compare them with."""
    if result.model is None or not np.isfinite(result.model).all():
        return np.empty(0, np.int64)
    return np.flatnonzero(result.replied & np.isfinite(np.asarray(result.signals["weights"])).all(axis=1))


def learn_profiles(s: LearnerState, rnd: Round, names: tuple[str, ...]) -> None:
    """Make room for new clients and store their profiles. Rows that exist are not touched."""
    old = s.rows
    s.grow(rnd.population)
    if names and s.rows > old:
        for j, name in enumerate(names):
            fresh = np.asarray(rnd.profiles[name], np.float64)[old : s.rows]
            s.profile[old:, j] = np.log1p(np.maximum(np.nan_to_num(fresh, posinf=0.0), 0.0))
