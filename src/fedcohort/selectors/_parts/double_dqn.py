"""The agent of FLASH-RL and FAVOR: a double deep Q-network for several actions at once, in NumPy.

    Hado van Hasselt, Arthur Guez, David Silver. Deep Reinforcement Learning with Double Q-learning. AAAI 2016.

One hidden layer of H units over the state x of length D, one output per action (H = 0: no hidden layer):

    Q(x, a)  = w2_a . h / sqrt(H) + b2_a,      h = relu(W1' x / sqrt(D) + b1)                      (1)
    Y_k      = r_k + gamma (1 - done) Q'(x', argmax_a Q(x', a))      Q' the target copy            (2)
    loss     = mean over the batch and over *all* its sub-actions k of (Y_k - Q(x, a_k))^2         (3)

One Adam step on (3), with the norm of the gradient clipped. Only outputs that are an action of the batch move; the
moments of the others stay as they are. The copy is renewed by :meth:`DoubleDQN.copy`.

Departures from the paper
    * Inputs and hidden units are divided by the square root of their number, so that one learning rate fits any
      number of clients: with the usual scaling and 0.01, one step moves a hidden unit by 0.01 D.
    * Output weights start at zero: before anything is learned, all actions have the same value.
    * New clients get rows of zeros, and D in (1) stays the first number of inputs: what was learned does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table, ragged
from fedcohort.types import Index

Single = NDArray[np.float32]
MAIN, TARGET, FIRST, SECOND = range(4)  # first axis of the arrays: network, its copy, Adam's two moments


@dataclass
class AgentState(Table):
    """The network, its copy and Adam's moments (first axis 4), as arrays."""

    w1: Single = ragged(np.float32, ndim=3)  # (4, D, H)
    b1: Single = ragged(np.float32, ndim=2)  # (4, H)
    w2: Single = ragged(np.float32, ndim=3)  # (4, actions, H)
    b2: Single = ragged(np.float32, ndim=2)  # (4, actions)
    turns: Index = ragged(np.int64)  # Adam steps that each output has taken
    updates: int = 0  # Adam steps of the first layer
    shrink: float = 1.0  # 1 / sqrt(D), as it was at first


@dataclass(frozen=True, slots=True)
class DoubleDQN:
    """How the agent learns. All it knows is in an :class:`AgentState`, handed in."""

    hidden: int = 512  # [H]
    lr: float = 0.01
    discount: float = 0.9  # [gamma]
    clip: float = 10.0  # norm of the gradient

    def build(self, s: AgentState, inputs: int, outputs: int, rng: np.random.Generator) -> None:
        """Fresh weights: He's for the first layer, zeros for the second."""
        wide = self.hidden or inputs
        s.w1, s.b1 = np.zeros((4, inputs, self.hidden), np.float32), np.zeros((4, self.hidden), np.float32)
        s.w1[:2] = rng.standard_normal(s.w1.shape[1:], np.float32) * np.float32(np.sqrt(2.0))
        s.w2, s.b2 = np.zeros((4, outputs, wide), np.float32), np.zeros((4, outputs), np.float32)
        s.turns, s.updates, s.shrink = np.zeros(outputs, np.int64), 0, float(inputs) ** -0.5

    def grow(self, s: AgentState, inputs: int, outputs: int) -> None:
        """Room for more inputs and outputs, with weights of zero."""
        s.w1 = _pad(s.w1, (4, inputs, self.hidden))
        s.w2 = _pad(s.w2, (4, outputs, self.hidden or inputs))
        s.b2, s.turns = _pad(s.b2, (4, outputs)), _pad(s.turns, (outputs,))

    def q(self, s: AgentState, x: Single, which: int = MAIN) -> Single:
        """Eq. 1 for every row of x and every action."""
        h, unit = self._features(s, x, which)
        out: Single = h @ s.w2[which].T * unit + s.b2[which]
        return out

    def values(self, s: AgentState, common: Single, own: Single) -> Single:
        """Eq. 1 of the only action for rows (common, own) that share their first part, which is multiplied once."""
        g, unit = common.size, np.float32(s.shrink)
        if self.hidden == 0:
            flat = s.w2[MAIN, 0] * unit
            return np.asarray(own @ flat[g:] + (common @ flat[:g] + s.b2[MAIN, 0]), np.float32)
        w1 = s.w1[MAIN] * unit
        h = own @ w1[g:]
        h += common @ w1[:g] + s.b1[MAIN]
        np.maximum(h, 0, out=h)
        out: Single = h @ (s.w2[MAIN, 0] * np.float32(self.hidden**-0.5)) + s.b2[MAIN, 0]
        return out

    def best(self, s: AgentState, x: Single) -> Single:
        """Q'(x, argmax_a Q(x, a)) of eq. 2 for every row: the network chooses, its copy evaluates."""
        choice = self.q(s, x).argmax(axis=1)
        h, unit = self._features(s, x, TARGET)
        out: Single = np.einsum("ij,ij->i", h, s.w2[TARGET][choice]) * unit + s.b2[TARGET][choice]
        return out

    def fit(self, s: AgentState, x: Single, row: Index, action: Index, y: Single) -> float:
        """One Adam step on eq. 3. Sub-action j is `action[j]` in state `x[row[j]]`, with target `y[j]`. The loss."""
        h, unit = self._features(s, x, MAIN)
        moved, at = np.unique(action, return_inverse=True)
        w2 = s.w2[MAIN][moved]
        error = (h @ w2.T * unit + s.b2[MAIN][moved])[row, at] - y
        slope = np.zeros((x.shape[0], moved.size), np.float32)
        np.add.at(slope, (row, at), (2.0 / y.size * error).astype(np.float32))
        g2, gb2 = slope.T @ h * unit, slope.sum(axis=0)
        back = slope @ w2 * unit * (h > 0) if self.hidden else np.zeros((x.shape[0], 0), np.float32)
        g1, gb1 = x.T @ back * np.float32(s.shrink), back.sum(axis=0)
        norm = np.sqrt(sum(float(np.vdot(g, g)) for g in (g1, gb1, g2, gb2)))
        scale = np.float32(min(1.0, self.clip / max(norm, 1e-12)))
        s.updates += 1
        s.turns[moved] += 1
        if self.hidden:
            for array, grad in ((s.w1, g1), (s.b1, gb1)):
                self._adam(array, grad * scale, np.array(s.updates))
        s.w2[:, moved] = self._adam(s.w2[:, moved], g2 * scale, s.turns[moved, None])
        s.b2[:, moved] = self._adam(s.b2[:, moved], gb2 * scale, s.turns[moved])
        return float(np.mean(error * error))

    def copy(self, s: AgentState) -> None:
        """Renew the target network."""
        for array in (s.w1, s.b1, s.w2, s.b2):
            array[TARGET] = array[MAIN]

    def _features(self, s: AgentState, x: Single, which: int) -> tuple[Single, np.float32]:
        """(hidden units, 1 / sqrt of their number)."""
        if self.hidden == 0:
            return x, np.float32(s.shrink)
        a = x @ s.w1[which]
        a *= np.float32(s.shrink)
        a += s.b1[which]
        np.maximum(a, 0, out=a)
        return a, np.float32(self.hidden**-0.5)

    def _adam(self, array: Single, grad: Single, turn: NDArray[np.int64]) -> Single:
        """Move an array by one step with this gradient, in place; the target copy stays as it is."""
        m, v = array[FIRST], array[SECOND]
        m += np.float32(0.1) * (grad - m)
        v += np.float32(0.001) * (grad * grad - v)
        rate = (self.lr * np.sqrt(1 - 0.999**turn) / (1 - 0.9**turn)).astype(np.float32)
        array[MAIN] -= rate * m / (np.sqrt(v) + np.float32(1e-8))
        return array


def _pad(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array in the corner of a larger one of zeros."""
    if array.shape == shape:
        return array
    out = np.zeros(shape, array.dtype)
    out[tuple(slice(n) for n in array.shape)] = array
    return out
