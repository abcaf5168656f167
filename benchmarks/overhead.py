"""What a W1 round costs besides training: ask, tell, journal, snapshot, aggregate, validate, clock.

    python benchmarks/overhead.py [--rounds 30]

10 of 200 clients, 250 CIFAR-shaped samples each, the tutorial CNN, 5 local epochs, batch 50, with a journal and a snapshot
every round. Training and evaluation are timed separately; the rest is the overhead: the median over the rounds, and
the mean, which a shared disk can raise. The images are random numbers of the same shape: the cost is the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

from fedcohort.data.dataset import Dataset
from fedcohort.engines.networks import lenet
from fedcohort.registry import lookup as registry
from fedcohort.sim.simulation import RunSettings, Simulation
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots
from fedcohort.tasks.classification import ClassificationSpec
from fedcohort.types import Plan
from fedcohort.worlds.built_world import build_world

FILE = Path(__file__).parent / "results" / "overhead.json"


def build(rounds: int, folder: Path, selector: str) -> Simulation:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((56_000, 3, 32, 32), np.float32)
    data = Dataset.from_arrays(x, rng.integers(0, 10, len(x)), x_test=x[:1000], y_test=rng.integers(0, 10, 1000))
    network = lenet((3, 32, 32), (6, 16), 5, (120, 84), 10)
    spec = ClassificationSpec("w1", data, network, Plan(epochs=5, batch_size=50, lr=0.01), validation=0.01)
    world = build_world(registry.make_world_spec("iid-v1(clients=200)"), spec.labels(), seed=0, classes=10)
    journal = Journal.create(folder / "journal.db", {})
    settings = RunSettings(rounds=rounds, cohort_size=10, seed=0, evaluate_every=rounds)
    return Simulation(
        registry.make_selector(selector),
        registry.make_method("fedavg"),
        world,
        spec.bind(world),
        settings,
        journal=journal,
        snapshots=Snapshots(folder / "snapshots"),
    )


def measure(selector: str, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        simulation = build(rounds + 1, Path(folder), selector)
        spent = {"train": 0.0, "evaluate": 0.0}
        for name in spent:
            _timed(simulation.task, name, spent)
        steps = simulation.steps()
        next(steps)  # compilation and first touch
        taken = []
        for _ in range(rounds):
            spent.update(train=0.0, evaluate=0.0)
            start = time.perf_counter()
            next(steps)
            total = 1e3 * (time.perf_counter() - start)
            train, evaluate = 1e3 * spent["train"], 1e3 * spent["evaluate"]
            taken.append((total, train, total - train - evaluate))
    total, train, other = np.median(taken, axis=0)
    return {
        "round_ms": float(total),
        "train_ms": float(train),
        "other_ms": float(other),
        "other_ms_mean": float(np.mean(taken, axis=0)[2]),
        "share": float(other / (train + other)),
        "share_mean": float(np.sum(taken, axis=0)[2] / np.sum(taken, axis=0)[1:].sum()),
    }


def _timed(task: object, name: str, spent: dict[str, float]) -> None:
    original = getattr(task, name)

    def wrapped(*args, **kwargs):
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start

    setattr(task, name, wrapped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    found = {}
    for selector in ("uniform", "oort", "fedacs"):
        found[selector] = row = measure(selector, args.rounds)
        print(
            f"{selector:10} round {row['round_ms']:.0f} ms, besides training {row['other_ms']:.1f} ms "
            f"(mean {row['other_ms_mean']:.1f}): {row['share']:.1%} (mean {row['share_mean']:.1%})"
        )
    known = {"date": str(date.today()), "machine": platform.machine(), "rounds": args.rounds}
    FILE.write_text(json.dumps({**known, "selectors": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
