"""Ledger where the arena does not look: larger cohorts, asynchronous rounds, other methods, many clients, liars.

    python benchmarks/ledger_checks.py            # what the results lack is run; then the table of docs/ledger.md

Against uniform, paired by seed on seeds from 100 on: points of final accuracy (mean of the last tenth of the rounds), and the
virtual time that ledger needs for uniform's final accuracy, as a share of uniform's. For the liars: their share of the
places, with and without a probability cap around ledger.
"""

import json
from pathlib import Path

import numpy as np

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build

RESULTS = Path(__file__).parent / "results" / "ledger_checks.json"
SEEDS = range(120, 126)
CHECKS = {
    "10 of 50 asked, mixed": {"cohort_size": 10},
    "20 of 200 asked, mixed": {"world": "mixed-v1(clients=200)", "cohort_size": 20},
    "asynchronous, buffer of 5": {"cohort_size": 10, "buffer_size": 5},
    "FedProx": {"method": "fedprox"},
    "SCAFFOLD": {"method": "scaffold"},
    "10 local epochs": {"task": "digits-mlp(epochs=10)"},
    "strong skew, times that say nothing about the client": {
        "world": "dirichlet-0.1-v1(latency={'a': 0.1, 'kind': 'lognormal', 'sigma': 1.5})"
    },
    "1,000 clients, 300 places in all rounds": {"world": "mixed-v1(clients=1000)", "rounds": 60},
    "liars": {"world": "liars-v1", "method": "norm-clip"},
}
LEDGER = ("uniform", "ledger")


def one(selector, keys, seed):
    common = {"task": "digits-mlp", "world": "mixed-v1", "rounds": 120, "cohort_size": 5}
    simulation = build(RunConfig(**{**common, **keys, "selector": selector, "seed": seed}))
    history = simulation.run()
    lie = simulation.federation.world.fixed.get("lie")
    asked = history.participation().astype(float)
    share = float(asked[np.asarray(lie) > 0].sum() / asked.sum()) if lie is not None and np.any(lie) else None
    curve = [(round(t, 3), round(a, 5)) for t, a in zip(history.clock, history.accuracy, strict=True) if np.isfinite(a)]
    return {"final": float(np.mean([a for _, a in curve[-max(len(curve) // 10, 1) :]])), "curve": curve, "liars": share}


def reached(curve, target):
    return next((t for t, a in curve if a >= target), None)


def compared(runs):
    points = [100 * (b["final"] - a["final"]) for a, b in runs]
    ratios = []
    for a, b in runs:
        mine, theirs = (reached(r["curve"], a["final"]) for r in (b, a))
        if mine and theirs:
            ratios.append(mine / theirs)
    return {
        "points": [round(p, 2) for p in points],
        "time_ratio": [round(r, 3) for r in ratios],
        "liars": [None if r["liars"] is None else round(r["liars"], 3) for _, r in runs],
        "liars_uniform": [None if r["liars"] is None else round(r["liars"], 3) for r, _ in runs],
    }


def main():
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, keys in CHECKS.items():
        if name not in results:
            pairs = [tuple(one(selector, keys, seed) for selector in LEDGER) for seed in SEEDS]
            results[name] = compared(pairs)
            if name == "liars":
                capped = [one("probability-cap(inner='ledger')", keys, seed)["liars"] for seed in SEEDS]
                results[name]["liars_capped"] = [round(c, 3) for c in capped]
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print("| case | points of final accuracy | time to uniform's final accuracy |\n|---|---|---|")
    for name, found in results.items():
        p, r = np.array(found["points"]), np.array(found["time_ratio"])
        time = f"{np.median(r):.2f} of uniform's ({len(r)} of {len(p)} seeds reach it)" if r.size else "not reached"
        print(f"| {name} | {p.mean():+.1f} ± {p.std(ddof=1) / len(p) ** 0.5:.1f} | {time} |")
    lie = results["liars"]
    shares = {k: np.mean(lie[k]) for k in ("liars_uniform", "liars", "liars_capped")}
    print("\nShare of places that liars get: " + ", ".join(f"{k} {v:.3f}" for k, v in shares.items()))


if __name__ == "__main__":
    main()
