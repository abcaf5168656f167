"""FedACS, Fig. 7: the share lambda of the clients that the pool holds."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedacs.fedacs_setting import ACS, BASE, DEPARTURES, UNIFORM, run
from fedcohort.papers.fedacs.fedacs_table2 import ACCURACY
from fedcohort.papers.study import PERFECT_ROW, SEEDS, Cell, Claim, Study, beats, quantity

SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
BEST, ROW, RANDOM = 0.4, "terminal accuracy", "random"


def column(share: float) -> str:
    """The heading of a lambda."""
    return f"lambda {share:g}"


def cells(scale: str) -> Sequence[Cell]:
    """One run per lambda, the baseline and a perfect choice."""
    least = 0.25 if scale == "smoke" else SHARES[0]  # 10 of 40: the pool is never smaller than the cohort
    found = [
        Cell(ROW, RANDOM, run(scale, UNIFORM, BASE), quantity("terminal"), ACCURACY[UNIFORM][BASE]),
        Cell(ROW, PERFECT_ROW, run(scale, UNIFORM, PERFECT_ROW), quantity("terminal")),
    ]
    for share in SHARES:
        keys = run(scale, UNIFORM, ACS, tolerance=max(share, least))
        printed = ACCURACY[UNIFORM][ACS] if share == BEST else None
        found.append(Cell(ROW, column(share), keys, quantity("terminal"), printed))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """Neither few nor all: 0.4 is best, the smallest pool is worse than choosing at random."""
    del scale
    found = []
    for share in reversed(SHARES):
        if share != BEST:
            words = f"0.4 beats {share:g}" + " (all clients)" * (share == 1)
            found.append(beats(words, (ROW, column(BEST)), (ROW, column(share))))
    return [*found, beats("the smallest pool is worse than the baseline", (ROW, RANDOM), (ROW, column(SHARES[0])))]


STUDIES = (
    Study(
        "fedacs:fig7",
        "FedACS, Fig. 7: skewness tolerance lambda, uniform environment (terminal accuracy, %)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
    ),
)
