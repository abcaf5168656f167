"""Variants of ledger's rule against uniform on the arena's problems, on seeds that the arena does not use.

    python benchmarks/ledger_tuning.py "ledger" "ledger(pace=1.0)"     # what the results lack is run and added
    python benchmarks/ledger_tuning.py --changes                       # the changes of benchmarks/ledger_variants.py
    python benchmarks/ledger_tuning.py --table                         # the tables of docs/ledger.md, and each change minus the rule

Every difference is paired by problem and seed, in points of accuracy: the anytime score (the area under the curve of
accuracy over time, up to the problem's horizon) and the final one. Intervals are +- one standard error over seeds.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fedcohort.arena.cells import entry, play
from fedcohort.arena.problem_set import problem, tier_problems
from ledger_variants import VARIANTS

RESULTS = Path(__file__).parent / "results" / "ledger_tuning.json"
SEEDS = range(106, 114)
MORE_PROBLEMS = ("har-devices",)
RULE = "ledger(pace=3.0,limit=6.0)"  # what the changes are made to


def problems():
    return [p for p in (*tier_problems("quick"), *map(problem, MORE_PROBLEMS)) if p.available]


def load():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def run(texts, seeds):
    results = load()
    for text in ("uniform", *texts):
        for p in problems():
            for seed in seeds:
                found = results.setdefault(text, {}).setdefault(p.name, {})
                if str(seed) in found:
                    continue
                row = play(entry(VARIANTS.get(text, text), text), p, seed)
                if "error" in row:
                    raise SystemExit(f"{text} on {p.name}, seed {seed}: {row['error']}")
                found[str(seed)] = [round(row["scores"][name], 5) for name in ("anytime", "final")]
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(line(text, results), flush=True)


def differences(text, results):
    """[problem, seed, score] in points over uniform, for the problems that the variant was run on."""
    done = [name for name in results["uniform"] if name in results[text]]
    return done, 100 * np.array(
        [[np.subtract(v, results["uniform"][name][s]) for s, v in results[text][name].items()] for name in done]
    )


def summary(text, results):
    """Problems, the mean of each over seeds, and (mean, standard error) of both scores over problems and seeds."""
    names, d = differences(text, results)
    by_seed = d.mean(axis=0)
    error = by_seed.std(axis=0, ddof=1) / len(by_seed) ** 0.5
    return names, d.mean(axis=1), list(zip(by_seed.mean(axis=0), error, strict=True))


def line(text, results):
    names, each, both = summary(text, results)
    cells = [f"{name.split('-')[1]} {a:+.1f}/{f:+.1f}" for name, (a, f) in zip(names, each, strict=True)]
    return f"{text:44s} " + " ".join(f"{m:+.2f}±{e:.2f}" for m, e in both) + "  " + ", ".join(cells)


def table():
    results = load()
    names = list(results["uniform"])
    print("| variant | anytime | final | " + " | ".join(n.removeprefix("digits-") for n in names) + " |")
    print("|---" * (len(names) + 3) + "|")
    for text in (t for t in results if t != "uniform"):
        _, each, both = summary(text, results)
        print(
            f"| {text if text in VARIANTS else f'`{text}`'} | "
            + " | ".join([f"{m:+.2f} ± {e:.2f}" for m, e in both] + [f"{a:+.1f}" for a, _ in each])
            + " |"
        )


def changes():
    """Each change against the rule that it would change, paired by problem and seed."""
    results = load()
    _, rule = differences(RULE, results)
    for text in (t for t in VARIANTS if t in results):
        d = (differences(text, results)[1] - rule).mean(axis=0)[:, 0]
        print(f"{text}: {d.mean():+.2f} ± {d.std(ddof=1) / d.size**0.5:.2f} points of the anytime score")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*")
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    given.variants += VARIANTS if given.changes else ()
    if given.variants:
        run(given.variants, SEEDS)
    if given.table or not given.variants:
        table()
        changes()


if __name__ == "__main__":
    main()
