"""HeteRo-Select's central assumption: the higher the score of a client, the less its gradient is misaligned.

    b_k = |g_k - g|,   g_k: full-batch gradient of client k at the model that a round begins with, g: mean of all g_k

The summary: "the anti-correlation between S_k(t) and gradient misalignment b_k holds". Nobody in a run knows b_k, so
the run is done once more, to the same cohorts, and looked at before each round: the scores of all clients, not of those
chosen only, and the gradients of all. That g contains g_k does not help client k: g_k - g is (K - 1) / K of g_k less
the mean of the others, for everybody alike, and ranks are as without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.core.stats import spearman
from fedcohort.errors import ConfigError, RunWarning
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.experiment.runs import Objects, build
from fedcohort.papers.hetero_select.hetero_select_setting import DEPARTURES, hetero, run
from fedcohort.papers.study import SEEDS, Cell, Claim, Lookup, Quantity, Study, Value, beats, of_scale, our_own
from fedcohort.protocols import Selector, Task
from fedcohort.registry.lookup import make_selector
from fedcohort.selectors.base import NoState
from fedcohort.selectors.hetero_select import PARTS
from fedcohort.selectors.wrappers.base import Wrapper
from fedcohort.tasks.classification import BoundClassification
from fedcohort.types import Array, Cohort, Index, Model, Round

Double = NDArray[np.float64]
SCORE, REST = "whole score", "score without its diversity"
DIVERSITY, CHANCE = "diversity alone", "whole scores, shuffled"
ROWS = (SCORE, REST, DIVERSITY, CHANCE)
AT = "rank correlation"


@dataclass(frozen=True, slots=True)
class Seen:
    """One round before its training: every client's score, its parts, and its misalignment, in the order of slots."""

    index: int
    parts: Mapping[str, Array]  # "score" and `PARTS`
    misalignment: Double  # b_k

    def scores(self, row: str, seed: int) -> Array:
        """What is ranked in this row of the table."""
        if row == REST:
            rest: Array = np.stack([self.parts[name] for name in PARTS if name != "diversity"]).sum(axis=0)
            return rest
        if row == DIVERSITY:
            return self.parts["diversity"]
        whole = self.parts["score"]
        return generator(seed, "misalignment", self.index).permutation(whole) if row == CHANCE else whole


@dataclass(frozen=True, slots=True)
class Replay:
    """A run that was done again: what was seen of it, and whom it asked."""

    seen: tuple[Seen, ...]
    cohorts: tuple[Index, ...]


class Watched(Wrapper[NoState]):
    """Chooses as the inner selector does; `look` is shown every round before it."""

    def __init__(self, inner: Selector, look: Callable[[Round], None]) -> None:
        super().__init__(inner)
        self.look = look

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner selector's cohort."""
        self.look(rnd)
        return super().select(rnd, rng)


def misalignments(task: Task, model: Model, population: int) -> Double:
    """b_k of every client at this model."""
    assert isinstance(task, BoundClassification), "gradients are those of samples"
    gradient = task.engine.gradients(model, np.arange(population)).astype(np.float64)
    found: Double = np.linalg.norm(gradient - gradient.mean(axis=0), axis=1)
    return found


def parts_of_all(selector: Selector, rnd: Round) -> dict[str, Array]:
    """The score and its parts of every candidate, by slot: what it says of a cohort that everybody is in."""
    everybody = selector.select(replace(rnd, size=rnd.available.size), generator(0, "everybody"))
    order = np.argsort(everybody.clients)
    return {name: np.asarray(part)[order] for name, part in everybody.why.items()}


@cache
def replay(config: RunConfig, every: int) -> Replay:
    """Do a run again, and look at each `every`-th round; not at the first, in which nobody has reported anything."""
    selector, seen = make_selector(config.selector), list[Seen]()

    def look(rnd: Round) -> None:
        if rnd.index and rnd.index % every == 0:
            b = misalignments(simulation.task, simulation.model, rnd.population)
            seen.append(Seen(rnd.index, parts_of_all(selector, rnd), b))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)  # the run itself has warned
        simulation = build(replace(config, evaluate_every=config.rounds), Objects(selector=Watched(selector, look)))
        for _ in simulation.steps():
            pass
    return Replay(tuple(seen), tuple(map(np.sort, simulation.history.cohorts)))


def correlation(seen: Sequence[Seen], row: str, seed: int) -> Value:
    """Rank correlation with b_k over the clients of a round, averaged over rounds."""
    return float(np.mean([spearman(s.scores(row, seed), s.misalignment) for s in seen])) if seen else None


def misalignment(row: str, every: int, record: RunRecord, _: Lookup) -> Value:
    """The correlation of a row, in a replay that asked the same cohorts as the run."""
    again = replay(record.config, every)
    if [c.tolist() for c in again.cohorts] != [np.sort(c).tolist() for c in record.history.cohorts]:
        rule = "doing this run again gave other cohorts: another version or processor made it"
        raise ConfigError(f"{record.folder}", rule, "delete the folder and run it again")
    return correlation(again.seen, row, record.config.seed)


def interval(scale: str) -> int:
    """Every how many rounds gradients are taken."""
    return int(of_scale(scale, smoke=1, laptop=1, desk=5, paper=5))


def cells(scale: str) -> Sequence[Cell]:
    """Four correlations of the run that the other tables have too."""
    keys = run(scale, hetero(scale))
    return [
        Cell(
            row,
            AT,
            keys,
            Quantity(f"misalignment, {row}", partial(misalignment, row, interval(scale)), -1, digits=2, alone=True),
        )
        for row in ROWS
    ]


def claims(scale: str) -> Sequence[Claim]:
    """The paper's assumption, without the diversity too; and what the diversity does."""
    del scale
    words = "{}: the higher, the less misaligned the gradient (a correlation below chance)"
    more = f"{DIVERSITY}: the higher, the more misaligned the gradient (a correlation above chance)"
    return [
        *(beats(words.format(row), (row, AT), (CHANCE, AT)) for row in (SCORE, REST)),
        *our_own([beats(more, (CHANCE, AT), (DIVERSITY, AT))]),
    ]


def departures(scale: str) -> tuple[str, ...]:
    """How misalignment was measured: the summary has its name only."""
    often = "" if interval(scale) == 1 else f", every {interval(scale)} rounds"
    return (
        "misalignment is |g_k - g|: full-batch gradients of the cross-entropy at the model that a round begins with "
        "(where FedProx pulls nobody), of all twelve clients, asked or not; g is their plain mean, as the method "
        "averages; the summary defines neither",
        f"rank correlation over the twelve within a round, averaged over rounds{often}; without the first, in which "
        "nobody has reported anything; chance: the same scores, shuffled within each round",
    )


STUDIES = (
    Study(
        "hetero-select:misalignment",
        "HeteRo-Select, its assumption: the higher a client's score, the nearer its gradient is to everybody's",
        cells,
        claims,
        {**SEEDS, "laptop": 7},
        {scale: (*told, *departures(scale)) for scale, told in DEPARTURES.items()},
    ),
)
