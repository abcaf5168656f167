"""The learning rate of a paper's studies: by validation accuracy with random choice, for each loss.

    python benchmarks/paper_lr.py --rounds 12 --seeds 1         # FLASH on CIFAR-10, scale desk: six short runs
    python benchmarks/paper_lr.py --rounds 60 --seeds 1 --write
    python benchmarks/paper_lr.py --scale laptop --rounds 30 --seeds 3 --rates 0.001 0.002 0.004 0.008 --write
    python benchmarks/paper_lr.py --what FedCM --rounds 100 --rates 0.01 0.02 0.05 0.1 --write

The score is the mean validation accuracy over the last quarter of the rounds; the test set is not looked at, and the
seeds (from 100 on) are none of those of the tables. What is found goes into the setting of the paper, such as
`DESK_LR` of `papers/flash/flash_setting.py`; `--write` keeps the table in results/paper_lr.json.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import build
from fedcohort.papers.fedcm import fedcm_setting as fedcm
from fedcohort.papers.flash import flash_setting as flash

RESULT = Path(__file__).parents[1] / "results" / "paper_lr.json"
RATES = (0.0005, 0.001, 0.002)
FIRST = 100  # seed
FEDCM = "FedCM"


def cases(what: str, scale: str) -> Mapping[str, Mapping[str, Any]]:
    """The runs with random choice that a rate is judged by, as keys by name."""
    if what == FEDCM:  # one rate for all: FedAvg's eq. 3 takes a part of a step, FedPdp a whole one
        where = fedcm.WORLDS[fedcm.CLIENT]
        return {f"{who}, equal weights": fedcm.run(scale, where, who, equal=True) for who in (fedcm.AVG, fedcm.PDP)}
    where = flash.world(30, 15, what, scale=scale)
    losses = {"cross-entropy": "ce", "robust": flash.objective(what)}
    return {name: flash.run(scale, "uniform", where, loss=loss, data=what) for name, loss in losses.items()}


def validation(keys: Mapping[str, Any], lr: float, rounds: int, seed: int) -> float:
    """Mean validation accuracy over the last quarter of a run."""
    task = re.sub(r"\blr=[0-9.e-]+", f"lr={lr}", keys["task"])
    changed = {"task": task, "rounds": rounds, "evaluate_every": rounds, "seed": seed, "workers": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score = build(from_mapping({**keys, **changed})).run().column("score")
    return float(np.nanmean(score[-max(rounds // 4, 1) :]))


def main() -> None:
    """Print the table and the best of each row; with --write what was measured before stays in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--scale", choices=("laptop", "desk"), default="desk")
    parser.add_argument("--what", choices=(flash.CIFAR, flash.FEMNIST, FEDCM), default=flash.CIFAR)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    seeds = [FIRST + i for i in range(args.seeds)]
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rows = known.setdefault(f"{args.what}, {args.scale}, {args.rounds} rounds, seeds {seeds}", {})
    for name, keys in cases(args.what, args.scale).items():
        row = rows.setdefault(name, {})
        for rate in args.rates:
            row[f"{rate:g}"] = round(float(np.mean([validation(keys, rate, args.rounds, s) for s in seeds])), 4)
            if args.write:
                RESULT.write_text(json.dumps(known, indent=1) + "\n")
        said = ", ".join(f"{rate}: {100 * row[rate]:.1f}" for rate in sorted(row, key=float))
        print(f"{name}: {said}; best {max(row, key=lambda rate: row[rate])}", flush=True)


if __name__ == "__main__":
    main()
