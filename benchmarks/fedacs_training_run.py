"""Does Q follow the true skewness in a real training run? Spearman's rank correlation with alpha, along the run.

    FEDCOHORT_DATA=... python benchmarks/fedacs_training_run.py --task mnist-mlp --seeds 3
    FEDCOHORT_DATA=... python benchmarks/fedacs_training_run.py --task cifar10-cnn --seeds 1

FedACS selects 10 of 200 clients a round in fedacs-uniform-v1, where client i draws a share alpha_i ~ U[0, 1] of its
samples from one class; each sample is handed out once (reuse=1), which leaves 225 to 270 per client. Every few rounds
all clients are asked for their insight at the current global model. Next to Q: what the bandit has learned by
then, the expected share of duels won among the clients it has tried.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from fedcohort.core.stats import spearman
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import build
from fedcohort.selectors.fedacs import FedACS, skewness

WORLD = "fedacs-uniform-v1(reuse=1.0)"


def everybody(simulation) -> np.ndarray:
    """Q of all clients at the current global model."""
    task, world = simulation.task, simulation.world
    plan = replace(task.plan(), epochs=1, batch_size=int(world.train.sizes.max()), measure=frozenset({"insight"}))
    insight = task.train(simulation.model, np.arange(world.population), plan).signals["insight"]
    return skewness(insight, world.train.sizes.astype(float))


def follow(task: str, marks: tuple[int, ...], seed: int = 0, world: str = WORLD) -> dict[int, tuple[float, float]]:
    """After so many rounds: (Spearman of Q and alpha over all, of duels won and -alpha over those tried)."""
    keys = {
        "selector": "fedacs",
        "world": world,
        "task": task,
        "rounds": max(max(marks), 1),
        "cohort_size": 10,
        "seed": seed,
    }
    simulation = build(from_mapping({**keys, "evaluate_every": max(max(marks), 1)}))
    selector, alpha = simulation.session.selector, simulation.world.skew
    assert isinstance(selector, FedACS)
    found = {}
    steps = simulation.steps()
    for index in range(max(marks) + 1):
        if index in marks:
            s = selector.state
            tried = np.flatnonzero(s.told >= 0)
            won = (s.wins + 1) / (s.wins + s.losses + 2)
            found[index] = spearman(everybody(simulation), alpha), spearman(won[tried], -alpha[tried])
        if index < max(marks):
            next(steps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist-mlp")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--marks", nargs="*", type=int, default=[0, 5, 10, 20, 40])
    args = parser.parse_args()
    print(f"{args.task} in {WORLD}: Q and alpha (duels won and -alpha, of those tried)")
    print("seed" + "".join(f"{f'round {m}':>16}" for m in args.marks))
    for seed in range(args.seeds):
        found = follow(args.task, tuple(args.marks), seed)
        print(f"{seed:>4}" + "".join(f"{found[m][0]:>8.3f} ({found[m][1]:.3f})" for m in args.marks), flush=True)


if __name__ == "__main__":
    main()
