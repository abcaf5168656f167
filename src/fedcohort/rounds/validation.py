"""Every reply on its own, before anything is believed. One place, used by the simulator and by Flower alike.

A reply is accepted, or rejected with a reason code. A rejected reply changes nothing but its sender's record.
`validate` judges the matrix of a whole round; `validate_reply` one reply as it came in, from anybody, of any form.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcohort.signals import SIGNALS
from fedcohort.types import Array, Mask, Updates

# The largest believable magnitude of a scalar signal: beyond it a float32 square overflows.
SANE = 1e15
# The fields of a reply and the types that they may have.
FIELDS: Mapping[str, tuple[type, ...]] = {
    "client": (int,),
    "round": (int,),
    "weight": (int, float),
    "steps": (int,),
    "signals": (dict,),
    "delta": (np.ndarray, type(None)),
}
REASONS = (
    "schema",
    "not-asked",
    "stale-round",
    "duplicate",
    "update-shape",
    "update-dtype",
    "update-not-finite",
    "update-too-large",
    "weight-out-of-range",
    "steps-out-of-range",
    "buffers-not-finite",
    "signal-unknown",
    "signal-missing",
    "signal-shape",
    "signal-not-sane",
)


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


@dataclass(frozen=True, slots=True)
class Expected:
    """What a reply of the open round looks like."""

    round: int
    asked: Container[int]  # the cohort
    params: int | None = None  # entries of the update; None: no update is expected
    signals: Mapping[str, int] = field(default_factory=dict)  # name -> entries, 0 for a plain number
    limits: Limits = field(default_factory=Limits)


def validate_reply(reply: Any, expected: Expected, seen: Container[int] = ()) -> str | None:
    """The reason why this reply is refused, or None. Never raises, whatever it is given; changes nothing.

    A reply is a dict with exactly the fields of `FIELDS`; `seen` holds the clients whose reply was accepted before.
    """
    try:
        return _judged(reply, expected, seen)
    except Exception:  # a hostile object may do anything when it is looked at
        return "schema"


def _judged(reply: Any, expected: Expected, seen: Container[int]) -> str | None:
    if type(reply) is not dict or reply.keys() != FIELDS.keys():
        return "schema"
    for name, kinds in FIELDS.items():
        if type(reply[name]) not in kinds:  # no subclasses: True is no number, a named tuple is no dict
            return "schema"
    client, limits = reply["client"], expected.limits
    if client not in expected.asked:
        return "not-asked"
    if reply["round"] != expected.round:
        return "stale-round"
    if client in seen:
        return "duplicate"
    if not 0 < reply["weight"] <= limits.max_weight:  # False for NaN
        return "weight-out-of-range"
    if not 0 <= reply["steps"] <= limits.max_steps:
        return "steps-out-of-range"
    return _bad_signal(reply["signals"], expected.signals) or _bad_update(reply["delta"], expected.params, limits)


def _bad_update(delta: Array | None, params: int | None, limits: Limits) -> str | None:
    if delta is None or params is None:
        return None if delta is None and params is None else "update-shape"
    if delta.shape != (params,):
        return "update-shape"
    if delta.dtype != np.float32:
        return "update-dtype"
    if not np.isfinite(delta).all():
        return "update-not-finite"
    if limits.max_norm < math.inf and math.sqrt(np.einsum("i,i->", delta, delta, dtype=np.float64)) > limits.max_norm:
        return "update-too-large"
    return None


def _bad_signal(given: dict[Any, Any], expected: Mapping[str, int]) -> str | None:
    if len(given) > len(expected):
        return "signal-unknown"
    found = 0
    for name, width in expected.items():
        if name not in given:
            if not (name in SIGNALS and SIGNALS[name].optional):
                return f"signal-missing:{name}"
            continue
        found += 1
        value = given[name]
        if width == 0:
            if type(value) is not float and type(value) is not int:
                return f"signal-shape:{name}"
            if not -SANE <= value <= SANE:  # False for NaN
                return f"signal-not-sane:{name}"
        elif type(value) is not np.ndarray or value.shape != (width,) or value.dtype != np.float32:
            return f"signal-shape:{name}"
        elif not (np.abs(value) <= SANE).all():
            return f"signal-not-sane:{name}"
    return None if found == len(given) else "signal-unknown"


def validate(updates: Updates, signals: Mapping[str, Array], limits: Limits | None = None) -> Verdict:
    """Check all rows of a round at once; each verdict depends on its own row only."""
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
        refuse(~np.asarray(np.isfinite(updates.buffers).all(axis=1)), "buffers-not-finite")
    for name, value in signals.items() if len(updates) else ():
        flat = np.asarray(value).reshape(len(updates), -1)
        if flat.dtype.kind == "f":
            sane = np.abs(flat) <= SANE  # False for NaN and infinity
            if name in SIGNALS and SIGNALS[name].optional:
                sane |= np.isnan(flat)
            refuse(~np.asarray(sane.all(axis=1)), f"signal-not-sane:{name}")
    return Verdict(~bad, reasons)
