"""Ask clients for insights, round by round, and rank them: FedACS (see selectors/fedacs.py) without a training job.

Each round takes the next cohort of a random order, so that everybody is compared equally often, and a fresh untrained
model; every client of the cohort answers with the last layer's change after one full-batch step. Q_i of eq. 13 is
compared within the round only. With train=True the same cohorts also train one model, as FedACS does during a training
job: insights then come from a trained model, but rounds depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Count, CountOrZero
from fedcohort.core.rng import generator
from fedcohort.core.stats import rank
from fedcohort.errors import DataError, MissingSignal, check, checked
from fedcohort.methods.base import merge_buffers
from fedcohort.protocols import Task, World
from fedcohort.selectors.fedacs import skewness
from fedcohort.skew.confidence import Probability
from fedcohort.skew.skew_report import SkewReport
from fedcohort.types import Index, Model, Plan, Real, Work

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

CLIP = 10.0  # as the selector: an insight longer than ten median lengths is shortened in the mean
HIDDEN = 32  # width of the model for arrays of your own


def rank_clients(
    data: str | TaskSpec | Dataset,
    world: str | WorldSpec | None = None,
    *,
    rounds: Count = 30,
    per_round: CountOrZero = 0,
    share: Probability = 0.4,
    delta: Probability = 0.05,
    train: bool = False,
    seed: CountOrZero = 0,
) -> SkewReport:
    """Rank the clients of a world, or the owners of your own samples, by skewness.

    `data` is a task (a name or a specification) or a :class:`Dataset`; without a world its owners are the clients.
    `per_round` clients answer in each of `rounds` rounds; 0 asks everybody. `share` is the part that counts as least
    skewed, `delta` the probability of being wrong that the confidence statement may have. With `train` one model is
    trained during the rounds instead of a fresh one for each; `seed` makes the result repeatable.

    >>> from fedcohort.data import Dataset
    >>> x, y = np.random.default_rng(0).normal(size=(90, 4)), np.repeat([0, 1, 0], 30)
    >>> y[60:75] = 1  # the third owner has both classes, the others one each
    >>> int(rank_clients(Dataset.from_arrays(x, y, client=np.repeat([0, 1, 2], 30)), rounds=3).best()[0])
    2
    """
    spec, place = _spec(data), _place(world)
    from fedcohort.tasks.classification import ClassificationSpec
    from fedcohort.worlds.built_world import build_world

    if place is None and spec.owners() is None:
        rule = "it names no owners, so it does not say who the clients are"
        raise DataError(f"task {spec.name!r}", rule, "name a world, or give Dataset.from_arrays(x, y, client)")
    if place is None:
        place = _by_owner()
    built = build_world(
        place, spec.labels(), seed=seed, owners=spec.owners(), activities=spec.activities(), classes=spec.classes
    )
    task = spec.bind(built)
    report = measure(task, built, rounds=rounds, per_round=per_round, share=share, delta=delta, train=train, seed=seed)
    names = spec.data.class_names if isinstance(spec, ClassificationSpec) else ()
    counts = np.rint(built.histogram(clean=True) * built.train.sizes[:, None]).astype(np.int64)
    return replace(report, truth=built.divergence(), names=built.names, counts=counts, class_names=names)


@checked
def measure(
    task: Task,
    world: World,
    *,
    rounds: Count = 30,
    per_round: CountOrZero = 0,
    share: Probability = 0.4,
    delta: Probability = 0.05,
    train: bool = False,
    seed: CountOrZero = 0,
) -> SkewReport:
    """As :func:`rank_clients`, for a task that is bound to a world already."""
    check(per_round != 1, "per_round = 1", "a duel takes two", "use 2 or more, or 0 for everybody")
    check(world.population >= 2, f"{world.population} client(s)", "a duel takes two", "use a world with more clients")
    if "insight" not in task.provides:
        raise MissingSignal(f"task {task.name!r}", "it cannot measure the signal 'insight'", "choose another task")
    tally = _Tally(task, world, train, seed)
    turns = _Turns(world.population, seed)
    clock = 0.0
    for index in range(rounds):
        here = world.available(index, clock)
        cohort = turns.next(here, per_round or here.size)
        tally.round(index, cohort)
        clock += tally.seconds(index, cohort)
    n = np.maximum(tally.compared, 1)
    known = tally.compared > 0
    return SkewReport(
        task=task.name,
        world=world.name,
        rounds=rounds,
        samples=world.train.sizes,
        compared=tally.compared,
        win_share=np.where(known, tally.won / n, np.nan),
        q=np.where(known, tally.q / n, np.nan),
        share=share,
        delta=delta,
        independent=not train,
    )


@dataclass
class _Turns:
    """Who is asked next: those asked least come first, in an order drawn anew for every round."""

    population: int
    seed: int

    def __post_init__(self) -> None:
        self.asked = np.zeros(self.population, np.int64)
        self.drawn = 0

    def next(self, here: Index, size: int) -> Index:
        """The next cohort, sorted."""
        tie_break = generator(self.seed, "skew-turns", self.drawn).random(here.size)
        self.drawn += 1
        cohort = np.sort(here[np.lexsort((tie_break, self.asked[here]))[:size]])
        self.asked[cohort] += 1
        return cohort


class _Tally:
    """Insights of every round, and the duels they decide."""

    def __init__(self, task: Task, world: World, train: bool, seed: int) -> None:
        self.task, self.world, self.train, self.seed = task, world, train, seed
        self.model = task.initial(generator(seed, "skew-model", 0))
        self.compared = np.zeros(world.population, np.int64)
        self.won: NDArray[np.float64] = np.zeros(world.population)
        self.q: NDArray[np.float64] = np.zeros(world.population)

    def round(self, index: int, cohort: Index) -> None:
        """Ask this cohort and count who beats whom."""
        cohort = cohort[~self.world.dropped(index, cohort)]
        cohort = cohort[self.world.train.sizes[cohort] > 0]
        if cohort.size < 2:
            return
        if not self.train:
            self.model = self.task.initial(generator(self.seed, "skew-model", index))
        who, insight = self._insights(index, cohort)
        if who.size < 2:
            return
        q = skewness(insight, self.world.train.sizes[who].astype(np.float64), CLIP)
        self.compared[who] += 1
        self.won[who] += rank(-q) / (who.size - 1)  # a tie is half a win
        middle = float(np.median(q))
        self.q[who] += q / middle if middle > 0 else np.ones(who.size)

    def seconds(self, index: int, cohort: Index) -> float:
        """How long this round takes: until the slowest has trained as planned, plus one step on all of its data."""
        params, epochs = self.model.params, self._plan(index, cohort).epochs_of(cohort.size)
        sent = np.full(cohort.size, float(params.nbytes))
        work = Work(self.world.train.sizes[cohort], epochs + 1.0, sent, sent, params.size, epochs.astype(np.float64))
        return float(self.world.seconds(index, cohort, work).max(initial=0.0))

    def _insights(self, index: int, cohort: Index) -> tuple[Index, Real]:
        """The clients whose answer can be used, and their insights; also trains the common model if `train` is set."""
        plan = self._plan(index, cohort)
        trained = self.task.train(self.model, cohort, plan)
        updates, signals = self.world.tamper(index, trained.updates, dict(trained.signals))
        good = np.isfinite(signals["insight"]).all(axis=1)
        if trained.failed.size:
            good &= ~trained.failed
        rows = np.flatnonzero(good)
        if self.train:
            sane = rows[np.isfinite(updates.delta[rows]).all(axis=1)]
            weight = np.asarray(updates.weight, np.float64)[sane]
            if weight.sum() > 0:
                step = (weight / weight.sum()).astype(np.float32) @ updates.delta[sane]
                merged = merge_buffers(self.model, updates.rows(sane), "average")
                self.model = Model(self.model.params + step, *merged)
        return updates.clients[rows], signals["insight"][rows]

    def _plan(self, index: int, cohort: Index) -> Plan:
        """One full-batch step, or the task's own local training."""
        base = replace(self.task.plan(), seed=self.seed, round=index, measure=frozenset({"insight"}))
        if self.train:
            return base
        return replace(base, epochs=1, batch_size=max(int(self.world.train.sizes[cohort].max()), 1))


def _spec(data: str | TaskSpec | Dataset) -> TaskSpec:
    """The task behind a name, or a small perceptron on arrays of your own."""
    from fedcohort.data.dataset import Dataset

    if isinstance(data, str):
        from fedcohort.registry.lookup import make_task_spec

        return make_task_spec(data)
    if not isinstance(data, Dataset):
        return data
    from fedcohort.engines.networks import mlp
    from fedcohort.tasks.classification import ClassificationSpec

    check(data.classes >= 2, f"dataset {data.name!r} with one class", "skewness is about classes", "give two or more")
    model = mlp(int(np.prod(data.shape)), HIDDEN, classes=data.classes)
    return ClassificationSpec(data.name, data, model, Plan(epochs=1, batch_size=32, lr=0.1), validation=0.0, test=0.0)


def _place(world: str | WorldSpec | None) -> WorldSpec | None:
    if not isinstance(world, str):
        return world
    from fedcohort.registry.lookup import make_world_spec

    return make_world_spec(world)


def _by_owner() -> WorldSpec:
    """One client per owner, all of whose samples count."""
    from fedcohort.worlds.natural import Natural
    from fedcohort.worlds.world_spec import Validation, WorldSpec

    return WorldSpec("owners", 0, Natural(), validation=Validation(held_out=0.0), about="one client per owner")
