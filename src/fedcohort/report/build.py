"""From runs to a report: the ending of the file decides what is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.experiment.metrics.comparison import BY
from fedcohort.experiment.metrics.stored_metrics import check_goal, metric
from fedcohort.experiment.store import Store
from fedcohort.report import tables
from fedcohort.report.collected import Gathered, OnRead, gather
from fedcohort.report.plots.picture_file import ENDINGS as PICTURES
from fedcohort.report.tables import ReportSection
from fedcohort.storage.snapshots import write_durably

if TYPE_CHECKING:
    from fedcohort.report.plots.figures import FigureOptions

PAGES = (".html", ".htm")
ENDINGS = (*PAGES, ".md", ".tex", *PICTURES)
ALSO = {"accuracy": "terminal"}  # what people call a metric -> its name
_NEED_COHORTS = ("regret_noise", "regret_skew")


@dataclass(frozen=True)
class ReportOptions:
    """What a report contains.

    `metrics` are compared in full (by default terminal and time_to_target, with others in an overview); `baseline`,
    `by` and `target` are those of a comparison. `labels` are other names for entries, `order` the entries that come
    first; `figures` says how figures are written.

    >>> ReportOptions(metrics=("jain",)).by
    'selector'
    """

    metrics: tuple[str, ...] = ()
    baseline: str | None = None
    by: str = "selector"
    target: float | None = None
    title: str = "Who trained when, and what it was worth"
    labels: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    figures: FigureOptions | None = None


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    gathered: Gathered
    files: tuple[Path, ...]


def make_report(
    paths: Sequence[Path],
    target: Path | None,
    wanted: ReportOptions | None = None,
    *,
    figures: Path | None = None,
    store: Store | None = None,
    on_read: OnRead | None = None,
) -> ReportFiles:
    """Read the runs and write the report, the figures, or both. Mistakes show before anything is read.

    `paths` are run folders, folders that hold runs, or sweep files; the ending of `target` decides the format;
    `figures` is a folder for all figures; `on_read` is called with how many of how many runs have been read.
    """
    wanted = wanted or ReportOptions()
    wanted = replace(wanted, metrics=tuple(metric(ALSO.get(name, name)).name for name in wanted.metrics))
    check_goal(wanted.target)
    if target is not None:
        check_target(target)
    if figures is not None and figures.exists() and not figures.is_dir():
        raise BadParameter(f"folder {str(figures)!r}", "there is a file of this name", "name a folder")
    if wanted.by not in BY:
        raise UnknownName.among("key to compare by", wanted.by, BY)
    cohorts = any(name in _NEED_COHORTS for name in wanted.metrics)
    gathered = gather(paths, store, by=wanted.by, cohorts=cohorts, on_read=on_read)
    gathered = gathered.arranged(wanted.labels, wanted.order)
    files = _write(gathered, target, wanted) if target is not None else []
    if figures is not None:
        from fedcohort.report.plots.figures import all_figures

        found = tables.compared(gathered, wanted.metrics, baseline=wanted.baseline, target=wanted.target)
        files += [f.file for f in all_figures(gathered, figures, wanted.figures, found)]
    return ReportFiles(gathered, tuple(files))


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, or whose kind is unknown."""
    if path.is_dir():
        raise BadParameter(f"file {str(path)!r}", "this is a folder", "name a file such as report.html")
    if path.suffix.lower() not in ENDINGS:
        raise BadParameter(f"file {str(path)!r}", f"its name must end in {', '.join(ENDINGS)}", "use report.html")
    if not path.parent.is_dir():
        raise BadParameter(f"file {str(path)!r}", "its folder does not exist", f"create {path.parent} first")


def sections_of(gathered: Gathered, wanted: ReportOptions) -> list[ReportSection]:
    """The tables: each wanted metric in full, then all of them side by side."""
    main = wanted.metrics or tables.MAIN
    names = tuple(dict.fromkeys(main if wanted.metrics else (*main, *tables.BESIDE)))
    found = tables.compared(gathered, names, baseline=wanted.baseline, target=wanted.target)
    if not found:
        return []
    full = [tables.comparison_section(made, gathered) for made in found[: len(dict.fromkeys(main))]]
    return [*full, tables.overview_section(found, gathered)] if len(found) > 1 else full


def _write(gathered: Gathered, target: Path, wanted: ReportOptions) -> list[Path]:
    ending = target.suffix.lower()
    if ending in PICTURES:
        from fedcohort.report.plots.figures import overview

        return [overview(gathered, target, wanted.figures).file]
    sections = sections_of(gathered, wanted)
    beside: list[Path] = []
    if ending == ".md":
        from fedcohort.report.export.markdown import markdown
        from fedcohort.report.plots.figures import FigureOptions, all_figures

        drawn = all_figures(gathered, target.with_name(f"{target.stem}_figures"), FigureOptions((".png",)))
        text, beside = markdown(gathered, sections, drawn, wanted.title), [f.file for f in drawn]
    elif ending == ".tex":
        from fedcohort.report.export.latex import latex

        text = latex(gathered, sections)
    else:
        from fedcohort.report.page import page

        text = page(gathered, sections, wanted.title)
    write_durably(target, text.encode())
    return [target, *beside]
