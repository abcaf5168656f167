"""Tables whose columns are the parts of a run, as curves: regret of a bandit, rewards and skewness along a run.

A point is our mean, the band its spread over seeds (see paper_plots). Columns are named "SETTING: after 1/4 of the
rounds" or "rounds 1-20": a panel per setting, a line per row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from svg_sheet import Sheet, cut, points, ticks

from fedcohort.papers.paper_evidence import seeds_text

WIDTH, TALL, TOP, LEFT, RIGHT, GAP = 1000, 250, 84, 52, 230, 46  # pixels
_STEP = re.compile(r"(?:(?P<setting>.*): )?(?P<step>after \d+/\d+ of the rounds|rounds \d+-\d+)")
Curve = dict[str, Mapping[str, Any]]  # by step


def curves_of(result: Mapping[str, Any]) -> dict[str, dict[str, Curve]]:
    """By setting and row; empty unless every column is a part of a run."""
    found: dict[str, dict[str, Curve]] = {}
    for cell in result["cells"]:
        told = _STEP.fullmatch(cell["column"])
        if told is None:
            return {}
        found.setdefault(told["setting"] or "", {}).setdefault(cell["row"], {})[told["step"]] = cell
    return found


def ours_text(result: Mapping[str, Any]) -> str:
    """ "ours, mean of 2 to 6 seeds and their spread"; cells without a number are not counted."""
    counts = [len(cell["values"]) for cell in result["cells"] if cell["values"]]
    if not counts:
        return "ours: not run yet"
    return f"ours, mean of {seeds_text(counts)} and their spread" if max(counts) > 1 else "ours, one seed"


def draw(result: Mapping[str, Any]) -> Sheet:
    """One study."""
    settings = curves_of(result)
    sheet = Sheet(WIDTH, TOP + TALL + 44, str(result["title"]))
    sheet.text(12, 20, cut(str(result["title"]), 118), size=14, bold=True)
    sheet.text(12, 40, f"{ours_text(result)}; scale {result['scale']}", colour="pale")
    wide = (WIDTH - LEFT - RIGHT - GAP * (len(settings) - 1)) / len(settings)
    for number, (setting, rows) in enumerate(settings.items()):
        _panel(sheet, LEFT + number * (wide + GAP), wide, setting, rows)
    for i, row in enumerate(next(iter(settings.values()))):
        y = TOP + 14 + 20 * i
        sheet.line(WIDTH - RIGHT + 20, y - 4, WIDTH - RIGHT + 40, y - 4, f"s{i}", 2.4)
        sheet.text(WIDTH - RIGHT + 48, y, row)
    return sheet


def _panel(sheet: Sheet, left: float, wide: float, setting: str, rows: Mapping[str, Curve]) -> None:
    steps = list(next(iter(rows.values())))
    known = [v for curve in rows.values() for c in curve.values() for v in _ends(c) if v is not None]
    if not known:
        return
    room = 0.06 * (max(known) - min(known)) or 1.0
    low, high = min(known) - room, max(known) + room

    def y(value: float) -> float:
        return TOP + TALL * (high - value) / (high - low)

    xs = [left + wide * (i + 0.5) / len(steps) for i in range(len(steps))]
    sheet.text(left, TOP - 14, setting, bold=True)
    for tick in ticks(low, high):
        sheet.line(left, y(tick), left + wide, y(tick))
        sheet.text(left - 6, y(tick) + 4, f"{tick:g}", anchor="end", colour="pale", size=11)
    for x, step in zip(xs, steps, strict=True):
        sheet.text(x, TOP + TALL + 18, step.removesuffix(" of the rounds"), anchor="middle", colour="pale", size=11)
    for i, curve in enumerate(rows.values()):
        there = [(x, curve[step]) for x, step in zip(xs, steps, strict=True) if curve[step]["mean"] is not None]
        at, ends = [x for x, _ in there], [_ends(cell) for _, cell in there]
        if at:
            band = points([*at, *reversed(at)], [*(y(e[1]) for e in ends), *(y(e[2]) for e in reversed(ends))])
            sheet.path(f"{band}Z", fill=f"s{i}", opacity=0.14)
            sheet.path(points(at, [y(e[0]) for e in ends]), f"s{i}", width=2.4)


def _ends(cell: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Mean, low, high; of one seed all the same."""
    mean = cell["mean"]
    return mean, mean if cell["low"] is None else cell["low"], mean if cell["high"] is None else cell["high"]
