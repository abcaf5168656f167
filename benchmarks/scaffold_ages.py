"""Why some selectors lose accuracy under SCAFFOLD: the smallest case.

    python benchmarks/scaffold_ages.py --seeds 4            # three minutes; --write: results/scaffold_ages.json

8 x 8 digits, 50 clients of which 30 % hold 80 % of one class, 10 asked per round, 40 rounds, E = 2. Who is asked:
uniformly drawn clients; all in turn, so that those asked are always those who waited longest; the choices of Oort, FLASH
and FEEL. Beside accuracy, how well the cohort's gradient at the broadcast model stands for that of all clients, g: the
distance |x - g| / |g| of x = mean_S g_k (plain) and of x = mean_S g_k - mean_S c_k + c (corrected), the part of the
corrected one's error along g, (x - g) g / |g|^2, and the share of clients that have no variate; means over the rounds.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import Objects, build
from fedcohort.methods.scaffold import Scaffold
from fedcohort.types import Index, Model, Plan

RESULT = Path(__file__).parents[1] / "results" / "scaffold_ages.json"
ROUNDS, CLIENTS = 40, 50
SELECTORS = ("uniform", "round-robin", "oort", "flash", "feel")
_COLUMNS = ("fedavg", "all", "cohort", "left out", "II")
_OPTIONS = {"all": {}, "cohort": {"reference": "cohort"}, "left out": {"unknown": "left out"}}
SOLVERS = {"adam": 0.01, "sgd": 0.3}


class Watched(Scaffold):
    """SCAFFOLD that notes how far the cohort's plain and corrected gradients are from that of all clients."""

    name = "scaffold"

    def __init__(self, **options: str) -> None:
        super().__init__(option="I", **options)
        self.everybody: Callable[[Model], Any] = lambda model: np.zeros((1, 1))
        self.noted: list[tuple[float, float, float, float]] = []

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Note both errors before the round begins."""
        ready = super().prepare(plan, model, clients)
        each = np.asarray(self.everybody(model), np.float64)
        whole, plain = each.mean(axis=0), each[clients].mean(axis=0)
        better = plain + np.asarray(ready.correction, np.float64).mean(axis=0)
        size = max(float(np.linalg.norm(whole)), 1e-12)
        along = float((better - whole) @ whole) / size**2
        far = (float(np.linalg.norm(x - whole)) / size for x in (plain, better))
        without = 1.0 - float(self.state.written(np.arange(CLIENTS)).mean())
        self.noted.append((*far, along, without))
        return ready


def play(selector: str, solver: str, method: str, seed: int, epochs: int = 2) -> tuple[float, Any]:
    """(mean accuracy of the last ten rounds; three errors and the share without a variate, mean over the rounds)."""
    task = f"digits-mlp(epochs={epochs}, lr={SOLVERS[solver]}, optimiser={solver!r}, momentum=0.0, weight_decay=0.0)"
    keys = {"selector": selector, "world": f"flash-noniid30-v1(clients={CLIENTS})", "task": task, "rounds": ROUNDS}
    config = from_mapping({**keys, "cohort_size": 10, "seed": seed, "workers": 1})
    own = Watched(**_OPTIONS[method]) if method in _OPTIONS else None
    plain = Scaffold(option="II") if method == "II" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulation = build(config, Objects(method=own or plain))
        if own is not None:
            engine = simulation.task.engine  # type: ignore[attr-defined]
            own.everybody = lambda model: engine.gradients(model, np.arange(CLIENTS))
        history = simulation.run()
    return float(np.mean(history.accuracy[-10:])), np.mean(own.noted[1:], axis=0) if own else None


def row(solver: str, selector: str, seeds: int) -> dict[str, Any]:
    """All runs of one line of the table."""
    methods = [m for m in _COLUMNS if m != "II" or solver == "sgd"]
    found = {m: [play(selector, solver, m, s) for s in range(seeds)] for m in methods}
    accuracy = {m: [a for a, _ in runs] for m, runs in found.items()}
    errors = [float(e) for e in np.mean([e for _, e in found["all"]], axis=0)]
    return {"solver": solver, "selector": selector, "errors": errors, "accuracy": accuracy}


def line(of: dict[str, Any]) -> str:
    """One line of the table."""
    accuracy, (plain, corrected, along, without) = of["accuracy"], of["errors"]
    shown = [f"{100 * np.mean(accuracy[m]):.1f}" if m in accuracy else "-" for m in _COLUMNS]
    error = f"{plain:.2f} | {corrected:.2f} | {along:+.2f} | {100 * without:.0f} %"
    return f"| {of['solver']} | `{of['selector']}` | {' | '.join(shown[:2])} | {error} | {' | '.join(shown[2:])} |"


def main() -> None:
    """Print the table of docs/methods/scaffold.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    print("| solver | who is asked | FedAvg | SCAFFOLD | error plain | corrected | along g | no variate", end="")
    print(" | reference='cohort' | unknown='left out' | option II |")
    print("|---" * 11 + "|")
    rows = []
    for solver in SOLVERS:
        for selector in SELECTORS:
            rows.append(row(solver, selector, args.seeds))
            print(line(rows[-1]), flush=True)
    if args.write:
        RESULT.write_text(json.dumps({"seeds": args.seeds, "rounds": ROUNDS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
