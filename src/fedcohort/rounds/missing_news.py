"""What a selector learns from and is not told: each gap is said once, in the first round that shows it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcohort.core.columns import part
from fedcohort.protocols import ScoreReader, Selector, SignalLearner
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.types import Array, Mask, Outcome


class MissingNews:
    """Looks at every round that a selector is told; `notes` are the sentences so far.

    >>> from fedcohort.selectors import FlashRL
    >>> news = MissingNews(FlashRL())
    >>> len(news.look(0, float("nan"), np.array([True]), {})), len(news.look(1, float("nan"), np.array([True]), {}))
    (1, 0)
    """

    def __init__(self, selector: Selector) -> None:
        self.name, self.notes = type(selector).__name__, list[str]()
        self._score = isinstance(selector, ScoreReader) and bool(selector.reads_score)
        self._signals = dict(selector.learns_from) if isinstance(selector, SignalLearner) else {}

    def look(self, index: int, score: float, ok: Mask, signals: Mapping[str, Array]) -> list[str]:
        """What this round shows for the first time; `ok` are the rows whose update was used.

        One round with a signal is enough: it can be had, and later gaps are of single clients.
        """
        found = []
        if self._score and np.isnan(score):
            self._score = False
            found.append(
                f"round {index} has no score, and {self.name} learns from it: measure the accuracy on validation data, "
                "or name what is measured with score=NAME (RoundResult.score; in Flower an evaluate_fn)."
            )
        for name in list(self._signals) if ok.any() else ():
            told = np.asarray(signals[name])[ok] if name in signals else np.empty(0)
            then = self._signals.pop(name)
            if not np.isfinite(told).any():
                found.append(f"round {index} brings no {name!r}, and {self.name} {then}.")
        self.notes += found
        return found

    def recall(self, journal: JournalReader | None, upto: int) -> None:
        """Look at the rounds before `upto` again, of which an earlier process has told."""
        for record in journal.records("tell") if journal is not None else ():
            if record.round >= upto or not (self._score or self._signals):
                return
            arrays, meta = record.unpack()
            score = float("nan") if meta["score"] is None else float(meta["score"])
            self.look(record.round, score, arrays["outcome"] == Outcome.OK, part(arrays, "signal."))
