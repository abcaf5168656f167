"""How do I write a selector of my own, and is it any good?

`Quick` draws twice as many clients as are wanted and keeps the half that was fastest when it was last asked. It is
compared with uniform choice in the same world with the same random draws.

    python examples/own_selector.py
    fedcohort run --selector own_selector:Quick --rounds 40         # in the folder of this file
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import fedcohort as fc
from fedcohort.core.table import Table, column
from fedcohort.types import Real

WORLD, TASK, ROUNDS, SEEDS = "mixed-v1", "digits-softmax", 30, 4


@dataclass
class QuickState(Table):
    """What is remembered of every client."""

    seconds: Real = column(0.0)  # how long it took when it was last asked; 0: never asked


class Quick(fc.StatefulSelector[QuickState]):
    """Of twice as many as are wanted, the fastest half."""

    needs = frozenset[str]()  # the signals it reads; outcomes and durations are always there
    exempt: Mapping[str, str] = {"learns": "leans to the fast only within a random draw"}  # a clause, and why not

    def select(self, rnd: fc.Round, rng: np.random.Generator) -> fc.Cohort:
        """Draw, then keep the fastest; the never-asked come first. Nothing is learned here."""
        self.state.grow(rnd.population)
        drawn = rng.permutation(rnd.available)[: 2 * rnd.size]
        seconds = self.state.seconds[drawn]
        best = np.argsort(seconds, kind="stable")[: rnd.size]
        return fc.Cohort(drawn[best], why={"seconds": seconds[best]})

    def observe(self, result: fc.RoundResult) -> None:
        """One row per client that was asked, whatever became of it."""
        self.state.seconds[result.clients] = result.duration


def main() -> None:
    """Compare, seed by seed, at the time that the faster one needed."""
    gains = []
    for seed in range(SEEDS):
        runs = [
            fc.simulate(s, world=WORLD, task=TASK, rounds=ROUNDS, cohort_size=10, seed=seed)
            for s in ("uniform", Quick())
        ]
        end = min(run.clock[-1] for run in runs)
        uniform, quick = (run.accuracy[run.clock <= end][-1] for run in runs)
        gains.append(quick - uniform)
        print(f"seed {seed}: after {end / 60:.1f} virtual minutes uniform {uniform:.3f}, quick {quick:.3f}")
    print(f"mean difference {np.mean(gains):+.3f}, ahead in {sum(g > 0 for g in gains)} of {SEEDS} seeds")


if __name__ == "__main__":
    main()
