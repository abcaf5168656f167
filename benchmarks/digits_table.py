"""Every selector on digits in the mixed world, paired by seed against uniform selection.

    python benchmarks/digits_table.py [NAME ...] [--seeds 5] [--rounds 60] [--write]

Skewed, noisy and slow clients at once (mixed-v1, 50 clients, 10 a round), digits-mlp, FedAvg. For every selector:
accuracy (mean of the last ten rounds), virtual time to 80 %, fairness (Jain), paired difference from uniform with a 95 %
bootstrap interval over seeds. --write stores results/digits_selectors.json, where rows of selectors that are not
named stay as they are, and puts each selector's rows into its page.
A selector that probes pays for it in virtual time and traffic. P3 signals are not allowed.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from datetime import date
from pathlib import Path

import numpy as np

import fedcohort as fc
from fedcohort.experiment.metrics.paired import interval
from fedcohort.registry import lookup as registry

ROOT = Path(__file__).parents[1]
FILE = ROOT / "results" / "digits_selectors.json"
TARGET = 0.8
VARIANTS = {
    "flash": ["flash", "flash(preset='robust')", "flash(preset='paper_scaled')", "flash(preset='literal')"],
    "fedcm-ucb": ["fedcm-ucb + fedca"],
    "fedcm-ts": ["fedcm-ts + fedca"],
    "hetero-select": ["hetero-select", "hetero-select(variant='multiplicative')"],
    "oort": ["oort", "oort(preset='code')", "oort(preset='fedacs')"],
}


def one(text: str, seed: int, rounds: int) -> dict[str, float | None]:
    selector, _, method = text.partition(" + ")
    history = fc.simulate(selector, method=method or "fedavg", rounds=rounds, cohort_size=10, seed=seed)
    reached = history.reached(TARGET)
    megabytes = sum(history.column(f"bytes_{k}").sum() for k in ("down", "up", "probes", "signals")) / 1e6
    return {
        "accuracy": float(np.nanmean(history.accuracy[-10:])),
        "seconds": None if reached is None else reached[1],
        "fairness": history.fairness(),
        "total_seconds": float(history.clock[-1]),
        "megabytes": float(megabytes),
    }


def row(text: str, runs: list[dict], base: list[dict]) -> str:
    accuracy = np.array([r["accuracy"] for r in runs])
    cells = [f"`{text}`", _interval(accuracy, "{:.3f}")]
    gain = accuracy - np.array([r["accuracy"] for r in base])
    cells.append("-" if runs is base else _interval(gain, "{:+.3f}") + _word(gain))
    seconds = [r["seconds"] for r in runs if r["seconds"] is not None]
    shown = _interval(np.array(seconds), "{:,.0f}") if seconds else "not reached"
    cells.append(shown if len(seconds) in (0, len(runs)) else f"{shown}, {len(seconds)} of {len(runs)}")
    cells.append(f"{np.mean([r['fairness'] for r in runs]):.2f}")
    cells.append(f"{np.mean([r['megabytes'] for r in runs]):.1f}")
    return "| " + " | ".join(cells) + " |"


def _interval(x: np.ndarray, form: str) -> str:
    low, high = interval(x)
    return f"{form.format(x.mean())} [{form.format(low)}, {form.format(high)}]"


def _word(gain: np.ndarray) -> str:
    low, high = interval(gain)
    return "" if low > 0 or high < 0 else " (inside the noise)"


HEAD = (
    "| selector | accuracy | paired difference from uniform | virtual s to 80 % | fairness | MB |\n"
    "|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=registry.names("selector"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    runs: dict[str, list[dict]] = {}
    for name in dict.fromkeys(["uniform", *args.names]):
        for text in VARIANTS.get(name, [name]):
            runs[text] = [one(text, seed, args.rounds) for seed in range(args.seeds)]
            print(row(text, runs[text], runs["uniform"]), flush=True)
    if args.write:
        write(runs, args.seeds, args.rounds)


def write(runs: dict[str, list[dict]], seeds: int, rounds: int) -> None:
    """The data, and each page's own rows; what was measured before with as many seeds and rounds is kept."""
    setting = {
        "machine": platform.machine(),
        "seeds": seeds,
        "rounds": rounds,
        "world": "mixed-v1",
        "task": "digits-mlp",
    }
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    kept = before.get("runs", {}) if {k: before.get(k) for k in setting} == setting else {}
    measured = {t: before["measured"][t] for t in kept} | dict.fromkeys(runs, str(date.today()))
    FILE.write_text(json.dumps({**setting, "measured": measured, "runs": kept | runs}, indent=1) + "\n")
    command = f"`python benchmarks/digits_table.py --seeds {seeds} --rounds {rounds} --write`, {date.today()}"
    note = (
        f"{command}: digits-mlp in mixed-v1 (skew, noise, slow clients, drop-out), 10 of 50 clients a round, "
        "FedAvg unless named, mean and 95 % bootstrap interval over paired seeds (of five it covers about 84 %); probes cost virtual time.\n\n"
    )
    for path in (ROOT / "docs" / "selectors").glob("*.md"):
        own = [t for t in runs if t.partition("(")[0].partition(" ")[0] == path.stem]
        text = path.read_text()
        if own and "<!-- digits-table -->" in text:
            shown = ["uniform", *own] if own != ["uniform"] else own
            lines = "\n".join([HEAD, *(row(t, runs[t], runs["uniform"]) for t in shown)])
            body = re.sub(r"<!-- digits-table -->.*", "", text, flags=re.DOTALL).rstrip()
            path.write_text(f"{body}\n\n<!-- digits-table -->\n## On digits\n\n{note}{lines}\n")


if __name__ == "__main__":
    main()
