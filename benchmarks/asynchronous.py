"""Rounds against asynchronous runs: virtual time to an accuracy, where some clients are much slower than others.

    python benchmarks/asynchronous.py [--seeds 5]

digits-mlp in mixed-v1 (skew, wrong labels, slow and absent clients), uniform selection, the same seeds for all. Every variant
runs until the same virtual time; accuracies are on the test set and nothing is tuned on them. Writes
benchmarks/results/asynchronous.json and prints the table of docs/asynchronous.md.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path

import numpy as np

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build

FILE = Path(__file__).parent / "results" / "asynchronous.json"
TARGET = 0.85
HORIZON = 2000.0  # virtual seconds
MAX_STEPS = 4000
VARIANTS = {
    "rounds of 10": {"method": "fedavg", "cohort_size": 10},
    "rounds of 10, 13 asked": {"method": "fedavg", "cohort_size": 10, "over_select": 1.3},
    "10 training, buffer of 5, fedbuff": {"method": "fedbuff(size=5)", "cohort_size": 10, "buffer_size": 5},
    "10 training, buffer of 5, fedavg": {"method": "fedavg", "cohort_size": 10, "buffer_size": 5},
    "20 training, buffer of 10, fedbuff": {"method": "fedbuff(size=10)", "cohort_size": 20, "buffer_size": 10},
    "10 training, buffer of 1, fedbuff(size=5)": {"method": "fedbuff(size=5)", "cohort_size": 10, "buffer_size": 1},
}


def measure(keys: dict, seed: int) -> dict[str, float | None]:
    """Seconds to the target (None: not reached), accuracy at the horizon, and what it took."""
    simulation = build(RunConfig(rounds=MAX_STEPS, seed=seed, selector="uniform", **keys))
    rows = []
    for row in simulation.steps():
        if row["clock"] > HORIZON:
            break
        rows.append(row)
    hit = [row["clock"] for row in rows if row["accuracy"] >= TARGET]
    ages = [row["staleness"] for row in rows if "staleness" in row]
    return {
        "seconds_to_target": hit[0] if hit else None,
        "accuracy": float(np.mean([row["accuracy"] for row in rows[-10:]])),
        "updates": float(sum(row["ok"] for row in rows)),
        "staleness": float(np.mean(ages)) if ages else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    found = {name: [measure(keys, seed) for seed in range(args.seeds)] for name, keys in VARIANTS.items()}
    about = {"date": str(date.today()), "target": TARGET, "horizon": HORIZON, "variants": VARIANTS}
    FILE.write_text(json.dumps({**about, "runs": found}, indent=1) + "\n")
    print(
        f"| | virtual seconds to {TARGET:.0%} (every seed) | accuracy after {HORIZON:.0f} s | updates used | mean age |"
    )
    print("|---|---|---|---|---|")
    for name, runs in found.items():
        times = ", ".join(
            "not reached" if r["seconds_to_target"] is None else f"{r['seconds_to_target']:.0f}" for r in runs
        )
        mean = {k: np.mean([r[k] for r in runs]) for k in ("accuracy", "updates", "staleness")}
        print(f"| {name} | {times} | {mean['accuracy']:.1%} | {mean['updates']:.0f} | {mean['staleness']:.1f} |")


if __name__ == "__main__":
    main()
