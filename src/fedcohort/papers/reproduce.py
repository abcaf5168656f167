"""Runs a paper's table: every cell for every seed, ours beside the published number, and which claims hold.

The runs go to the store, so an interrupted reproduction continues where it stopped and a second one reads. The result
is data (see `result_files`): values by seed, intervals, configurations with their digests, claims, departures.

A result may be half done: it is written after every run, says how many of its runs are there, and what it knows of runs
that the store does not have (any more) is kept where their digests are still those of the study. So are seeds that are
not asked for this time, and what the results beside it know of the same runs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.data.dataset import locate
from fedcohort.errors import ConfigError, StoreError, UnknownName, check
from fedcohort.experiment.config import RunConfig, from_mapping
from fedcohort.experiment.metrics import paired
from fedcohort.experiment.metrics.paired import VERDICT_SEEDS
from fedcohort.experiment.metrics.stored_metrics import RunRecord, metric, record
from fedcohort.experiment.runner import Event, OnEvent
from fedcohort.experiment.runs import versions
from fedcohort.experiment.store import Store
from fedcohort.experiment.sweep import run_all
from fedcohort.papers.result_files import load, save
from fedcohort.papers.study import OTHERS, PERFECT_ROW, SCALES, Cell, Claim, Derivation, Place, Study, Value
from fedcohort.papers.verdicts import judge, values_of
from fedcohort.registry.lookup import make_method, make_selector, make_task_spec, make_world_spec

SHARED = ("terminal", "best", "early_stop", "final", "stable", "drop")  # one number a run, whichever cell it is for
Known = dict[tuple[str, str, Place | None], Value]  # by digest, quantity and place; no place: of one run alone
_UNKNOWN: Any = object()  # no number yet; None is a number that cannot be had (a target that was not reached)
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
    seeds: tuple[int, ...]  # those asked for, and what an earlier result has beyond them
    cells: tuple[Cell, ...]
    configs: dict[tuple[Place, int], RunConfig]
    digests: dict[tuple[Place, int], str]
    asked: tuple[int, ...] = ()  # the seeds that are run
    others: int | None = None  # how many of them cells are run for that are not in the main claim; None: all
    goal: int = 0  # seeds of every cell, where more were asked for than the study has by itself
    decisive: int = VERDICT_SEEDS  # how many of those asked for are run for the main claim alone
    errors: dict[str, str] = field(default_factory=dict)  # run id -> why it failed
    known: Known = field(default_factory=dict)  # numbers that were written down before
    against: dict[Place, list[Place]] = field(default_factory=dict)  # what cells were measured against then

    def whole(self) -> set[tuple[Place, int]]:
        """Cells and seeds of the whole study, and what was ever asked for beyond them."""
        seeds = tuple(range(self.study.seeds[self.scale]))
        own = replace(self, asked=seeds, others=OTHERS.get(self.scale)).wanted()
        return {*own, *(at for at in self.configs if at[1] < self.goal)}

    def wanted(self, main: bool = False) -> list[tuple[Place, int]]:
        """Cells and seeds to be run for: those of the main claim, a perfect choice beside it, then the others.

        Seed by seed. With `main` no others, and as many seeds as a verdict needs or as were asked for.
        """
        claims = self.study.claims(self.scale)
        first = self._places(claims[:1])
        beside = {cell.place for cell in self.cells if PERFECT_ROW in cell.place and _meets(cell.place, first)}
        rank = {at: 0 if at[0] in first else 1 if at[0] in beside else 2 for at in self.configs}
        single = [claim for claim in claims[1:] if len(claims) == 2 and not claim.ours]  # which is not corrected
        decided = first | self._places(single)
        few = self.asked[: self.others]
        ordered = [at for at in self.configs if at[1] in (self.asked if at[0] in decided else few)]
        if main:
            ordered = [at for at in ordered if rank[at] < 2 and at[1] in self.asked[: self.decisive]]
        return sorted(ordered, key=lambda at: (rank[at], at[1]))

    def runs(self, main: bool = False) -> list[RunConfig]:
        """Every different run of what is wanted, in its order."""
        return list({self.digests[at]: self.configs[at] for at in self.wanted(main)}.values())

    def _places(self, claims: Iterable[Claim]) -> set[Place]:
        """The cells that claims compare; of derived ones those that they are derived from."""
        compared = {place for claim in claims for place in (*claim.left, *claim.right)}
        sources = {cell.place: cell.quantity.sources for cell in self.cells}
        return {source for place in compared for source in sources[place] or (place,)}


def _meets(place: Place, others: set[Place]) -> bool:
    """Whether one of the others has the same row or column."""
    return any(place[0] == row or place[1] == column for row, column in others)


def plan(
    study: Study, scale: str, seeds: int | None = None, earlier: Path | None = None, *, part: bool = False
) -> StudyWork:
    """What a study asks for; every mistake in it shows here. `earlier`: a result to build on.

    More `seeds` than its own become part of the study, unless only a `part` of its runs is to be done.
    """
    if scale not in SCALES:
        raise UnknownName.among("scale", scale, SCALES)
    check(seeds is None or seeds >= 1, f"seeds = {seeds}", "it is how many, at least one", "use e.g. --seeds 3")
    cells = tuple(study.cells(scale))
    before = load(earlier, claims=False) if earlier is not None and earlier.exists() else {}
    asked = tuple(range(seeds or study.seeds[scale]))
    numbers = tuple(sorted({*asked, *before.get("seeds", ())}))
    own, more = study.seeds[scale], seeds or 0
    goal = max(before.get("goal", 0), more if more > OTHERS.get(scale, own) and not part else 0)
    every = sorted({*numbers, *range(max(own, goal))})
    texts = {c.place: from_mapping(dict(c.run)).canonical() for c in cells if not c.quantity.sources}
    configs = {(place, s): replace(text, seed=s) for place, text in texts.items() for s in every}
    for kind, make in _MAKERS.items():
        for text in {getattr(c, kind) for c in configs.values()}:
            make(text)
    known = {} if earlier is None else _beside(earlier.parent, scale)
    others = None if seeds else OTHERS.get(scale)
    runs = {text: text.digests(every) for text in set(texts.values())}
    digests = {(place, s): runs[texts[place]][s] for place, s in configs}
    work = StudyWork(study, scale, numbers, cells, configs, digests, asked, others, goal, seeds or VERDICT_SEEDS)
    work.against = {(c["row"], c["column"]): [(r, k) for r, k in c.get("against", ())] for c in before.get("cells", ())}
    work.known = known | _kept(before, digests)
    return work


def perform(
    work: StudyWork,
    store: Store,
    on_event: OnEvent | None = None,
    keep: Path | None = None,
    main: bool = False,
    **how: Any,
) -> dict[str, Any]:
    """Run what is missing, then measure: the result as plain values.

    With `keep` it is written after every run too; with `main` only what decides the main claim is run.
    """
    started = time.monotonic()
    values = _Values(work, store)
    tried: set[str] = set()

    def cost() -> dict[str, Any]:
        return {
            "runs": len(values.asked),
            "run_now": len(tried),
            "wall_seconds": round(time.monotonic() - started, 1),
        }

    def heard(event: Event) -> None:
        if event.kind == "failed":
            work.errors[event.job.id] = event.text
        if event.kind == "done" and keep is not None:
            save(_measured(work, values) | {"cost": cost()}, keep)
        if on_event is not None:
            on_event(event)

    while new := {digest: config for digest, config in values.missing(main).items() if digest not in tried}:
        if not tried:
            _check_start(new.values(), store)
        tried |= set(new)
        run_all(list(new.values()), store, heard, **how)
    return _measured(work, values) | {"cost": cost()}


def _check_start(configs: Iterable[RunConfig], store: Store) -> None:
    """What every run would fail for: a file where the folder of runs should be, and missing data."""
    there = next(path for path in (store.root, *store.root.absolute().parents) if path.exists())
    if not there.is_dir():
        raise StoreError(f"{there}", "it is a file, and runs go to a folder", "name another one with --store")
    for text in sorted({config.task for config in configs}):
        spec = make_task_spec(text)
        name = getattr(spec, "dataset", None)
        if isinstance(name, str) and name != "digits":
            locate(name, getattr(spec, "root", None))


def missing(work: StudyWork, store: Store, main: bool = False) -> list[RunConfig]:
    """The runs that `perform` starts with; what they are measured against may come later."""
    return list(_Values(work, store).missing(main).values())


def result(work: StudyWork, store: Store) -> dict[str, Any]:
    """The table as plain values, from runs that the store has; a run that failed leaves its cells empty."""
    return _measured(work, _Values(work, store))


def _measured(work: StudyWork, values: _Values) -> dict[str, Any]:
    study, scale = work.study, work.scale
    found = {
        "study": study.id,
        "title": study.title,
        "scale": scale,
        "seeds": list(work.seeds),
        **({"goal": work.goal} if work.goal else {}),
        "done": sum(values.complete(digest) for digest in values.asked),
        "wanted": len(values.asked),
        "made": datetime.now(UTC).date().isoformat(),
        "versions": versions() | {"cores": str(os.cpu_count())},
        "average": study.average,
        "cells": [_cell(work, cell, values) for cell in work.cells],
        "claims": [],
        "departures": list(study.departures.get(scale, ())),
        "failed": dict(work.errors),
    }
    return found | {"claims": judged(found, study)}


class _Values:
    """The numbers of every cell by seed, in printed units; runs are read once and only when they are needed."""

    def __init__(self, work: StudyWork, store: Store) -> None:
        self.work, self.store = work, store
        self.by_place = {cell.place: cell for cell in work.cells}
        self.read: dict[str, RunRecord] = {}
        self.found: dict[tuple[Place, int], Value] = {}  # measured now
        self.whole = work.whole()
        self.lacking: set[tuple[Place, int]] = set()  # runs that others are measured against, not in the store
        self.against = {place: set(others) for place, others in work.against.items()}
        self.against |= {cell.place: set(cell.quantity.sources) for cell in work.cells if cell.quantity.sources}
        self.places: dict[str, list[tuple[Place, int]]] = {}  # by digest: the cells that a run is for
        folders = {config: store.folder(config) for config in set(work.configs.values())}
        self.folders = {at: folders[config] for at, config in work.configs.items()}
        for at, digest in work.digests.items():
            self.places.setdefault(digest, []).append(at)
        self.asked = {work.digests[at] for at in self.whole}  # the different runs of the whole study

    def record(self, place: Place, seed: int) -> RunRecord:
        """What a finished run wrote down; one that still goes on counts as not there."""
        folder = self.folders[place, seed]
        if folder.name not in self.read:
            if not self.finished(place, seed):
                raise StoreError(f"{folder}", "this run is not finished", "give the same command again")
            self.read[folder.name] = record(folder)
        return self.read[folder.name]

    def finished(self, place: Place, seed: int) -> bool:
        """Whether the store has the run."""
        return self.store.state(self.work.configs[place, seed], self.folders[place, seed]) == "finished"

    def complete(self, digest: str, among: Collection[tuple[Place, int]] | None = None) -> bool:
        """Whether every cell of the study (or among these) that this run is for has its number in the result."""
        places = [at for at in self.places[digest] if at in (self.whole if among is None else among)]
        return all(at[1] in self.work.seeds and self._value(*at) is not _UNKNOWN for at in places)

    def missing(self, main: bool = False) -> dict[str, RunConfig]:
        """What is to be done, by digest, in order: runs without a number, then what they are measured against."""
        self.lacking.clear()
        wanted = self.work.wanted(main)
        digests, among = dict.fromkeys(self.work.digests[at] for at in wanted), set(wanted)
        open_runs = [self.places[digest][0] for digest in digests if not self.complete(digest, among)]
        undone = [at for at in (*open_runs, *sorted(self.lacking)) if not self.finished(*at)]
        return {self.work.digests[at]: self.work.configs[at] for at in undone}

    def of(self, place: Place) -> dict[int, Value]:
        """By seed; a run that is not there has no entry, one that did not reach its target has None."""
        quantity = self.by_place[place].quantity
        if quantity.derive is not None:
            return _derived(quantity.derive, [self.of(source) for source in quantity.sources])
        found: dict[int, Value] = {}
        for seed in self.work.seeds:
            value = self._value(place, seed)
            if value is not _UNKNOWN:
                found[seed] = value
        return found

    def _value(self, place: Place, seed: int) -> Any:
        if (place, seed) not in self.found:
            if not self.finished(place, seed):
                return self._earlier(place, seed)
            value, lacking = self._measure(self.by_place[place], seed)
            if value is _UNKNOWN:  # the run it is measured against is known from before only, or not there yet
                known = self._earlier(place, seed)
                self.lacking |= lacking if known is _UNKNOWN else set()
                return known
            self.found[place, seed] = value
        return self.found[place, seed]

    def _earlier(self, place: Place, seed: int) -> Any:
        """What an earlier result has for this cell and seed, if its run is the same to the digest."""
        quantity, digest = self.by_place[place].quantity, self.work.digests[place, seed]
        known = self.work.known.get((digest, quantity.name, place), _UNKNOWN)
        if known is _UNKNOWN and quantity.alone:
            known = self.work.known.get((digest, quantity.name, None), _UNKNOWN)
        return known

    def _measure(self, cell: Cell, seed: int) -> tuple[Any, set[tuple[Place, int]]]:
        """The number, and the runs that it is measured against and that are not there."""
        others = _Others(self, cell.place, seed)
        try:
            value = cell.quantity.compute(self.record(cell.place, seed), others)
        except StoreError:
            return _UNKNOWN, others.lacking
        return None if value is None else float(value) * cell.quantity.factor, others.lacking


class _Others:
    """What a cell is measured against (see `study.Lookup`): notes which cells, and the runs that are not there."""

    def __init__(self, values: _Values, place: Place, seed: int) -> None:
        self.values, self.seed = values, seed
        self.against = values.against.setdefault(place, set())
        self.lacking: set[tuple[Place, int]] = set()

    def __call__(self, place: Place) -> RunRecord:
        self.against.add(place)
        if not self.values.finished(place, self.seed):
            self.lacking.add((place, self.seed))
        return self.values.record(place, self.seed)

    def terminal(self, place: Place) -> Value:
        known = self.values.work.known.get((self.values.work.digests[place, self.seed], "terminal", None), _UNKNOWN)
        if known is _UNKNOWN or self.values.finished(place, self.seed):
            return metric("terminal").compute(self(place))
        self.against.add(place)
        return None if known is None else float(known) / 100.0


def _derived(derive: Derivation, sources: Sequence[Mapping[int, Value]]) -> dict[int, Value]:
    """By seed that all sources have an entry for; None where one of them has None, or nothing can be derived."""
    found: dict[int, Value] = {seed: None for seed in sources[0] if all(seed in source for source in sources)}
    known = [seed for seed in found if all(source[seed] is not None for source in sources)]
    numbers = derive(*(np.array([source[s] for s in known], np.float64) for source in sources)) if known else None
    return found if numbers is None else found | dict(zip(known, numbers.tolist(), strict=True))


def _beside(folder: Path, scale: str) -> Known:
    """What all results of a scale know of single runs; other files are passed over."""
    found: Known = {}
    for path in sorted(folder.glob(f"*-{scale}.json")):
        with contextlib.suppress(ConfigError, StoreError):
            found |= {key: value for key, value in _kept(load(path, claims=False)).items() if key[2] is None}
    return found


def _kept(earlier: Mapping[str, Any], now: Mapping[tuple[Place, int], str] | None = None) -> Known:
    """The numbers of an earlier result: by digest, quantity and place, and those in `SHARED` without a place, too.

    With `now`, the digests of today, numbers that were measured against a run that has changed are left out.
    """
    cells = earlier.get("cells", ())
    then = {((c["row"], c["column"]), int(s)): digest for c in cells for s, digest in c["digests"].items()}
    found: Known = {}
    for cell in cells:
        others = [(row, column) for row, column in cell.get("against", ())]
        for seed, value in cell["values"].items():
            if now is not None and any(now.get((o, int(seed))) != then.get((o, int(seed))) for o in others):
                continue
            digest = cell["digests"].get(seed, "")
            for place in ((cell["row"], cell["column"]), *([None] if cell["quantity"] in SHARED else [])):
                found[digest, cell["quantity"], place] = value
    return found


def _cell(work: StudyWork, cell: Cell, values: _Values) -> dict[str, Any]:
    found = values.of(cell.place)
    known = [v for v in found.values() if v is not None]
    low, high = paired.spread(known) if len(known) > 1 else (None, None)
    first = work.configs.get((cell.place, work.seeds[0]))  # None: it is derived
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
        "values": {str(seed): value for seed, value in found.items()},
        "config": {k: v for k, v in first.to_dict().items() if k != "seed"} if first is not None else {},
        "digests": {str(s): work.digests[cell.place, s] for s in work.seeds if first is not None},
        **({"against": sorted(against)} if (against := values.against.get(cell.place)) else {}),
    }


def judged(found: Mapping[str, Any], study: Study) -> list[dict[str, Any]]:
    """The verdicts on a result that was written down."""
    cells = study.cells(found["scale"])
    better = {cell.place: cell.quantity.better for cell in cells}
    there = {(cell["row"], cell["column"]) for cell in found["cells"]}
    claims = [c for c in study.claims(found["scale"]) if there.issuperset((*c.left, *c.right))]
    return judge(claims, values_of(found), better, {cell.place: cell.published for cell in cells})
