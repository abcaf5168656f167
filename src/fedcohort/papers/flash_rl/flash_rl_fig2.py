"""FLASH-RL, Fig. 2: rounds and seconds until a target accuracy on CIFAR-10; the runs are those of Table I."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.flash_rl.flash_rl_setting import (
    CIFAR,
    DEPARTURES,
    DIR5,
    DIR8,
    FEDAVG,
    FLASHRL,
    ROWS,
    SHARDS,
    run,
)
from fedcohort.papers.flash_rl.flash_rl_table1 import PUBLISHED, ROUNDS
from fedcohort.papers.published import published
from fedcohort.papers.study import SEEDS, Cell, Claim, Study, beats, common_target, until

TARGETS = {DIR8: 0.52, DIR5: 0.505, SHARDS: 0.47}
FEWER = published("flash_rl", "fig2")  # per cent of rounds that FLASH-RL saves


def rounds_to(division: str) -> str:
    """The heading of a column."""
    return f"{division}, rounds"


def seconds_to(division: str) -> str:
    """The heading of a column."""
    return f"{division}, seconds"


def share(division: str) -> float:
    """The paper's target as a share of what FedAvg reached in its Table I."""
    return TARGETS[division] / float(PUBLISHED[CIFAR][division][FEDAVG]["accuracy"] / 100.0)


def cells(scale: str) -> Sequence[Cell]:
    """Four rows, two columns per division. The paper's bars carry no numbers."""
    own = scale in ("desk", "paper")
    found = []
    for name in ROWS:
        for division, printed in TARGETS.items():
            places = ((row, rounds_to(division)) for row in (FEDAVG, FLASHRL))
            goal = (lambda *_, p=printed: p) if own else common_target(places, share(division))
            keys = run(scale, CIFAR, division, name, ROUNDS[CIFAR, division])
            found.append(Cell(name, rounds_to(division), keys, until(goal)))
            found.append(Cell(name, seconds_to(division), keys, until(goal, "time_to_target")))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """Fewer rounds in five comparisons."""
    del scale
    return [
        beats(
            f"{division}: FLASH-RL needs fewer rounds than {other} (the paper: {fewer:.2f} % fewer)",
            (FLASHRL, rounds_to(division)),
            (other, rounds_to(division)),
        )
        for division, saved in FEWER.items()
        for other, fewer in saved.items()
        if fewer is not None
    ]


_TARGET = (
    "the target is the paper's as a share of FedAvg's best accuracy in Table I (99.5, 99.0, 98.2 %), taken of the "
    "lower best of our FedAvg and FLASH-RL with the same seed; the paper's own targets are 52, 50.5 and 47 %"
)
STUDIES = (
    Study(
        "flash-rl:fig2",
        "FLASH-RL, Fig. 2: rounds and seconds to the target accuracy, CIFAR-10",
        cells,
        claims,
        SEEDS,
        {
            "smoke": (*DEPARTURES["smoke"], _TARGET),
            "laptop": (*DEPARTURES["laptop"], _TARGET, "seconds include the warm-up, about 2"),
            "desk": DEPARTURES["desk"],
            "paper": DEPARTURES["paper"],
        },
    ),
)
