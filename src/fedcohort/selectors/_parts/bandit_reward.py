"""The reward of the plain bandits (`epsilon-greedy`, `ucb1`): what a client contributed per second.

A client that replied after T seconds, with the loss of the broadcast model and of its own trained model on its data:

    improvement   r = max(1 - loss_after / loss_before, 0) / T     share of the loss removed, per second            (R1)
    utility       r = |B| sqrt(mean loss^2) / T                    Oort's statistical utility, per second           (R2)
    reward        y = r / (r + c),   in [0, 1)                                                                      (R3)

c is a moving median of r over the rounds: y = 1/2 is the usual reward at this stage of the training, whatever the unit
of time and however far the loss has fallen, and no report earns more than 1. A client that was asked and did not reply
contributed nothing for the seconds waited: y = 0. A reply whose numbers make no sense is not rewarded at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice
from fedcohort.core.table import Table
from fedcohort.types import Mask, RoundResult

Double = NDArray[np.float64]

REWARDS = {"improvement": ("loss_before", "loss_after"), "utility": ("utility",)}  # the signals behind each
RewardKind = Annotated[str, Choice(*REWARDS)]
LARGEST = 1e30  # no loss is larger
MEMORY = 0.9  # of the moving median


@dataclass
class RewardState(Table):
    """State of a selector that uses this reward."""

    usual: float = 0.0  # c of R3; 0: no reward so far


def reward(s: RewardState, result: RoundResult, kind: str) -> tuple[Double, Mask]:
    """(y of every row, which rows count). Updates c."""
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
