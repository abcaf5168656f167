"""How things look, in every picture alike: one colour, dash and marker per selector or method, and units of time.

The place of a name is fixed: a table for the names below, a digest of the text for any other, so that `oort` is blue in
the demo, a report, the dashboard and the arena. Arguments keep the colour and change the dash: `oort` and
`oort(explore=0.8)` are both blue. Colours are those of Okabe and Ito, which colour-blind people can tell apart; the
style sheet of pages has the same ones (`report/web/style.css`), and lighter ones for the dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b3518a", "#b07c00", "#2f9fd8", "#4a4a4a", "#8a6d3b")
DARK_COLOURS = ("#56b4e9", "#ff8a3c", "#2fc99b", "#e79ac3", "#f0c04a", "#4a90d9", "#cfd6dd", "#c3a36b")  # in the dark
OUTCOMES = ("#0072b2", "#e69f00", "#d55e00", "#b3518a", "#7fc4ea", "#8b96a1")  # OK, LATE, ..., not back yet
DASHES = ((), (7, 4), (2, 3), (10, 3, 2, 3))  # pixels drawn and left out
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, PALE, GRID = "#1c2733", "#5a6876", "#dfe4e9"
STEPS = (1, 2, 5, 10)  # between the ticks of an axis, times a power of ten
_PLACES = (  # one row per dash, one column per colour
    ("oort", "ledger", "fedacs", "flash", "power-of-choice", "hetero-select", "uniform", "fedcm-ucb"),
    ("pyramidfl", "flash-rl", "rexp3", "linucb", "afl", "divfl", "proportional", "fedcm-ts"),
    ("fedcs", "favor", "fedcor", "neural-bandit", "feel", "clustered", "round-robin", "tifl"),
    ("ucb1", "epsilon-greedy", "quota", "restless-bandit", "warm-up", "explore", "oracle", "floor"),
)
_FIXED = {name: (column, row) for row, names in enumerate(_PLACES) for column, name in enumerate(names)}
_FIXED |= {"fedavg": _FIXED["uniform"]}  # the baseline of methods, as that of selectors, is grey
_UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True, slots=True)
class Look:
    """Positions in COLOURS, DASHES and MARKERS.

    >>> look("oort").colour, look("oort(explore=0.8)").colour == look("oort").colour
    ('#0072b2', True)
    """

    index: int
    row: int
    shift: int = 0  # of the marker, where all dashes of a colour are taken

    @property
    def colour(self) -> str:
        """Its colour on a light ground."""
        return COLOURS[self.index]

    @property
    def dash(self) -> tuple[int, ...]:
        """Pixels drawn and left out; nothing for a solid line."""
        return DASHES[self.row]

    @property
    def marker(self) -> int:
        """Its position in MARKERS: two names of one colour differ in dash and marker."""
        return (self.index + 3 * self.row + self.shift) % len(MARKERS)

    def data(self) -> dict[str, Any]:
        """As plain values for a page."""
        return {"index": self.index, "dash": list(self.dash), "marker": self.marker}

    def line(self) -> dict[str, Any]:
        """As arguments of a line of matplotlib."""
        style = (0, tuple(d / 2 for d in self.dash)) if self.dash else "-"
        return {"color": self.colour, "linestyle": style, "marker": MARKERS[self.marker]}


def look(text: str) -> Look:
    """The look of a selector or method, by its text."""
    name, _, arguments = text.partition("(")
    digest = crc32(name.encode())
    index, row = _FIXED.get(name, (digest % len(COLOURS), digest // len(COLOURS) % len(DASHES)))
    if arguments.strip(") "):
        row += 1 + crc32(arguments.encode()) % (len(DASHES) - 1)
    return Look(index, row % len(DASHES))


def looks(texts: Iterable[str]) -> dict[str, Look]:
    """The looks of several in one picture: where two would look the same, the later one gets another dash.

    Names of the table go first, then by name. When all dashes of a colour are taken the marker changes: the colour
    stays that of the selector, however many variants of it there are.
    """
    out: dict[str, Look] = {}
    taken: set[Look] = set()
    every = len(MARKERS) * len(DASHES)
    for text in sorted(set(texts), key=lambda t: (t not in _FIXED, t)):
        own = look(text)
        tried = (Look(own.index, (own.row + k) % len(DASHES), k // len(DASHES)) for k in range(every))
        out[text] = next((found for found in tried if found not in taken), own)
        taken.add(out[text])
    return out


def time_unit(seconds: float) -> tuple[float, str]:
    """(its seconds, its name) of the unit for an axis of this length.

    >>> time_unit(90.0), time_unit(10_000.0)
    ((1.0, 's'), (3600.0, 'h'))
    """
    return next(((size, name) for size, name in _UNITS if seconds >= 2 * size), _UNITS[-1])


def time_text(mean: float | None, low: float | None = None, high: float | None = None, form: str = "[{}, {}]") -> str:
    """A time as a person says it, and its spread in the same unit.

    >>> time_text(42.0), time_text(5400), time_text(200_000), time_text(5400, 3600, 7200)
    ('42 s', '1.5 h', '2.31 days', '1.5 [1, 2] h')
    """
    if mean is None or not math.isfinite(mean):
        return "-"
    size, unit = next(((size, name) for size, name in _UNITS if abs(mean) >= size), _UNITS[-1])
    spread = "" if low is None or high is None else " " + form.format(_short(low / size), _short(high / size))
    return f"{_short(mean / size)}{spread} {unit}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
