"""FedACS, sections VII-A and VII-C: poisoners against FedACS and Oort; what the insight costs; the whole network's.

A poisoner's labels are all wrong (y becomes K - 1 - y) and its training is honest. Oort looks for high losses and so
finds poisoners; what protects it is the ban on clients that were asked often. FedACS sees updates that point elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedacs.fedacs_fig10 import TRAFFIC, overhead
from fedcohort.papers.fedacs.fedacs_setting import ACS, BASE, DEPARTURES, OORT, UNIFORM, alphas, reading, run
from fedcohort.papers.published import published
from fedcohort.papers.study import (
    OURS,
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Study,
    and_also,
    beats,
    given,
    our_own,
    quantity,
)
from fedcohort.worlds.faults import HONEST

POISONED = 0.2  # share of the clients
UNBANNED = "Oort without its ban"
ACCURACY, MET = "terminal accuracy", "poisoners among those asked"
STEP, NETWORK = "FedACS, last layer of an extra step", "FedACS, whole network of an extra step"
UPDATE = "FedACS, whole network of the update"
INSIGHTS = {STEP: "fedacs", NETWORK: "fedacs(insight='network')", UPDATE: "fedacs(insight='update')", BASE: "uniform"}
MEAN_ALPHA = "mean alpha of those asked in the end"


def poisoned(scale: str, who: str) -> Mapping[str, Any]:
    """The keys of a run in which a fifth of the clients have wrong labels only."""
    keys = dict(run(scale, UNIFORM, OORT if who == UNBANNED else who))
    keys["world"] = given(keys["world"], f"label_flipped={POISONED}")
    if who == UNBANNED:
        keys["selector"] = "oort(preset='fedacs', blacklist=0)"
    return keys


def met(record: RunRecord) -> float | None:
    """The share of poisoners among those asked in the second half of the run."""
    lie = np.asarray(record.world.fixed["lie"])
    cohorts = record.history.cohorts
    asked = np.concatenate(cohorts[len(cohorts) // 2 :])
    return float(np.mean(lie[asked] != HONEST)) if asked.size else None


def poison_cells(scale: str) -> Sequence[Cell]:
    """Four ways to choose, and who knows the poisoners: accuracy, and how many of them are asked."""
    found = []
    for who in (BASE, ACS, OORT, UNBANNED, PERFECT_ROW):
        keys = poisoned(scale, who)
        found.append(Cell(who, ACCURACY, keys, quantity("terminal")))
        found.append(Cell(who, MET, keys, reading("poisoners", met, -1, 100.0, 1)))
    return found


def poison_claims(scale: str) -> Sequence[Claim]:
    """FedACS avoids poisoners; Oort needs its ban."""
    del scale
    return [
        beats("FedACS asks fewer poisoners than the baseline", (ACS, MET), (BASE, MET)),
        beats("Oort without its ban asks more poisoners than the baseline", (BASE, MET), (UNBANNED, MET)),
        beats("the ban keeps poisoners from Oort", (OORT, MET), (UNBANNED, MET)),
        *our_own(
            beats(f"FedACS is more accurate than {other}", (ACS, ACCURACY), (other, ACCURACY))
            for other in (OORT, UNBANNED)
        ),
    ]


def skewed(record: RunRecord) -> float | None:
    """Mean alpha of those asked in the last quarter."""
    cohorts = record.history.cohorts
    return float(np.mean(alphas(record)[np.concatenate(cohorts[3 * len(cohorts) // 4 :])]))


def insight_cells(scale: str) -> Sequence[Cell]:
    """The paper's insight, that of the whole network, and the ordinary update, which costs nothing on top."""
    found = []
    for row, text in INSIGHTS.items():
        keys = {**run(scale, UNIFORM, ACS), "selector": text}
        printed = published("fedacs", "fig10")[TRAFFIC][ACS] if row == STEP else None
        found.append(Cell(row, ACCURACY, keys, quantity("terminal")))
        found.append(Cell(row, TRAFFIC, keys, reading("traffic", overhead, -1, 100.0), printed))
        found.append(Cell(row, MEAN_ALPHA, keys, reading("mean alpha", skewed, -1, digits=3)))
    knows = run(scale, UNIFORM, PERFECT_ROW)
    found.append(Cell(PERFECT_ROW, ACCURACY, knows, quantity("terminal")))
    return [*found, Cell(PERFECT_ROW, MEAN_ALPHA, knows, reading("mean alpha", skewed, -1, digits=3))]


def insight_claims(scale: str) -> Sequence[Claim]:
    """The last layer is enough."""
    del scale
    words = "the last layer finds clients at most 0.05 more skewed than the whole network does"
    return [
        beats(words, (STEP, MEAN_ALPHA), (NETWORK, MEAN_ALPHA), margin=-0.05),
        beats(f"{OURS}{words} in the update", (STEP, MEAN_ALPHA), (UPDATE, MEAN_ALPHA), margin=-0.05),
        beats("it costs less traffic", (STEP, TRAFFIC), (NETWORK, TRAFFIC)),
        beats("the last layer finds less skewed clients than random choice", (STEP, MEAN_ALPHA), (BASE, MEAN_ALPHA)),
        beats(f"{OURS}so does the whole network", (NETWORK, MEAN_ALPHA), (BASE, MEAN_ALPHA)),
        beats(f"{OURS}so does the whole network in the update", (UPDATE, MEAN_ALPHA), (BASE, MEAN_ALPHA)),
    ]


_ARGUED = (
    "the paper argues about poisoners and shows no experiment",
    "who is asked is counted in the second half of the rounds, after the insight was learned",
)
_ENOUGH = {**SEEDS, "laptop": 8}
STUDIES = (
    Study(
        "fedacs:poisoners",
        f"FedACS against poisoners: {POISONED:.0%} of the clients have wrong labels only, uniform environment (%)",
        poison_cells,
        poison_claims,
        _ENOUGH,
        and_also(DEPARTURES, *_ARGUED),
    ),
    Study(
        "fedacs:insight",
        "FedACS: cost and use of the insight, last layer or whole network, uniform environment",
        insight_cells,
        insight_claims,
        _ENOUGH,
        DEPARTURES,
    ),
)
