"""What a client earned in a round: the pay of the plain bandits (`epsilon-greedy`, `ucb1`).

A client that replied after T seconds, with the loss of the broadcast model and of its own trained model on its data:

    improvement   r = max(1 - loss_after / loss_before, 0) / T     share of the loss taken away, per second         (R1)
    utility       r = |B| sqrt(mean loss^2) / T                    Oort's statistical utility, per second           (R2)
    pay           y = r / (r + c),   in [0, 1)                                                                      (R3)

c is a moving median of r over the rounds: y = 1/2 is what clients usually earn at this stage of the training, whatever
the unit of time and however far the loss has fallen, and no report earns more than 1. Who was asked and
did not reply brought nothing for the seconds waited: y = 0. A reply whose numbers make no sense earns no pay at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table
from fedcohort.errors import check
from fedcohort.types import Mask, RoundResult

Double = NDArray[np.float64]

REWARDS = {"improvement": ("loss_before", "loss_after"), "utility": ("utility",)}
LARGEST = 1e30  # no loss is larger
MEMORY = 0.9  # of the moving median


@dataclass
class RewardState(Table):
    """State of a selector whose clients are paid."""

    usual: float = 0.0  # c of R3; 0: nobody earned anything yet


def needs(reward: str) -> frozenset[str]:
    """The signals behind a reward of this name."""
    check(reward in REWARDS, f"reward = {reward!r}", "there is no such reward", f"use one of {', '.join(REWARDS)}")
    return frozenset(REWARDS[reward])


def reward(s: RewardState, result: RoundResult, kind: str) -> tuple[Double, Mask]:
    """(y of every row, which rows count). Moves c on."""
    raw, sound = _raw(result, kind)
    earned = raw[sound]
    middle = float(np.median(earned)) if earned.size else 0.0
    if middle > 0:
        s.usual = MEMORY * s.usual + (1 - MEMORY) * middle if s.usual > 0 else middle
    y = np.zeros(raw.size)
    y[sound] = earned / np.maximum(earned + s.usual, 1e-300)
    return y, sound | ~result.replied


def _raw(result: RoundResult, reward: str) -> tuple[Double, Mask]:
    """R1 or R2, and where it is known."""
    columns = [np.asarray(result.signals[name], np.float64) for name in REWARDS[reward]]
    sound: Mask = result.replied & np.isfinite(result.duration)
    for column in columns:
        sound = sound & np.isfinite(column) & (column >= 0) & (column < LARGEST)
    gain, *after = (np.where(sound, column, 0.0) for column in columns)
    if reward == "improvement":
        gain = np.where(sound, np.maximum(1.0 - after[0] / np.maximum(gain, 1e-9), 0.0), 0.0)
    return gain / np.maximum(np.where(sound, result.duration, 1.0), 1e-9), sound
