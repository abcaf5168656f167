"""The life of a round: who does what, in order, and what is written to disk."""

from __future__ import annotations

from svg_sheet import Sheet

KINDS = {  # part -> (colour, what it is)
    "backend": ("s0", "backend: simulator or Flower"),
    "rounds": ("s6", "rounds: session and engine"),
    "selector": ("s2", "selector"),
    "method": ("s1", "method"),
    "storage": ("s3", "storage"),
}
ROWS = (  # (part, name, what happens, step) in the order of time; the second row runs from right to left
    (
        ("backend", "Backend.available", "which clients are here?", ""),
        ("rounds", "Session.ask", "clock, profiles, seed", "1 ask"),
        ("selector", "Selector.probe", "optional; costs time", ""),
        ("selector", "Selector.select", "the cohort, and why", ""),
        ("storage", "journal", "before anything is sent", ""),
    ),
    (
        ("method", "Method.aggregate", "a new model", "5 aggregate"),
        ("rounds", "close", "enough, all, or deadline", "4 close"),
        ("rounds", "validate", "each reply on its own", "3 validate"),
        ("backend", "Backend.replies", "or silence, or an error", ""),
        ("backend", "Backend.dispatch", "model and training plan", "2 dispatch"),
    ),
    (
        ("rounds", "Session.tell", "one outcome per client", "6 tell"),
        ("storage", "journal", "outcomes and metrics", ""),
        ("selector", "Selector.observe", "learns", ""),
        ("storage", "run folder", "snapshots, metrics", ""),
        ("rounds", "report, dashboard", "read only", ""),
    ),
)
LEFT, TOP, ACROSS, DOWN, WIDE, TALL = 44, 76, 206, 130, 176, 66


def life_of_a_round() -> Sheet:
    """Three rows of five boxes, and the way between them."""
    sheet = Sheet(1064, 460, "The life of a round")
    x = float(LEFT)
    for colour, words in KINDS.values():
        sheet.rect(x, 16, 16, 16, colour, opacity=0.18, round=4, edge=colour)
        sheet.text(x + 24, 29, words, size=13)
        x += 46 + 7.2 * len(words)
    for row, boxes in enumerate(ROWS):
        for column, (part, name, words, step) in enumerate(boxes):
            _box(sheet, LEFT + ACROSS * column, TOP + DOWN * row, KINDS[part][0], name, words, step)
        for column in range(4):
            right = LEFT + ACROSS * column + WIDE
            ends = (right + 30, right + 2) if row == 1 else (right, right + 28)
            _arrow(sheet, f"M{ends[0]} {TOP + DOWN * row + TALL // 2}H{ends[1]}")
    low = TOP + 2 * DOWN + TALL
    _arrow(sheet, f"M{LEFT + 4 * ACROSS + WIDE // 2} {TOP + TALL}V{TOP + DOWN - 2}")
    _arrow(sheet, f"M{LEFT + WIDE // 2} {TOP + DOWN + TALL}V{TOP + 2 * DOWN - 2}")
    _arrow(sheet, f"M{LEFT + 2 * ACROSS + WIDE // 2} {low}V{low + 26}H22V{TOP + TALL // 2}H{LEFT - 2}")
    sheet.text(LEFT + WIDE / 2, low + 44, "next round", anchor="middle", colour="pale")
    return sheet


def _box(sheet: Sheet, x: float, y: float, colour: str, name: str, words: str, step: str) -> None:
    sheet.rect(x, y, WIDE, TALL, colour, opacity=0.18, round=8, edge=colour)
    sheet.text(x + WIDE / 2, y + 29, name, anchor="middle", bold=True, size=14)
    sheet.text(x + WIDE / 2, y + 49, words, anchor="middle", colour="pale", size=12.5)
    if step:
        sheet.text(x + 2, y - 8, step, colour="pale", bold=True)


def _arrow(sheet: Sheet, way: str) -> None:
    sheet.path(way, "pale", end="arrow")
