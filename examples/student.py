"""A student's question: is my own selector better than uniform choice and Oort, on my own network?

The selector asks the clients that have waited longest, the slow ones less often. It runs beside two selectors of the
catalogue on a PyTorch network and the digits, with six seeds each; the comparison is paired by seed.

    python examples/student.py                      # runs, table and figure in student-runs/; half a minute
    python examples/student.py --rounds 60          # what one would rather look at
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

import fedcohort as fc
from fedcohort.core.table import Table, column
from fedcohort.data import load
from fedcohort.report.plots import plot_curves
from fedcohort.types import Real


@dataclass
class PatientState(Table):
    """What is remembered of every client."""

    last: Real = column(-1.0)  # the round in which it was last asked
    seconds: Real = column(1.0)  # how long it took then


class Patient(fc.StatefulSelector[PatientState]):
    """Choose by waiting time, divided by the time that a client took when it was last asked."""

    needs = frozenset[str]()  # the signals it reads; outcomes and durations are always there

    def select(self, rnd: fc.Round, rng: np.random.Generator) -> fc.Cohort:
        """The highest scores; a little noise breaks ties."""
        self.state.grow(rnd.population)
        score = (rnd.index - self.state.last[rnd.available]) / self.state.seconds[rnd.available]
        best = np.argsort(-score - 1e-9 * rng.random(score.size))[: rnd.size]
        return fc.Cohort(rnd.available[best], why={"score": score[best]})

    def observe(self, result: fc.RoundResult) -> None:
        """Remember who was asked, and how long it took."""
        self.state.last[result.clients] = result.index
        self.state.seconds[result.clients] = np.maximum(result.duration, 1.0)


def network() -> nn.Module:
    """A module as in any PyTorch tutorial."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def main(rounds: int, seeds: int, folder: Path) -> None:
    """Run, compare, draw."""
    task = fc.TorchTask(network, load("digits"), lr=0.3, epochs=2)
    found: dict[str, list[fc.History]] = {}
    for name, make in {"uniform": lambda: "uniform", "oort": lambda: "oort", "patient": Patient}.items():
        for seed in range(seeds):
            run = fc.simulate(make(), task=task, rounds=rounds, seed=seed, out=folder / f"{name}-{seed}")
            found.setdefault(name, []).append(run)
    for row in fc.compare(folder).settings[0].rows:
        print(f"{row.entry:16} {row.mean:.3f} [{row.low:.3f}, {row.high:.3f}] over {row.count} seeds: {row.verdict}")
    axes = plot_curves(found, against="time")
    axes.figure.savefig(folder / "student.png", dpi=150)
    print(f"figure: {folder / 'student.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("student-runs"), help="folder of the runs and the figure")
    given = parser.parse_args()
    main(given.rounds, given.seeds, given.out)
