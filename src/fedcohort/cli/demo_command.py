"""`fedcohort demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from fedcohort.experiment import demo as experiment


def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; all selectors run with the same ones.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per run.")] = experiment.DemoPlan().rounds,
    out: Annotated[Path, typer.Option(help="File for the picture (.png, .svg or .pdf).")] = Path("fedcohort-demo.png"),
) -> None:
    """See three selectors compete where clients are skewed, noisy and slow at once: a live table and a picture."""
    from fedcohort.report.plots import demo_picture as report
    from fedcohort.report.plots.picture_file import picture_file

    picture_file(out)  # before anything is run
    console = Console(highlight=False)
    plan = experiment.DemoPlan(seeds=tuple(range(seeds)), rounds=rounds)
    console.print(
        "One world, three kinds of heterogeneity at once: label skew, label noise, slow and vanishing clients.\n"
        f"{len(plan.selectors)} selectors choose {plan.cohort_size} clients a round; all get the same random draws.\n"
    )
    result: experiment.DemoResult | None = None
    shown = 0.0
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        for found, selector, seed, _ in experiment.steps(plan):
            result = found
            if time.monotonic() - shown > 0.12:
                shown = time.monotonic()
                live.update(report.live_table(found, selector, seed))
    assert result is not None
    console.print(report.final_table(result))
    report.picture(result, out)
    console.print(f"\npicture: {out.resolve()}")
    console.print("next: fedcohort list selectors, fedcohort show ledger, fedcohort run --selector ledger")
