"""Give a session the rounds that a journal holds, exactly as they were asked and told."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcohort.rounds.session import Session
from fedcohort.storage.journal import Record
from fedcohort.types import Array, Cohort, Index, Probed, RoundResult, Signals


def replay_ask(session: Session, record: Record, profiles: Mapping[str, Array] | None = None) -> Cohort:
    """Ask again with what was known then; the cohort that this selector chooses now."""
    arrays, meta = record.unpack()
    total = int(meta["population"])
    available = np.arange(total) if bool(arrays["everybody"]) else arrays["available"]

    def answers(clients: Index, names: frozenset[str]) -> Probed:
        columns = {n: arrays[f"probe.{n}"] for n in names if f"probe.{n}" in arrays}
        return Probed(arrays.get("probed", clients[:0]), Signals(columns))

    return session.ask(
        available,
        population=total,
        clock=float(meta["clock"]),
        profiles=profiles,
        probe=answers,
        size=int(meta["size"]),
    )


def replay_tell(session: Session, record: Record) -> None:
    """Tell again what was told then."""
    arrays, meta = record.unpack()
    columns = {k.removeprefix("signal."): v for k, v in arrays.items() if k.startswith("signal.")}
    score = meta["score"]
    result = RoundResult(
        index=record.round,
        clients=arrays["clients"],
        outcome=arrays["outcome"],
        duration=arrays["duration"],
        signals=Signals(columns),
        score=float("nan") if score is None else float(score),
    )
    session.tell(result, meta["metrics"], {int(k): v for k, v in meta["reasons"].items()})
