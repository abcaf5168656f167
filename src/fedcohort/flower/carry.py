"""A run's state as arrays, all but the session: model, strategy, what was learned of the deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.flower.layout import record
from fedcohort.types import Arrays

if TYPE_CHECKING:
    from fedcohort.flower.rounds import Rounds


def part(arrays: Mapping[str, Any], prefix: str) -> Arrays:
    """The arrays under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def state_of(rounds: Rounds) -> tuple[Arrays, dict[str, Any]]:
    """Everything but session and result: model, strategy, what was learned of the deployment."""
    arrays: Arrays = {f"model.{i}": a.numpy() for i, a in enumerate(rounds.arrays.values())}
    half, half_meta = rounds.half.state()
    judge, judge_meta = rounds.judge.state()
    arrays.update({f"half.{k}": v for k, v in half.items()})
    arrays.update({f"judge.{k}": v for k, v in judge.items()})
    slots = sorted(rounds.clients.latency)
    arrays["latency.slots"] = np.array(slots, np.int64)
    arrays["latency.seconds"] = np.array([rounds.clients.latency[s] for s in slots], np.float64)
    arrays["over"] = np.array([rounds.over.lost, rounds.over.seen], np.float64)
    meta = {"names": [str(k) for k in rounds.arrays], "half": half_meta, "judge": judge_meta, "clock": rounds.clock}
    return arrays, meta


def load_state(rounds: Rounds, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Inverse of :func:`state_of`."""
    named = {name: arrays[f"model.{i}"] for i, name in enumerate(meta["names"])}
    rounds.arrays = record(named)
    if rounds.settings.check_shapes:
        rounds.model = rounds.layout.model(named)
    rounds.half.load(part(arrays, "half."), meta["half"])
    rounds.judge.load(part(arrays, "judge."), meta["judge"])
    rounds.clients.latency = dict(
        zip(arrays["latency.slots"].tolist(), arrays["latency.seconds"].tolist(), strict=True)
    )
    rounds.over.lost, rounds.over.seen = arrays["over"].tolist()
    rounds.before, rounds.began = float(meta["clock"]), rounds.settings.clock()
