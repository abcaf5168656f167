"""Two questions in one sweep: how many clients should be asked, and how much should Oort explore?

All combinations run in parallel and are kept; run the script again and nothing is repeated. The report is one HTML file
with curves, cohorts and the comparison, and the same runs can be looked at with `fedcohort dashboard sweep-runs`.

    python examples/sweep_and_report.py
    fedcohort sweep selectors=[uniform,oort] selector.explore=[0.3,0.9] cohort_size=[5,10] seeds=6 --store sweep-runs
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fedcohort as fc
from fedcohort.report import make_report


def main(rounds: int, seeds: int, folder: Path) -> None:
    """Sweep, compare, report."""
    outcome = fc.sweep(
        store=folder,
        selectors=["uniform", "oort"],
        selector__explore=[0.3, 0.9],  # of those selectors that have it
        cohort_size=[5, 10],
        task="digits-softmax",
        rounds=rounds,
        patience=15,  # a run ends when nothing has become better for so many rounds
        seeds=seeds,
    )
    print(f"{len(outcome.runs)} runs, {len(outcome.errors)} failed")
    for setting in fc.compare(outcome.file, name="final").settings:
        print(setting.name)
        for row in setting.rows:
            print(f"  {row.entry:20} {row.mean:.3f} over {row.count} seeds: {row.verdict}")
    make_report([outcome.file], folder / "report.html")
    print(f"report: {folder / 'report.html'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("sweep-runs"), help="folder of the runs and the report")
    given = parser.parse_args()
    main(given.rounds, given.seeds, given.out)
