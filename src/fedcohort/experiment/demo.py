"""The demo's experiment: a few selectors in one world that is skewed, noisy and slow at once, paired by seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics.paired import spread
from fedcohort.experiment.runs import build
from fedcohort.rounds.history import History

SELECTORS = ("uniform", "oort", "ledger")
TAIL = 10  # rounds averaged for the final accuracy


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo runs."""

    selectors: tuple[str, ...] = SELECTORS
    world: str = "mixed-v1"
    task: str = "digits-mlp"
    rounds: int = 60
    cohort_size: int = 10
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    target: float = 0.8

    def config(self, selector: str, seed: int) -> RunConfig:
        """One run of the demo."""
        return RunConfig(
            selector=selector,
            world=self.world,
            task=self.task,
            rounds=self.rounds,
            cohort_size=self.cohort_size,
            seed=seed,
        )


@dataclass
class DemoResult:
    """Histories by selector, in the order of the seeds."""

    plan: DemoPlan
    histories: dict[str, list[History]] = field(default_factory=dict)
    speed: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # seed -> seconds of a typical round

    def summary(self, selector: str) -> dict[str, SeedInterval]:
        """Mean and interval over seeds of what the final table shows."""
        found = self.histories.get(selector, [])
        reached = [h.reached(self.plan.target) for h in found]
        columns = {
            "accuracy": [float(np.nanmean(h.accuracy[-TAIL:])) for h in found],
            "seconds": [r[1] for r in reached if r is not None],
            "rounds": [float(r[0] + 1) for r in reached if r is not None],
            "fairness": [h.fairness() for h in found],
        }
        return {name: interval(values, len(found)) for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class SeedInterval:
    """A mean over seeds with its interval or range; `count` of `total` seeds have a value at all."""

    mean: float
    low: float
    high: float
    count: int
    total: int


def interval(values: list[float], total: int) -> SeedInterval:
    """Mean, and the 95 % bootstrap interval or, of fewer than five, the range. No value at all: NaN, count 0."""
    if not values:
        return SeedInterval(float("nan"), float("nan"), float("nan"), 0, total)
    low, high = spread(values)
    return SeedInterval(float(np.mean(values)), low, high, len(values), total)


def steps(plan: DemoPlan) -> Iterator[tuple[DemoResult, str, int, History]]:
    """Run everything, round by round: (result so far, selector, seed, its history so far)."""
    result = DemoResult(plan, {s: [] for s in plan.selectors})
    for seed in plan.seeds:
        for selector in plan.selectors:
            simulation = build(plan.config(selector, seed))
            result.histories[selector].append(simulation.history)
            for _ in simulation.steps():
                yield result, selector, seed, simulation.history
            simulation.session.close()
