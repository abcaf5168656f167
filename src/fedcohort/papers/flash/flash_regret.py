"""FLASH, beside its tables: regret on a real run, lambda_T in {1, 10, 100}, and early-stop beside best accuracy.

Regret is known where the world is simulated. What a client is worth is 1 - misfit, misfit as `PerfectChoice` has it:
the distance of its true label mix from everybody's, plus its share of wrong labels. The regret up to a round is the sum
over rounds of (mean worth of the best clients that could be asked - mean worth of those asked).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.experiment.perfect_choice import PerfectChoice
from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import (
    CHOICE,
    DEPARTURES,
    FEDACS,
    FEDCOR,
    FLASH,
    LOSS,
    OWN_LOSS,
    RANDOM,
    REDRAWN,
)
from fedcohort.papers.study import (
    OURS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Lookup,
    Quantity,
    Study,
    Value,
    and_also,
    beats,
    our_own,
    quantity,
    row_beats,
)

WORLDS = {"skewed 30 %": (30, 0), "skewed 30 %, noise 15 %": (30, 15)}  # (skewed, noise)
ROWS = (RANDOM, CHOICE, "Oort", FEDCOR, FEDACS, PERFECT_ROW)  # all on cross-entropy: the choice alone
PIECES = 4
LAMBDAS = (1.0, 10.0, 100.0)
TIMED = (RANDOM, CHOICE, PERFECT_ROW)
STOPPED = (RANDOM, FLASH, OWN_LOSS, LOSS, PERFECT_ROW)
BEST, EARLY = "best", "early stop"


def regret(share: float, record: RunRecord, _: Lookup) -> Value:
    """The regret of the first `share` of a run."""
    knows = PerfectChoice()
    knows.inform(record.world)
    worth = 1.0 - knows.misfit()
    ranked = np.sort(worth)[::-1]
    cohorts = record.history.cohorts[: max(round(share * len(record.history.cohorts)), 1)]
    best = [float(ranked[: asked.size].mean()) for asked in cohorts if asked.size]
    own = [float(worth[asked].mean()) for asked in cohorts if asked.size]
    return float(np.sum(np.subtract(best, own)))


def until_share(world: str, piece: int) -> str:
    """The heading of a column."""
    return f"{world}: after {piece}/{PIECES} of the rounds"


def regret_cells(scale: str) -> Sequence[Cell]:
    """Six ways to choose x two worlds x four pieces of the run."""
    found = []
    for row in ROWS:
        selector, _ = flash.who(scale, row)
        for world, level in WORLDS.items():
            keys = flash.run(scale, selector, flash.world(*level, scale=scale))
            for piece in range(1, PIECES + 1):
                sums = partial(regret, piece / PIECES)
                what = Quantity(f"regret {piece}/{PIECES}", sums, -1, digits=2, alone=True)
                found.append(Cell(row, until_share(world, piece), keys, what))
    return found


def regret_claims(scale: str) -> Sequence[Claim]:
    """The paper bounds the regret, which then grows slower and slower: it should be below that of random choice."""
    del scale
    found: list[Claim] = []
    for world in WORLDS:
        whole, half = until_share(world, PIECES), until_share(world, PIECES // 2)
        found.append(beats(f"{world}: FLASH's choice has less regret than Random", (CHOICE, whole), (RANDOM, whole)))
        words = f"{world}: it has less regret than Random in the first half already"
        found.append(beats(words, (CHOICE, half), (RANDOM, half)))
        found.append(beats(f"{world}: and less than FedACS", (CHOICE, whole), (FEDACS, whole)))
    return our_own(found)


def timed(lam: float, what: str) -> str:
    """The heading of a column."""
    return f"lambda_T {lam:g}: {what}"


ACCURACY, TIME = "accuracy (%)", "1000 s in all"


def lambda_cells(scale: str) -> Sequence[Cell]:
    """Three ways to choose x three laws of duration: accuracy and virtual time."""
    found = []
    seconds = Quantity("seconds", quantity("seconds").compute, -1, 1e-3, 0, alone=True)
    for row in TIMED:
        selector, _ = flash.who(scale, row)
        for lam in LAMBDAS:
            where = flash.world(30, 15, scale="desk", lam=lam)  # speeds that stay, at every scale
            keys = flash.run(scale, selector, where)
            found.append(Cell(row, timed(lam, ACCURACY), keys, flash.accuracy(scale)))
            found.append(Cell(row, timed(lam, TIME), keys, seconds))
    return found


def lambda_claims(scale: str) -> Sequence[Claim]:
    """The more durations differ, the more FLASH saves."""
    del scale
    places = [timed(lam, TIME) for lam in LAMBDAS]
    found = [
        beats(f"lambda_T {lam:g}: runs of FLASH's choice are shorter than Random's", (CHOICE, place), (RANDOM, place))
        for lam, place in zip(LAMBDAS, places, strict=True)
    ]
    over = [timed(lam, ACCURACY) for lam in LAMBDAS]
    accurate = row_beats("over the three: and not less accurate (by a point)", CHOICE, RANDOM, over, margin=-1.0)
    return our_own([*found, accurate])


def stop_cells(scale: str) -> Sequence[Cell]:
    """Table I's runs with both heterogeneities and FedAvg: the best accuracy, and the one that validation data find."""
    found = []
    for row in STOPPED:
        selector, loss = flash.who(scale, row)
        keys = flash.run(scale, selector, flash.world(30, 15, scale=scale), loss=loss)
        found += [Cell(row, BEST, keys, quantity("best")), Cell(row, EARLY, keys, quantity("early_stop"))]
    return found


def stop_claims(scale: str) -> Sequence[Claim]:
    """What the paper's metric says of FLASH, and that it costs less than a point here."""
    del scale
    rows = tuple((row, EARLY) for row in STOPPED), tuple((row, BEST) for row in STOPPED)
    return [
        beats("FLASH beats Random by early-stop accuracy", (FLASH, EARLY), (RANDOM, EARLY)),
        Claim(f"{OURS}early-stop accuracy is at most a point below the best", *rows, within=1.0),
    ]


_ENOUGH = {**SEEDS, "laptop": 8}
STUDIES = (
    Study(
        "flash:regret",
        "FLASH: regret against the best clients, known from the simulated world (FedAvg, cross-entropy)",
        regret_cells,
        regret_claims,
        _ENOUGH,
        and_also(DEPARTURES, "the paper bounds the regret and shows no curve"),
    ),
    Study(
        "flash:lambda",
        "FLASH: lambda_T of 1, 10 and 100 with speeds that stay; 30 % skewed clients, 15 % label noise (FedAvg)",
        lambda_cells,
        lambda_claims,
        _ENOUGH,
        {
            scale: (*(t for t in told if t != REDRAWN), "the paper names the three values and shows no table")
            for scale, told in DEPARTURES.items()
        },
    ),
    Study(
        "flash:early-stop",
        "FLASH: early-stop beside best accuracy, 30 % skewed clients, 15 % label noise (FedAvg, %)",
        stop_cells,
        stop_claims,
        _ENOUGH,
        DEPARTURES,
    ),
)
