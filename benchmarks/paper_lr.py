"""What a paper tunes or does not state, for our studies: learning rates, and FLASH's alpha and beta.

By validation accuracy with random choice, for each loss.

    python benchmarks/paper_lr.py --rounds 12 --seeds 1         # FLASH on CIFAR-10, scale desk: six short runs
    python benchmarks/paper_lr.py --rounds 60 --seeds 1 --write
    python benchmarks/paper_lr.py --scale laptop --rounds 30 --seeds 3 --rates 0.001 0.002 0.004 0.008 --write
    python benchmarks/paper_lr.py --what FedCM --rounds 100 --rates 0.01 0.02 0.05 0.1 --write
    python benchmarks/paper_lr.py --scale laptop --rounds 30 --seeds 3 --loss --write    # (alpha, beta), the rate as it is

The score is the mean validation accuracy over the last quarter of the rounds; the test set is not looked at, and the
seeds (from 100 on) are none of those of the tables. What is found goes into the setting of the paper, such as
`DESK_LR` or `TUNED` of `papers/flash/flash_setting.py`; `--write` keeps the table in results/paper_lr.json.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import build
from fedcohort.papers.fedcm import fedcm_setting as fedcm
from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_fig5 import PAIRS

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


def with_rates(keys: Mapping[str, Any], rates: Sequence[float]) -> Mapping[str, Mapping[str, Any]]:
    """The same run with each rate."""
    return {f"{lr:g}": {**keys, "task": re.sub(r"\blr=[0-9.e-]+", f"lr={lr}", keys["task"])} for lr in rates}


def with_losses(what: str, scale: str) -> Mapping[str, Mapping[str, Any]]:
    """FLASH's loss with each alpha and beta of its Fig. 5."""
    where = flash.world(30, 15, what, scale=scale)
    losses = {f"alpha {a:g}, beta {b:g}": flash.objective(what, a, b) for a, b in PAIRS[what]}
    return {name: flash.run(scale, "uniform", where, loss=loss, data=what) for name, loss in losses.items()}


def validation(keys: Mapping[str, Any], rounds: int, seed: int) -> float:
    """Mean validation accuracy over the last quarter of a run."""
    changed = {"rounds": rounds, "evaluate_every": rounds, "seed": seed, "workers": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score = build(from_mapping({**keys, **changed})).run().column("score")
    return float(np.nanmean(score[-max(rounds // 4, 1) :]))


def main() -> None:
    """Print the table and the best of each row; with --write what was measured before stays in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--scale", choices=("laptop", "desk"), default="desk")
    parser.add_argument("--what", choices=(flash.CIFAR, flash.FEMNIST, FEDCM), default=flash.CIFAR)
    parser.add_argument("--loss", action="store_true", help="alpha and beta of FLASH's loss instead of rates")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    seeds = [FIRST + i for i in range(args.seeds)]
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    rows = known.setdefault(f"{args.what}, {args.scale}, {args.rounds} rounds, seeds {seeds}", {})
    if args.loss:
        tried = {"robust, alpha and beta": with_losses(args.what, args.scale)}
    else:
        tried = {name: with_rates(keys, args.rates) for name, keys in cases(args.what, args.scale).items()}
    for name, choices in tried.items():
        row = rows.setdefault(name, {})
        for choice, keys in choices.items():
            row[choice] = round(float(np.mean([validation(keys, args.rounds, s) for s in seeds])), 4)
            if args.write:
                RESULT.write_text(json.dumps(known, indent=1) + "\n")
        said = ", ".join(f"{choice}: {100 * score:.1f}" for choice, score in row.items())
        print(f"{name}: {said}; best {max(row, key=lambda choice: row[choice])}", flush=True)


if __name__ == "__main__":
    main()
