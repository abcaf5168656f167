"""FedACS, Fig. 6(d): the few-class environment, where clients lack whole classes."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedacs.fedacs_setting import (
    ACS,
    BASE,
    CMFL,
    DEPARTURES,
    FEW,
    IID,
    OORT,
    REXP3,
    RIVALS,
    UNIFORM,
    improvement,
    run,
)
from fedcohort.papers.fedacs.fedacs_table2 import IMPROVEMENT, gained
from fedcohort.papers.published import published
from fedcohort.papers.study import PERFECT_ROW, SEEDS, Cell, Claim, Study, beats, quantity

GAINED = published("fedacs", "fig6")[FEW]


def cells(scale: str) -> Sequence[Cell]:
    """Everybody in the few-class environment; FedACS in the uniform one for comparison."""
    found = []
    for who in (IID, *RIVALS, PERFECT_ROW):
        found.append(Cell(who, FEW, run(scale, FEW, who), quantity("terminal")))
    for who in (*RIVALS[1:], PERFECT_ROW):
        back = improvement((who, FEW), (BASE, FEW), (IID, FEW))
        found.append(Cell(who, gained(FEW), {}, back, GAINED.get(who)))
    for who in (IID, BASE, ACS):
        found.append(Cell(who, UNIFORM, run(scale, UNIFORM, who), quantity("terminal")))
    easier = improvement((ACS, UNIFORM), (BASE, UNIFORM), (IID, UNIFORM))
    return [*found, Cell(ACS, gained(UNIFORM), {}, easier, IMPROVEMENT[UNIFORM][ACS])]


def claims(scale: str) -> Sequence[Claim]:
    """FedACS still beats everybody, but wins back less than where clients have all classes."""
    del scale
    found = [beats(f"{ACS} beats {who}", (ACS, FEW), (who, FEW)) for who in (BASE, REXP3, CMFL, OORT)]
    more = round(IMPROVEMENT[UNIFORM][ACS] - GAINED[ACS], 2)
    words = "FedACS wins back a smaller share than in the uniform environment"
    return [*found, beats(words, (ACS, gained(UNIFORM)), (ACS, gained(FEW)), more)]


STUDIES = (
    Study(
        "fedacs:fig6d",
        "FedACS, Fig. 6(d): the few-class environment (terminal accuracy and relative improvement, %)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
    ),
)
