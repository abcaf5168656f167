"""FedACS, Table II: terminal accuracy and relative improvement in three environments."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedacs.fedacs_setting import (
    ACS,
    BASE,
    CMFL,
    DEPARTURES,
    DIRICHLET,
    IID,
    OORT,
    PARETO,
    REXP3,
    RIVALS,
    SEEDS,
    UNIFORM,
    improvement,
    run,
)
from fedcohort.papers.study import Cell, Claim, Study, beats, quantity

ACCURACY = {
    UNIFORM: {IID: 74.0, BASE: 70.8, ACS: 73.3, REXP3: 71.3, CMFL: 68.3, OORT: 72.3},
    PARETO: {IID: 74.0, BASE: 68.8, ACS: 71.6, REXP3: 69.7, CMFL: 66.2, OORT: 71.3},
    DIRICHLET: {IID: 74.0, BASE: 69.7, ACS: 72.7, REXP3: 70.1, CMFL: 64.8, OORT: 71.3},
}
IMPROVEMENT = {
    UNIFORM: {ACS: 78.2, REXP3: 15.1, CMFL: -77.8, OORT: 45.9},
    PARETO: {ACS: 54.1, REXP3: 16.2, CMFL: -50.1, OORT: 47.5},
    DIRICHLET: {ACS: 69.8, REXP3: 9.8, CMFL: -112.2, OORT: 37.4},
}
PAIRS = ((IID, BASE), (ACS, BASE), (REXP3, BASE), (OORT, BASE), (BASE, CMFL), (ACS, REXP3), (ACS, OORT))


def gained(world: str) -> str:
    """The heading of the improvement in a world."""
    return f"{world}: improvement"


def cells(scale: str) -> Sequence[Cell]:
    """Accuracy of all, and of the rivals what they won back of the loss through skew."""
    found = []
    for world, published in ACCURACY.items():
        for who in (IID, *RIVALS):
            found.append(Cell(who, world, run(scale, world, who), quantity("terminal"), published[who]))
        back = improvement((BASE, world), (IID, world))
        for who in RIVALS[1:]:
            found.append(Cell(who, gained(world), run(scale, world, who), back, IMPROVEMENT[world][who]))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """The order of the methods in each environment."""
    del scale
    return [
        beats(
            f"{world}: {left} beats {right}",
            (left, world),
            (right, world),
            round(published[left] - published[right], 2),
        )
        for world, published in ACCURACY.items()
        for left, right in PAIRS
    ]


STUDIES = (
    Study(
        "fedacs:table2",
        "FedACS, Table II: terminal accuracy and relative improvement (%)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
        notes=(
            "Twenty of 21 orderings come out as published, 13 beyond the noise; FedACS and Oort cannot be told apart "
            "(the paper: FedACS ahead by 0.3 to 1.4 points).",
            "The relative improvement is a ratio to the gap between IID and baseline, seed by seed. In the uniform "
            "environment that gap is 2 points and in one seed nearly none, so its mean there says nothing.",
            "CMFL loses far more here than in the paper: its threshold leaves few updates in a round, and 80 rounds "
            "are too few to make up for it.",
        ),
    ),
)
