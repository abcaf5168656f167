"""Which values dropout keeps: one definition for every engine.

A mask is a function of (seed, round, client, step, layer, sample in the batch, place in the sample) and of nothing
else, so that engines agree and a client's masks do not depend on who else is in the cohort:

    key    64 bits of (plan.seed, plan.round, client)
    start  = mix(key + (64 step + layer + 1) G)      step: optimiser steps taken before, layer: the how-manieth dropout
    bits   = mix(start + (features sample + place + 1) G)                          the SplitMix64 sequence from `start`
    kept   where the upper 24 bits are at least p 2^24; a kept value is multiplied by 1 / (1 - p)

G is the golden ratio times 2^64, arithmetic is modulo 2^64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import bits_at
from fedcohort.types import Plan

_GOLDEN = 0x9E3779B97F4A7C15
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
LAYERS = 64  # dropouts that one network may have
STEPS = 24  # bits that are compared with p


def client_key(plan: Plan, client: int) -> int:
    """The 64 bits from which all masks of a client in this round are made."""
    return int(bits_at(plan.seed, "dropout", plan.round, np.array([client]))[0])


def start_of(key: int, step: int, layer: int) -> int:
    """Where the sequence of one layer's mask in one step starts."""
    return _mix(key + (LAYERS * step + layer + 1) * _GOLDEN)


def threshold(p: float) -> int:
    """Upper bits below this are dropped."""
    return round(p * (1 << STEPS))


def kept(start: int, samples: int, features: int, p: float) -> NDArray[np.bool_]:
    """Which values of a batch (samples, features) are kept.

    >>> kept(start_of(7, step=0, layer=0), samples=2, features=3, p=0.5).shape
    (2, 3)
    """
    z = np.arange(1, samples * features + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(64 - STEPS)) >= threshold(p)).reshape(samples, features)


def _mix(z: int) -> int:
    """One word through the finaliser of SplitMix64."""
    z &= _WORD
    z = (z ^ (z >> 30)) * _MIX1 & _WORD
    z = (z ^ (z >> 27)) * _MIX2 & _WORD
    return z ^ (z >> 31)
