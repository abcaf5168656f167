"""Comparison of runs: paired by seed within each setting, ranked over settings, and honest about noise.

Runs that agree in everything but the selector (or the method) and the seed form a setting (`metrics.settings`). Within
it each entry is paired with the baseline seed by seed: both had the same world, random draws and initial model. A
difference is called real only when its interval (the range, with fewer than five seeds) leaves zero out and the exact
Wilcoxon test, corrected for the number of comparisons in the setting, says so too; everything else is said to be inside
the noise, or too little data to tell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.errors import BadParameter, JournalDamaged, StoreError, UnknownName
from fedcohort.experiment.config import from_toml
from fedcohort.experiment.metrics import paired
from fedcohort.experiment.metrics.run_metrics import improvement
from fedcohort.experiment.metrics.settings import counted, setting_key, setting_names
from fedcohort.experiment.metrics.stored_metrics import Metric, RunRecord, check_goal, metric, record
from fedcohort.experiment.runs import refuse_deployment
from fedcohort.experiment.store import ROOT, Store, find
from fedcohort.experiment.sweep import from_mapping, read_file
from fedcohort.storage.run_folder import RunFolder

BY = ("selector", "method")
Values = dict[int, float | None]  # seed -> value; None: not reached
WORST = " (not reached counts as worst)"  # behind the verdict where it matters


@dataclass(frozen=True)
class Row:
    """One entry of one setting: its values by seed, and how they stand to the baseline's."""

    entry: str
    values: Values
    mean: float | None  # over the seeds that have a value
    low: float | None
    high: float | None
    count: int  # seeds with a value
    pairs: int = 0  # seeds in common with the baseline
    difference: float | None = None  # mean over pairs that both have a value
    difference_low: float | None = None
    difference_high: float | None = None
    wins: int = 0
    losses: int = 0
    unreached: int = 0  # pairs in which at least one of the two has no value
    p: float | None = None  # Wilcoxon, exact; the sign test where some have no value
    adjusted: float | None = None  # after Holm
    improvement: float | None = None  # share of the gap to the even world that was closed
    verdict: str = ""


@dataclass(frozen=True)
class Setting:
    """Runs that agree in everything but the entry and the seed."""

    name: str
    world: str
    rows: tuple[Row, ...]
    target: float | None = None
    task: str = ""


@dataclass(frozen=True)
class Ranks:
    """Average ranks over settings of different worlds or tasks, 1 the best, with Nemenyi's critical difference."""

    entries: tuple[str, ...]
    average: tuple[float, ...]
    settings: int
    critical: float
    words: str


@dataclass(frozen=True)
class Comparison:
    """The whole comparison, as data for tables and reports."""

    metric: str
    about: str
    better: int
    by: str
    baseline: str
    settings: tuple[Setting, ...]
    ranks: Ranks | None
    notes: tuple[str, ...] = field(default=())

    @property
    def brackets(self) -> str:
        """What stands in brackets behind a mean: the interval, or the range of few seeds."""
        return paired.spread_words(row.count for setting in self.settings for row in setting.rows)

    def data(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def named(paths: Sequence[Path], store: Store | None = None) -> list[Path]:
    """Run folders, begun or not: of run folders, folders of runs, sweep files (.toml, or .json in STORE/sweeps/)."""
    found: list[Path] = []
    for path in paths:
        if path.suffix == ".toml":
            runs = store or Store(ROOT)
            found += [runs.folder(c) for c in from_mapping(from_toml(path)).runs()]
        elif path.suffix == ".json":
            found += [path.parent.parent / name for name in read_file(path)[0]]
        else:
            found += find([path])
    return list(dict.fromkeys(p.resolve() for p in found))


def folders(paths: Sequence[Path], store: Store | None = None) -> tuple[list[Path], list[str]]:
    """The finished ones of :func:`named`, and a note about the others."""
    found = named(paths, store)
    deployed = [error for path in found if (error := _deployed(path)) is not None]
    done = [path for path in found if RunFolder(path).finished]
    total = len(found) - len(deployed)
    if not done and deployed:
        raise deployed[0]
    if not done:
        raise StoreError(f"{total} runs", "none of them is finished", "run or resume them first")
    notes = [f"left out: {error}" for error in deployed]
    if total > len(done):
        notes.append(f"{total - len(done)} of {total} runs are not finished and left out")
    return done, notes


def _deployed(folder: Path) -> StoreError | None:
    """What is said of a folder that belongs to a deployment. Damage is found out where the journal is read."""
    files = RunFolder(folder)
    if files.finished or not files.begun:
        return None
    try:
        refuse_deployment(files.reader().header, folder)
    except JournalDamaged:
        return None
    except StoreError as error:
        return error
    return None


def compare(
    paths: str | Path | Sequence[str | Path],
    *,
    name: str = "terminal",
    baseline: str | None = None,
    by: str = "selector",
    target: float | None = None,
    store: Store | None = None,
) -> Comparison:
    """Compare finished runs, paired by seed.

    `paths` is a run folder, a folder that holds runs or a sweep file, or several; `name` is the metric. The runs that
    agree in everything but the seed and the key `by` ("selector" or "method") form a setting. `baseline` is the entry
    that the others are compared with: uniform (or fedavg) if it is there, else the first one. `target` is for metrics
    that need one. `store` is where the runs of a sweep's .toml are.

    >>> from tempfile import mkdtemp
    >>> from fedcohort.experiment import RunConfig
    >>> store = Store(Path(mkdtemp()))
    >>> for selector in ("uniform", "round-robin"):
    ...     done = store.obtain(RunConfig(selector=selector, task="quadratic", rounds=2, cohort_size=2))
    >>> [row.entry for row in compare([store.root], name="seconds").settings[0].rows]
    ['uniform', 'round-robin']
    """
    if by not in BY:
        raise UnknownName.among("key to compare by", by, BY)
    chosen = metric(name)
    given = [paths] if isinstance(paths, (str, Path)) else paths
    check_goal(target)
    done, notes = folders([Path(path) for path in given], store)
    records = [record(folder) for folder in done]
    return compare_records(records, chosen, baseline=baseline, by=by, target=target, notes=notes)


def compare_records(
    records: Sequence[RunRecord],
    chosen: Metric,
    *,
    baseline: str | None = None,
    by: str = "selector",
    target: float | None = None,
    notes: Iterable[str] = (),
) -> Comparison:
    """Compare runs that have been read already."""
    records, left = counted(records, by)
    entries = sorted({str(getattr(s.config, by)) for s in records})
    base = _baseline(entries, baseline, by)
    groups: dict[str, list[RunRecord]] = {}
    for s, name in zip(records, setting_names(records, by), strict=True):
        groups.setdefault(name, []).append(s)
    even = {setting_key(g[0], by, "world"): g for g in groups.values() if g[0].config.world.startswith("iid-")}
    settings = []
    for name, group in sorted(groups.items()):
        goal = _set_target(group, chosen, base, by, target)
        reference = even.get(setting_key(group[0], by, "world"))
        settings.append(_setting(name, group, chosen, base, by, goal, reference))
    ranks, more = _ranks(settings, entries, chosen.better)
    said = (*notes, *left, *more)
    return Comparison(chosen.name, chosen.about, chosen.better, by, base, tuple(settings), ranks, said)


def verdict(row: Row, better: int, comparisons: int) -> str:
    """The difference to the baseline in words, as one of so many comparisons."""
    if row.pairs == 0:
        return "no seed in common with the baseline"
    if row.wins == row.losses == 0:
        return "no difference in any seed" if row.difference is not None else "no values to compare"
    ahead = row.wins > row.losses if row.unreached else (row.difference or 0.0) * better > 0
    word, count = ("better", row.wins) if ahead else ("worse", row.losses)
    needed = paired.seeds_for(comparisons)
    if row.pairs < needed and (row.adjusted is None or row.adjusted >= paired.ALPHA):
        seeds = "the only seed" if row.pairs == 1 else f"{count} of {row.pairs} seeds"
        several = f" for {comparisons} comparisons" if comparisons > 1 else ""
        return f"undecided: {word} in {seeds}, and a verdict needs at least {needed}{several}"
    low, high = row.difference_low, row.difference_high
    zero_inside = row.unreached == 0 and (low is None or high is None or low <= 0.0 <= high)
    if row.wins == row.losses or zero_inside or row.p is None or row.adjusted is None:
        return "inside the noise"
    note = WORST if row.unreached else ""
    if row.adjusted < paired.ALPHA:
        return word + note
    if row.p < paired.ALPHA:
        return f"{word} taken alone, inside the noise after correction for several comparisons{note}"
    return f"inside the noise{note}"


def _baseline(entries: list[str], wanted: str | None, by: str) -> str:
    if wanted is None:
        usual = "uniform" if by == "selector" else "fedavg"
        return usual if usual in entries else entries[0]
    return one_entry(wanted, entries, "baseline")


def one_entry(wanted: str, entries: Sequence[str], what: str) -> str:
    """The entry of this text, or the only one of this name."""
    if wanted in entries:
        return wanted
    near = [e for e in entries if e.partition("(")[0] == wanted]
    if len(near) == 1:
        return near[0]
    if near:
        raise BadParameter(f"{what} {wanted!r}", f"there are several: {', '.join(near)}", "write one of them in full")
    raise UnknownName.among(what, wanted, entries)


def _set_target(group: list[RunRecord], chosen: Metric, base: str, by: str, target: float | None) -> float | None:
    """The target of a setting: the one given, or the terminal accuracy of the baseline."""
    if not chosen.needs_target:
        return None
    goal = target
    if goal is None:
        own = [s for s in group if getattr(s.config, by) == base] or group
        ends = [metric("terminal").compute(s) for s in own]
        known = [e for e in ends if e is not None]
        goal = float(np.mean(known)) if known else math.inf
    for s in group:
        s.target = goal
    return goal


def _setting(
    name: str,
    group: list[RunRecord],
    chosen: Metric,
    base: str,
    by: str,
    target: float | None,
    even: list[RunRecord] | None,
) -> Setting:
    table: dict[str, Values] = {}
    for s in group:
        table.setdefault(str(getattr(s.config, by)), {})[s.config.seed] = chosen.compute(s)
    rows = [_row(entry, values, table.get(base, {}), base, chosen.better) for entry, values in table.items()]
    rest = [i for i, r in enumerate(rows) if r.p is not None]
    adjusted = paired.holm([float(rows[i].p or 0.0) for i in rest])
    for i, p in zip(rest, adjusted, strict=True):
        rows[i] = replace(rows[i], adjusted=float(p))
    reference = [s for s in even or [] if getattr(s.config, by) == base]
    iid = _mean([chosen.compute(s) for s in reference]) if chosen.better > 0 else None
    floor = _mean(list(table.get(base, {}).values()))
    for i, r in enumerate(rows):
        won = None if None in (iid, floor, r.mean) else improvement(r.mean or 0.0, floor or 0.0, iid or 0.0)
        said = "baseline" if r.entry == base else verdict(r, chosen.better, len(rest))
        rows[i] = replace(r, improvement=won, verdict=said)
    rows.sort(
        key=lambda r: (r.entry != base, -_standing(r, chosen.better), r.entry)
    )  # the best right below the baseline
    return Setting(name, group[0].config.world, tuple(rows), target, group[0].config.task)


def _row(entry: str, values: Values, baseline: Values, base: str, better: int) -> Row:
    ordered = dict(sorted(values.items()))
    known = [v for v in ordered.values() if v is not None]
    low, high = paired.spread(known) if known else (None, None)
    row = Row(entry, ordered, _mean(known), low, high, len(known))
    if entry == base:
        return row
    seeds = [s for s in ordered if s in baseline]
    both = [(ordered[s], baseline[s]) for s in seeds]
    keys = [(_order(a, better), _order(b, better)) for a, b in both]
    d = np.array([a - b for a, b in both if a is not None and b is not None], np.float64)
    out = replace(
        row,
        pairs=len(seeds),
        wins=sum(a > b for a, b in keys),
        losses=sum(a < b for a, b in keys),
        unreached=len(seeds) - d.size,
    )
    if seeds:
        out = replace(out, p=paired.sign_test(out.wins, out.losses) if out.unreached else paired.wilcoxon(d))
    if not d.size:
        return out
    below, above = paired.spread(d)
    return replace(out, difference=float(d.mean()), difference_low=below, difference_high=above)


def _order(value: float | None, better: int) -> float:
    """Larger is better; no value is worst."""
    return -math.inf if value is None else better * value


def _ranks(settings: Sequence[Setting], entries: list[str], better: int) -> tuple[Ranks | None, list[str]]:
    """Over settings in which every entry has a value; a setting in which nobody has one counts as a tie.

    Settings of one world and task share their random draws: their ranks are averaged first, and count once.
    """
    blocks: dict[tuple[str, str], list[dict[str, Row]]] = {}
    for setting in settings:
        table = {row.entry: row for row in setting.rows}
        if set(entries) <= set(table):
            blocks.setdefault((setting.world, setting.task), []).append(table)
    left = len(settings) - sum(map(len, blocks.values()))
    notes = [f"{left} of {len(settings)} settings lack some of the entries and do not count for ranks"] if left else []
    if len(entries) < 2 or len(blocks) < 2:
        if len(entries) >= 2:
            notes.append("average ranks need at least two worlds or tasks with all entries")
        return None, notes
    by_block = [
        paired.average_ranks([[_standing(table[e], better) for e in entries] for table in tables])
        for tables in blocks.values()
    ]
    average = np.mean(by_block, axis=0)
    critical = paired.critical_difference(len(entries), len(blocks))
    order = np.argsort(average, kind="stable")
    ordered = tuple(float(a) for a in average[order])
    seeds = min(len(table[e].values) for tables in blocks.values() for table in tables for e in entries)
    words = _rank_words([entries[i] for i in order], ordered, critical, len(blocks), seeds)
    return Ranks(tuple(entries[i] for i in order), ordered, len(blocks), critical, words), notes


def _standing(row: Row, better: int) -> float:
    """The mean over seeds, no value counting as worst: the more seeds have one, the better, and then the mean."""
    if row.mean is None:
        return -math.inf
    missing = len(row.values) - row.count
    return better * row.mean - (missing * 1e12 if missing else 0.0)


def _rank_words(entries: list[str], average: Sequence[float], critical: float, blocks: int, seeds: int) -> str:
    span = average[-1] - average[0]
    if seeds < paired.VERDICT_SEEDS:
        return (
            f"undecided: of some entries there are {seeds} seeds, and a verdict needs at least {paired.VERDICT_SEEDS}"
        )
    if span < critical:
        return (
            f"inside the noise: average ranks differ by at most {span:.2f}, and {blocks} settings "
            f"can tell {len(entries)} entries apart only from {critical:.2f} on"
        )
    behind = [e for e, a in zip(entries, average, strict=True) if a - average[0] >= critical]
    return f"{entries[0]} ranks ahead of {', '.join(behind)} by more than the critical difference of {critical:.2f}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
