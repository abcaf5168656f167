"""A run's state as arrays, and how a new process goes on with what an earlier one left behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.flower.model_layout import record
from fedcohort.flower.server.state_dir import unpack_result
from fedcohort.types import Arrays, Cohort

if TYPE_CHECKING:
    from fedcohort.flower.server.flower_rounds import Rounds

log = logging.getLogger("flwr")


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


def snapshot(rounds: Rounds) -> None:
    """Where to go on, after a round that the journal has."""
    arrays, meta = state_of(rounds)
    arrays.update({f"session.{k}": v for k, v in rounds.session.state_dict().items()})
    rounds.memory.keep(rounds.memory.snapshots, rounds.session.index, arrays, meta)


def resume(rounds: Rounds) -> None:
    """Go back to the newest snapshot; close again the round that was closed, if the journal is behind."""
    memory, session = rounds.memory, rounds.session
    found = memory.snapshots.latest()
    if found is not None:
        index, arrays, meta = found
        session.load_state_dict(part(arrays, "session."))
        load_state(rounds, arrays, meta)
        rounds.rows = [m["metrics"] for at, _, m in memory.records("tell") if at < index]
    while (closing := memory.closings.at(session.index)) is not None:
        reopen(rounds)
        arrays, meta = closing
        load_state(rounds, part(arrays, "state."), meta["state"])
        reasons = {int(k): v for k, v in meta["reasons"].items()}
        rounds.told(unpack_result(session.index, part(arrays, "result.")), meta["row"], reasons)
    log.info("resumed: %d rounds are done, next is round %d", session.index, session.index + 1)


def reopen(rounds: Rounds) -> Cohort | None:
    """Commit again the cohort that an earlier process committed for this round; None where it did not."""
    session, memory = rounds.session, rounds.memory
    found = memory.asked(session.index)
    if found is None:
        return None
    arrays, meta = found
    total = int(meta["population"])
    profiles, answers = memory.kept_ask(session.index)
    return session.ask(
        np.arange(total) if bool(arrays["everybody"]) else arrays["available"],
        population=total,
        clock=float(meta["clock"]),
        profiles=profiles,
        probe=lambda clients, names: answers,
        size=int(meta["size"]),
    )
