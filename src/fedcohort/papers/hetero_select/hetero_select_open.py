"""HeteRo-Select, what its paper leaves open: weights, a grid, availability, adaptive numbers.

"Next checks" of the summary: each weight from 0.1 to 2.0 alone; mu x gamma x participation. Its open questions:
adaptive hyper-parameters, clients that are away or drop out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcohort.papers.hetero_select.hetero_select_setting import DEPARTURES, STABLE, hetero, run
from fedcohort.papers.study import (
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Study,
    and_also,
    given,
    of_scale,
    our_own,
    perfect,
    quantity,
    row_beats,
)

WEIGHTS = {"w_v": "loss", "w_d": "diversity", "w_m": "momentum", "w_f": "fairness", "w_st": "staleness", "w_n": "norm"}
LEVELS = (0.1, 1.0, 2.0)
GRID = {"mu": (0.01, 0.1, 0.5), "gamma": (0.3, 0.7, 1.0), "size": (3, 6, 9)}  # the summary names one more mu and gamma
AWAY = {"all there": "", "80 % there": "availability=0.8", "30 % drop out": "dropout=0.3"}
CHOSEN, RANDOM = "HeteRo-Select", "random half"
ADAPTIVE, FOLLOWING = "HeteRo-Select, adaptive", "HeteRo-Select, adaptive, and mu follows the loss"
STABLE_AT, DROP_AT = "stable (%)", "drop (points)"
NO_SCORE = "no score"  # the column of those that have no weights
OTHERS = {RANDOM: "uniform", PERFECT_ROW: perfect("complete")}
_LEFT_OUT = "of mu and of gamma three values each; the summary proposes four"
_ENOUGH = {**SEEDS, "laptop": 7}


def changed(scale: str, **options: Any) -> str:
    """HeteRo-Select's text with other options."""
    return given(hetero(scale), ", ".join(f"{key}={value!r}" for key, value in options.items()))


def weight_cells(scale: str) -> Sequence[Cell]:
    """One weight at a time, beside a random and a perfect half."""
    levels = of_scale(scale, smoke=(0.1, 2.0), laptop=LEVELS, desk=LEVELS, paper=(0.1, 0.5, 1.0, 1.5, 2.0))
    found = [
        Cell(part, f"weight {level:g}", run(scale, changed(scale, **{weight: level})), STABLE)
        for weight, part in WEIGHTS.items()
        for level in levels
    ]
    return [*found, *(Cell(row, NO_SCORE, run(scale, text), STABLE) for row, text in OTHERS.items())]


def weight_claims(scale: str) -> Sequence[Claim]:
    """Equal weights are assumed without a test: no weight should matter much."""
    del scale
    return our_own(
        Claim(
            f"{part}: weights of 2 and 0.1 differ by at most 2 points",
            ((part, "weight 2"),),
            ((part, "weight 0.1"),),
            within=2.0,
        )
        for part in WEIGHTS.values()
    )


def grid_row(mu: float, gamma: float) -> str:
    """The heading of a row."""
    return f"mu {mu:g}, gamma {gamma:g}"


def grid_levels(scale: str) -> Mapping[str, tuple[float, ...]]:
    """All of them; at scale smoke two sizes only."""
    return {**GRID, "size": (3, 9)} if scale == "smoke" else GRID


def grid_cells(scale: str) -> Sequence[Cell]:
    """mu x gamma x how many of twelve are asked; a random and a perfect choice with mu 0.1."""
    at = grid_levels(scale)
    texts = {grid_row(mu, g): (changed(scale, gamma=g), mu) for mu in at["mu"] for g in at["gamma"]}
    texts |= {"random": ("uniform", 0.1), PERFECT_ROW: (OTHERS[PERFECT_ROW], 0.1)}
    return [
        Cell(row, f"{size} of 12", run(scale, text, size=int(size), mu=mu), STABLE)
        for row, (text, mu) in texts.items()
        for size in at["size"]
    ]


def grid_claims(scale: str) -> Sequence[Claim]:
    """The paper's mu and gamma against the ends of the grid, over all sizes."""
    at = grid_levels(scale)
    sizes = [f"{size} of 12" for size in at["size"]]
    (low, mu, high), (some, gamma, most) = at["mu"], at["gamma"]
    others = ((low, gamma), (high, gamma), (mu, some), (mu, most))
    return our_own(
        row_beats(f"{grid_row(mu, gamma)} beats {grid_row(*other)}", grid_row(mu, gamma), grid_row(*other), sizes)
        for other in others
    )


def away(keys: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """The same run where clients are away or drop out."""
    return {**keys, "world": given(keys["world"], AWAY[what])}


def away_cells(scale: str) -> Sequence[Cell]:
    """Fixed and adaptive numbers and a random half, with everybody there, some away, some dropping out."""
    found = []
    adaptive = changed(scale, adaptive=True)
    texts = {CHOSEN: hetero(scale), ADAPTIVE: adaptive, FOLLOWING: adaptive, **OTHERS}
    for row, text in texts.items():
        for what in AWAY:
            keys = away(run(scale, text, adapt=0.1 if row == FOLLOWING else 0.0), what)
            found.append(Cell(row, f"{what}: {STABLE_AT}", keys, STABLE))
            found.append(Cell(row, f"{what}: {DROP_AT}", keys, quantity("drop", digits=2)))
    return found


def away_claims(scale: str) -> Sequence[Claim]:
    """The open questions, as claims that could hold."""
    del scale
    stable = [f"{what}: {STABLE_AT}" for what in AWAY]
    drops = [f"{what}: {DROP_AT}" for what in list(AWAY)[1:]]
    asked = (
        row_beats("with clients away or lost it is steadier (drop) than a random half", CHOSEN, RANDOM, drops),
        row_beats("adaptive numbers beat fixed ones", ADAPTIVE, CHOSEN, stable),
        row_beats("adaptive numbers beat a random half", ADAPTIVE, RANDOM, stable),
        row_beats("a mu that follows the loss beats a fixed one", FOLLOWING, ADAPTIVE, stable),
    )
    return our_own(asked)


STUDIES = (
    Study(
        "hetero-select:weights",
        "HeteRo-Select, not in the paper: one weight of the score at a time (stable accuracy, %)",
        weight_cells,
        weight_claims,
        _ENOUGH,
        DEPARTURES,
    ),
    Study(
        "hetero-select:grid",
        "HeteRo-Select, not in the paper: mu x gamma x participation (stable accuracy, %)",
        grid_cells,
        grid_claims,
        _ENOUGH,
        and_also(DEPARTURES, _LEFT_OUT),
    ),
    Study(
        "hetero-select:availability",
        "HeteRo-Select, its open questions: clients away or dropping out, and adaptive numbers",
        away_cells,
        away_claims,
        _ENOUGH,
        DEPARTURES,
    ),
)
