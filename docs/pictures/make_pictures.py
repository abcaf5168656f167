"""Every picture of the site that is drawn: `python docs/pictures/make_pictures.py [NAME ...] [--run]`.

From committed results (results/, docs/pictures/runs.json, the arena's archive); `--run` makes the runs behind
`demo` and `cohorts` anew, two minutes. Each is one SVG for light and dark. Screenshots: take_screenshots.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]

import paper_plots  # noqa: E402
import run_plots  # noqa: E402
from round_picture import life_of_a_round  # noqa: E402
from svg_sheet import Sheet  # noqa: E402

SHEETS: dict[str, Callable[[], Sheet]] = {
    "life-of-a-round": life_of_a_round,
    "world": run_plots.world,
    "demo": run_plots.demo,
    "cohorts": run_plots.cohorts,
}


def ledger_debts() -> None:
    """How debts become cohorts."""
    import ledger_picture

    ledger_picture.FILE.write_text(ledger_picture.picture(), encoding="utf-8")


def which_selector() -> None:
    """The arena's ranks with the critical difference, and the heat map, from the archive."""
    from fedcohort.arena.archive import Archive
    from fedcohort.arena.leaderboard import make_board
    from fedcohort.arena.problem_set import tier_problems

    make_board(Archive().current(), tier_problems("full")).plot(HERE / "which-selector.svg")


OTHERS: dict[str, Callable[[], object]] = {
    "papers": paper_plots.main,
    "ledger-debts": ledger_debts,
    "which-selector": which_selector,
}


def main() -> None:
    """Those named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*SHEETS, *OTHERS])}; all by default")
    parser.add_argument("--run", action="store_true", help="make the runs anew first")
    given = parser.parse_args()
    unknown = set(given.names) - {*SHEETS, *OTHERS}
    if unknown:
        parser.error(f"there is no picture {', '.join(sorted(unknown))}; there are {', '.join([*SHEETS, *OTHERS])}")
    if given.run:
        run_plots.make_runs()
    for name in given.names or [*SHEETS, *OTHERS]:
        if name in SHEETS:
            SHEETS[name]().save(HERE / f"{name}.svg")
        else:
            OTHERS[name]()
        print(name)


if __name__ == "__main__":
    main()
