"""The tables of a report as plain data, which pages, Markdown and LaTeX write in their own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcohort.experiment.metrics.comparison import WORST, Comparison, Row, Setting, compare_records
from fedcohort.experiment.metrics.run_metrics import words
from fedcohort.experiment.metrics.stored_metrics import METRICS, TIMES, metric
from fedcohort.looks import time_text
from fedcohort.report.collected import Gathered, Run

MAIN = ("terminal", "time_to_target")  # compared in full
BESIDE = (
    "best",
    "early_stop",
    "drop",
    "rounds_to_target",
    "seconds",
    "bytes",
    "jain",
    "coverage",
    "never_used",
    "client_worst",
)
LOOKS = ("better", "worse")


@dataclass(frozen=True)
class TableCell:
    """Text, and how it looks: number, words, better, worse or nothing."""

    text: str
    look: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Headers and rows, with a title and a remark below."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    remark: str = ""


@dataclass(frozen=True)
class ReportSection:
    """Tables that belong together."""

    title: str
    about: str
    tables: tuple[ReportTable, ...]
    notes: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()  # what the columns mean


def compared(
    gathered: Gathered, names: Sequence[str], *, baseline: str | None = None, target: float | None = None
) -> list[Comparison]:
    """A comparison of the finished runs for each of these metrics; none where nothing is finished."""
    records = [r.record for r in gathered.runs if r.finished]
    chosen = [metric(name) for name in names]
    if not records:
        return []
    return [compare_records(records, m, baseline=baseline, by=gathered.by, target=target) for m in chosen]


def comparison_section(made: Comparison, gathered: Gathered) -> ReportSection:
    """One metric in full: every setting with differences, p-values and verdicts, then the ranks."""
    better = "higher" if made.better > 0 else "lower"
    tables = tuple(_comparison_table(made, gathered.ordered(s), gathered) for s in made.settings)
    notes = list(made.notes)
    if made.ranks is not None:
        told = ", ".join(
            f"{gathered.label(e)} {a:.2f}" for e, a in zip(made.ranks.entries, made.ranks.average, strict=True)
        )
        notes += [f"average ranks over {made.ranks.settings} settings (1 is best): {told}", made.ranks.words]
    about = f"{made.about}; {better} is better. In brackets: {made.brackets}; differences are paired by seed; "
    about += f"p: exact, two-sided, after Holm's correction for the {made.by}s of a setting."
    return ReportSection(f"Comparison: {made.metric.replace('_', ' ')}", about, tables, tuple(notes))


def overview_section(found: Sequence[Comparison], gathered: Gathered) -> ReportSection:
    """All metrics side by side, one table per setting; what differs from the baseline is marked."""
    tables = []
    for at, setting in enumerate(found[0].settings if found else ()):
        rows = []
        for row in gathered.ordered(setting).rows:
            cells = [TableCell(gathered.label(row.entry))]
            for made in found:
                own = {r.entry: r for r in made.settings[at].rows}[row.entry]
                cells.append(TableCell(interval(own, made.metric), _look(own.verdict) or "number"))
            rows.append(tuple(cells))
        headers = (found[0].by, *(made.metric for made in found))
        tables.append(ReportTable(setting.name, headers, tuple(rows)))
    columns = tuple((m.metric, f"{m.about} ({'higher' if m.better > 0 else 'lower'} is better)") for m in found)
    base, inside = (gathered.label(found[0].baseline), found[0].brackets) if found else ("", "")
    about = f"Mean over seeds [{inside}]; a mark is a difference from {base} that stands after correction."
    return ReportSection("All metrics", about, tuple(tables), columns=columns)


def runs_table(runs: Sequence[Run]) -> ReportTable:
    """Every run with its state."""
    headers = ("run", "selector", "method", "world", "task", "seed", "state", "rounds", "accuracy", "virtual time")
    rows = []
    for run in runs:
        c, h = run.config, run.history
        last = METRICS["final"].compute(run.record)
        clock = METRICS["seconds"].compute(run.record)
        numbers = (f"{h.length}/{c.rounds}", words(last, missing="-"), time_text(clock))
        texts = (run.folder.name, c.selector, c.method, c.world, c.task)
        rows.append(
            (
                *map(TableCell, texts),
                TableCell(str(c.seed), "number"),
                TableCell(run.state),
                *(TableCell(n, "number") for n in numbers),
            )
        )
    return ReportTable("runs", headers, tuple(rows))


def interval(row: Row, name: str) -> str:
    """Mean and interval of a metric over seeds, and in how many seeds it was reached where not in all."""
    if row.mean is None:
        return METRICS[name].missing
    text = _value(name, row.mean, row.low, row.high) if row.count > 1 else _value(name, row.mean)
    return text if row.count == len(row.values) else f"{text} in {row.count} of {len(row.values)}"


def _comparison_table(made: Comparison, setting: Setting, gathered: Gathered) -> ReportTable:
    gap = any(r.improvement is not None for r in setting.rows)
    extra = ("of the gap to IID",) if gap else ()
    headers = (made.by, "mean", "seeds", f"minus {gathered.label(made.baseline)}", "won:lost", "p", *extra, "verdict")
    rows = []
    for row in setting.rows:
        cells = [
            TableCell(gathered.label(row.entry)),
            TableCell(interval(row, made.metric), "number"),
            TableCell(f"{row.count}/{len(row.values)}"),
        ]
        cells += [TableCell(text, "number") for text in _against(row, made)]
        if gap:
            cells.append(TableCell("-" if row.improvement is None else f"{100 * row.improvement:.1f} %", "number"))
        rows.append((*cells, TableCell(row.verdict, _look(row.verdict) or "words")))
    goal = "" if setting.target is None else f"target {setting.target:.4f}"
    return ReportTable(setting.name, headers, tuple(rows), goal)


def _against(row: Row, made: Comparison) -> tuple[str, str, str]:
    if row.entry == made.baseline:
        return "", "", ""
    p = "-" if row.adjusted is None else f"{row.adjusted:.3f}"
    if row.difference is None:
        return "-", f"{row.wins}:{row.losses}", p
    ends = (row.difference_low, row.difference_high) if row.pairs - row.unreached > 1 else ()
    return _value(made.metric, row.difference, *ends), f"{row.wins}:{row.losses}", p


def _value(name: str, mean: float | None, low: float | None = None, high: float | None = None) -> str:
    """A value of a metric and its spread; seconds in the unit that a person would use."""
    if name in TIMES and mean is not None:
        return time_text(mean, low, high)
    return words(mean) if low is None else f"{words(mean)} [{words(low)}, {words(high)}]"


def _look(verdict: str) -> str:
    """Only a verdict that stands is coloured."""
    return next((w for w in LOOKS if verdict in (w, w + WORST)), "")
