"""A board as data: standings, the table behind them, and what can be said about both in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedcohort.arena.oracle import ORACLE
from fedcohort.arena.problem_set import VERSION, Problem, problem
from fedcohort.arena.run_scores import SCORES
from fedcohort.arena.standings import REFERENCE, Double, Pairwise, Results, Row, cliques, pairwise, profile

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
class BoardData:
    """Everybody's place on some problems, as data and as text."""

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
        return np.asarray(self.results.differences().mean(axis=2), np.float64)

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

    def pairwise(self) -> Pairwise:
        """Every entry against every other, in the order of the standings."""
        return pairwise(self.results)

    def records(self) -> list[dict[str, Any]]:
        """One flat record per entry: the standing, and the mean difference to uniform on each problem."""
        heat = self.heat()
        out = []
        for at, s in enumerate(self.standings):
            plain = {k: ", ".join(v) if isinstance(v, tuple) else v for k, v in asdict(s).items()}
            out.append({**plain, **{p: float(heat[at, i]) for i, p in enumerate(self.results.problems)}})
        return out

    def summary(self) -> str:
        """What was compared, and how far ranks must be apart, in sentences."""
        r = self.results
        seeds = ", ".join(str(s) for s in r.seeds)
        ratios = " Differences are of logarithms, positive is better." if SCORES[self.score].logarithmic else ""
        return (
            f"{len(r.entries)} selectors on {len(r.problems)} problems, seeds {seeds}. {self.score}: "
            f"{SCORES[self.score].about}.{ratios} Average ranks that differ by less than {self.critical:.1f} cannot "
            "be told apart (Nemenyi, 95 %)."
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
