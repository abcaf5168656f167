"""The board: everybody's place with intervals, as a data frame, a picture and a page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.arena.arena_page import board_table, page_text
from fedcohort.arena.board_data import LEVELS, BoardData, Standing
from fedcohort.arena.oracle import ORACLE
from fedcohort.arena.problem_set import VERSION, Problem
from fedcohort.arena.run_scores import PRIMARY
from fedcohort.arena.standings import (
    REFERENCE,
    Double,
    Results,
    Row,
    average_ranks,
    collect,
    mean_difference,
    verdict,
    wins_and_p,
)
from fedcohort.arena.svg_pictures import SvgPicture, board_picture
from fedcohort.errors import BadParameter, MissingExtra, UnknownName
from fedcohort.experiment.metrics import paired


@dataclass(frozen=True)
class ArenaBoard(BoardData):
    """Everybody's place on some problems; made by :func:`fedcohort.arena.board` and :func:`fedcohort.arena.run`.

    >>> from fedcohort.arena import board
    >>> board(tier="quick").standings[0].place
    1
    """

    def to_pandas(self) -> Any:
        """A data frame with one row per entry; needs pandas, which fedcohort does not install."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra(
                "to_pandas()", "pandas is not installed", "install it with: pip install pandas, or use .records()"
            ) from None
        return pandas.DataFrame(self.records()).set_index("entry")

    def plot(self, path: str | Path | None = None) -> SvgPicture:
        """The critical-difference picture above the heat map, as SVG; shown by a notebook, saved with a path."""
        picture = board_picture(self)
        if path is not None:
            picture.save(path)
        return picture

    def _repr_html_(self) -> str:
        return board_table(self)

    def page(self, path: str | Path) -> Path:
        """Write an HTML page with tables and pictures that needs nothing else."""
        target = Path(path)
        if not target.parent.is_dir():
            raise BadParameter(f"file {str(path)!r}", "its folder does not exist", f"create {target.parent} first")
        target.write_text(page_text(self), encoding="utf-8")
        return target


def make_board(
    rows: Sequence[Row],
    problems: Sequence[Problem],
    *,
    tier: str = "full",
    score: str = PRIMARY,
    max_privacy: str = "P3",
    mine: Sequence[str] = (),
    notes: Sequence[str] = (),
    version: str = VERSION,
) -> ArenaBoard:
    """The board of these rows. The oracle is shown but is not allowed to play under a privacy limit."""
    if max_privacy not in LEVELS:
        raise UnknownName.among("privacy level", max_privacy, LEVELS)
    limit = LEVELS.index(max_privacy)
    levels, needs = _signals(rows)
    out = {e for e, level in levels.items() if level > limit or (e == ORACLE and limit < len(LEVELS) - 1)}
    out -= {*mine, REFERENCE}
    results, said = collect(
        [r for r in rows if r["selector"] not in out], [p.name for p in problems], score=score, keep=mine
    )
    rank, low, high = average_ranks(results)
    order = np.argsort(rank, kind="stable")
    results = Results(
        score, tuple(results.entries[i] for i in order), results.problems, results.seeds, results.values[order]
    )
    listed = _standings(results, rows, np.stack([rank, low, high])[:, order], levels, needs, set(mine))
    hidden = f"left out, because they read more than {max_privacy}: {', '.join(sorted(out))}" if out else ""
    critical = paired.critical_difference(len(results.entries), len(results.problems))
    return ArenaBoard(
        score, tier, listed, results, critical, tuple(n for n in (*notes, *said, hidden) if n), tuple(rows), version
    )


def _signals(rows: Sequence[Row]) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Privacy level and declared signals of each entry, as its runs have them."""
    levels: dict[str, int] = {}
    needs: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if "privacy" in row:
            levels[row["selector"]] = max(levels.get(row["selector"], 0), row["privacy"])
            needs[row["selector"]] = tuple(row["needs"])
    return levels, needs


def _standings(
    results: Results,
    rows: Sequence[Row],
    ranks: Double,
    levels: dict[str, int],
    needs: dict[str, tuple[str, ...]],
    mine: set[str],
) -> tuple[Standing, ...]:
    differences, at = results.differences(), results.reference
    tests = [wins_and_p(values, results.values[at]) for values in results.values]
    adjusted, family = _corrected([p for _, _, p in tests], results, mine)
    traffic, own = _costs(results, rows)
    out = []
    for i, name in enumerate(results.entries):
        interval = mean_difference(differences[i])
        won, lost, p = tests[i]
        words = "the reference" if i == at else verdict(interval, won, lost, p, adjusted[i], family[i])
        mean, low, high = interval or (None, None, None)
        rank, rank_low, rank_high = (float(r) for r in ranks[:, i])
        out.append(
            Standing(
                entry=name,
                place=i + 1,
                rank=rank,
                rank_low=rank_low,
                rank_high=rank_high,
                difference=mean,
                difference_low=low,
                difference_high=high,
                won=won,
                lost=lost,
                p=None if i == at else float(adjusted[i]),
                verdict=words,
                privacy=None if name == ORACLE else levels.get(name, 0),
                needs=needs.get(name, ()),
                traffic=traffic.get(name, math.nan),
                own_ms=own.get(name, math.nan),
                mine=name in mine,
            )
        )
    return tuple(out)


def _corrected(p: list[float], results: Results, mine: set[str]) -> tuple[dict[int, float], dict[int, int]]:
    """Holm-corrected p-values and how many comparisons each was one of: one's own are planned, and a family apart."""
    adjusted: dict[int, float] = {}
    family: dict[int, int] = {}
    for own in (False, True):
        at = [i for i, e in enumerate(results.entries) if e != REFERENCE and (e in mine) is own]
        adjusted |= dict(zip(at, paired.holm([p[i] for i in at]).tolist(), strict=True))
        family |= dict.fromkeys(at, len(at))
    return adjusted, family


def _costs(results: Results, rows: Sequence[Row]) -> tuple[dict[str, float], dict[str, float]]:
    """Traffic relative to uniform in the same cell, and the median of own milliseconds per round."""
    cells = {(r["selector"], r["problem"], r["seed"]): r["scores"] for r in rows if "scores" in r}
    ratio, own = defaultdict(list), defaultdict(list)
    for (name, on, seed), scores in cells.items():
        base = cells.get((REFERENCE, on, seed))
        if on in results.problems and base is not None and base["traffic"] > 0 and scores["traffic"] > 0:
            ratio[name].append(math.log(scores["traffic"] / base["traffic"]))
        if on in results.problems and scores["own_ms"] is not None:
            own[name].append(scores["own_ms"])
    return (
        {name: math.exp(float(np.mean(v))) for name, v in ratio.items()},
        {name: float(np.median(v)) for name, v in own.items()},
    )
