"""What a run leaves behind: one row of numbers per round, and who was asked; also read from a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.stats import jain
from fedcohort.rounds.history_columns import Groups, Rows
from fedcohort.rounds.usage import Usage
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.types import Index, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedcohort.engines.trained_model import TrainedModel


@dataclass
class History:
    """What happened in each round: `rows` of numbers, `cohorts` of client slots, `reasons` of those who failed.

    `population` is the number of clients. A row has at least round, clock, seconds, score, asked and the number of each
    outcome; accuracy and loss where the model was evaluated.

    >>> history = History(4, [{"accuracy": 0.2, "clock": 9.0}, {"accuracy": 0.5, "clock": 20.0}], [[0, 1], [1, 2]])
    >>> history.accuracy.tolist(), history.participation().tolist(), history.reached(0.4)
    ([0.2, 0.5], [1, 2, 1, 0], (1, 20.0))
    """

    population: int
    rows: Rows = field(default_factory=Rows)
    cohorts: Groups = field(default_factory=Groups)
    reasons: list[dict[int, str]] = field(default_factory=list)
    used: Groups = field(default_factory=Groups)  # clients whose update is in the model, per round
    ended: str = ""  # why the run ended; empty while it is going
    notes: list[str] = field(default_factory=list)  # what a person must know besides the numbers
    names: tuple[str, ...] = ()  # of the clients by slot, where the data name them
    model: TrainedModel | None = field(default=None, repr=False)  # after the last round; None where it was only read

    def __post_init__(self) -> None:
        """Lists are taken too."""
        self.rows, self.cohorts, self.used = Rows(self.rows), Groups(self.cohorts), Groups(self.used)

    def __repr__(self) -> str:
        last = self.rows[-1] if self.rows else {}
        said = [f"{k} {last[k]:.4g}" for k in ("accuracy", "loss", "clock") if k in last]
        return f"<History: {len(self.rows)} rounds, {self.population} clients{''.join(', ' + s for s in said)}>"

    def append(self, row: dict[str, Any], cohort: Index, reasons: Mapping[int, str], used: Index) -> None:
        """One more round."""
        self.rows.append(row)
        self.cohorts.append(cohort)
        self.reasons.append(dict(reasons))
        self.used.append(used)

    def name(self, slot: int) -> str:
        """How a client is called: its name in the data, or its slot."""
        return self.names[slot] if slot < len(self.names) else str(slot)

    def column(self, name: str) -> NDArray[np.float64]:
        """One number per round; NaN where it was not measured."""
        return self.rows.column(name)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Test accuracy per round."""
        return self.column("accuracy")

    @property
    def clock(self) -> NDArray[np.float64]:
        """Virtual seconds at the end of each round."""
        return self.column("clock")

    def participation(self) -> Index:
        """How often each client was asked."""
        counts = np.zeros(self.population, np.int64)
        for cohort in self.cohorts:
            np.add.at(counts, cohort, 1)
        return counts

    def usage(self) -> Usage:
        """How often each client was asked, and how often its work was used (always, where that was not kept)."""
        return Usage.of(self.population, self.cohorts, self.used or self.cohorts)

    def fairness(self) -> float:
        """Jain's index of participation; NaN where nobody was asked."""
        counts = self.participation().astype(np.float64)
        return jain(counts) if counts.any() else float("nan")

    def reached(self, target: float, metric: str = "accuracy") -> tuple[int, float] | None:
        """(round, virtual seconds) at which the metric first reached the target, or None."""
        hit = np.flatnonzero(self.column(metric) >= target)
        return (int(hit[0]), float(self.clock[hit[0]])) if hit.size else None

    def plot(
        self, ax: Axes | None = None, *, column: str = "accuracy", against: str = "rounds", label: str | None = None
    ) -> Axes:
        """Draw a column against "rounds" or virtual "time" on these axes, or on new ones, and return them.

        `label` goes to the legend; the name of a selector there gives the colour it has in every other picture.
        `axes.figure.savefig("run.pdf")` writes a file. The backend of matplotlib is left as it is.

        >>> axes = History(2, [{"accuracy": 0.2, "clock": 9.0}, {"accuracy": 0.5, "clock": 20.0}]).plot(label="oort")
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('round', 'test accuracy')
        """
        from fedcohort.rounds.history_view import plot_history

        return plot_history(self, ax, column, against, label)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per round: every measured number, and who was asked (`cohort`)."""
        from fedcohort.rounds.history_view import frame

        return frame(self)

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from fedcohort.rounds.history_view import html

        return html(self)


def read_history(journal: JournalReader, population: int | None = None, upto: int | None = None) -> History:
    """The rounds that a journal holds, or those before round `upto`; every record is checked against the chain.

    Without `population` it is what the newest of these cohorts was chosen from.
    """
    history = History(population or 0)
    at_the_end: list[str] = []  # of the newest end: a deployment can be continued, and says all of it again
    history.names = client_names(journal)
    for record in journal.records():
        if record.kind == "ask" and population is None:
            history.population = max(history.population, int(record.unpack()[1]["population"]))
        if record.kind == "close":
            meta = record.unpack()[1]
            history.ended = str(meta.get("ended", ""))
            at_the_end = meta.get("notes", []) if upto is None else []
        if record.kind != "tell":
            continue
        if upto is not None and record.round >= upto:
            break
        arrays, meta = record.unpack()
        used = arrays["clients"][arrays["outcome"] == Outcome.OK]
        history.append(meta["metrics"], arrays["clients"], {int(k): v for k, v in meta["reasons"].items()}, used)
    history.notes = [*journal.header.get("notes", []), *at_the_end]
    return history


def client_names(journal: JournalReader) -> tuple[str, ...]:
    """The names of the clients that a journal began with; none where they have only slots."""
    found = journal.header.get("clients", [])
    return tuple(map(str, found)) if isinstance(found, list) else ()
