"""Checks that clients were chosen as the journal says: cohorts are replayed from seed and journal, without training.

The chain of hashes shows that no record was changed, lost or reordered. The replay shows more: that this selector, with
this seed, told what the journal says it was told, chooses exactly the cohorts that the journal says it chose.
Selectors that read whole updates (such as FLASH-RL) cannot be replayed from a journal, which keeps only digests of
those: for them the run itself is done again and every record compared.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.errors import JournalDamaged
from fedcohort.experiment.runs import Objects, build, configuration
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.replay import Known, replay
from fedcohort.rounds.session import Session
from fedcohort.signals import MODEL_SIZED
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.journal_reader import JournalReader, Record
from fedcohort.storage.run_folder import RunFolder, StateFolder
from fedcohort.storage.salvage import cut_sentence
from fedcohort.storage.snapshots import Snapshots

REPLAYED, RUN_AGAIN = "replayed from the journal", "run again"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked and found correct."""

    records: int
    rounds: int
    head: str  # hash of the last record: with a copy of it elsewhere, nobody can rewrite the whole file unnoticed
    how: str  # REPLAYED or RUN_AGAIN
    snapshots: int
    cuts: tuple[str, ...] = ()  # what was lost to damage: one sentence each


def verify(folder: Path, own: Objects | None = None) -> Verified:
    """Check the chain, replay every cohort, check the snapshots; raises JournalDamaged with the first difference.

    `folder` is a run folder, or the state folder of a Flower deployment. `own` are objects like those that the run was
    started with, where no text makes them again.

    >>> from tempfile import mkdtemp
    >>> from fedcohort.experiment.runs import RunConfig, run
    >>> folder = Path(mkdtemp()) / "run"
    >>> done = run(RunConfig(task="quadratic", rounds=2, cohort_size=2), folder)
    >>> verify(folder).rounds
    2
    """
    journal = RunFolder(folder).reader()
    records = list(journal.records())
    deployed = journal.header.get("kind") == "flower"
    how, snapshots = (
        _deployment(StateFolder(folder), journal) if deployed else _simulated(folder, journal, records, own)
    )
    journal.check_seal()
    rounds = sum(r.kind == "ask" for r in records)
    cuts = tuple(cut_sentence(journal.path, cut) for cut in journal.cuts)
    return Verified(len(records), rounds, records[-1].hash.hex(), how, snapshots, cuts)


def _simulated(folder: Path, journal: JournalReader, records: list[Record], own: Objects | None) -> tuple[str, int]:
    """Replay a simulated run; how that was done, and how many snapshots are sound."""
    config = configuration(journal)
    fresh = copy.deepcopy(own.selector) if own is not None else None
    simulation = build(config, own)
    how = RUN_AGAIN if simulation.session.selector.needs & MODEL_SIZED else REPLAYED
    if how == RUN_AGAIN:
        _run_again(simulation, records)
    else:
        session = Session(
            fresh if fresh is not None else make_selector(config.selector),
            cohort_size=simulation.session.cohort_size,
            seed=config.seed,
            max_privacy=config.max_privacy,
            asynchronous=simulation.session.asynchronous,
        )
        replay(session, records, Known(simulation.federation.columns))
    return how, Snapshots(RunFolder(folder).snapshots).check()


def _deployment(folder: StateFolder, journal: JournalReader) -> tuple[str, int]:
    """The same for the state folder of a Flower run; what else a restarted ServerApp reads there has digests too."""
    from fedcohort.flower.server.recorded_run import replay_folder

    journal.check_version()
    replay_folder(folder.path)
    return REPLAYED, sum(Snapshots(part).check() for part in (folder.snapshots, folder.asks))


def _run_again(simulation: Simulation, records: list[Record]) -> None:
    told = [r for r in records if r.kind == "tell"]
    for record, row in zip(told, simulation.steps(), strict=False):
        arrays, meta = record.unpack()
        again = np.sort(simulation.history.cohorts[-1])  # the history has them as they replied, the journal by slot
        if not np.array_equal(again, arrays["clients"]) or _text(row) != _text(meta["metrics"]):
            raise JournalDamaged(
                f"round {record.round}",
                "running it again gave another cohort or other metrics than the journal holds",
                "do not trust this run",
            )


def _text(metrics: Mapping[str, Any]) -> str:
    """As text, so that NaN equals NaN."""
    return json.dumps(metrics, sort_keys=True)
