"""How the demo shows itself: the live table, the final table, and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedcohort.experiment.demo import DemoResult, SeedInterval
from fedcohort.experiment.metrics.run_metrics import NOT_REACHED

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLOURS = ("#8a8f98", "#d1495b", "#00798c", "#edae49")


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
        row = (f"{last['round'] + 1:.0f}/{plan.rounds}", f"{last['accuracy']:.3f}", f"{last['clock']:,.0f} s")
        table.add_row(name, *row, style=style)
    return table


def final_table(result: DemoResult) -> Table:
    """Means over seeds with 95 % bootstrap intervals."""
    plan = result.plan
    title = f"{len(plan.seeds)} paired seeds, mean (95 % interval)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("selector", no_wrap=True)
    for name in ("accuracy", f"s to {plan.target:.0%}", f"rounds to {plan.target:.0%}", "fairness"):
        table.add_column(name, justify="right")
    for selector in plan.selectors:
        s = result.summary(selector)
        table.add_row(
            selector,
            _cell(s["accuracy"], "{:.3f}"),
            _cell(s["seconds"], "{:,.0f}"),
            _cell(s["rounds"], "{:.1f}"),
            _cell(s["fairness"], "{:.2f}"),
        )
    return table


def _cell(value: SeedInterval, form: str) -> str:
    if value.count == 0:
        return NOT_REACHED
    text = f"{form.format(value.mean)} ({form.format(value.low)}-{form.format(value.high)})"
    return text if value.count == value.total else f"{text} (in {value.count} of {value.total})"


def picture(result: DemoResult, path: Path) -> None:
    """Accuracy against virtual time and against rounds, with bands over seeds, and who was asked how often."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    plan = result.plan
    for colour, selector in zip(COLOURS, plan.selectors, strict=False):
        curves = np.array([h.accuracy for h in result.histories[selector]])
        clocks = [h.clock for h in result.histories[selector]]
        grid = np.linspace(0, min(float(c[-1]) for c in clocks), 200)
        timed = np.array([_at(grid, c, a) for c, a in zip(clocks, curves, strict=True)])
        _band(axes[0], grid / 3600, timed, colour, selector)
        _band(axes[1], np.arange(1, plan.rounds + 1), curves, colour, selector)
        counts = np.mean([np.sort(h.participation())[::-1] for h in result.histories[selector]], axis=0)
        axes[2].step(np.arange(counts.size), counts, where="mid", color=colour, label=selector, linewidth=2)
    for axis, title, label in (
        (axes[0], "Accuracy against virtual time", "virtual hours"),
        (axes[1], "Accuracy against rounds", "round"),
    ):
        axis.axhline(plan.target, color="#444", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel=label, ylabel="test accuracy", ylim=(0, 1))
        axis.legend(frameon=False, loc="lower right")
    axes[2].set(title="How often each client was asked", xlabel="clients, most asked first", ylabel="times asked")
    axes[2].legend(frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    seeds = len(plan.seeds)
    figure.suptitle(
        f"{plan.task} in {plan.world}: {plan.cohort_size} clients a round, {seeds} seeds (band: lowest to highest)"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _band(axis: Any, x: NDArray[Any], curves: NDArray[Any], colour: str, label: str) -> None:
    axis.plot(x, curves.mean(axis=0), color=colour, label=label, linewidth=2)
    axis.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _at(grid: NDArray[Any], clock: NDArray[Any], accuracy: NDArray[Any]) -> NDArray[Any]:
    """The accuracy of the newest model at each moment; the first measured one before any round has ended."""
    at = np.clip(np.searchsorted(clock, grid, side="right") - 1, 0, None)
    return np.where(grid < clock[0], np.nan, accuracy[at]) if clock.size else grid * np.nan
