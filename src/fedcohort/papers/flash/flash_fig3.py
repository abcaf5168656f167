"""FLASH, Fig. 3: FLASH against FedCor over label noise x share of skewed clients, both with FedAvg."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import FEDCOR, FLASH
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    OURS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Place,
    Quantity,
    Study,
    beats,
    derived,
    of_scale,
)

GAIN = "FLASH - FedCor"


def squares(scale: str) -> Sequence[tuple[int, int]]:
    """Percentages of wrong labels and of skewed clients of each square of a map; at scale desk those of Table I."""
    noises, skews = of_scale(
        scale,
        smoke=((0, 25), (0, 40)),
        laptop=((0, 5, 15, 25), (0, 10, 30, 40)),
        desk=((0, 15), (0, 30)),
        paper=((0, 5, 10, 15, 20, 25), (0, 10, 20, 30, 40)),
    )
    return [(n, s) for n in noises for s in skews if scale != "desk" or n or s]


def place(name: str, noise: int, skewed: int) -> Place:
    """Row and column of a square of one of the three maps."""
    return (f"{name}, noise {noise} %", f"skewed {skewed} %")


def gain(noise: int, skewed: int, scale: str) -> Quantity:
    """Map (c): the difference of the accuracies."""
    sources = [place(name, noise, skewed) for name in (FLASH, FEDCOR)]
    return derived(f"{flash.in_figures(scale).name}, difference", sources, np.subtract)


def cells(scale: str) -> Sequence[Cell]:
    """The three maps one below the other, and beside them what a perfect choice reaches on cross-entropy."""
    found = []
    for name in (FLASH, FEDCOR, GAIN, PERFECT_ROW):
        for noise, skewed in squares(scale):
            at = place(name, noise, skewed)
            if name == GAIN:
                found.append(Cell(*at, {}, gain(noise, skewed, scale)))
                continue
            selector, loss = flash.who(scale, name, skewed=skewed)
            keys = flash.run(scale, selector, flash.world(skewed, noise, scale=scale), loss=loss)
            found.append(Cell(*at, keys, flash.in_figures(scale)))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """Better on average, by more than ten points somewhere, and more so where both kinds meet."""
    everywhere = squares(scale)
    both = [(n, s) for n, s in everywhere if n and s]
    return (
        Claim(
            "FLASH beats FedCor on average over the grid",
            tuple(place(FLASH, *square) for square in everywhere),
            tuple(place(FEDCOR, *square) for square in everywhere),
            published("flash", "fig3")["mean"][GAIN],
        ),
        beats(
            "by more than 10 points somewhere (here: at the most noise and skew)",
            place(FLASH, *both[-1]),
            place(FEDCOR, *both[-1]),
            margin=10.0,
        ),
        Claim(
            "the advantage is larger with noise and skew than with noise alone",
            tuple(place(GAIN, *square) for square in both),
            tuple(place(GAIN, n, 0) for n, _ in both),
        ),
        Claim(
            "the advantage is larger with noise and skew than with skew alone",
            tuple(place(GAIN, *square) for square in both),
            tuple(place(GAIN, 0, s) for _, s in both),
        ),
        Claim(
            f"{OURS}a perfect choice beats FedCor on average over the grid",
            tuple(place(PERFECT_ROW, *square) for square in everywhere),
            tuple(place(FEDCOR, *square) for square in everywhere),
        ),
    )


STUDIES = (
    Study(
        "flash:fig3",
        "FLASH, Fig. 3: FLASH and FedCor with FedAvg over label noise x skewed clients (CIFAR-10, accuracy, %)",
        cells,
        claims,
        SEEDS,
        {scale: flash.told(scale) for scale in SEEDS},
    ),
)
