"""Draw docs/pictures/ledger-debts.svg: how debts become cohorts, in three consecutive rounds of a small federation.

    python benchmarks/ledger_picture.py

Sixteen clients whose updates pull in four directions, four of them asked a round. Nothing is trained: an update is a common
direction plus the client's own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.selectors.ledger import Ledger
from fedcohort.types import Cohort, Outcome, Round, RoundResult, Signals

FILE = Path(__file__).parents[1] / "docs" / "pictures" / "ledger-debts.svg"
CLIENTS, SIZE, FIRST, SHOWN = 16, 4, 8, 3
WIDTH, PANEL, LEFT, TOP = 1064, 172, 96, 92
STEP, UNIT = 44, 38  # pixels per client and per place owed
STYLE = """
    text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
    .name { font-weight: 600; font-size: 14px; } .note { font-size: 12px; fill: #57606a; } .middle { text-anchor: middle; }
    .end { text-anchor: end; } .paper { fill: #ffffff; } .owed { fill: #d0d7de; } .chosen { fill: #1a7f37; }
    .out { fill: #ffffff; stroke: #8c959f; stroke-dasharray: 3 2; } .axis { stroke: #6e7781; }
    .bound { stroke: #0969da; stroke-width: 1.6; stroke-dasharray: 5 4; } .blue { fill: #0969da; }
    .way { stroke: #57606a; stroke-width: 1.6; } .way.chosen { stroke: #1a7f37; stroke-width: 2.2; } .ring { fill: none; stroke: #d0d7de; }
    .sum { stroke: #bc4c00; stroke-width: 2.4; } .rust { fill: #bc4c00; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .note { fill: #9ea7b3; } .paper { fill: #0d1117; } .owed { fill: #484f58; } .chosen { fill: #3fb950; }
      .out { fill: #0d1117; stroke: #6e7681; } .axis { stroke: #8b949e; } .bound { stroke: #58a6ff; } .blue { fill: #58a6ff; }
      .way { stroke: #9ea7b3; } .way.chosen { stroke: #3fb950; } .ring { stroke: #484f58; } .sum { stroke: #f0883e; } .rust { fill: #f0883e; }
    }
"""


def federation() -> tuple[np.ndarray, np.ndarray]:
    """(seconds, own directions) of the clients, from fast to slow."""
    rng = generator(3, "ledger-picture")
    seconds = np.sort(np.repeat([2.0, 5.0, 14.0], [6, 6, 4]) * rng.lognormal(0, 0.12, CLIENTS))
    angle = (np.arange(CLIENTS) * 7 % 4) * np.pi / 2 + rng.normal(0, 0.2, CLIENTS) + np.pi / 4
    return seconds, np.stack([np.cos(angle), np.sin(angle)], axis=1)


def played() -> list[tuple[Round, Cohort, np.ndarray, np.ndarray]]:
    """The rounds that are shown: what was asked, the cohort, everybody's debt before it, everybody's sketch."""
    seconds, own = federation()
    selector, shown = Ledger(pace=1.0), []
    for index in range(FIRST + SHOWN):
        rng = generator(3, "round", index)
        here = np.flatnonzero(rng.random(CLIENTS) < 0.85)
        profiles = Signals({"samples": np.full(CLIENTS, 50), "expected_seconds": seconds})
        rnd = Round(index, SIZE, here, CLIENTS, profiles=profiles)
        cohort = selector.select(rnd, generator(3, "select", index))
        state = selector.state
        if index >= FIRST:
            debts = np.minimum(state.owed + state.quality * SIZE / state.quality.sum(), 3)
            shown.append((rnd, cohort, debts, state.sketch[:, :2].copy()))
        who = cohort.clients
        rows = np.array([1.0, 0.3]) + own[who] + 0.1 * rng.normal(size=(who.size, 2))
        told = {
            "delta": rows,
            "last_layer_delta": rows,
            "loss_before": np.ones(who.size),
            "loss_after": np.ones(who.size),
        }
        ok = np.full(who.size, Outcome.OK, np.int8)
        selector.observe(RoundResult(index, who, ok, seconds[who] * rng.lognormal(0, 0.1, who.size), Signals(told)))
    return shown


def arrow(x: float, y: float, way: np.ndarray, length: float, kind: str) -> str:
    """A short line with a dot at its head."""
    a, b = x + length * way[0], y - length * way[1]
    dot = {"sum": "rust", "way": "note", "way chosen": "chosen"}[kind]
    line = f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{a:.1f}" y2="{b:.1f}"/>'
    return line + f'<circle class="{dot}" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>'


def panel(rnd: Round, cohort: Cohort, debts: np.ndarray, sketch: np.ndarray, top: float) -> list[str]:
    """One round: bars of debts from fast to slow, the pace of the cohort, and what its members add up to."""
    base, seconds = top + PANEL - 68, federation()[0]
    slowest = cohort.clients.max()
    bound = LEFT + STEP * (slowest + 1) - 4
    parts = [f'<text class="name" x="16" y="{top + 26}">round {rnd.index}</text>']
    parts.append(f'<line class="axis" x1="{LEFT - 8}" y1="{base}" x2="{LEFT + STEP * CLIENTS}" y2="{base}"/>')
    for i in range(CLIENTS):
        x, high = LEFT + STEP * i, UNIT * float(debts[i])
        asked = i in cohort.clients
        kind = "chosen" if asked else "owed" if i in rnd.available else "out"
        y = base - max(high, 0)
        parts.append(f'<rect class="{kind}" x="{x}" y="{y:.1f}" width="{STEP - 14}" height="{max(abs(high), 1):.1f}"/>')
        length = np.hypot(*sketch[i])
        if length > 0:
            parts.append(arrow(x + 15, y - 14, sketch[i] / length, 10, "way chosen" if asked else "way"))
    parts.append(f'<line class="bound" x1="{bound}" y1="{top + 14}" x2="{bound}" y2="{base + 8}"/>')
    side, x = ("end", bound - 6) if slowest > CLIENTS - 3 else ("", bound + 6)
    y = top + (10 if side else 24)
    parts.append(f'<text class="blue {side}" x="{x}" y="{y}">pace: at most {seconds[slowest]:.0f} s</text>')
    x, y, scale = LEFT + STEP * CLIENTS + 96, top + PANEL / 2 - 6, 24
    parts.append(f'<circle class="ring" cx="{x}" cy="{y}" r="52"/>')
    parts += [arrow(x, y, sketch[i], scale, "way chosen") for i in cohort.clients]
    parts.append(arrow(x, y, sketch[cohort.clients].mean(axis=0), scale, "sum"))
    return parts


def picture() -> str:
    """The whole drawing."""
    body = []
    for row, (rnd, cohort, debts, sketch) in enumerate(played()):
        body += panel(rnd, cohort, debts, sketch, TOP + row * PANEL)
    height, mark, right = TOP + SHOWN * PANEL + 34, TOP - 26, LEFT + STEP * CLIENTS + 96
    for i, seconds in enumerate(federation()[0]):
        body.append(f'<text class="note middle" x="{LEFT + STEP * i + 15}" y="{height - 14}">{seconds:.0f} s</text>')
    keys = [("chosen", 16, "asked this round"), ("owed", 170, "owed, not asked"), ("out", 318, "not available")]
    for kind, x, words in keys:
        body.append(f'<rect class="{kind}" x="{x}" y="{mark - 11}" width="13" height="13"/>')
        body.append(f'<text x="{x + 20}" y="{mark}">{words}</text>')
    body.append(f'<text x="460" y="{mark}">small arrow: how its update differs from the others</text>')
    body.append(f'<text class="middle" x="{right}" y="{mark}">the cohort together</text>')
    body.append(f'<text class="middle rust" x="{right}" y="{mark + 17}">and its mean</text>')
    head = '<text class="name" x="16" y="28">How debts become cohorts: bars are places owed, clients from fast to slow</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title description">\n<title id="title">How debts become cohorts</title>\n'
        f'<desc id="description">Three rounds: places owed to sixteen clients, who is asked, the pace of the cohort, and '
        f"how the updates of its members balance.</desc>\n<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>\n' + "\n".join([head, *body]) + "\n</svg>\n"
    )


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
    print(FILE)
