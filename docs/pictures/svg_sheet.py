"""A sheet to draw on, as SVG text: no library, small files, and one file for light and dark.

Colours are those of `fedcohort.looks` and, for the dark, of the style sheet of reports: a shape names its colour
(`s0` ... `s7` for series, `o0` ... `o5` for outcomes, `ink`, `pale`, `grid`, `paper`), and the reader's preference
decides what it is.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from fedcohort.looks import COLOURS, GRID, INK, OUTCOMES, PALE

STYLE = Path(__file__).parents[2] / "src" / "fedcohort" / "report" / "web" / "style.css"
PAPER, DARK_PAPER = "#ffffff", "#12171c"


def colours() -> tuple[dict[str, str], dict[str, str]]:
    """(light, dark): name -> colour."""
    light = {"ink": INK, "pale": PALE, "grid": GRID, "paper": PAPER}
    light |= {f"s{i}": colour for i, colour in enumerate(COLOURS)}
    light |= {f"o{i}": colour for i, colour in enumerate(OUTCOMES)}
    told = STYLE.read_text("utf-8").partition("prefers-color-scheme: dark")[2].partition("\n}")[0]
    found = dict(re.findall(r"--([\w-]+): (#\w+)", told))
    dark = {"ink": found["ink"], "pale": found["pale"], "grid": found["rule"], "paper": DARK_PAPER}
    dark |= {f"s{i}": found[f"series-{i}"] for i in range(len(COLOURS))}
    dark |= {f"o{i}": found[f"outcome-{i}"] for i in range(len(OUTCOMES))}
    return light, dark


class Sheet:
    """Shapes in the order in which they are drawn."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "start",
        colour: str = "ink",
        size: float = 12,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """Words; `anchor` is start, middle or end. A halo keeps them readable over lines."""
        weight = ' font-weight="600"' if bold else ""
        weight += f' paint-order="stroke" stroke="{_c("paper")}" stroke-width="4"' if halo else ""
        where = f'x="{_n(x)}" y="{_n(y)}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        big = f' font-size="{_n(size)}"' if size != 12 else ""
        self.parts.append(f'<text {where}{big}{weight} fill="{_c(colour)}">{escape(words)}</text>')

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        colour: str = "grid",
        width: float = 1,
        dash: str = "",
    ) -> None:
        """A straight line."""
        more = f' stroke-dasharray="{dash}"' if dash else ""
        ends = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self.parts.append(f'<line {ends} stroke="{_c(colour)}" stroke-width="{_n(width)}"{more}/>')

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        opacity: float = 1,
        round: float = 0,
        edge: str = "",
    ) -> None:
        """A filled rectangle."""
        more = (f' fill-opacity="{opacity:.2f}"' if opacity < 1 else "") + (f' rx="{_n(round)}"' if round else "")
        more += f' stroke="{_c(edge)}" stroke-width="1.4"' if edge else ""
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self.parts.append(f'<rect {size} fill="{_c(fill)}"{more}/>')

    def circle(self, x: float, y: float, radius: float, fill: str, edge: str = "") -> None:
        """A dot; with an edge, a ring."""
        more = f' stroke="{_c(edge)}" stroke-width="1.6"' if edge else ""
        self.parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{_c(fill)}"{more}/>')

    def path(
        self,
        way: str,
        stroke: str = "",
        *,
        width: float = 1.6,
        fill: str = "",
        opacity: float = 1,
        end: str = "",
    ) -> None:
        """Anything else, in the language of SVG paths."""
        paint = f'fill="{_c(fill)}"' if fill else 'fill="none"'
        paint += f' stroke="{_c(stroke)}" stroke-width="{_n(width)}"' if stroke else ""
        paint += f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
        paint += f' marker-end="url(#{end})"' if end else ""
        self.parts.append(f'<path d="{way}" {paint}/>')

    def __str__(self) -> str:
        light, dark = ("".join(f"--{k}:{v};" for k, v in each.items()) for each in colours())
        used = "\n".join(self.parts)
        arrow = (
            '<marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        )
        arrow += f'<path d="M0 0L10 5L0 10z" fill="{_c("pale")}"/></marker>' if "#arrow" in used else ""
        style = f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        style += "text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif}"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        head += f' width="{_n(self.width)}" height="{_n(self.height)}" font-size="12" role="img">'
        paper = f'<rect width="{_n(self.width)}" height="{_n(self.height)}" fill="{_c("paper")}"/>'
        defs = f"<defs>{arrow}</defs>\n" if "#arrow" in used else ""
        return f"{head}\n<title>{escape(self.title)}</title>\n<style>{style}</style>\n{defs}{paper}\n{used}\n</svg>\n"

    def save(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(self), encoding="utf-8")


def points(xs: list[float], ys: list[float]) -> str:
    """A path through points."""
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in zip(xs, ys, strict=True))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two."""
    from math import ceil, floor, log10

    span = max(high - low, 1e-12)
    size = 10 ** floor(log10(span / most))
    step = next(s * size for s in (1, 2, 5, 10) if span / (s * size) <= most)
    return [round(i * step, 10) for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def cut(text: str, most: int) -> str:
    """At most so many letters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _c(name: str) -> str:
    return name if name.startswith(("#", "none")) else f"var(--{name})"
