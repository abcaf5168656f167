"""Every selector on digits in the mixed world, paired by seed against uniform selection.

    python benchmarks/digits_table.py [NAME ...] [--seeds 5] [--rounds 60] [--write]
    python benchmarks/digits_table.py --pages

Skewed, noisy and slow clients at once (mixed-v1, 50 clients, 10 a round), digits-mlp, FedAvg. For every selector:
accuracy (mean of the last ten rounds), virtual time to 80 %, fairness (Jain), paired difference from uniform with a 95 %
bootstrap interval over seeds and the verdict of `fedcohort compare` on the rows of a page: undecided below six seeds.
--write stores results/digits_selectors.json, where rows of selectors that are not named stay as they are, and puts each
selector's rows into its page; --pages runs nothing and writes the pages again from that file.
A selector that probes pays for it in virtual time and traffic. P3 signals are not allowed.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import fedcohort as fc
from fedcohort.experiment.metrics.comparison import Row, verdict
from fedcohort.experiment.metrics.paired import VERDICT_SEEDS, holm, interval, wilcoxon
from fedcohort.registry import lookup as registry

ROOT = Path(__file__).parents[1]
FILE = ROOT / "results" / "digits_selectors.json"
PAGES = ROOT / "docs" / "selectors"
MARK = "<!-- digits-table -->"  # the table follows it, to the end of the page
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


def row(text: str, runs: list[dict], base: list[dict], word: str = "") -> str:
    accuracy = np.array([r["accuracy"] for r in runs])
    cells = [f"`{text}`", _interval(accuracy, "{:.3f}")]
    cells.append("-" if runs is base else _interval(_gain(runs, base), "{:+.3f}") + f" ({word})")
    seconds = [r["seconds"] for r in runs if r["seconds"] is not None]
    shown = _interval(np.array(seconds), "{:,.0f}") if seconds else "not reached"
    cells.append(shown if len(seconds) in (0, len(runs)) else f"{shown}, {len(seconds)} of {len(runs)}")
    cells.append(f"{np.mean([r['fairness'] for r in runs]):.2f}")
    cells.append(f"{np.mean([r['megabytes'] for r in runs]):.1f}")
    return "| " + " | ".join(cells) + " |"


def _interval(x: np.ndarray, form: str) -> str:
    low, high = interval(x)
    return f"{form.format(x.mean())} [{form.format(low)}, {form.format(high)}]"


def _gain(runs: list[dict], base: list[dict]) -> np.ndarray:
    return np.array([r["accuracy"] for r in runs]) - np.array([r["accuracy"] for r in base])


def words(gains: dict[str, np.ndarray]) -> dict[str, str]:
    """The verdict of `fedcohort compare` on each of these paired differences, with Holm's correction for all of them."""
    found = {}
    p = [wilcoxon(gain) for gain in gains.values()]
    for (text, gain), alone, adjusted in zip(gains.items(), p, holm(p), strict=True):
        low, high = interval(gain)
        difference = {"difference": float(gain.mean()), "difference_low": low, "difference_high": high}
        count = {"pairs": gain.size, "wins": int((gain > 0).sum()), "losses": int((gain < 0).sum())}
        told = Row(text, {}, None, None, None, gain.size, **count, **difference, p=alone, adjusted=float(adjusted))
        found[text] = verdict(told, 1, len(gains)).partition(":")[0]
    return found


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
    parser.add_argument("--pages", action="store_true", help="run nothing; write the pages from what is stored")
    args = parser.parse_args()
    if args.pages:
        stored = json.loads(FILE.read_text())
        write_pages(stored, stored["runs"])
        return
    runs: dict[str, list[dict]] = {}
    for name in dict.fromkeys(["uniform", *args.names]):
        for text in VARIANTS.get(name, [name]):
            runs[text] = [one(text, seed, args.rounds) for seed in range(args.seeds)]
            word = words({text: _gain(runs[text], runs["uniform"])})[text]
            print(row(text, runs[text], runs["uniform"], word), flush=True)
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
    stored = {**setting, "measured": measured, "runs": kept | runs}
    FILE.write_text(json.dumps(stored, indent=1) + "\n")
    write_pages(stored, runs)


def write_pages(stored: dict[str, Any], texts: Iterable[str]) -> None:
    """The rows of these selectors, as they are stored, into their pages."""
    runs, base = stored["runs"], stored["runs"]["uniform"]
    few = stored["seeds"] < VERDICT_SEEDS
    verdicts = (
        f", with fewer than {VERDICT_SEEDS} nothing is decided" if few else ", verdicts as of `fedcohort compare`"
    )
    for path in PAGES.glob("*.md"):
        own = [t for t in texts if t.partition("(")[0].partition(" ")[0] == path.stem]
        text = path.read_text()
        if not own or MARK not in text:
            continue
        command = f"`python benchmarks/digits_table.py --seeds {stored['seeds']} --rounds {stored['rounds']} --write`"
        note = (
            f"{command}, {max(stored['measured'][t] for t in own)}: digits-mlp in mixed-v1 (skew, noise, slow clients, "
            "drop-out), 10 of 50 clients a round, FedAvg unless named, mean and 95 % bootstrap interval over paired seeds "
            f"(of five it covers about 84 %){verdicts}; probes cost virtual time.\n\n"
        )
        said = words({t: _gain(runs[t], base) for t in own if t != "uniform"})
        shown = dict.fromkeys(["uniform", *own])
        lines = "\n".join([HEAD, *(row(t, runs[t], base, said.get(t, "")) for t in shown)])
        body = re.sub(rf"{MARK}.*", "", text, flags=re.DOTALL).rstrip()
        path.write_text(f"{body}\n\n{MARK}\n## On digits\n\n{note}{lines}\n")


if __name__ == "__main__":
    main()
