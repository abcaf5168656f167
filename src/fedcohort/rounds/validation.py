"""Every reply on its own, before anything is believed. One place, used by the simulator and by Flower alike.

A reply is accepted, or rejected with a reason code. A rejected reply changes nothing but its sender's record.
Foreign bytes are read in `flower/server/reply_reader.py`; what could be read is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedcohort.core.finite import sound_rows
from fedcohort.signals import SIGNALS
from fedcohort.types import Array, Mask, Real, Updates

# The largest believable magnitude of a scalar signal: beyond it a float32 square overflows.
SANE = 1e15


@dataclass(frozen=True, slots=True)
class Limits:
    """What is believable. `max_norm` bounds the update's Euclidean norm (infinite: any finite update)."""

    max_norm: float = float("inf")
    max_weight: float = 1e12
    max_steps: int = 10**9


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which rows are accepted, and why the others are not."""

    accepted: Mask
    reasons: Mapping[int, str] = field(default_factory=dict)  # client -> reason code


def validate(
    updates: Updates, signals: Mapping[str, Array], limits: Limits | None = None, sent: Real | None = None
) -> Verdict:
    """Check all rows of a round at once; each verdict depends on its own row only. `sent` are the model's buffers."""
    limits = limits or Limits()
    bad = np.zeros(len(updates), np.bool_)
    reasons: dict[int, str] = {}

    def refuse(rows: Mask, reason: str) -> None:
        for at in np.flatnonzero(rows & ~bad):
            reasons[int(updates.clients[at])] = reason
        bad[rows] = True

    refuse(~np.asarray(np.isfinite(updates.delta).all(axis=1)), "update-not-finite")
    if np.isfinite(limits.max_norm):
        with np.errstate(invalid="ignore", over="ignore"):
            norm = np.sqrt(np.einsum("ij,ij->i", updates.delta, updates.delta, dtype=np.float64))
        refuse(~(norm <= limits.max_norm), "update-too-large")
    weight = np.asarray(updates.weight, np.float64)
    refuse(~((weight > 0) & (weight <= limits.max_weight)), "weight-out-of-range")
    steps = np.asarray(updates.steps)
    refuse((steps < 0) | (steps > limits.max_steps), "steps-out-of-range")
    if updates.buffers is not None and updates.buffers.size:
        refuse(~sound_rows(updates.buffers, sent), "buffers-not-finite")
    for name, value in signals.items() if len(updates) else ():
        flat = np.asarray(value).reshape(len(updates), -1)
        if flat.dtype.kind == "f":
            refuse(~np.asarray(sane(name, flat).all(axis=1)), f"signal-not-sane:{name}")
    return Verdict(~bad, reasons)


def sane(name: str, value: Array) -> Mask:
    """Which numbers of a signal are of a size that can be; NaN only where it means that nothing could be measured.

    >>> sane("val_loss", np.array([1.0, np.nan, np.inf])).tolist(), sane("train_loss", np.array([np.nan])).tolist()
    ([True, True, False], [False])
    """
    found = np.abs(value) <= SANE  # False for NaN and infinity
    if name in SIGNALS and SIGNALS[name].optional:
        found |= np.isnan(value)
    return np.asarray(found)
