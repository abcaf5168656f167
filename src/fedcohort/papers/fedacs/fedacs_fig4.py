"""FedACS, Fig. 4: the reward R_i of clients by their true skewness, along a run.

The run asks uniformly (FedACS whose pool holds everybody), so that all kinds of clients report their insight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedacs.fedacs_setting import (
    ACS,
    DEPARTURES,
    UNIFORM,
    alphas,
    reading,
    rewards,
    run,
    windows,
)
from fedcohort.papers.study import SEEDS, Cell, Claim, Study, and_also, row_beats

CENTRES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
HALF = 0.1  # a group is everybody whose alpha is this near


def row(group: int) -> str:
    """The heading of a group."""
    return f"G{group + 1}, alpha near {CENTRES[group]:g}"


def median(group: int, first: int, after: int) -> Callable[[RunRecord], float | None]:
    """The median R_i of a group over some rounds; None where nobody of it was asked."""

    def of(record: RunRecord) -> float | None:
        who, reward = rewards(record, first, after)
        near = np.abs(alphas(record)[who] - CENTRES[group]) <= HALF
        return float(np.median(reward[near])) if near.any() else None

    return of


def cells(scale: str) -> Sequence[Cell]:
    """Six groups x four pieces of the run."""
    keys = run(scale, UNIFORM, ACS, tolerance=1.0)
    return [
        Cell(row(g), heading, keys, reading("median R", median(g, a, b), 1, digits=3))
        for g in range(len(CENTRES))
        for heading, (a, b) in windows(scale).items()
    ]


def claims(scale: str) -> Sequence[Claim]:
    """The order of the groups holds at all times."""
    columns = tuple(windows(scale))
    return [
        row_beats(f"{row(g)} earns more than {row(g + 1)}, at all times", row(g), row(g + 1), columns)
        for g in range(len(CENTRES) - 1)
    ]


STUDIES = (
    Study(
        "fedacs:fig4",
        "FedACS, Fig. 4: reward R_i of groups of clients along a run, uniform environment (median)",
        cells,
        claims,
        {**SEEDS, "laptop": 8},  # enough to decide so many claims
        and_also(
            DEPARTURES,
            "groups are the clients with alpha within 0.1 of 0, 0.2, ..., 1 that were asked (uniformly), instead of "
            "ten clients each that are measured in every round",
        ),
    ),
)
