"""Which methods survive a fifth of broken or lying clients? Accuracy on digits, written to docs/methods/robust.md.

    python benchmarks/robust_methods.py [--seeds 5] [--rounds 40]

50 clients with Dirichlet(0.5) labels, 10 a round by uniform choice, digits-mlp; the same seeds for every cell, so the
same clients lie. NaN updates are refused by the validator before any method sees them; scaled ones are not (no norm
limit is set), so that the method itself is tested. Last five rounds' mean accuracy, mean and lowest over seeds.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np

import fedcohort as fc
from fedcohort import registry

LIES = {
    "honest": "",
    "20 % NaN": "nan=0.2",
    "20 % sign-flipped": "sign_flipped=0.2",
    "20 % scaled x 100": "scaled=0.2, scale=100.0",
    "20 % flipped labels": "label_flipped=0.2",
}
ROOT = Path(__file__).parents[1]


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
            size=10,
            seed=seed,
        )
        out.append(float(np.nanmean(history.accuracy[-5:])))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--methods", nargs="*", default=registry.names("method"))
    args = parser.parse_args()
    rows = {
        m: {name: cell(m, lie, args.seeds, args.rounds) for name, lie in LIES.items()} for m in _shown(args.methods)
    }
    lines = ["| method | " + " | ".join(LIES) + " |", "|---|" + "---|" * len(LIES)]
    for method, cells in rows.items():
        text = [f"{np.mean(c):.3f} ({min(c):.2f})" for c in cells.values()]
        lines.append(f"| `{method}` | " + " | ".join(text) + " |")
    table = "\n".join(lines)
    found = {"date": str(date.today()), "machine": platform.machine(), "seeds": args.seeds, "rounds": args.rounds}
    (ROOT / "results" / "robust_methods.json").write_text(json.dumps({**found, "accuracy": rows}, indent=1) + "\n")
    page = ROOT / "docs" / "methods" / "robust.md"
    page.write_text(
        "# A fifth of liars\n\n"
        f"`python benchmarks/robust_methods.py --seeds {args.seeds} --rounds {args.rounds}`, {date.today()}: "
        "digits-mlp, 50 clients, Dirichlet(0.5), 10 a round by uniform choice; mean of the last five rounds, mean over "
        "seeds (lowest seed). NaN updates are refused by the validator before any method sees them.\n\n" + table + "\n"
    )


def _shown(methods: list[str]) -> Iterator[str]:
    for method in methods:
        print(method, flush=True)
        yield method


if __name__ == "__main__":
    main()
