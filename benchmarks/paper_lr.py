"""The learning rate of a paper's studies at scale desk: by validation accuracy with random choice, for each loss.

    python benchmarks/paper_lr.py --rounds 12 --seeds 1         # FLASH on CIFAR-10: six short runs
    python benchmarks/paper_lr.py --rounds 60 --seeds 1 --write

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


def validation(loss: str, lr: float, rounds: int, seed: int, data: str) -> float:
    """Mean validation accuracy over the last quarter of a run with random choice."""
    keys = dict(flash.run("desk", "uniform", flash.world(30, 15, data, scale="desk"), loss=loss, data=data))
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
    parser.add_argument("--data", choices=(flash.CIFAR, flash.FEMNIST), default=flash.CIFAR)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    setting = {"data": args.data, "rounds": args.rounds, "seeds": [FIRST + i for i in range(args.seeds)]}
    before = json.loads(RESULT.read_text()) if args.write and RESULT.exists() else {}
    rows = before.get("validation", {}) if {k: before.get(k) for k in setting} == setting else {}
    for name, loss in (("cross-entropy", "ce"), ("robust", flash.objective(args.data))):
        row = rows.setdefault(name, {})
        for rate in args.rates:
            found = [validation(loss, rate, args.rounds, seed, args.data) for seed in setting["seeds"]]
            row[f"{rate:g}"] = round(float(np.mean(found)), 4)
        known = sorted(row.items(), key=lambda item: float(item[0]))
        said = ", ".join(f"{rate}: {100 * score:.1f}" for rate, score in known)
        print(f"{name}: {said}; best {max(known, key=lambda item: item[1])[0]}", flush=True)
        if args.write:
            RESULT.write_text(json.dumps({**setting, "validation": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
