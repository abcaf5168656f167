"""Each reproduced table as a dot plot (or curves), ours beside the published number: docs/pictures/papers/STUDY.svg.

From results/*-laptop.json (and -desk, -paper) alone. A dot is our mean, the line its range (from five seeds on the 95 %
interval), the hollow diamond the published number. Absolute numbers differ by scale; what is compared are orders,
within a column, or in the whole table where claims compare its columns, which then have a common axis. Ours and the
published numbers have a scale each where they do not meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import curve_plots
from svg_sheet import Sheet, cut, ticks

from fedcohort import papers
from fedcohort.papers.result_files import load, picture_name, rows_and_columns

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "pictures" / "papers"
SCALES = ("laptop", "desk", "paper")
LINE, HEAD, FOOT, GAP = 18, 34, 34, 22
LETTER = 7.4  # pixels of a bold one
WIDTH, ACROSS, LONGEST = 1000, 4, 52  # pixels, panels, letters of a row
Cell = Mapping[str, Any]


def studies() -> list[dict[str, Any]]:
    """The results of all studies, at every scale that was run."""
    found = [path for scale in SCALES for path in sorted((ROOT / "results").glob(f"*-{scale}.json"))]
    return [load(path) for path in found]


def draw(result: Mapping[str, Any]) -> Sheet:
    """One study: a panel per column, a line per row; columns that are parts of a run make curves."""
    if curve_plots.curves_of(result):
        return curve_plots.draw(result)
    cells = _comparable(result["cells"])
    rows, columns = rows_and_columns(cells)
    if len(rows) == 1 and len(columns) > 2:  # a curve: its columns become lines
        return _draw(result, columns, [""], {(c["column"], ""): c for c in cells})
    return _draw(result, rows, columns, {(c["row"], c["column"]): c for c in cells})


def _comparable(cells: list[Cell]) -> list[Cell]:
    """Without differences of cells in the columns of these cells, whose axis they would stretch to zero."""
    measured = {cell["column"] for cell in cells if cell["config"]}
    return [cell for cell in cells if cell["config"] or cell["column"] not in measured]


def _draw(result: Mapping[str, Any], rows: list[str], columns: list[str], at: Mapping[tuple[str, str], Cell]) -> Sheet:
    longest = min(LONGEST, max(map(len, rows)))
    start = 30 + 6.8 * longest  # where the panels begin
    across = min(ACROSS if longest < 34 else ACROSS - 1, len(columns))
    lines = -(-len(columns) // across)
    tall = HEAD + LINE * len(rows) + FOOT
    sheet = Sheet(WIDTH, 52 + lines * tall, str(result["title"]))
    sheet.text(12, 20, cut(str(result["title"]), 118), size=14, bold=True)
    shared = list(at.values()) if _compares_columns(result) else []
    _key(sheet, result, "in the whole table" if shared else "within a panel")
    wide = (WIDTH - start - 16 - GAP * (across - 1)) / across
    for number, column in enumerate(columns):
        left = start + (number % across) * (wide + GAP)
        top = 52 + (number // across) * tall
        if number % across == 0:
            for i, row in enumerate(rows):
                sheet.text(start - 12, top + HEAD + LINE * i + 13, cut(row, LONGEST), anchor="end")
        cells = [at.get((row, column)) for row in rows]
        _panel(sheet, left, top, wide, column, cells, shared)
    return sheet


def _compares_columns(result: Mapping[str, Any]) -> bool:
    """Whether a claim is about different columns of one quantity."""
    if len({cell["quantity"] for cell in result["cells"]}) > 1:
        return False
    claims = papers.studies()[result["study"]].claims(result["scale"])
    return any(a[1] != b[1] for c in claims for a, b in zip(c.left, c.right, strict=False))


def _key(sheet: Sheet, result: Mapping[str, Any], where: str) -> None:
    sheet.circle(18, 36, 4, "s0")
    sheet.text(28, 40, curve_plots.ours_text(result), colour="pale")
    if any(cell["published"] is not None for cell in result["cells"]):
        sheet.path(_diamond(318, 36), "s1")
        sheet.text(328, 40, "published", colour="pale")
    else:
        sheet.text(318, 40, "no published numbers", colour="pale")
    words = f"scale {result['scale']}: compare orders {where}, not levels"
    sheet.text(988, 40, words, anchor="end", colour="pale")


def _panel(
    sheet: Sheet, left: float, top: float, wide: float, column: str, cells: list[Cell | None], shared: list[Cell]
) -> None:
    """One column; its axis is that of the `shared` cells, where there are any, or its own."""
    known = shared or [cell for cell in cells if cell]
    ours = [v for c in known for v in (c["mean"], c["low"], c["high"]) if v is not None]
    published = [c["published"] for c in known if c["published"] is not None]
    for i, line in enumerate(_heading(column, int(wide / LETTER))):
        sheet.text(left, top + 22 - 14 * i, line, bold=True)
    if not ours and not published:
        return
    axis = BrokenAxis(left, wide, *_ranges(ours, published))
    bottom = top + HEAD + LINE * len(cells)
    for x, words in axis.ticks():
        sheet.line(x, top + HEAD - 4, x, bottom)
        sheet.text(x, bottom + 14, words, anchor="middle", colour="pale", size=11)
    for x in axis.breaks():
        sheet.line(x, top + HEAD - 4, x, bottom, "pale", 1, "2 3")
    for i, cell in enumerate(cells):
        y = top + HEAD + LINE * i + 9
        if cell is None:
            continue
        if cell["low"] is not None and cell["high"] is not None:
            sheet.line(axis.at(cell["low"]), y, axis.at(cell["high"]), y, "s0", 2)
        if cell["published"] is not None:
            sheet.path(_diamond(axis.at(cell["published"]), y), "s1", fill="paper")
        if cell["mean"] is not None:
            sheet.circle(axis.at(cell["mean"]), y, 4, "s0")


def _heading(text: str, most: int) -> list[str]:
    """One line, or two from below where it is too long for one and can be divided."""
    for mark in (": ", ", "):
        first, _, second = text.partition(mark)
        if len(text) > most and second:
            return [cut(second, most), cut(first, most)]
    return [cut(text, most)]


def _ranges(ours: list[float], published: list[float]) -> list[tuple[float, float]]:
    """One range with room at both ends, or two where ours and the published numbers do not meet, in order."""
    first, second = sorted((ours, published), key=lambda some: min(some, default=math.inf))
    if not second or min(second) <= max(first):
        return [_spread([*first, *second])]
    middle = (max(first) + min(second)) / 2
    return [(_spread(first)[0], min(_spread(first)[1], middle)), (max(_spread(second)[0], middle), _spread(second)[1])]


def _spread(values: list[float]) -> tuple[float, float]:
    room = 0.12 * (max(values) - min(values)) or 0.05 * abs(max(values)) or 1.0
    return min(values) - room, max(values) + room


class BrokenAxis:
    """One axis over one or two ranges; two that do not meet have a scale each, and nothing between them."""

    def __init__(self, left: float, wide: float, *ranges: tuple[float, float]) -> None:
        self.left, self.gap, self.ranges = left, 18.0, ranges
        self.each = (wide - self.gap * (len(self.ranges) - 1)) / len(self.ranges)

    def at(self, value: float) -> float:
        """Where a value is."""
        where = next((i for i, (_, high) in enumerate(self.ranges) if value <= high), len(self.ranges) - 1)
        low, high = self.ranges[where]
        return self.left + where * (self.each + self.gap) + self.each * (value - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """(place, words) of round numbers."""
        most = max(3, int(self.each / 44))
        return [(self.at(tick), f"{tick:g}") for low, high in self.ranges for tick in ticks(low, high, most)]

    def breaks(self) -> list[float]:
        """Where the axis is interrupted."""
        return [self.at(high) + self.gap / 2 for _, high in self.ranges[:-1]]


def _diamond(x: float, y: float) -> str:
    return f"M{x - 5:.1f} {y:.1f}l5 -5 5 5 -5 5z"


def main() -> list[Path]:
    """All studies."""
    out = []
    for result in studies():
        out.append(TARGET / picture_name(result))
        draw(result).save(out[-1])
    return out
