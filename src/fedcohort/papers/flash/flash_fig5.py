"""FLASH, Fig. 5: alpha and beta of the robust loss, CIFAR-10 (a, b) and FEMNIST (c, d)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import CIFAR, DEPARTURES, FEMNIST, FEMNIST_DEPARTURES, FLASH
from fedcohort.papers.study import OURS, SEEDS, Cell, Claim, Place, Quantity, Study, beats, derived, quantity

PAIRS = {  # (alpha, beta) of the curves
    CIFAR: ((0.1, 4.0), (0.5, 4.0), (1.0, 4.0), (0.1, 2.0), (0.1, 1.0), (1.0, 1.0)),
    FEMNIST: ((0.1, 8.0), (0.5, 8.0), (1.0, 8.0), (1.0, 4.0), (1.0, 2.0), (5.0, 1.0)),
}
SPREAD = "spread over beta"
BETAS = {CIFAR: (0.1, (4.0, 2.0, 1.0)), FEMNIST: (1.0, (8.0, 4.0, 2.0))}  # alpha, and the betas tried with it
SMALL = 2.0  # points of accuracy that we call minimal


def row(alpha: float, beta: float) -> str:
    """The heading of a row."""
    return f"alpha {alpha:g}, beta {beta:g}"


def spread(data: str) -> Quantity:
    """Highest minus lowest best accuracy over the betas tried with one alpha."""
    alpha, betas = BETAS[data]
    return derived("best, spread", [(row(alpha, b), data) for b in betas], lambda *best: np.ptp(best, axis=0))


def cells(scale: str) -> Sequence[Cell]:
    """One column per dataset; rows that the paper does not have for a dataset stay empty."""
    found = []
    for data, pairs in PAIRS.items():
        for alpha, beta in pairs:
            loss = flash.objective(data, alpha, beta)
            keys = flash.run(
                scale, flash.selectors(scale)[FLASH], flash.world(30, 15, data, scale=scale), loss=loss, data=data
            )
            found.append(Cell(row(alpha, beta), data, keys, quantity("best")))
        found.append(Cell(SPREAD, data, {}, spread(data)))
    return sorted(found, key=lambda cell: cell.row == SPREAD)


def claims(scale: str) -> Sequence[Claim]:
    """What the text says of the curves."""
    del scale
    at: dict[tuple[str, float, float], Place] = {
        (d, a, b): (row(a, b), d) for d, pairs in PAIRS.items() for a, b in pairs
    }
    minimal = "CIFAR-10: with alpha 0.1, beta {:g} instead of 4 changes little (at most {:g} points)"
    return (
        *(
            Claim(minimal.format(beta, SMALL), (at[CIFAR, 0.1, beta],), (at[CIFAR, 0.1, 4.0],), within=SMALL)
            for beta in (2.0, 1.0)
        ),
        beats(
            f"{OURS}CIFAR-10: a large alpha (1) is worse than a small one (0.1)",
            at[CIFAR, 0.1, 4.0],
            at[CIFAR, 1.0, 4.0],
        ),
        beats("FEMNIST: alpha 1 is better than 0.1", at[FEMNIST, 1.0, 8.0], at[FEMNIST, 0.1, 8.0]),
        beats("FEMNIST: alpha 1 is better than 0.5", at[FEMNIST, 1.0, 8.0], at[FEMNIST, 0.5, 8.0]),
        beats("FEMNIST is more sensitive to beta than CIFAR-10", (SPREAD, FEMNIST), (SPREAD, CIFAR)),
    )


STUDIES = (
    Study(
        "flash:fig5",
        "FLASH, Fig. 5: alpha and beta of the robust loss; 30 % skewed clients, 15 % label noise (best accuracy, %)",
        cells,
        claims,
        SEEDS,
        {
            s: (*told, *FEMNIST_DEPARTURES.get(s, ()), *(("the setting is not stated: both",) * (s != "smoke")))
            for s, told in DEPARTURES.items()
        },
    ),
)
