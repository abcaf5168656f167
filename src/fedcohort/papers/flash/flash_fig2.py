"""FLASH, Fig. 2: selectors with FedAvg as label noise (a, c) and the share of skewed clients (b, d) grow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import CHOICE, CIFAR, FEMNIST, FLASH, LOSS, RANDOM, RIVALS
from fedcohort.papers.flash.flash_table1 import AT_DESK
from fedcohort.papers.study import OURS, PERFECT_ROW, SEEDS, Cell, Claim, Study, of_scale, row_beats

OURSELVES = (FLASH, CHOICE, LOSS, PERFECT_ROW)  # FLASH, its parts and what could be gained
FULL_NOISE, FULL_SKEW = (5, 10, 15, 20, 25), (10, 20, 30, 40)
PANELS = {CIFAR: ("a", "b"), FEMNIST: ("c", "d")}


def levels(scale: str, data: str) -> tuple[Sequence[int], Sequence[int]]:
    """Percentages of wrong labels and of skewed clients on the two axes; those of Table I are among them."""
    few = ((5, 15, 25), (10, 30, 40)) if data == CIFAR else ((5, 25), (10, 40))
    least, full = ((15, 25), (30,)), (FULL_NOISE, FULL_SKEW)
    return of_scale(scale, smoke=((25,), (40,)), laptop=few, desk=least, paper=full)  # type: ignore[no-any-return]


def rivals(scale: str) -> Sequence[str]:
    """The other selectors; at scale desk those of Table I."""
    return [row for row in RIVALS if scale != "desk" or row in AT_DESK]


def columns(scale: str, data: str) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """Headings of both axes with (skewed, noise) of each."""
    noise, skew = levels(scale, data)
    return {f"noise {n} %": (0, n) for n in noise}, {f"skewed {s} %": (s, 0) for s in skew}


def cells(data: str, scale: str) -> Sequence[Cell]:
    """Every curve at every level."""
    noise, skew = columns(scale, data)
    found = []
    for row in (*rivals(scale), *OURSELVES):
        for column, level in {**noise, **skew}.items():
            selector, loss = flash.who(scale, row, data, skewed=level[0])
            keys = flash.run(scale, selector, flash.world(*level, data, scale=scale), loss=loss, data=data)
            found.append(Cell(row, column, keys, flash.in_figures(scale)))
    return found


def claims(data: str, scale: str) -> Sequence[Claim]:
    """FLASH's curve lies above the others; and what choice and loss do on their own."""
    found = []
    for panel, axis, what in zip(PANELS[data], columns(scale, data), ("label noise", "skew"), strict=True):
        others = tuple((row, column) for row in rivals(scale) for column in axis)
        ours = tuple((FLASH, column) for _ in rivals(scale) for column in axis)
        found.append(
            Claim(
                f"({panel}) FLASH is above the other selectors, on average over them and levels of {what}", ours, others
            )
        )
        found.append(row_beats(f"({panel}) FLASH beats Random with {what}", FLASH, RANDOM, tuple(axis)))
        found.append(
            row_beats(f"{OURS}({panel}) its choice beats Random on the same loss", CHOICE, RANDOM, tuple(axis))
        )
        found.append(row_beats(f"{OURS}({panel}) a perfect choice beats Random", PERFECT_ROW, RANDOM, tuple(axis)))
        found.append(row_beats(f"{OURS}({panel}) with FLASH's loss its choice beats Random", FLASH, LOSS, tuple(axis)))
    return found


def _study(data: str, name: str) -> Study:
    return Study(
        f"flash:fig2-{name}",
        f"FLASH, Fig. 2 {' and '.join(PANELS[data])}: growing noise and skew with FedAvg ({data}, accuracy, %)",
        partial(cells, data),
        partial(claims, data),
        {**SEEDS, "desk": 3},
        {scale: flash.told(scale, data) for scale in SEEDS},
    )


STUDIES = (_study(CIFAR, "cifar"), _study(FEMNIST, "femnist"))
