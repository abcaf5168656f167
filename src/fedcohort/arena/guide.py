"""The page "which selector when", written from the archive by `fedcohort arena guide`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedcohort.arena.archive import Archive
from fedcohort.arena.board_data import BoardData, Standing
from fedcohort.arena.contest import coverage
from fedcohort.arena.fill import archive_entries
from fedcohort.arena.leaderboard import ArenaBoard, make_board
from fedcohort.arena.oracle import ORACLE
from fedcohort.arena.problem_set import ARCHIVE_SEEDS, TUNING_SEEDS, tier_problems
from fedcohort.arena.standings import REFERENCE, Double
from fedcohort.errors import check
from fedcohort.registry.lookup import entries as catalogue
from fedcohort.signals import SIGNALS

KINDS = {  # heterogeneity -> how a person would say it
    "skew": "Clients have different labels",
    "noise": "Some clients have wrong labels",
    "speed": "Some clients are much slower",
    "availability": "Clients sleep, and regions fail",
    "quantity": "Clients have very different amounts of data",
    "liars": "Some clients are broken or malicious",
    "dropout": "Clients start and do not come back",
    "mixed": "Everything at once",
}
PAGES = (("README.md", "docs/selectors/", 6), ("docs/selectors/README.md", "", None))  # path, folder of pages, places
MARKS = ("<!-- arena-table -->", "<!-- /arena-table -->")
_TOP = 5


def write_guide(path: Path, picture: Path, archive: Archive | None = None) -> BoardData:
    """Write the page and its picture; the board that they show."""
    archive = archive or Archive()
    board = make_board(archive.current(), tier_problems("full"))
    board.plot(picture)
    path.write_text(guide_text(board, archive, picture.name), encoding="utf-8")
    return board


def guide_text(board: BoardData, archive: Archive, picture: str) -> str:
    """The page as Markdown. Each kind of heterogeneity has all seeds that its own problems have in common."""
    on = {kind: [p for p in board.problems if p.kind == kind] for kind in dict.fromkeys(p.kind for p in board.problems)}
    kinds = {kind: make_board(board.rows, problems) for kind, problems in on.items()}
    lines = [
        "# Which selector when?",
        "",
        "Written by `fedcohort arena guide` from the archive of [the arena](arena.md); do not edit by hand.",
        "",
        *_short_answer(kinds),
        "",
        "## All problems",
        "",
        *_completeness(board, archive),
        "",
        *_overall(board),
        "",
        f"![Average ranks and differences to uniform](pictures/{picture})",
        "",
    ]
    for kind, of_kind in kinds.items():
        lines += _section(of_kind, kind)
    return "\n".join(lines).rstrip() + "\n"


def _short_answer(kinds: dict[str, ArenaBoard]) -> list[str]:
    """One line per kind of heterogeneity: who leads, who leads of those that read little, and the oracle."""
    lines = [
        "| what is different about your clients | best | reading at most P1 | reading P0 only | oracle |",
        "|---|---|---|---|---|",
    ]
    for kind, board in kinds.items():
        values = board.heat().mean(axis=1)
        told = [_leader(board, values, level) for level in (3, 1, 0)]
        ceiling = next((f"{v:+.3f}" for s, v in zip(board.standings, values, strict=True) if s.entry == ORACLE), "-")
        lines.append(f"| [{KINDS[kind]}](#{_anchor(KINDS[kind])}) | {' | '.join(told)} | {ceiling} |")
    return [
        *lines,
        "",
        "Differences to uniform choice of the area under accuracy over time, means over problems and seeds (0.010 is "
        "one point of accuracy, on average over the run). P0 is what the server sees anyway, P1 one number a round "
        "from each client, P2 its update. The oracle is told the truth: a strong heuristic, not an upper bound. Who is "
        "best of so many is partly chance: the sections below say what is inside the noise.",
    ]


def _leader(board: BoardData, values: Double, level: int) -> str:
    """The best of those that read no more than this, and by how much; a dash where nobody is ahead of uniform."""
    may = [(s, v) for s, v in board.leaders(values, len(values)) if (s.privacy or 0) <= level]
    return f"{_code(may[0][0])} {may[0][1]:+.3f}" if may and may[0][1] > 0 else "-"


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-")


def _completeness(board: BoardData, archive: Archive) -> list[str]:
    share = coverage(archive, archive_entries())
    (quick, quick_all), (full, full_all) = share["quick"], share["full"]
    r = board.results
    lines = [
        f"The archive holds {quick:,} of {quick_all:,} runs of the quick tier and {full:,} of {full_all:,} runs in all "
        f"({100 * full / full_all:.0f} %). This page counts {len(r.entries)} selectors on {len(r.problems)} problems "
        f"({', '.join(r.problems)}) with {len(r.seeds)} seeds.",
    ]
    notes = [f"- {note[0].upper()}{note[1:]}." for note in board.notes]
    return [*lines, "", *notes] if notes else lines


def _overall(board: BoardData) -> list[str]:
    sure = [s for s in board.standings if s.verdict == "better than uniform" and s.entry != ORACLE]
    worse = [s for s in board.standings if s.verdict == "worse than uniform"]
    said = (
        f"Better than uniform over all problems, corrected for all comparisons: {', '.join(_code(s) for s in sure)}."
        if sure
        else "Over all these problems no selector is shown to be better than uniform: after correction for so many "
        "comparisons the differences are undecided or inside the noise."
    )
    lines = [said]
    if worse:
        lines.append(f"Worse, by the same rule: {', '.join(_code(s) for s in worse)}.")
    return [*lines, "", *arena_table(board.standings), "", board.summary(), "", _rules()]


def arena_table(standings: Sequence[Standing], link: str | None = None) -> list[str]:
    """The board as a Markdown table; with `link`, selectors link to their pages in that folder."""
    lines = [
        "| | selector | average rank (95 %) | minus uniform (95 %) | won:lost | reads | traffic | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in standings:
        page = s.entry.partition("(")[0]
        name = (
            f"[{_code(s)}]({link}{page}.md)"
            if link is not None and page in catalogue("selector") and page == s.entry
            else _code(s)
        )
        lines.append(
            f"| {s.place} | {name} | {s.rank:.1f} ({s.rank_low:.1f} to {s.rank_high:.1f}) | {_difference(s)} | "
            f"{s.won}:{s.lost} | {_reads(s)} | {s.traffic:.2f} x | {s.verdict} |"
        )
    return lines


def put_table(path: Path, board: BoardData, link: str, most: int | None = None) -> None:
    """Write the board, or its first places and uniform, between the two marks of a page."""
    text = path.read_text(encoding="utf-8")
    check(
        text.count(MARKS[0]) == text.count(MARKS[1]) == 1, f"page {path}", f"it lacks {MARKS[0]}", "put both marks in"
    )
    before, rest = text.split(MARKS[0])
    shown = [s for s in board.standings if most is None or s.place <= most or s.entry == REFERENCE]
    r = board.results
    note = (
        f"`fedcohort arena board`: average rank of the area under accuracy over time, {len(r.entries)} selectors "
        f"(default parameters unless stated), {len(r.problems)} problems, {len(r.seeds)} seeds that nothing was "
        "tuned on."
    )
    table = "\n".join([note, "", *arena_table(shown, link)])
    path.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")


def _section(board: BoardData, kind: str) -> list[str]:
    """Who wins under one kind of heterogeneity, by how much, and what it needs."""
    r, values, differences = board.results, board.heat().mean(axis=1), board.results.differences()
    at = {s.entry: i for i, s in enumerate(board.standings)}
    lines = [f"## {KINDS[kind]}", "", f"Problems: {', '.join(r.problems)}; {len(r.seeds)} seeds.", ""]
    if ORACLE in at:
        lines += [f"The oracle, which knows the truth, gains {values[at[ORACLE]]:+.3f} over uniform.", ""]
    lines += [
        "| selector | minus uniform | range over seeds and problems | runs ahead | needs | own cost |",
        "|---|---|---|---|---|---|",
    ]
    best = board.leaders(values, _TOP)
    for s, value in best:
        mine = differences[at[s.entry]]
        base = catalogue("selector").get(s.entry.partition("(")[0])
        cost = base.cost if base else "cost not known"
        lines.append(
            f"| {_code(s)} | {value:+.3f} | {mine.min():+.3f} to {mine.max():+.3f} | "
            f"{int((mine > 0).sum())} of {mine.size} | {_reads(s)}{_signals(s)} | {cost}; {s.own_ms:.1f} ms a round |"
        )
    least = {s.entry: float(differences[at[s.entry]].min()) for s, _ in best}
    chance = len(board.standings) * 0.5 ** differences[0].size
    return [*lines, "", _verdict(best, least, chance), ""]


def _verdict(best: list[tuple[Standing, float]], least: dict[str, float], chance: float) -> str:
    always = [_code(s) for s, _ in best if least[s.entry] > 0]
    if always:
        by_chance = (
            f" Of so many selectors without any effect, about {chance:.0f} would be, too." if chance >= 0.5 else ""
        )
        few = "So few seeds cannot show which of them is best."
        return f"Ahead of uniform in every run: {', '.join(always)}.{by_chance} {few}"
    if best and best[0][1] > 0:
        return f"{_code(best[0][0])} leads, but not in every run: the lead is inside the noise."
    return "Nobody is ahead of uniform here."


def _code(s: Standing) -> str:
    return f"`{s.entry}`"


def _difference(s: Standing) -> str:
    if s.entry == REFERENCE or s.difference is None:
        return "-"
    return f"{s.difference:+.3f} ({s.difference_low:+.3f} to {s.difference_high:+.3f})"


def _reads(s: Standing) -> str:
    return "the truth" if s.privacy is None else f"P{s.privacy}"


def _signals(s: Standing) -> str:
    told = [f"{n} (probe)" if n in SIGNALS and SIGNALS[n].side == "probe" else n for n in s.needs]
    return f": {', '.join(told)}" if told else ""


def _rules() -> str:
    return (
        f"Parameters that are not named are the defaults. Seeds {ARCHIVE_SEEDS[0]} to {ARCHIVE_SEEDS[-1]} are the "
        f"archive's and nothing may be tuned on them; tuning uses seeds from {TUNING_SEEDS} on. In "
        "simulation `expected_seconds` is the true mean of a client's times, which favours whoever reads it; a server "
        "that has to estimate it will gain less."
    )
