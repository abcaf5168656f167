"""A round under way, and what came of it as one row per client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import RecordDict

from fedcohort.flower.server.aggregator import Asked
from fedcohort.flower.server.reply_reader import ValidReply
from fedcohort.types import Arrays, Outcome, RoundResult, Signals

if TYPE_CHECKING:
    from fedcohort.flower.server.flower_rounds import Rounds


@dataclass
class OpenRound:
    """A round under way."""

    asked: Asked
    contents: dict[int, tuple[int, RecordDict]]  # slot -> (node, body)
    kind: str
    wanted: frozenset[str]
    started: float
    believed: dict[int, ValidReply] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)  # slot -> why not
    outcome: dict[int, Outcome] = field(default_factory=dict)  # of those that are known not to be OK
    seconds: dict[int, float] = field(default_factory=dict)  # slot -> when its reply came
    replied_at: list[float] = field(default_factory=list)  # wall time at which believed replies were made
    timed_out: bool = False


def result_of(rounds: Rounds, rnd: OpenRound, elapsed: float) -> RoundResult:
    """One row per client that was asked; those of whom nothing came are late. The drop-out is learned from it."""
    clients = np.sort(rnd.asked.cohort.clients)
    slots = clients.tolist()
    for slot in slots:
        if slot not in rnd.believed and slot not in rnd.outcome:
            if slot not in rnd.contents:
                rounds.fail(rnd, slot, "not-connected")
                continue
            rnd.outcome[slot] = Outcome.LATE
            if rnd.timed_out:
                rounds.clients.silent.add(slot)
    outcome = np.array([rnd.outcome.get(s, Outcome.OK) for s in slots], np.int8)
    watched = outcome.size if rnd.timed_out else int((outcome != Outcome.LATE).sum())
    came = int(np.isin(outcome, (Outcome.OK, Outcome.FILTERED)).sum())
    rounds.over.learn(came, watched - came)
    duration = np.array([rnd.seconds.get(s, elapsed) for s in slots], np.float64)
    needs = rounds.selector.needs
    model = rounds.model.params if "model" in needs else None
    return RoundResult(
        rnd.asked.index, clients, outcome, duration, Signals(_signals(rounds, rnd, slots)), math.nan, None, model
    )


def _signals(rounds: Rounds, rnd: OpenRound, slots: list[int]) -> Arrays:
    """Client signals as they came, and what the server computes from uploads it has anyway."""
    out: Arrays = {}
    needs, before = rounds.selector.needs, rnd.asked.model.params
    computed: dict[str, Callable[[ValidReply], Any]] = {
        "delta_norm": lambda r: r.norm,
        "delta": lambda r: r.delta,
        "weights": lambda r: r.delta + before,
        "last_layer_delta": lambda r: r.delta[rounds.layout.last_layer],
    }
    rows = {n: {s: r.signals[n] for s, r in rnd.believed.items()} for n in rnd.wanted if n in needs}
    rows.update({n: {s: f(r) for s, r in rnd.believed.items()} for n, f in computed.items() if n in needs})
    p, last = rounds.layout.last_layer.size, int(rounds.layout.last_layer.sum())
    widths = {"delta": p, "weights": p, "last_layer_delta": last, "insight": last}
    for name, found in rows.items():
        shape = (len(slots), widths[name]) if name in widths else (len(slots),)
        out[name] = np.full(shape, np.nan, np.float32 if name in widths else np.float64)
        for row, slot in enumerate(slots):
            if slot in found:
                out[name][row] = found[slot]
    return out


def like(value: Any, dtype: np.dtype[np.generic]) -> Any:
    """The value in this type; integers are rounded, not cut."""
    return np.rint(value).astype(dtype) if dtype.kind != "f" else value.astype(dtype)


def plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics that JSON can hold: finite numbers and lists of them."""

    def finite(value: Any) -> bool:
        values = value if isinstance(value, list) else [value]
        return all(isinstance(v, int | float) and math.isfinite(v) for v in values)

    return {k: v for k, v in found.items() if finite(v)}
