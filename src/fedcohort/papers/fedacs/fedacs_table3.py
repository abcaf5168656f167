"""FedACS, Table III: rounds to a target accuracy. The runs are those of Table II."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedacs.fedacs_setting import (
    ACS,
    BASE,
    CMFL,
    DEPARTURES,
    OORT,
    REXP3,
    RIVALS,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    OURS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Study,
    and_also,
    beats,
    row_beats,
    share_of_terminal,
    until,
)

PUBLISHED = published("fedacs", "table3")  # by environment and method
SHARE = 0.95  # of the baseline's terminal accuracy
PAIRS = ((ACS, BASE), (REXP3, BASE), (OORT, BASE), (BASE, CMFL), (ACS, REXP3))


def cells(scale: str) -> Sequence[Cell]:
    """Five methods and a perfect choice x three environments."""
    return [
        Cell(who, world, run(scale, world, who), until(share_of_terminal((BASE, world), SHARE)), printed.get(who))
        for world, printed in PUBLISHED.items()
        for who in (*RIVALS, PERFECT_ROW)
    ]


def claims(scale: str) -> Sequence[Claim]:
    """Who is faster than whom."""
    del scale
    found = []
    for world, printed in PUBLISHED.items():
        for left, right in PAIRS:
            first, second = printed[left], printed[right]
            if first is None and right == BASE:  # Rexp3, Dirichlet: rounds and speed-up contradict each other
                continue
            gain = None if first is None or second is None else first - second
            found.append(beats(f"{world}: {left} is faster than {right}", (left, world), (right, world), gain))
    most = f"{OURS}over the environments a perfect choice is faster than the baseline"
    return [*found, row_beats(most, PERFECT_ROW, BASE, tuple(PUBLISHED))]


STUDIES = (
    Study(
        "fedacs:table3",
        "FedACS, Table III: rounds to the target accuracy",
        cells,
        claims,
        SEEDS,
        and_also(DEPARTURES, "the target is 95 % of the baseline's terminal accuracy (the paper's: 98 to 99 %)"),
    ),
)
