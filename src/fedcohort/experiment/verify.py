"""Was everybody chosen as the journal says? Replay of the cohorts from seed and journal, without training anything.

The chain of hashes shows that no record was changed, lost or reordered. The replay shows more: that this selector, with
this seed, told what the journal says it was told, chooses exactly the cohorts that the journal says it chose.
Selectors that read whole updates (FLASH-RL and its like) cannot be replayed from a journal, which keeps only digests of
those: for them the run itself is done again and every record compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.errors import JournalDamaged
from fedcohort.experiment.run import build, check_version, configuration, journal_of
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.replay import replay_ask, replay_tell
from fedcohort.rounds.session import Session
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.journal import Journal, Record
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Arrays

MODEL_SIZED = frozenset({"delta", "weights", "last_layer_delta", "probe_weights", "model"})


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked and found right."""

    records: int
    rounds: int
    head: str  # hash of the last record: keep it elsewhere, and nobody can rewrite the whole file unnoticed
    how: str  # "replayed from the journal" or "run again"
    snapshots: int


def verify(folder: Path) -> Verified:
    """Check the chain, replay every cohort, check the snapshots; raises JournalDamaged with the first difference."""
    journal = Journal.read(journal_of(folder))
    try:
        records = list(journal.records())
        if journal.header.get("kind") == "flower":
            return _flower(folder, journal, records)
        config = configuration(journal)
        simulation = build(config)
        needs = simulation.session.selector.needs
        if needs & MODEL_SIZED:
            _run_again(simulation, records)
        else:
            session = Session(
                make_selector(config.selector),
                cohort_size=simulation.session.cohort_size,
                seed=config.seed,
                max_privacy=config.max_privacy,
                asynchronous=simulation.session.asynchronous,
            )
            _replay(session, records, simulation.federation.profiles)
        how = "run again" if needs & MODEL_SIZED else "replayed from the journal"
        rounds = sum(r.kind == "ask" for r in records)
        journal.check_seal()
        return Verified(len(records), rounds, journal.head.hex(), how, Snapshots(folder / "snapshots").check())
    finally:
        journal.close()


def _flower(folder: Path, journal: Journal, records: list[Record]) -> Verified:
    """The state folder of a Flower run; what else a restarted ServerApp reads there has digests too."""
    from fedcohort.flower.server.flower_replay import replay

    check_version(journal)
    rounds = len(replay(folder))
    journal.check_seal()
    snapshots = sum(Snapshots(folder / name).check() for name in ("snapshots", "asks", "closings"))
    return Verified(len(records), rounds, journal.head.hex(), "replayed from the journal", snapshots)


def _replay(session: Session, records: list[Record], profiles: Arrays) -> None:
    for record in records:
        if record.kind == "ask":
            chosen, written = replay_ask(session, record, profiles).clients, record.unpack()[0]["clients"]
            if not np.array_equal(chosen, written):
                raise _different(record, f"the journal has {written[:12]}, the replay {chosen[:12]}")
        elif record.kind == "tell":
            replay_tell(session, record)


def _run_again(simulation: Simulation, records: list[Record]) -> None:
    told = [r for r in records if r.kind == "tell"]
    for record, row in zip(told, simulation.steps(), strict=False):
        arrays, meta = record.unpack()
        again = np.sort(simulation.history.cohorts[-1])  # the history has them as they replied, the journal by slot
        if not np.array_equal(again, arrays["clients"]) or _text(row) != _text(meta["metrics"]):
            raise _different(record, "the run done again gave another cohort or other metrics")


def _text(metrics: Mapping[str, Any]) -> str:
    """As written down, so that two equal values that are no numbers are equal."""
    return json.dumps(metrics, sort_keys=True)


def _different(record: Record, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"round {record.round}",
        f"its cohort is not the one that seed and journal give ({what})",
        "do not trust this run",
    )
