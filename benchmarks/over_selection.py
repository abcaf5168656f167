"""Who is used when rounds close early, and what the remedies cost: by speed, in simulation and on Flower.

    python benchmarks/over_selection.py                 # 50 clients, 60 rounds: seconds
    python benchmarks/over_selection.py --json FILE     # keep the figures

Ten of fifty clients are wanted per round and chosen uniformly. How long a client takes is lognormal (the slowest fifth
takes about ten times as long as the fastest) and does not change. A client's update sets the model to the unit vector of
its fifth, so that the model of a round *is* the share of its weight that each fifth has; `weight` is the mean of that
over the rounds, and bias its largest distance from one fifth. On Flower the clients are on a grid in memory, with the
strategy, the driver and the wrapped FedAvg that a deployment has; a client that still owes a reply is not asked there.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, start, timing
from tests.stress.federation import Task, World, simulated

from fedcohort.flower import CohortStrategy
from fedcohort.registry.lookup import make_method, make_selector
from fedcohort.rounds.usage import Usage
from fedcohort.types import Model

CLIENTS, WANTED, FIFTHS, DEADLINE = 50, 10, 5, 600.0
SECONDS = 10.0 * np.sort(np.exp(np.random.default_rng(1).normal(0.0, 1.0, CLIENTS)))
FIFTH = np.arange(CLIENTS) * FIFTHS // CLIENTS
POLICIES: dict[str, dict[str, Any]] = {
    "all that were asked (default)": {},
    "13 asked, closing at 10": {"over_select": 1.3},
    "adaptive over-selection": {"over_select": "adaptive"},
    "10 asked, closing at 3": {"close_after": 3},
    "13 asked, wait_for_slow=0.5": {"over_select": 1.3, "wait_for_slow": 0.5},
    "13 asked, wait_for_slow=1": {"over_select": 1.3, "wait_for_slow": 1.0},
    "13 asked, use_floor=0.25": {"over_select": 1.3, "use_floor": 0.25},
    "13 asked, use_floor=0.5": {"over_select": 1.3, "use_floor": 0.5},
    "13 asked, weight_by_use=1": {"over_select": 1.3, "weight_by_use": 1.0},
    "13 asked, use_floor=0.25, weight_by_use=1": {"over_select": 1.3, "use_floor": 0.25, "weight_by_use": 1.0},
}


class ByFifth(Task):
    """A client's update makes the model the unit vector of its fifth."""

    def __init__(self, world: World) -> None:
        super().__init__(world, params=FIFTHS)
        self.now = np.zeros(FIFTHS, np.float32)

    def train(self, model: Model, clients: Any, plan: Any) -> Any:
        self.now = model.params
        return super().train(model, clients, plan)

    def delta(self, index: int, clients: Any) -> Any:
        return np.eye(FIFTHS, dtype=np.float32)[FIFTH[clients]] - self.now


class FixedPace(World):
    """Every client takes as long as it always does."""

    def seconds(self, index: int, clients: Any, work: Any) -> Any:
        return SECONDS[clients]


class FifthClient(FakeClient):
    """The same on Flower."""

    def train(self, message: Any) -> Any:
        now = message.content["arrays"]["share"].numpy()
        self.step = np.eye(FIFTHS, dtype=np.float32)[FIFTH[int(self.name)]] - now
        return super().train(message)


def in_simulation(rounds: int, seed: int, policy: dict[str, Any]) -> tuple[Usage, np.ndarray, float]:
    """Counts, the mean of the models, and the seconds of the run."""
    world = FixedPace(CLIENTS)
    keys = {"rounds": rounds, "cohort_size": WANTED, "deadline": DEADLINE, "seed": seed, **policy}
    made = simulated(make_selector("uniform"), world, ByFifth(world), make_method("fedavg"), **keys)
    models = [made.model.params.copy() for _ in made.steps()]
    return made.engine.usage, np.mean(models, axis=0), made.engine.backend.clock


def on_flower(rounds: int, seed: int, policy: dict[str, Any]) -> tuple[Usage, np.ndarray, float]:
    """The same on a grid in memory."""
    grid = FakeGrid([FifthClient(f"{i:02}", seconds=float(SECONDS[i])) for i in range(CLIENTS)])
    models: list[np.ndarray] = []
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector="uniform",
        cohort_size=WANTED,
        deadline=DEADLINE,
        seed=seed,
        **timing(grid),
        **policy,
    )

    def keep(index: int, arrays: Any) -> None:
        if index:
            models.append(arrays["share"].numpy().copy())

    start(strategy, grid, {"share": np.zeros(FIFTHS, np.float32)}, rounds=rounds, evaluate_fn=keep)
    return strategy.usage, np.mean(models, axis=0), float(strategy.history[-1]["clock"])


def measure(rounds: int, seeds: int) -> list[dict[str, Any]]:
    """One row per place and policy, means over seeds."""
    rows = []
    for place, run in (("simulation", in_simulation), ("Flower", on_flower)):
        for name, policy in POLICIES.items():
            found = [run(rounds, seed, policy) for seed in range(seeds)]
            used = np.mean([usage.used.reshape(FIFTHS, -1).sum(axis=1) for usage, _, _ in found], axis=0)
            asked = np.mean([usage.asked.reshape(FIFTHS, -1).sum(axis=1) for usage, _, _ in found], axis=0)
            share = np.mean([model for _, model, _ in found], axis=0, dtype=np.float64)
            never = np.mean([((usage.asked > 0) & (usage.used == 0)).sum() for usage, _, _ in found])
            row = {"place": place, "policy": name, "asked": asked.round(1).tolist(), "used": used.round(1).tolist()}
            row |= {"never": float(never), "weight": share.round(3).tolist()}
            row |= {"bias": round(float(np.abs(share - 1 / FIFTHS).max()), 3)}
            rows.append(row | {"seconds": round(float(np.mean([s for _, _, s in found]) / rounds), 1)})
            print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """One row of the table in docs/flower.md."""
    used, weight = ", ".join(f"{v:.0f}" for v in row["used"]), ", ".join(f"{v:.2f}" for v in row["weight"])
    cells = [
        row["place"],
        row["policy"],
        used,
        f"{row['never']:.1f}",
        weight,
        f"{row['bias']:.2f}",
        f"{row['seconds']:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure, print the table, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| place | policy | used, fast to slow | never used | share of the weight | bias | seconds per round |")
    print("|---|---|---|---|---|---|---|")
    rows = measure(given.rounds, given.seeds)
    if given.json is not None:
        settings = {"clients": CLIENTS, "wanted": WANTED, "rounds": given.rounds, "seeds": given.seeds}
        given.json.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
