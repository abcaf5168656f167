"""What a simulated run needs to know beside its four objects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from fedcohort.core.constraints import Count, CountOrZero, Interval, Positive
from fedcohort.rounds.policy import Privacy, RoundPolicy, setting

Goal = Annotated[float, Interval(0, 1, example=0.8)]
Patience = Annotated[int, Interval(0, example=20)]
Norm = Annotated[float, Interval(0, ends="(]", example="no limit: leave it out")]


@dataclass(frozen=True)
class RunSettings(RoundPolicy):
    """The policy of the rounds, how many of them, and what is measured and allowed."""

    rounds: Count = setting(50, "number of rounds")
    seed: CountOrZero = setting(0, "the seed of everything random in this run")
    evaluate_every: Count = setting(1, "rounds between evaluations on the test set")
    lr_decay: Positive = setting(1.0, "factor on the learning rate after every round")
    max_privacy: Privacy = setting("P2", "highest privacy level a selector may read")
    max_norm: Norm = setting(math.inf, "updates of a larger norm are rejected")
    stop_at: Goal = setting(0.0, "validation accuracy at which the run ends (0: it has all its rounds)")
    patience: Patience = setting(0, "rounds without a better validation accuracy after which it ends (0: never)")
    snapshot_every: Count = setting(1, "rounds between two snapshots that a run can be resumed from")
