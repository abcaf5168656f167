"""How the demo shows itself: the live table, the final table, and one picture."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedcohort.experiment.demo import DemoResult, SeedInterval
from fedcohort.experiment.metrics.paired import spread_name
from fedcohort.experiment.metrics.run_metrics import NOT_REACHED
from fedcohort.looks import PALE, time_text
from fedcohort.report.plots.curve_axes import plot_curves, plot_participation
from fedcohort.report.plots.figures import drawing, save_figure


def live_table(result: DemoResult, selector: str, seed: int) -> Table:
    """Where every selector stands in its newest run."""
    plan = result.plan
    table = Table(title=f"{plan.task} in {plan.world}, seed {seed} of {plan.seeds[-1]}", title_justify="left")
    for name, align in (("selector", "left"), ("round", "right"), ("accuracy", "right"), ("virtual time", "right")):
        table.add_column(name, justify=align)  # type: ignore[arg-type]
    for name, histories in result.histories.items():
        if not histories or not histories[-1].rows:
            table.add_row(name, "-", "-", "-")
            continue
        last = histories[-1].rows[-1]
        style = "bold" if name == selector else ""
        row = (f"{last['round'] + 1:.0f}/{plan.rounds}", f"{last['accuracy']:.3f}", time_text(last["clock"]))
        table.add_row(name, *row, style=style)
    return table


def final_table(result: DemoResult) -> Table:
    """Means over seeds with 95 % bootstrap intervals; of fewer than five seeds, with ranges."""
    plan = result.plan
    kind = spread_name(len(plan.seeds))
    title = f"{len(plan.seeds)} paired seeds, mean ({kind})" if kind else "one seed"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("selector", no_wrap=True)
    for name in ("accuracy", f"time to {plan.target:.0%}", f"rounds to {plan.target:.0%}", "fairness"):
        table.add_column(name, justify="right")
    for selector in plan.selectors:
        s = result.summary(selector)
        table.add_row(
            selector,
            _cell(s["accuracy"], "{:.3f}"),
            _cell(s["seconds"]),
            _cell(s["rounds"], "{:.1f}"),
            _cell(s["fairness"], "{:.2f}"),
        )
    return table


def _cell(value: SeedInterval, form: str = "") -> str:
    """Mean and spread; without a form, of a time."""
    if value.count == 0:
        return NOT_REACHED
    ends: tuple[float | None, float | None] = (value.low, value.high) if value.count > 1 else (None, None)
    if not form:
        text = time_text(value.mean, *ends, form="({}-{})")
    else:
        text = form.format(value.mean) + (f" ({'-'.join(map(form.format, ends))})" if value.count > 1 else "")
    return text if value.count == value.total else f"{text} (in {value.count} of {value.total})"


def picture(result: DemoResult, path: Path) -> None:
    """Accuracy against virtual time and against rounds, with bands over seeds, and who was asked how often."""
    plan = result.plan
    runs = {name: result.histories[name] for name in plan.selectors}
    with drawing(15, 4.6) as figure:
        axes = figure.subplots(1, 3)
        plot_curves(runs, axes[0], against="time").set_title("Accuracy against virtual time", loc="left")
        plot_curves(runs, axes[1]).set_title("Accuracy against rounds", loc="left")
        plot_participation(runs, axes[2]).set_title("How often each client was asked", loc="left")
        for axis in axes[:2]:
            axis.axhline(plan.target, color=PALE, linewidth=0.8, linestyle=":")
            axis.set_ylim(0, 1)
            axis.get_legend().set_loc("lower right")
        figure.suptitle(f"{plan.task} in {plan.world}: {plan.cohort_size} clients a round", x=0.01, ha="left")
        save_figure(figure, path)
