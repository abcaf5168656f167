"""FLASH, Fig. 3: FLASH against FedCor over label noise x share of skewed clients, both with FedAvg."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import DEPARTURES, FEDCOR, FLASH
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
    quantity,
)

GAIN = "FLASH - FedCor"


def levels(scale: str) -> tuple[Sequence[int], Sequence[int]]:
    """Percentages of wrong labels (rows) and of skewed clients (columns)."""
    return of_scale(  # type: ignore[no-any-return]
        scale,
        smoke=((0, 25), (0, 40)),
        laptop=((0, 5, 15, 25), (0, 10, 30, 40)),
        desk=((0, 15, 25), (0, 30, 40)),
        paper=((0, 5, 10, 15, 20, 25), (0, 10, 20, 30, 40)),
    )


def place(name: str, noise: int, skewed: int) -> Place:
    """Row and column of a square of one of the three maps."""
    return (f"{name}, noise {noise} %", f"skewed {skewed} %")


def gain(noise: int, skewed: int) -> Quantity:
    """Map (c): the difference of the best accuracies."""
    return derived("best, difference", [place(name, noise, skewed) for name in (FLASH, FEDCOR)], np.subtract)


def cells(scale: str) -> Sequence[Cell]:
    """The three maps one below the other, and beside them what a perfect choice reaches on cross-entropy."""
    found = []
    noises, skews = levels(scale)
    for name in (FLASH, FEDCOR, GAIN, PERFECT_ROW):
        for noise in noises:
            for skewed in skews:
                at = place(name, noise, skewed)
                if name == GAIN:
                    found.append(Cell(*at, {}, gain(noise, skewed)))
                    continue
                selector, loss = flash.who(scale, name, skewed=skewed)
                keys = flash.run(scale, selector, flash.world(skewed, noise, scale=scale), loss=loss)
                found.append(Cell(*at, keys, quantity("best")))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """Better on average, by more than ten points somewhere, and more so where both kinds meet."""
    noises, skews = levels(scale)
    squares = [(n, s) for n in noises for s in skews]
    both = [(n, s) for n, s in squares if n and s]
    top = (noises[-1], skews[-1])
    return (
        Claim(
            "FLASH beats FedCor on average over the grid",
            tuple(place(FLASH, *square) for square in squares),
            tuple(place(FEDCOR, *square) for square in squares),
            published("flash", "fig3")["mean"][GAIN],
        ),
        beats(
            "by more than 10 points somewhere (here: at the most noise and skew)",
            place(FLASH, *top),
            place(FEDCOR, *top),
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
            tuple(place(PERFECT_ROW, *square) for square in squares),
            tuple(place(FEDCOR, *square) for square in squares),
        ),
    )


STUDIES = (
    Study(
        "flash:fig3",
        "FLASH, Fig. 3: FLASH and FedCor with FedAvg over label noise x skewed clients (CIFAR-10, best accuracy, %)",
        cells,
        claims,
        SEEDS,
        DEPARTURES,
    ),
)
