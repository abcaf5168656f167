"""The board: everybody's place with intervals, as text, table, picture and page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.arena.oracle import ORACLE
from fedcohort.arena.problem_set import VERSION, Problem, problem
from fedcohort.arena.run_scores import PRIMARY, SCORES
from fedcohort.arena.standings import (
    REFERENCE,
    Double,
    Results,
    Row,
    average_ranks,
    cliques,
    collect,
    mean_difference,
    pairwise,
    profile,
    verdict,
    wins_and_p,
)
from fedcohort.errors import BadParameter, MissingExtra, UnknownName
from fedcohort.experiment.metrics import paired

LEVELS = ("P0", "P1", "P2", "P3")


@dataclass(frozen=True)
class Standing:
    """One entry of the board."""

    entry: str
    place: int
    rank: float  # average over problems, 1 the best
    rank_low: float
    rank_high: float
    difference: float | None  # to uniform; of logarithms for times and traffic; None where something was not reached
    difference_low: float | None
    difference_high: float | None
    won: int  # problems, against uniform
    lost: int
    p: float | None
    verdict: str
    privacy: int | None  # highest level of the signals it reads; None for the oracle, which reads the truth
    needs: tuple[str, ...]
    traffic: float  # bytes, times those of uniform (geometric mean)
    own_ms: float  # milliseconds per round (median)
    mine: bool = False


@dataclass(frozen=True)
class ArenaBoard:
    """Everybody's place on some problems; made by :func:`fedcohort.arena.board` and :func:`fedcohort.arena.run`.

    >>> from fedcohort.arena import board
    >>> board(tier="quick").standings[0].place
    1
    """

    score: str
    tier: str
    standings: tuple[Standing, ...]
    results: Results  # entries in the order of the standings
    critical: float
    notes: tuple[str, ...] = field(default=())
    rows: tuple[Row, ...] = field(default=(), repr=False)
    version: str = VERSION

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that count here."""
        return tuple(problem(name, self.version) for name in self.results.problems)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """Entries whose average ranks cannot be told apart, as (first, last)."""
        return cliques([s.rank for s in self.standings], self.critical)

    def heat(self) -> Double:
        """Mean difference to uniform over seeds (entries, problems); -inf or inf where something was not reached."""
        return self.results.differences().mean(axis=2)

    def by_kind(self) -> dict[str, Double]:
        """Mean difference to uniform per kind of heterogeneity, one entry per standing."""
        columns = defaultdict(list)
        for at, each in enumerate(self.problems):
            columns[each.kind].append(at)
        heat = self.heat()
        return {kind: heat[:, at].mean(axis=1) for kind, at in columns.items()}

    def leaders(self, values: Double, count: int = 3) -> list[tuple[Standing, float]]:
        """The entries of the highest values, one value per standing; uniform and the oracle do not compete."""
        order = np.argsort(-values, kind="stable")
        found = [(self.standings[i], float(values[i])) for i in order]
        return [(s, v) for s, v in found if s.entry not in (REFERENCE, ORACLE)][:count]

    def profile(self, gaps: Sequence[float]) -> Double:
        """Performance profile (entries, gaps)."""
        return profile(self.results, gaps)

    def wins(self) -> dict[str, dict[str, int]]:
        """How many problems each entry wins against each other."""
        table = pairwise(self.results).wins
        names = self.results.entries
        return {a: {b: int(table[i, j]) for j, b in enumerate(names) if j != i} for i, a in enumerate(names)}

    def records(self) -> list[dict[str, Any]]:
        """One flat record per entry: the standing, and the mean difference to uniform on each problem."""
        heat = self.heat()
        out = []
        for at, s in enumerate(self.standings):
            plain = {k: ", ".join(v) if isinstance(v, tuple) else v for k, v in asdict(s).items()}
            out.append({**plain, **{p: float(heat[at, i]) for i, p in enumerate(self.results.problems)}})
        return out

    def to_pandas(self) -> Any:
        """A data frame with one row per entry; needs pandas, which fedcohort does not install."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise MissingExtra(
                "to_pandas()", "pandas is not installed", "install it with: pip install pandas, or use .records()"
            ) from None
        return pandas.DataFrame(self.records()).set_index("entry")

    def plot(self, path: str | Path | None = None) -> Any:
        """The critical-difference picture above the heat map, as SVG; shown by a notebook, saved with a path."""
        from fedcohort.arena.svg_pictures import board_picture

        picture = board_picture(self)
        if path is not None:
            picture.save(path)
        return picture

    def summary(self) -> str:
        """What was compared, and how far ranks must be apart, in sentences."""
        r = self.results
        seeds = ", ".join(str(s) for s in r.seeds)
        return (
            f"{len(r.entries)} selectors on {len(r.problems)} problems, seeds {seeds}. {self.score}: "
            f"{SCORES[self.score].about}. Average ranks that differ by less than {self.critical:.1f} cannot be told "
            "apart (Nemenyi, 95 %)."
        )

    def text(self) -> str:
        """The board as plain text."""
        head = ("", "selector", "rank", "95 %", "minus uniform", "95 %", "won:lost", "reads", "verdict")
        lines = [head, *(self._cells(s) for s in self.standings)]
        wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in lines]
        return "\n".join([self.summary(), "", *table, "", *(f"note: {n}" for n in self.notes)]).rstrip()

    def _cells(self, s: Standing) -> tuple[str, ...]:
        difference, low_high = "-", ""
        if s.difference is not None and s.difference_low is not None and s.difference_high is not None:
            difference = f"{s.difference:+.3f}"
            low_high = f"[{s.difference_low:+.3f}, {s.difference_high:+.3f}]"
        reads = "the truth" if s.privacy is None else LEVELS[s.privacy]
        name = f"{s.entry} <- yours" if s.mine else s.entry
        rank = f"[{s.rank_low:.1f}, {s.rank_high:.1f}]"
        return (str(s.place), name, f"{s.rank:.1f}", rank, difference, low_high, f"{s.won}:{s.lost}", reads, s.verdict)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from fedcohort.arena.arena_page import board_table

        return board_table(self)

    def page(self, path: str | Path) -> Path:
        """Write an HTML page with tables and pictures that needs nothing else."""
        from fedcohort.arena.arena_page import page

        target = Path(path)
        if not target.parent.is_dir():
            raise BadParameter(f"file {str(path)!r}", "its folder does not exist", f"create {target.parent} first")
        target.write_text(page(self), encoding="utf-8")
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
    others = [i for i in range(len(results.entries)) if i != at]
    adjusted = dict(zip(others, paired.holm([tests[i][2] for i in others]), strict=True))
    traffic, own = _costs(results, rows)
    out = []
    for i, name in enumerate(results.entries):
        interval = mean_difference(differences[i])
        won, lost, p = tests[i]
        words = "the reference" if i == at else verdict(interval, won, lost, p, adjusted[i], len(others))
        none = (None, None, None)
        level = None if name == ORACLE else levels.get(name, 0)
        mean, low, high = interval or none
        p_value = None if i == at else float(adjusted[i])
        rank = [float(r) for r in ranks[:, i]]
        out.append(
            Standing(name, i + 1, *rank, mean, low, high, won, lost, p_value, words, level, needs.get(name, ()),
                     traffic.get(name, math.nan), own.get(name, math.nan), name in mine)
        )  # fmt: skip
    return tuple(out)


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
