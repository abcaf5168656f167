"""The learning rate of a paper's studies: by validation accuracy with random choice, for each loss.

    python benchmarks/paper_lr.py --rounds 12 --seeds 1         # FLASH on CIFAR-10, scale desk: six short runs
    python benchmarks/paper_lr.py --rounds 60 --seeds 1 --write
    python benchmarks/paper_lr.py --scale laptop --rounds 30 --seeds 3 --rates 0.001 0.002 0.004 0.008 --write

The score is the mean validation accuracy over the last quarter of the rounds; the test set is not looked at, and the
seeds (from 100 on) are none of those of the tables. What is found goes into `DESK_LR` of
`papers/flash/flash_setting.py`; `--write` keeps the table in results/paper_lr.json.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from pathlib import Path

import numpy as np

from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import build
from fedcohort.papers.flash import flash_setting as flash

RESULT = Path(__file__).parents[1] / "results" / "paper_lr.json"
RATES = (0.0005, 0.001, 0.002)
FIRST = 100  # seed


def validation(scale: str, loss: str, lr: float, rounds: int, seed: int, data: str) -> float:
    """Mean validation accuracy over the last quarter of a run with random choice."""
    keys = dict(flash.run(scale, "uniform", flash.world(30, 15, data, scale=scale), loss=loss, data=data))
    keys["task"] = re.sub(r"\blr=[0-9.e-]+", f"lr={lr}", keys["task"])
    config = from_mapping({**keys, "rounds": rounds, "evaluate_every": rounds, "seed": seed, "workers": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score = build(config).run().column("score")
    return float(np.nanmean(score[-max(rounds // 4, 1) :]))


def main() -> None:
    """Print the table and the best of each row; with --write what was measured before stays in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--scale", choices=("laptop", "desk"), default="desk")
    parser.add_argument("--data", choices=(flash.CIFAR, flash.FEMNIST), default=flash.CIFAR)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    seeds = [FIRST + i for i in range(args.seeds)]
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rows = known.setdefault(f"{args.data}, {args.scale}, {args.rounds} rounds, seeds {seeds}", {})
    for name, loss in (("cross-entropy", "ce"), ("robust", flash.objective(args.data))):
        row = rows.setdefault(name, {})
        for rate in args.rates:
            found = [validation(args.scale, loss, rate, args.rounds, seed, args.data) for seed in seeds]
            row[f"{rate:g}"] = round(float(np.mean(found)), 4)
        said = ", ".join(f"{rate}: {100 * row[rate]:.1f}" for rate in sorted(row, key=float))
        print(f"{name}: {said}; best {max(row, key=lambda rate: row[rate])}", flush=True)
        if args.write:
            RESULT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
