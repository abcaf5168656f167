"""FedACS, Fig. 10 and section VII-C: the analytics stop early; nothing is lost but their cost."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedacs import fedacs_table2
from fedcohort.papers.fedacs.fedacs_setting import ACS, DEPARTURES, ROUNDS, STOP, UNIFORM, reading, run
from fedcohort.papers.published import published
from fedcohort.papers.study import PERFECT_ROW, SEEDS, Cell, Claim, Study, and_also, beats, quantity

ALWAYS, EARLY = "FedACS", "FedACS, early stop"
ACCURACY, TRAFFIC = "terminal accuracy", "traffic on top"
OVERHEAD = published("fedacs", "fig10")[TRAFFIC]
SAME = 1.0  # points; the paper: the curves almost overlap


def overhead(record: RunRecord) -> float | None:
    """Bytes of insights over bytes of models, both ways."""
    models = record.total("bytes_down") + record.total("bytes_up")
    return record.total("bytes_signals") / models if models > 0 else None


def cells(scale: str) -> Sequence[Cell]:
    """With and without early stop, and the accuracy of a perfect choice."""
    found = []
    for name, accuracy in ((ALWAYS, fedacs_table2.ACCURACY[UNIFORM][ACS]), (EARLY, None)):
        keys = run(scale, UNIFORM, ACS, stop=name == EARLY)
        found.append(Cell(name, ACCURACY, keys, quantity("terminal"), accuracy))
        found.append(Cell(name, TRAFFIC, keys, reading("traffic", overhead, -1, 100.0), OVERHEAD[name]))
    return [*found, Cell(PERFECT_ROW, ACCURACY, run(scale, UNIFORM, PERFECT_ROW), quantity("terminal"))]


def claims(scale: str) -> Sequence[Claim]:
    """No loss, less traffic."""
    share = STOP[scale] / ROUNDS[scale]
    words = f"early stop loses less than {SAME:g} point of accuracy"
    none = Claim(words, ((EARLY, ACCURACY),), ((ALWAYS, ACCURACY),), margin=-SAME)
    less = f"early stop after {share:.0%} of the rounds costs less traffic (the paper: after 20 %)"
    return [none, beats(less, (EARLY, TRAFFIC), (ALWAYS, TRAFFIC), round(OVERHEAD[EARLY] - OVERHEAD[ALWAYS], 2))]


STUDIES = (
    Study(
        "fedacs:fig10",
        "FedACS, Fig. 10: early stop of the analytics, uniform environment (%)",
        cells,
        claims,
        SEEDS,
        and_also(
            {
                **DEPARTURES,
                "laptop": (
                    *DEPARTURES["laptop"],
                    f"the analytics stop after {STOP['laptop']} of {ROUNDS['laptop']} rounds, when every client was "
                    "asked twice on average (the paper: 200 of 1,000, ten times)",
                ),
            },
            "a loss of up to a point counts as none",
        ),
    ),
)
