"""FedACS, Fig. 9: how often clients are asked, by their place in the order of skewness."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedacs.fedacs_setting import ACS, CLIENTS, DEPARTURES, UNIFORM, alphas, reading, run
from fedcohort.papers.study import PERFECT_ROW, SEEDS, Cell, Claim, Study, beats

SHARES = (0.4, 0.2)
GROUPS = 5  # fifths of the clients: 40 each of 200


def row(share: float) -> str:
    """The heading of a lambda."""
    return f"lambda {share:g}"


def columns(scale: str) -> list[str]:
    """The headings: places in the order, the least skewed first."""
    each = CLIENTS[scale] // GROUPS
    return [f"clients {i * each + 1}-{(i + 1) * each}" for i in range(GROUPS)]


def asked(group: int) -> Callable[[RunRecord], float | None]:
    """How often a client of this fifth was asked, on average."""

    def of(record: RunRecord) -> float | None:
        order = np.argsort(alphas(record), kind="stable")
        return float(np.mean(record.history.participation()[np.array_split(order, GROUPS)[group]]))

    return of


def cells(scale: str) -> Sequence[Cell]:
    """Two lambdas and a perfect choice x five groups."""
    runs = {row(share): run(scale, UNIFORM, ACS, tolerance=share) for share in SHARES}
    runs[PERFECT_ROW] = run(scale, UNIFORM, PERFECT_ROW)
    return [
        Cell(who, heading, keys, reading("times asked", asked(i), 1))
        for who, keys in runs.items()
        for i, heading in enumerate(columns(scale))
    ]


def claims(scale: str) -> Sequence[Claim]:
    """The pool is the first 80 of 200 with lambda 0.4, the first 40 with 0.2: those in it are asked, others are not."""
    heads = columns(scale)
    found = []
    for share in SHARES:
        inside = round(share * GROUPS)
        for i in range(inside, GROUPS):
            words = f"{row(share)}: {heads[inside - 1]}, in the pool, are asked more often than {heads[i]}"
            found.append(beats(words, (row(share), heads[inside - 1]), (row(share), heads[i])))
    words = f"{heads[0]} are asked more often with lambda 0.2 than with 0.4"
    return [*found, beats(words, (row(0.2), heads[0]), (row(0.4), heads[0]))]


STUDIES = (
    Study(
        "fedacs:fig9",
        "FedACS, Fig. 9: how often a client was asked, by true skewness (least skewed first), uniform environment",
        cells,
        claims,
        {**SEEDS, "laptop": 9},  # enough to decide so many claims
        DEPARTURES,
    ),
)
