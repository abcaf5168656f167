"""FedCM, Table 5: rounds until FedAvg's final accuracy. The runs are those of Table 4."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedcm.fedcm_setting import AVG, WORLDS, row
from fedcohort.papers.fedcm.fedcm_table4 import Numbers, departures, grid, rivals
from fedcohort.papers.published import published
from fedcohort.papers.study import SEEDS, Cell, Claim, Study, share_of_terminal, until

PUBLISHED: Numbers = published("fedcm", "table5")


def cells(scale: str) -> Sequence[Cell]:
    """As Table 4: rounds until the terminal accuracy of FedAvg, same world and seed."""
    rounds = {world: until(share_of_terminal((row(world, None), AVG))) for world in WORLDS}
    return grid(scale, rounds, PUBLISHED)


def claims(scale: str) -> Sequence[Claim]:
    """The text on Figure 3: faster too; by up to 4.17 times (abstract)."""
    del scale
    return rivals(PUBLISHED, "is faster than", "accuracy")


STUDIES = (
    Study(
        "fedcm:table5",
        "FedCM, Table 5: rounds to the final accuracy of FedAvg",
        cells,
        claims,
        SEEDS,
        departures(
            "the target is FedAvg's terminal accuracy, same seed",
            "FedAvg's own cell is the first round at that accuracy; the paper prints its last round, 100",
        ),
    ),
)
