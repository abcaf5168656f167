"""Progress of one run on standard error: one line, rewritten, in a terminal or notebook; elsewhere ten lines."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from fedcohort.looks import time_text

LINES = 10  # of a run whose output goes to a file
OFTEN = 0.2  # seconds between two changes of the line in a terminal


class RoundProgress:
    """Called with the numbers of each round.

    >>> import io
    >>> shown = io.StringIO()
    >>> progress = RoundProgress(2, shown)
    >>> for t in range(2):
    ...     progress({"round": t, "accuracy": 0.5})
    >>> shown.getvalue().splitlines()[0].startswith("round 1/2, accuracy 50.0 %")
    True
    """

    def __init__(self, rounds: int, stream: TextIO | None = None) -> None:
        self.rounds, self.stream = rounds, stream or sys.stderr
        self.live = self.stream.isatty() or (stream is None and "ipykernel" in sys.modules)
        self.began, self.shown, self.first, self.accuracy = time.monotonic(), -math.inf, -1, math.nan

    def __call__(self, row: Mapping[str, float]) -> None:
        """One more round."""
        done = int(row["round"]) + 1
        self.first = done - 1 if self.first < 0 else self.first  # a resumed run begins later
        self.accuracy = row.get("accuracy", self.accuracy)
        now, last = time.monotonic(), done >= self.rounds
        step = max(1, -(-self.rounds // LINES))
        if not last and (now - self.shown < OFTEN if self.live else done % step):
            return
        self.shown = now
        left = (now - self.began) / max(done - self.first, 1) * (self.rounds - done)
        known = "" if math.isnan(self.accuracy) else f", accuracy {100 * self.accuracy:.1f} %"
        text = f"round {done}/{self.rounds}{known}, {'done' if last else time_text(left) + ' left'}"
        end = "\n" if last or not self.live else ""
        self.stream.write(f"\r{text:<60}{end}" if self.live else f"{text}{end}")
        self.stream.flush()


def told_too(rounds: int, on_round: Callable[[dict[str, Any]], None] | None) -> Callable[[dict[str, Any]], None]:
    """Progress, and then whatever else is called with each round."""
    progress = RoundProgress(rounds)

    def both(row: dict[str, Any]) -> None:
        progress(row)
        if on_round is not None:
            on_round(row)

    return both
