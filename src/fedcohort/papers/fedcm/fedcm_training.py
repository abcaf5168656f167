"""FedCM, not in the paper: its Table 4 in part where clients train otherwise.

The paper trains with standard augmentation, which our tables leave out, and states no learning rate. FedAvg of eq. 3
takes 0.4 of a step, which averages over rounds; FedPdp takes whole steps, whose noise is as large as the learning rate.
Later code of the same group (FedCSB-ER) divides the rate by ten after the 50th and the 75th of 100 rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcohort.papers.fedcm.fedcm_setting import AVG, CLIENT, DEPARTURES, PDP, UCB, WORLDS, filtered, row, run
from fedcohort.papers.fedcm.fedcm_table4 import PUBLISHED
from fedcohort.papers.study import OURS, PERFECT_ROW, SEEDS, Cell, Claim, Place, Study, beats, given, of_scale, quantity

FALLING, AUGMENTED = "a rate that falls", "augmentation"
ROWS = ((AVG, None), (PDP, None), (UCB, "accuracy"))  # algorithm, and score of CA
PERFECT = (PERFECT_ROW, None)
_WHEN = (
    "a rate that falls: a tenth of that of Table 4, which was not chosen again, after half of the rounds and a "
    "hundredth after three quarters (at scale desk after 51 and 76), as in later code of the same group"
)
_IMAGES = "augmentation: random crops and flips, as standard augmentation is usually understood"


def ways(scale: str) -> Sequence[str]:
    """Augmentation needs images, which scale smoke has not; at scale paper every table is trained with it."""
    return (FALLING, AUGMENTED) if scale in ("laptop", "desk") else (FALLING,)


def training(scale: str, way: str, who: str, score: str | None) -> Mapping[str, Any]:
    """The keys of one run."""
    keys = run(scale, WORLDS[CLIENT], who, score)
    if way == AUGMENTED:
        return {**keys, "task": given(keys["task"], "augment='crop-flip'")}
    first, second = of_scale(scale, smoke=(2, 3), laptop=(15, 23), desk=(51, 76), paper=(51, 76))
    return {**keys, "lr_schedule": f"{first}:0.1, {second}:0.01"}


def place(way: str, who: str, score: str | None) -> Place:
    """Row and column."""
    return row(way, score), who


def cells(scale: str) -> Sequence[Cell]:
    """FedAvg, FedPdp (with a perfect choice, too) and FedCM-UCB with client heterogeneity, trained in each way."""
    return [
        Cell(
            *place(way, who, score),
            training(scale, way, who, score),
            quantity("terminal"),
            PUBLISHED[CLIENT].get(who, {}).get(filtered(score)),
        )
        for way in ways(scale)
        for who, score in (*ROWS, PERFECT)
    ]


def claims(scale: str) -> Sequence[Claim]:
    """What Table 4 claims of the bandit, and how much of it is FedPdp's."""
    least, steps, bandit = (PUBLISHED[CLIENT][who][filtered(score)] or 0.0 for who, score in ROWS)
    found, ours = [], []
    for way in ways(scale):
        base, pdp, ucb = (place(way, *at) for at in ROWS)
        found.append(beats(f"{way}: FedCM-UCB with Dirac delta beats FedAvg", ucb, base, round(bandit - least, 2)))
        words = f"{OURS}{way}: FedPdp, without CA and bandits, beats FedAvg"
        ours.append(beats(words, pdp, base, round(steps - least, 2)))
        ours.append(beats(f"{OURS}{way}: FedPdp with a perfect choice beats FedPdp", place(way, *PERFECT), pdp))
    return [*found, *ours]


STUDIES = (
    Study(
        "fedcm:training",
        "FedCM, Table 4 in part, trained otherwise: client heterogeneity (accuracy, %)",
        cells,
        claims,
        SEEDS,
        {
            scale: (*told, _WHEN, *((_IMAGES,) if AUGMENTED in ways(scale) else ()))
            for scale, told in DEPARTURES.items()
        },
    ),
)
