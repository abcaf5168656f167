"""The arena from Python: rank a selector of your own against everybody, or look at the board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcohort.arena.archive import Archive
from fedcohort.arena.cells import Entry, entry
from fedcohort.arena.fill import OnRow, play_all
from fedcohort.arena.leaderboard import ArenaBoard, make_board
from fedcohort.arena.problem_set import ARCHIVE_SEEDS, Problem, missing_data, tier_problems
from fedcohort.arena.run_scores import PRIMARY
from fedcohort.errors import BadParameter, check
from fedcohort.protocols import Selector


def run(
    selector: str | type[Any] | Selector | Entry,
    *,
    tier: str = "quick",
    seeds: Sequence[int] = ARCHIVE_SEEDS,
    name: str = "",
    score: str = PRIMARY,
    max_privacy: str = "P3",
    archive: str | Path | None = None,
    on_row: OnRow | None = None,
) -> ArenaBoard:
    """Run a selector on the problems of a tier and rank it against everybody in the archive.

    `selector` is a class, an object (a fresh copy plays each run), a text of the catalogue, or "module:Class(key=1)".
    `tier` is "quick" (embedded data) or "full"; problems whose data are missing are named and left out. `seeds` are
    those of the archive, 0 to 4, which nothing may be tuned on: use `practise` for that. `score` orders the board and
    `max_privacy` leaves out everybody who reads more. `on_row` is called after each run.

    >>> from fedcohort.selectors import Oort
    >>> board = run(Oort(explore=0.5), tier="quick", seeds=[0], name="mine")  # doctest: +SKIP
    >>> board.plot("board.svg")  # doctest: +SKIP
    """
    who = selector if isinstance(selector, Entry) else entry(selector, name)
    others = Archive(Path(archive) if archive is not None else None)
    strange = sorted(set(seeds) - set(ARCHIVE_SEEDS))
    check(
        not strange and bool(seeds),
        f"seeds {list(seeds)}",
        "the archive has seeds 0 to 4, and everybody is compared in the same seed",
        "use some of these; `fedcohort.arena.practise` takes any",
    )
    on, notes = _playable(tier)
    rows = play_all(who, on, seeds, on_row)
    rest = [row for row in others.current() if row["selector"] != who.name]
    return make_board([*rest, *rows], on, tier=tier, score=score, max_privacy=max_privacy, mine=[who.name], notes=notes)


def practise(
    selector: str | type[Any] | Selector,
    against: Sequence[str] = ("uniform",),
    *,
    tier: str = "quick",
    seeds: Sequence[int] = (100, 101, 102),
    score: str = PRIMARY,
    on_row: OnRow | None = None,
) -> ArenaBoard:
    """Compare on seeds outside the archive, where a selector may be tuned; everybody in `against` is run, too.

    `selector`, `tier`, `score` and `on_row` are those of :func:`run`, and `seeds` may be any but the archive's.

    >>> practise("oort(explore=0.5)", against=["oort"]).standings[0].entry  # doctest: +SKIP
    """
    forbidden = sorted(set(seeds) & set(ARCHIVE_SEEDS))
    check(not forbidden, f"seeds {forbidden}", "nothing may be tuned on the archive's seeds", "use seeds from 100 on")
    mine = entry(selector)
    others = [entry(name) for name in dict.fromkeys(("uniform", *against)) if name != mine.name]
    on, notes = _playable(tier)
    rows = [row for who in (mine, *others) for row in play_all(who, on, seeds, on_row)]
    return make_board(rows, on, tier=tier, score=score, mine=[mine.name], notes=notes)


def board(
    *,
    tier: str = "full",
    group: str | None = None,
    score: str = PRIMARY,
    max_privacy: str = "P3",
    archive: str | Path | None = None,
) -> ArenaBoard:
    """The board from the archive alone; nothing is run.

    `tier` is "quick" or "full", `group` only one group or kind of problems, `score` what the board is ordered by;
    `max_privacy` leaves out everybody who reads more, and `archive` is another file than the shipped one.

    >>> board(tier="quick").results.reference >= 0
    True
    """
    on = tier_problems(tier)
    if group is not None:
        groups = sorted({p.group for p in on} | {p.kind for p in on})
        if group not in groups:
            raise BadParameter(f"group {group!r}", "there is no such group or kind", f"choose from {', '.join(groups)}")
        on = tuple(p for p in on if group in (p.group, p.kind))
    rows = Archive(Path(archive) if archive is not None else None).current()
    return make_board(rows, on, tier=tier, score=score, max_privacy=max_privacy)


def coverage(
    archive: Archive, names: Sequence[str], seeds: Sequence[int] = ARCHIVE_SEEDS
) -> dict[str, tuple[int, int]]:
    """Per tier, how many of the runs of the archive are there: (runs, of how many)."""
    there = {(row["selector"], row["problem"], row["seed"]) for row in archive.current()}
    out = {}
    for tier in ("quick", "full"):
        wanted = [(n, p.name, s) for n in names for p in tier_problems(tier, archive.version) for s in seeds]
        out[tier] = sum(cell in there for cell in wanted), len(wanted)
    return out


def _playable(tier: str) -> tuple[list[Problem], list[str]]:
    chosen = tier_problems(tier)
    return [p for p in chosen if p.available], [missing_data(chosen)]
