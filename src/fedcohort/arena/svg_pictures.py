"""Pictures of a board as SVG text: nothing to install, the same board gives the same bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from fedcohort.arena.board_data import BoardData, Standing
from fedcohort.arena.run_scores import SCORES
from fedcohort.errors import BadParameter
from fedcohort.looks import COLOURS, DARK_COLOURS, Look, look, looks

GREY, PALE, PAPER = "var(--ink)", "var(--line)", "var(--paper)"  # of the reader's scheme, light or dark
CELL_INK, CELL_PALE = "#4a4a4a", "#e3e8ec"  # on the colours of the heat map, which are the same in both
_LIGHT, _DARK = (" ".join(f"--s{i}: {c};" for i, c in enumerate(each)) for each in (COLOURS, DARK_COLOURS))
STYLE = f""":root {{ --ink: #4a4a4a; --line: #e3e8ec; --paper: #ffffff; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #cfd6dd; --line: #303a45; --paper: #12171c; {_DARK} }} }}"""
_LINE = 18  # pixels between two entries
_FULL = 0.12  # difference of accuracy that gets the full colour


@dataclass(frozen=True)
class SvgPicture:
    """A picture that notebooks show; `save` writes it to a file."""

    body: str
    width: int
    height: int

    def __str__(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
        size = f'width="{self.width}" height="{self.height}"'
        style = 'font-family="system-ui, sans-serif" font-size="12"'
        ground = f'<style>{STYLE}</style><rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>'
        return f"{head} {size} {style}>{ground}{self.body}</svg>\n"

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> Path:
        """Write an .svg file."""
        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise BadParameter(f"file {str(path)!r}", "its name must end in .svg", "use e.g. board.svg")
        if not target.parent.is_dir():
            raise BadParameter(f"file {str(path)!r}", "its folder does not exist", f"create {target.parent} first")
        target.write_text(str(self), encoding="utf-8")
        return target


def stacked(*pictures: SvgPicture) -> SvgPicture:
    """Pictures below each other."""
    parts, top = [], 0
    for each in pictures:
        parts.append(f'<g transform="translate(0 {top})">{each.body}</g>')
        top += each.height
    return SvgPicture("".join(parts), max(p.width for p in pictures), top)


def board_picture(board: BoardData) -> SvgPicture:
    """Average ranks with intervals and the critical difference, then the heat map."""
    return stacked(rank_picture(board), heat_map(board))


def rank_picture(board: BoardData) -> SvgPicture:
    """A line per entry: average rank, its interval, and bars at the right that join what cannot be told apart."""
    left, wide, top = 230, 460, 66
    count = len(board.standings)

    def x(rank: float) -> float:
        return left + wide * (rank - 1.0) / max(count - 1.0, 1.0)

    height = top + _LINE * count + 16
    parts = [_text(12, 20, "Average rank over problems (1 is best), 95 % interval over problems and seeds", bold=True)]
    for tick in sorted({1, count, *range(5, count, 5)}):
        parts.append(_line(x(tick), top - 12, x(tick), height - 14, PALE))
        parts.append(_text(x(tick), top - 16, str(tick), "middle"))
    span = min(board.critical, count - 1.0)
    parts.append(_line(x(1.0), 34, x(1.0 + span), 34, GREY, 2))
    parts.append(_text(x(1.0 + span) + 6, 38, f"critical difference {board.critical:.1f}"))
    for at, s in enumerate(board.standings):
        y, colour = top + _LINE * at, _series(look(s.entry))
        parts.append(_text(left - 12, y + 4, _short(s.entry), "end", bold=_marked(s)))
        parts.append(_line(x(s.rank_low), y, x(s.rank_high), y, colour, 2))
        parts.append(f'<circle cx="{x(s.rank):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    for at, (first, last) in enumerate(board.groups):
        where = left + wide + 16 + 7 * at
        parts.append(_line(where, top + _LINE * first - 4, where, top + _LINE * last + 4, GREY, 2.5))
    return SvgPicture("".join(parts), left + wide + 30 + 7 * max(len(board.groups), 1), height)


def heat_map(board: BoardData) -> SvgPicture:
    """Difference to uniform of each entry on each problem, in hundredths for accuracies."""
    left, cell, top = 230, 62, 120
    heat, names = board.heat(), board.results.problems
    unit = "log ratio" if SCORES[board.score].logarithmic else "points of accuracy"
    title = f"{board.score}: mean difference to uniform in the same seed, {unit} (blue: better)"
    parts = [_text(12, 20, title, bold=True)]
    for i, name in enumerate(names):
        spot = left + cell * i + cell / 2
        turned = f'x="{spot:.1f}" y="{top - 10}" transform="rotate(-35 {spot:.1f} {top - 10})"'
        parts.append(f"<text {turned}>{escape(name)}</text>")
    for at, s in enumerate(board.standings):
        y = top + _LINE * at
        parts.append(_text(left - 12, y + 13, _short(s.entry), "end", bold=_marked(s)))
        for i in range(len(names)):
            value = float(heat[at, i])
            fill, ink = _shade(value)
            parts.append(f'<rect x="{left + cell * i}" y="{y}" width="{cell - 2}" height="{_LINE - 2}" fill="{fill}"/>')
            parts.append(_text(left + cell * i + cell / 2 - 1, y + 12, _number(value, unit), "middle", ink))
    return SvgPicture("".join(parts), left + cell * len(names) + 60, top + _LINE * len(board.standings) + 20)


def profile_picture(board: BoardData, entries: Sequence[str]) -> SvgPicture:
    """Performance profiles: the share of runs within a gap of the best, for some entries."""
    left, wide, high, top = 60, 460, 240, 40
    gaps = np.linspace(0.0, 2.0 if SCORES[board.score].logarithmic else 0.3, 61)
    table = board.profile(gaps.tolist())
    parts = [_text(12, 20, "Performance profile: share of runs within a gap of the best one", bold=True)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + high * (1 - share)
        parts += [_line(left, y, left + wide, y, PALE), _text(left - 8, y + 4, f"{share:.2f}", "end")]
    for gap in gaps[::20]:
        parts.append(_text(left + wide * gap / gaps[-1], top + high + 16, f"{gap:.2f}", "middle"))
    own = looks(entries)
    for number, name in enumerate(entries):
        row, colour = table[board.results.entries.index(name)], _series(own[name])
        dashed = f' stroke-dasharray="{" ".join(map(str, own[name].dash))}"' if own[name].dash else ""
        points = " ".join(
            f"{left + wide * g / gaps[-1]:.1f},{top + high * (1 - v):.1f}" for g, v in zip(gaps, row, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
        y = top + 10 + _LINE * number
        parts.append(_line(left + wide + 14, y, left + wide + 44, y, colour, 2, dashed))
        parts.append(_text(left + wide + 52, y + 4, _short(name)))
    parts.append(_text(left + wide / 2, top + high + 34, f"gap in {board.score}", "middle"))
    return SvgPicture("".join(parts), left + wide + 280, top + high + 46)


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = GREY, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0, more: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{more}/>'


def _series(own: Look) -> str:
    return f"var(--s{own.index})"


def _marked(s: Standing) -> bool:
    """Whether a name stands out: one's own, and what it is measured against."""
    return s.mine or s.entry in ("uniform", "oracle")


def _short(name: str, most: int = 34) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."


def _shade(value: float) -> tuple[str, str]:
    """Background from orange (worse) over white to blue (better), and a text colour that can be read on it."""
    if math.isnan(value):
        return CELL_PALE, CELL_INK
    share = max(-1.0, min(1.0, value / _FULL))
    goal = (0, 114, 178) if share > 0 else (213, 94, 0)
    mixed = [round(255 + abs(share) * (c - 255)) for c in goal]
    return "#{:02x}{:02x}{:02x}".format(*mixed), "#ffffff" if abs(share) > 0.6 else CELL_INK


def _number(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "n/a" if math.isnan(value) else "-" if value < 0 else "+"
    return f"{100 * value:+.1f}" if unit.startswith("points") else f"{value:+.2f}"
