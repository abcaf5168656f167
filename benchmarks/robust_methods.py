"""Which methods survive a fifth of broken or lying clients? Accuracy on digits, written to docs/methods/robust.md.

    python benchmarks/robust_methods.py [--seeds 5] [--rounds 40]

50 clients with Dirichlet(0.5) labels, 10 a round selected uniformly, digits-mlp; the same seeds for every cell, so the
same clients lie. NaN updates are rejected by the validator before any method sees them; scaled ones are not (no norm
limit is set), so that the method itself is tested. Last five rounds' mean accuracy, mean and lowest over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from datetime import date
from pathlib import Path

import numpy as np

import fedcohort as fc
from fedcohort.registry import lookup as registry

LIES = {
    "honest": "",
    "20 % NaN": "nan=0.2",
    "20 % sign-flipped": "sign_flipped=0.2",
    "20 % scaled x 100": "scaled=0.2, scale=100.0",
    "20 % flipped labels": "label_flipped=0.2",
}
ROOT = Path(__file__).parents[1]
FILE = ROOT / "results" / "robust_methods.json"
DISTILLING = ("feddf", "rhfl")  # they lack their data here
VARIANTS = ("trimmed-mean(trim=0.4)", "multi-krum(byzantine_fraction=0.4)")


def cell(method: str, lie: str, seeds: int, rounds: int) -> list[float]:
    extra = f", {lie}" if lie else ""
    out = []
    for seed in range(seeds):
        history = fc.simulate(
            "uniform",
            method=method,
            world=f"dirichlet-0.1-v1(alpha=0.5, clients=50{extra})",
            task="digits-mlp",
            rounds=rounds,
            cohort_size=10,
            seed=seed,
        )
        out.append(float(np.nanmean(history.accuracy[-5:])))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--methods", nargs="*", help="only these; the other rows are kept")
    args = parser.parse_args()
    rows = {} if args.methods is None else json.loads(FILE.read_text())["accuracy"]
    for method in args.methods or [*registry.names("method"), *VARIANTS]:
        print(method, flush=True)
        rows[method] = {name: cell(method, lie, args.seeds, args.rounds) for name, lie in LIES.items()}
    found = {"date": str(date.today()), "machine": platform.machine(), "seeds": args.seeds, "rounds": args.rounds}
    FILE.write_text(json.dumps({**found, "accuracy": rows}, indent=1) + "\n")
    (ROOT / "docs" / "methods" / "robust.md").write_text(page(rows, args.seeds, args.rounds))


def page(rows: dict[str, dict[str, list[float]]], seeds: int, rounds: int) -> str:
    lines = ["| method | " + " | ".join(LIES) + " |", "|---|" + "---|" * len(LIES)]
    for method, cells in rows.items():
        text = [f"{np.mean(c):.3f} ({min(c):.2f})" for c in cells.values()]
        lines.append(f"| `{method}`{' *' if method in DISTILLING else ''} | " + " | ".join(text) + " |")
    more = [(4, _at_least(4)), (5, _at_least(5))]
    odds = ", ".join(f"{k} or more in {p:.1%} of rounds" for k, p in more)
    return (
        "# A fifth of the clients lie\n\n"
        f"`python benchmarks/robust_methods.py --seeds {seeds} --rounds {rounds}`, {date.today()}: digits-mlp, 50 clients, "
        "Dirichlet(0.5), 10 a round selected uniformly; mean of the last five rounds, mean over seeds (lowest seed).\n\n"
        + "\n".join(lines)
        + "\n\nHow to read it\n\n"
        "- NaN updates are rejected by the validator before any method sees them: that column shows what fewer replies "
        "cost each method, and stays near the honest one.\n"
        "- \\* Without the unlabelled data at the server that it distils on (the task keeps none unless told: "
        "`digits-mlp(unlabelled=0.1)`), `feddf` is `fedavg`, and `rhfl` a weighted average of clients trained with its "
        "loss. These rows say nothing about distillation.\n"
        f"- A fifth of the population is not a fifth of every cohort: of 10 clients, {odds}. A method that tolerates "
        "three liars in ten (`trim=0.3`, `byzantine_fraction=0.3`) fails in such a round, and with updates scaled by 100 one such "
        "round near the end shows. Geometric median, median and norm clipping tolerate it; so does a limit in the validator, "
        "`--set max_norm=...`, with any method.\n"
        "- Averaging methods fail with scaled updates, as they must. Adaptive server optimisers divide the size out.\n"
        "- SCAFFOLD's control variates carry what liars sent into later rounds: it is the most fragile under flipped signs.\n"
    )


def _at_least(k: int, liars: int = 10, n: int = 50, size: int = 10) -> float:
    """Probability that a cohort holds at least k liars (hypergeometric)."""
    total = math.comb(n, size)
    return sum(math.comb(liars, j) * math.comb(n - liars, size - j) for j in range(k, size + 1)) / total


if __name__ == "__main__":
    main()
