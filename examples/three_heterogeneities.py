"""What do selectors do when clients are skewed, mislabelled and slow at the same time?

FLASH's setting in small: 30 % of the clients own 80 % of one class, labels are wrong at rates drawn from Beta(15, 85),
and each client has a speed that stays. Three selectors run in the same world; whom they ask is held against what only
the simulator knows: which clients are skewed, whose labels are wrong, who is slow.

    python examples/three_heterogeneities.py
    fedcohort world show flash-noniid30-noise15-v2 --task digits-mlp --png world.png
"""

from __future__ import annotations

import argparse

import numpy as np

import fedcohort as fc
from fedcohort.experiment.runs import build_world_for
from fedcohort.worlds.describe import describe

WORLD, TASK = "flash-noniid30-noise15-v2(clients=50)", "digits-mlp"
SELECTORS = ("uniform", "flash", "ledger")
SIZE, SEED = 8, 0


def main(rounds: int) -> None:
    """Accuracy at the same virtual time, and who was asked."""
    world = build_world_for(fc.make_world_spec(WORLD), fc.make_task_spec(TASK), SEED)
    known = describe(world).columns
    runs = {s: fc.simulate(s, world=WORLD, task=TASK, rounds=rounds, cohort_size=SIZE, seed=SEED) for s in SELECTORS}
    end = min(run.clock[-1] for run in runs.values())
    print(f"after {end / 60:.1f} virtual minutes, and of those asked: skewness (bits), wrong labels, seconds")
    for name, run in runs.items():
        asked = run.participation()
        told = [np.average(known[column], weights=asked) for column in ("js", "wrong", "seconds")]
        done = int((run.clock <= end).sum())
        accuracy = f"{run.accuracy[done - 1]:.3f}" if done else "-    "  # a slow first round may not have ended
        print(f"{name:8} {accuracy}   {told[0]:.3f}  {told[1]:.1%}  {told[2]:.1f}")
    plain = [np.mean(known[column]) for column in ("js", "wrong", "seconds")]
    print(f"everybody        {plain[0]:.3f}  {plain[1]:.1%}  {plain[2]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    main(parser.parse_args().rounds)
