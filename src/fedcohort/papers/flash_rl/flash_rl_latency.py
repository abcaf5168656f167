"""FLASH-RL, Table I, the part that needs no training: what random choice takes with these devices and links.

The slowest of ten random clients, summed over 300 rounds with the CIFAR-10 network and over 100 or 150 rounds with the
MNIST network. Whether this comes out as published says whether our devices, links and clock are the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.flash_rl.flash_rl_setting import CIFAR, DIR8, FEDAVG, LABELS, MNIST, PARAMETERS, WORLDS
from fedcohort.papers.flash_rl.flash_rl_table1 import PUBLISHED, ROUNDS
from fedcohort.papers.study import SCALES, Cell, Claim, Lookup, Quantity, Study, Value, our_own

RANDOM = "random choice (FedAvg)"
DIMENSION = 8_000  # of the quadratic problem that stands for the network
COLUMNS = {
    "CIFAR-10, 300 rounds (s)": (CIFAR, DIR8),
    "MNIST, 100 rounds (s)": (MNIST, DIR8),
    "MNIST, 150 rounds (s)": (MNIST, LABELS),
}
WITHIN = 0.03  # of the published number


def published(data: str, rounds: int) -> float:
    """Mean of the paper's FedAvg over the divisions with so many rounds."""
    found = [division for (of, division), many in ROUNDS.items() if of == data and many == rounds]
    return float(sum(PUBLISHED[data][division][FEDAVG]["seconds"] for division in found) / len(found))


def _total(rounds: int, record: RunRecord, _: Lookup) -> Value:
    return float(record.history.column("seconds")[:rounds].sum())


def cells(scale: str) -> Sequence[Cell]:
    """One run of 300 rounds serves all three columns: seconds grow with the number of parameters."""
    del scale
    keys = {
        "selector": "uniform",
        "world": WORLDS[DIR8],
        "task": f"quadratic(dimension={DIMENSION}, pool=10000, epochs=1)",
        "rounds": 300,
        "cohort_size": 10,
        "evaluate_every": 300,
    }
    found = []
    for name, (data, division) in COLUMNS.items():
        rounds = ROUNDS[data, division]
        total = Quantity("latency", partial(_total, rounds), better=-1, factor=PARAMETERS[data] / DIMENSION)
        found.append(Cell(RANDOM, name, keys, total, round(published(data, rounds), 2)))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """The published seconds come out."""
    del scale
    return our_own(
        Claim(
            f"{name}: the published seconds come out within {100 * WITHIN:g} %",
            ((RANDOM, name),),
            within=WITHIN * published(data, ROUNDS[data, division]),
        )
        for name, (data, division) in COLUMNS.items()
    )


_SAID = (
    "nothing is learned: a quadratic problem of 8,000 numbers stands for the network, and its seconds are multiplied "
    "by the ratio of the sizes (transfer is more than 99 % of the time)",
)
STUDIES = (
    Study(
        "flash-rl:latency",
        "FLASH-RL, Table I: total latency of random choice",
        cells,
        claims,
        {"smoke": 1, "laptop": 10, "desk": 10, "paper": 10},
        dict.fromkeys(SCALES, _SAID),
    ),
)
