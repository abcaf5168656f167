"""FedCM, Table 3: what combinatorial averaging adds to FedProx and FedPdp, in both kinds of heterogeneity."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedcm.fedcm_setting import (
    CLASS,
    CLIENT,
    DEPARTURES,
    PDP,
    PROX,
    SCORES,
    WORLDS,
    filtered,
    row,
    run,
)
from fedcohort.papers.published import published
from fedcohort.papers.study import SEEDS, Cell, Claim, Study, beats, quantity

PUBLISHED = published("fedcm", "table4")  # by world, algorithm and filter; Table 4 repeats these numbers


def cells(scale: str) -> Sequence[Cell]:
    """Two worlds x (no filter, accuracy, loss) x two algorithms."""
    found = []
    for world, name in WORLDS.items():
        for score in (None, *SCORES):
            for algorithm in (PROX, PDP):
                printed = PUBLISHED[world][algorithm][filtered(score)]
                keys = run(scale, name, algorithm, score)
                found.append(Cell(row(world, score), algorithm, keys, quantity("terminal"), printed))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """CA improves both algorithms in both worlds, with either score; by far more where classes are skewed."""
    del scale
    found = []
    for world in (CLASS, CLIENT):
        for algorithm in (PROX, PDP):
            printed = PUBLISHED[world][algorithm]
            for score, name in SCORES.items():
                gain = printed[name] - printed[filtered(None)]
                words = f"{world}: CA with {name} improves {algorithm}"
                left, right = (row(world, score), algorithm), (row(world, None), algorithm)
                found.append(beats(words, left, right, round(gain, 2)))
    return found


STUDIES = (
    Study(
        "fedcm:table3",
        "FedCM, Table 3: combinatorial averaging on FedProx and FedPdp (accuracy, %)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
    ),
)
