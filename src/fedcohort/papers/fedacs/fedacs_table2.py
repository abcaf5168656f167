"""FedACS, Table II: terminal accuracy and relative improvement in three environments."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedacs.fedacs_setting import (
    ACS,
    BASE,
    CMFL,
    DEPARTURES,
    IID,
    OORT,
    REXP3,
    RIVALS,
    improvement,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import OURS, PERFECT_ROW, SEEDS, Cell, Claim, Study, beats, quantity, row_beats

ACCURACY, IMPROVEMENT = published("fedacs", "table2").values()  # by environment and method
PAIRS = ((ACS, BASE), (IID, BASE), (REXP3, BASE), (OORT, BASE), (BASE, CMFL), (ACS, REXP3), (ACS, OORT))


def gained(world: str) -> str:
    """The heading of the improvement in a world."""
    return f"{world}: improvement"


def cells(scale: str) -> Sequence[Cell]:
    """Accuracy of all, and of the rivals what they won back of the loss through skew."""
    found = []
    for world, printed in ACCURACY.items():
        for who in (IID, *RIVALS, PERFECT_ROW):
            found.append(Cell(who, world, run(scale, world, who), quantity("terminal"), printed.get(who)))
        for who in (*RIVALS[1:], PERFECT_ROW):
            back = improvement((who, world), (BASE, world), (IID, world))
            found.append(Cell(who, gained(world), {}, back, IMPROVEMENT[world].get(who)))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """The order of the methods in each environment."""
    del scale
    most = f"{OURS}over the environments a perfect choice beats the baseline"
    found = [
        beats(
            f"{world}: {left} beats {right}",
            (left, world),
            (right, world),
            round(printed[left] - printed[right], 2),
        )
        for world, printed in ACCURACY.items()
        for left, right in PAIRS
    ]
    return [*found, row_beats(most, PERFECT_ROW, BASE, tuple(ACCURACY))]


STUDIES = (
    Study(
        "fedacs:table2",
        "FedACS, Table II: terminal accuracy and relative improvement (%)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
    ),
)
