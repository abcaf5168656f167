"""FedCM, not in the paper: its Table 4 with a learning rate that falls, as in later code of the same group.

The paper states no learning rate. FedAvg of eq. 3 takes 0.4 of a step, which averages over rounds; FedPdp takes whole
steps, whose noise stays as large as the learning rate. Code of the same group (FedCSB-ER) divides the rate by ten after
the 50th and the 75th of 100 rounds, which takes that noise away from both.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.fedcm.fedcm_setting import AVG, CLIENT, DEPARTURES, PDP, UCB, WORLDS, filtered, row, run
from fedcohort.papers.fedcm.fedcm_table4 import PUBLISHED
from fedcohort.papers.study import OURS, SEEDS, Cell, Claim, Place, Study, beats, of_scale, quantity

ROWS = ((AVG, None), (PDP, None), (UCB, "accuracy"))  # algorithm, and score of CA
_WHEN = (
    "a tenth of the learning rate after half of the rounds and a hundredth after three quarters, as in later code of "
    "the same group; the first rate is that of Table 4, not chosen again"
)


def schedule(scale: str) -> str:
    """Half and three quarters of the rounds at the rate of Table 4, then a tenth and a hundredth of it."""
    first, second = of_scale(scale, smoke=(2, 3), laptop=(15, 23), desk=(51, 76), paper=(51, 76))
    return f"{first}:0.1, {second}:0.01"


def cells(scale: str) -> Sequence[Cell]:
    """FedAvg, FedPdp and FedCM-UCB with client heterogeneity."""
    return [
        Cell(
            *_place(who, score),
            {**run(scale, WORLDS[CLIENT], who, score), "lr_schedule": schedule(scale)},
            quantity("terminal"),
            PUBLISHED[CLIENT][who][filtered(score)],
        )
        for who, score in ROWS
    ]


def claims(scale: str) -> Sequence[Claim]:
    """What Table 4 claims of the bandit, and how much of it is FedPdp's."""
    del scale
    least, steps, bandit = (PUBLISHED[CLIENT][who][filtered(score)] or 0.0 for who, score in ROWS)
    ours = f"{OURS}{CLIENT}: FedPdp, without CA and bandits, beats FedAvg"
    return [
        beats(f"{CLIENT}: FedCM-UCB with Dirac delta beats FedAvg", BANDIT, BASE, round(bandit - least, 2)),
        beats(ours, STEPS, BASE, round(steps - least, 2)),
    ]


def _place(who: str, score: str | None) -> Place:
    return row(CLIENT, score), who


BASE, STEPS, BANDIT = (_place(*at) for at in ROWS)
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
