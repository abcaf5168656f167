"""Runs a paper's table: every cell for every seed, ours beside the published number, and which claims hold.

The runs go to the store, so an interrupted reproduction continues where it stopped and a second one reads. The result
is data (`results/ID-SCALE.json`): values by seed, intervals, configurations with their digests, claims, departures.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.errors import ConfigError, StoreError, UnknownName, check
from fedcohort.experiment.config import RunConfig, from_mapping
from fedcohort.experiment.metrics import paired
from fedcohort.experiment.metrics.stored_metrics import RunRecord, record
from fedcohort.experiment.runner import Event, OnEvent
from fedcohort.experiment.runs import versions
from fedcohort.experiment.store import Store, identity
from fedcohort.experiment.sweep import run_all
from fedcohort.papers.study import SCALES, Cell, Place, Study, Value
from fedcohort.papers.verdicts import judge, values_of
from fedcohort.registry.lookup import make_method, make_selector, make_task_spec, make_world_spec
from fedcohort.storage.snapshots import write_durably

RESULTS = Path("results")
_MAKERS: dict[str, Callable[[str], Any]] = {
    "selector": make_selector,
    "method": make_method,
    "world": make_world_spec,
    "task": make_task_spec,
}


@dataclass
class StudyWork:
    """A study at a scale: its cells, its seeds and the run of each cell and seed."""

    study: Study
    scale: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    configs: dict[tuple[Place, int], RunConfig]
    errors: dict[str, str] = field(default_factory=dict)  # run id -> why it failed

    def runs(self) -> list[RunConfig]:
        """Every different run, seed by seed, so that an interrupted reproduction has whole seeds."""
        ordered = sorted(self.configs.items(), key=lambda item: item[0][1])
        return list({config.digest(): config for _, config in ordered}.values())


def plan(study: Study, scale: str, seeds: int | None = None) -> StudyWork:
    """What a study asks for; every mistake in it, and missing data, show here."""
    if scale not in SCALES:
        raise UnknownName.among("scale", scale, SCALES)
    check(seeds is None or seeds >= 1, f"seeds = {seeds}", "it is how many, at least one", "use e.g. --seeds 3")
    cells = tuple(study.cells(scale))
    numbers = tuple(range(seeds or study.seeds[scale]))
    configs = {(c.place, s): from_mapping({**c.run, "seed": s}).canonical() for c in cells for s in numbers}
    for kind, make in _MAKERS.items():
        for text in {getattr(c, kind) for c in configs.values()}:
            make(text)
    return StudyWork(study, scale, numbers, cells, configs)


def perform(work: StudyWork, store: Store, on_event: OnEvent | None = None, **how: Any) -> dict[str, Any]:
    """Run what the store does not have, then measure: the result as plain values."""
    started = time.monotonic()

    def heard(event: Event) -> None:
        if event.kind == "failed":
            work.errors[event.job.id] = event.text
        if on_event is not None:
            on_event(event)

    runs = work.runs()
    made = sum(store.state(c) != "finished" for c in runs)
    run_all(runs, store, heard, **how)
    cost = {"runs": len(runs), "run_now": made, "wall_seconds": round(time.monotonic() - started, 1)}
    return result(work, store) | {"cost": cost}


def result(work: StudyWork, store: Store) -> dict[str, Any]:
    """The table as plain values, from runs that the store has; a run that failed leaves its cells empty."""
    values = _Values(work, store)
    study, scale = work.study, work.scale
    found = {
        "study": study.id,
        "title": study.title,
        "scale": scale,
        "seeds": list(work.seeds),
        "made": datetime.now(UTC).date().isoformat(),
        "versions": versions() | {"cores": str(os.cpu_count())},
        "average": study.average,
        "cells": [_cell(work, cell, values.of(cell.place)) for cell in work.cells],
        "claims": [],
        "departures": list(study.departures.get(scale, ())),
        "notes": list(study.notes) if scale == "laptop" else [],
        "failed": dict(work.errors),
    }
    return found | {"claims": judged(found, study)}


class _Values:
    """The numbers of every cell by seed, in printed units; runs are read once and only when they are needed."""

    def __init__(self, work: StudyWork, store: Store) -> None:
        self.work, self.store = work, store
        self.by_place = {cell.place: cell for cell in work.cells}
        self.read: dict[str, RunRecord] = {}
        self.known: dict[Place, dict[int, Value]] = {}

    def record(self, place: Place, seed: int) -> RunRecord:
        config = self.work.configs[place, seed]
        name = identity(config)
        if name not in self.read:
            self.read[name] = record(self.store.root / name)
        return self.read[name]

    def of(self, place: Place) -> dict[int, Value]:
        """By seed; a run that is not there has no entry, one that did not reach its target has None."""
        if place not in self.known:
            there = [s for s in self.work.seeds if self.store.state(self.work.configs[place, s]) == "finished"]
            self.known[place] = {seed: self._measure(self.by_place[place], seed) for seed in there}
        return self.known[place]

    def _measure(self, cell: Cell, seed: int) -> Value:
        try:
            value = cell.quantity.compute(self.record(cell.place, seed), lambda other: self.record(other, seed))
        except StoreError:  # the run it is measured against is not there
            return None
        return None if value is None else float(value) * cell.quantity.factor


def _cell(work: StudyWork, cell: Cell, values: Mapping[int, Value]) -> dict[str, Any]:
    known = [v for v in values.values() if v is not None]
    low, high = paired.spread(known) if len(known) > 1 else (None, None)
    first = work.configs[cell.place, work.seeds[0]]
    return {
        "row": cell.row,
        "column": cell.column,
        "quantity": cell.quantity.name,
        "digits": cell.quantity.digits,
        "missing": cell.quantity.missing,
        "better": cell.quantity.better,
        "published": cell.published,
        "mean": float(np.mean(known)) if known else None,
        "low": low,
        "high": high,
        "values": {str(seed): value for seed, value in values.items()},
        "config": {k: v for k, v in first.to_dict().items() if k != "seed"},
        "digests": {str(seed): work.configs[cell.place, seed].digest() for seed in work.seeds},
    }


def judged(found: Mapping[str, Any], study: Study) -> list[dict[str, Any]]:
    """The verdicts on a result that was written down."""
    cells = study.cells(found["scale"])
    better = {cell.place: cell.quantity.better for cell in cells}
    claims = study.claims(found["scale"])
    return judge(claims, values_of(found), better, {cell.place: cell.published for cell in cells})


def file_of(study: str, scale: str, folder: Path = RESULTS) -> Path:
    """Where the result of a study is kept."""
    return folder / f"{study.replace(':', '-')}-{scale}.json"


def save(found: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result down."""
    path = file_of(found["study"], found["scale"], folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (json.dumps(found, indent=1) + "\n").encode())
    return path


def load(path: Path) -> dict[str, Any]:
    """A result that was written down."""
    try:
        found = json.loads(path.read_text())
        _ = found["study"], found["cells"], found["claims"], found["scale"]
    except OSError:
        raise StoreError(f"{path}", "there is no such result", "run `fedcohort reproduce` first") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}", "this is not the result of a reproduction", "name one of results/") from None
    return dict(found)


def rows_and_columns(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The rows and columns of a result, in the order of its cells."""
    return list(dict.fromkeys(c["row"] for c in cells)), list(dict.fromkeys(c["column"] for c in cells))
