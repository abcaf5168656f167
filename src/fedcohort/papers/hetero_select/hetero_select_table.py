"""HeteRo-Select's table and its two ablations: who is asked, how hard FedProx pulls, how many are asked."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.papers.hetero_select.hetero_select_setting import DEPARTURES, STABLE, hetero, oort, run
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    OURS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Study,
    and_also,
    beats,
    perfect,
    quantity,
    row_beats,
)

ADDITIVE, MULTIPLICATIVE, OORT = "HeteRo-Select, additive", "HeteRo-Select, multiplicative", "Oort"
FULL, HALF = "FedProx, all clients", "FedProx, random half"
PEAK, FINAL, STEADY, DROP = "peak (%)", "final (%)", "stable (%)", "drop (points)"
PUBLISHED = published("hetero_select", "table")
PEAKS = published("hetero_select", "mu")
STABLE_BY_SHARE = published("hetero_select", "participation")
EXPLORATIVE, RANDOM_HALF = PEAKS  # its rows
SIZES = {"25 %": 3, "50 %": 6, "75 %": 9, "100 %": 12}
QUARTER, MOST = "25 %", "75 %"  # not in the paper
CHOSEN, RANDOM = "HeteRo-Select", "random"


def table_cells(scale: str) -> Sequence[Cell]:
    """Six ways of asking, four numbers each."""
    runs = {
        ADDITIVE: run(scale, hetero(scale)),
        MULTIPLICATIVE: run(scale, hetero(scale, "multiplicative")),
        OORT: run(scale, oort(scale)),
        FULL: run(scale, "uniform", size=12),
        HALF: run(scale, "uniform"),
        PERFECT_ROW: run(scale, perfect("complete")),
    }
    columns = (
        (PEAK, quantity("best", digits=2)),
        (FINAL, quantity("final", digits=2)),
        (STEADY, STABLE),
        (DROP, quantity("drop", digits=2)),
    )
    printed = {row: PUBLISHED.get(row, {}) for row in runs}
    return [Cell(row, name, keys, what, printed[row].get(name)) for row, keys in runs.items() for name, what in columns]


def _claim(words: str, left: str, right: str, column: str) -> Claim:
    ours, theirs = PUBLISHED[left][column], PUBLISHED[right][column]
    difference = None if ours is None or theirs is None else ours - theirs
    return beats(words, (left, column), (right, column), difference)


def table_claims(scale: str) -> Sequence[Claim]:
    """Higher than Oort, all clients and a random half; steadier than Oort and than the product."""
    del scale
    return [
        _claim("with half of the clients its stable accuracy is above FedProx with all", ADDITIVE, FULL, STEADY),
        _claim("additive scores drop less than multiplicative ones", ADDITIVE, MULTIPLICATIVE, DROP),
        _claim("additive HeteRo-Select drops less than Oort", ADDITIVE, OORT, DROP),
        _claim("its peak is above Oort's", ADDITIVE, OORT, PEAK),
        _claim("its final accuracy is above Oort's", ADDITIVE, OORT, FINAL),
        _claim("with half of the clients its peak is above FedProx with all", ADDITIVE, FULL, PEAK),
        _claim("its stable accuracy is above that of a random half", ADDITIVE, HALF, STEADY),
        _claim(f"{OURS}the stable accuracy of all clients is above that of a random half", FULL, HALF, STEADY),
        beats(f"{OURS}a perfect half beats a random half", (PERFECT_ROW, STEADY), (HALF, STEADY)),
    ]


def mu_cells(scale: str) -> Sequence[Cell]:
    """The explorative strategy with a weak and a strong pull, and a random and a perfect half beside it."""
    rows = {EXPLORATIVE: hetero(scale, tau0=2.0), RANDOM_HALF: "uniform", PERFECT_ROW: perfect("complete")}
    found = []
    for row, text in rows.items():
        for column in PEAKS[EXPLORATIVE]:
            keys = run(scale, text, mu=float(column.removeprefix("mu = ")))
            found.append(Cell(row, column, keys, quantity("best", digits=2), PEAKS.get(row, {}).get(column)))
    return found


def mu_claims(scale: str) -> Sequence[Claim]:
    """Strong regularisation is what makes exploration work."""
    del scale
    weak, strong = PEAKS[EXPLORATIVE]
    words, gain = f"{strong} gives a higher peak than {weak}", PEAKS[EXPLORATIVE][strong] - PEAKS[EXPLORATIVE][weak]
    return [
        beats(f"explorative HeteRo-Select: {words}", (EXPLORATIVE, strong), (EXPLORATIVE, weak), gain),
        beats(f"{OURS}a random half: {words}", (RANDOM_HALF, strong), (RANDOM_HALF, weak)),
    ]


def shares(scale: str) -> list[str]:
    """Which shares of the clients are asked; at scale desk, where nine of twelve cost most, without three quarters."""
    return [share for share in SIZES if share != MOST or scale != "desk"]


def participation_cells(scale: str) -> Sequence[Cell]:
    """Three ways of choosing, each with several sizes; where all are asked there is nothing to choose."""
    found = []
    for row, text in {CHOSEN: hetero(scale), RANDOM: "uniform", PERFECT_ROW: perfect("complete")}.items():
        printed = STABLE_BY_SHARE.get(row, {})
        for share in shares(scale):
            size = SIZES[share]
            keys = run(scale, text if size < 12 else "uniform", size=size)
            found.append(Cell(row, share, keys, STABLE, printed.get(share)))
    return found


def participation_claims(scale: str) -> Sequence[Claim]:
    """A well chosen half beats a random one and everybody (the main claim of the table)."""
    half, printed = STABLE_BY_SHARE[CHOSEN]["50 %"], STABLE_BY_SHARE[RANDOM]
    all_of_them, random_half = half - printed["100 %"], half - printed["50 %"]
    return [
        beats("a half by HeteRo-Select beats a random half", (CHOSEN, "50 %"), (RANDOM, "50 %"), random_half),
        beats("a half by HeteRo-Select beats all clients", (CHOSEN, "50 %"), (RANDOM, "100 %"), all_of_them),
        beats(f"{OURS}the same for a quarter", (CHOSEN, QUARTER), (RANDOM, QUARTER)),
        *([beats(f"{OURS}the same for three quarters", (CHOSEN, MOST), (RANDOM, MOST))] * (MOST in shares(scale))),
        row_beats(f"{OURS}a perfect choice beats a random one", PERFECT_ROW, RANDOM, shares(scale)[:-1]),
    ]


_EXPLORATIVE = "explorative is read as tau0 = 2 (the summary names 1 to 2) with gamma = 0.7"
_EVERYBODY = "at 100 % all rows show the same run"
_NO_MOST = "75 % of the clients, which the paper has not, at the other scales only: nine of twelve cost most"
STUDIES = (
    Study(
        "hetero-select:table",
        "HeteRo-Select: peak, final and stable accuracy, and stability drop",
        table_cells,
        table_claims,
        SEEDS,
        DEPARTURES,
    ),
    Study(
        "hetero-select:mu",
        "HeteRo-Select: strength of FedProx (peak accuracy, %)",
        mu_cells,
        mu_claims,
        SEEDS,
        and_also(DEPARTURES, _EXPLORATIVE),
    ),
    Study(
        "hetero-select:participation",
        "HeteRo-Select: share of clients asked (stable accuracy, %)",
        participation_cells,
        participation_claims,
        SEEDS,
        {**(told := and_also(DEPARTURES, _EVERYBODY)), "desk": (*told["desk"], _NO_MOST)},
    ),
)
