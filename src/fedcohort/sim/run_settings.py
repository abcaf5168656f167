"""What a simulated run needs to know beside its four objects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from fedcohort.core.constraints import Count, CountOrZero, Interval, Positive
from fedcohort.errors import check
from fedcohort.rounds.policy import Privacy, RoundPolicy, setting
from fedcohort.rounds.schedules import Factors, factors, in_force, written
from fedcohort.rounds.validation_score import ACCURACY, ERRORS

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
    lr_schedule: Factors = setting(
        "", "factors on the learning rate from given rounds on, e.g. '50:0.1, 75:0.01' ('': none)"
    )
    max_privacy: Privacy = setting("P2", "highest privacy level a selector may read")
    max_norm: Norm = setting(math.inf, "updates of a larger norm are rejected")
    score: str = setting(ACCURACY, "metric of the validation data that selectors learn from, e.g. macro_f1, f1, loss")
    stop_at: Goal = setting(0.0, "validation accuracy (or `score`) at which the run ends (0: run all rounds)")
    patience: Patience = setting(
        0, "rounds without a better validation accuracy (or `score`) after which it ends (0: never)"
    )
    snapshot_every: Count = setting(1, "rounds between two snapshots that a run can be resumed from")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lr_schedule", written(factors(self.lr_schedule)))
        rises = not (self.stop_at and self.score in ERRORS)
        rule = "a run ends where its score rises to stop_at, and this one falls"
        check(rises, f"stop_at = {self.stop_at} with score = {self.score!r}", rule, "use patience, or another score")

    def lr_factor(self, index: int) -> float:
        """The factor on the task's learning rate in round `index`."""
        return float(self.lr_decay**index * in_force(factors(self.lr_schedule), index, 1.0))
