"""FedACS, Fig. 8: mean alpha and mean reward of those asked, along the run, beside choosing at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedacs.fedacs_setting import (
    ACS,
    BASE,
    DEPARTURES,
    UNIFORM,
    alphas,
    reading,
    rewards,
    run,
    windows,
)
from fedcohort.papers.study import PERFECT_ROW, SEEDS, Cell, Claim, Study, beats

ALPHA, REWARD = "mean alpha", "mean R"
SHARES = {ACS: 0.4, BASE: 1.0}  # a pool of everybody is the baseline, with insights


def row(what: str, who: str) -> str:
    """The heading of a row."""
    return f"{what}, {who}"


def mean_alpha(first: int, after: int) -> Callable[[RunRecord], float | None]:
    """Mean alpha of those asked in these rounds."""
    return lambda s: float(np.mean(alphas(s)[np.concatenate(s.history.cohorts[first:after])]))


def mean_reward(first: int, after: int) -> Callable[[RunRecord], float | None]:
    """Mean R_i of those asked in these rounds."""
    return lambda s: float(np.mean(rewards(s, first, after)[1]))


def cells(scale: str) -> Sequence[Cell]:
    """Two numbers x two ways to choose x four pieces of the run; alpha of a perfect choice."""
    found = []
    for what, measure, better in ((ALPHA, mean_alpha, -1), (REWARD, mean_reward, 1)):
        for who, share in SHARES.items():
            keys = run(scale, UNIFORM, ACS, tolerance=share)
            for heading, piece in windows(scale).items():
                found.append(Cell(row(what, who), heading, keys, reading(what, measure(*piece), better, digits=3)))
    knows = run(scale, UNIFORM, PERFECT_ROW)  # it asks for no insights, so there is no R_i
    for heading, piece in windows(scale).items():
        found.append(Cell(row(ALPHA, PERFECT_ROW), heading, knows, reading(ALPHA, mean_alpha(*piece), -1, digits=3)))
    return found


def claims(scale: str) -> Sequence[Claim]:
    """Alpha falls, and the reward is above that of choosing at random."""
    first, *_, last = windows(scale)
    ours, theirs = row(ALPHA, ACS), row(ALPHA, BASE)
    return [
        beats("mean alpha of those that FedACS asks falls along the run", (ours, last), (ours, first)),
        beats("in the end FedACS asks less skewed clients than the baseline", (ours, last), (theirs, last)),
        beats("in the end R_i is higher than the baseline's", (row(REWARD, ACS), last), (row(REWARD, BASE), last)),
    ]


STUDIES = (
    Study(
        "fedacs:fig8",
        "FedACS, Fig. 8: mean alpha and R_i of those asked, uniform environment",
        cells,
        claims,
        {**SEEDS, "laptop": 7},  # enough to decide so many claims
        DEPARTURES,
    ),
)
