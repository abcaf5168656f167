"""FedCM, not in the paper: its Table 4 with a learning rate that falls, as in later code of the same group.

The paper states no learning rate. FedAvg of eq. 3 takes 0.4 of a step, which averages over rounds; FedPdp takes whole
steps, whose noise stays as large as the learning rate. Code of the same group (FedCSB-ER) divides the rate by ten after
the 50th and the 75th of 100 rounds, which takes that noise away from both.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedcm.fedcm_setting import AVG, DEPARTURES, PDP, UCB, WORLDS, filtered, row, run
from fedcohort.papers.fedcm.fedcm_table4 import PUBLISHED
from fedcohort.papers.study import OURS, SEEDS, Cell, Claim, Study, beats, of_scale, quantity

DELTA = "accuracy"  # the score that CA goes by here
Who = tuple[str, str | None]  # algorithm and score
_WHEN = (
    "a tenth of the learning rate after half of the rounds and a hundredth after three quarters, as in later code of "
    "the same group; the first rate is that of Table 4, not chosen again"
)


def schedule(scale: str) -> str:
    """Half and three quarters of the rounds at the rate of Table 4, then a tenth and a hundredth of it."""
    first, second = of_scale(scale, smoke=(2, 3), laptop=(15, 23), desk=(51, 76), paper=(51, 76))
    return f"{first}:0.1, {second}:0.01"


def cells(scale: str) -> Sequence[Cell]:
    """Two worlds x FedAvg, FedPdp, FedPdp with CA and FedCM-UCB."""
    found = []
    for world, name in WORLDS.items():
        for who, score in ((AVG, None), (PDP, None), (PDP, DELTA), (UCB, DELTA)):
            keys = {**run(scale, name, who, score), "lr_schedule": schedule(scale)}
            found.append(
                Cell(row(world, score), who, keys, quantity("terminal"), PUBLISHED[world][who][filtered(score)])
            )
    return found


def claims(scale: str) -> Sequence[Claim]:
    """What Table 4 claims of the bandit, and how much of it is FedPdp's and CA's."""
    del scale
    bandit = [_claim("", at, (UCB, DELTA), (AVG, None), "FedCM-UCB with Dirac delta beats FedAvg") for at in WORLDS]
    steps = [_claim(OURS, at, (PDP, None), (AVG, None), "FedPdp, without either, beats FedAvg") for at in WORLDS]
    ca = [_claim(OURS, at, (PDP, DELTA), (PDP, None), "CA with Dirac delta improves FedPdp") for at in WORLDS]
    return [*bandit, *steps, *ca]


def _claim(start: str, world: str, left: Who, right: Who, words: str) -> Claim:
    ours, theirs = (PUBLISHED[world][who][filtered(score)] for who, score in (left, right))
    gain = None if ours is None or theirs is None else round(ours - theirs, 2)
    at = [(row(world, score), who) for who, score in (left, right)]
    return beats(f"{start}{world}: {words}", at[0], at[1], gain)


STUDIES = (
    Study(
        "fedcm:falling-rate",
        "FedCM, Table 4 in part, with a learning rate that falls (accuracy, %)",
        cells,
        claims,
        SEEDS,
        {scale: (*told, _WHEN) for scale, told in DEPARTURES.items()},
    ),
)
