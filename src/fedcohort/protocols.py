"""What a selector, a method, a world, a task and an evaluator promise. Nothing here runs.

What some selectors and methods promise beside that is in `optional_protocols.py`, and has its names here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedcohort.optional_protocols import Exempting as Exempting
from fedcohort.optional_protocols import Frugal as Frugal
from fedcohort.optional_protocols import ModelReader as ModelReader
from fedcohort.optional_protocols import Prober as Prober
from fedcohort.optional_protocols import ProfileReader as ProfileReader
from fedcohort.optional_protocols import ScoreReader as ScoreReader
from fedcohort.optional_protocols import SignalLearner as SignalLearner
from fedcohort.types import (
    Arrays,
    Cohort,
    Index,
    Mask,
    Model,
    Part,
    Plan,
    Real,
    Round,
    RoundResult,
    Updates,
    Work,
)


@runtime_checkable
class Selector(Protocol):
    """Chooses who trains next. `select` is repeatable; learning happens only in `observe`.

    Any class with these members will do; :class:`fedcohort.selectors.StatefulSelector` brings the last two.

    >>> class FirstComers:
    ...     needs = frozenset()
    ...     def select(self, rnd, rng):
    ...         return Cohort(rnd.available[: rnd.size])
    ...     def observe(self, result): ...
    ...     def state_dict(self):
    ...         return {}
    ...     def load_state_dict(self, arrays): ...
    >>> isinstance(FirstComers(), Selector)
    True
    """

    @property
    def needs(self) -> frozenset[str]:
        """The signals it reads: a promise and a privacy statement. Usually a class attribute."""
        ...

    def select(self, rnd: Round, rng: np.random.Generator, /) -> Cohort:
        """Choose at most `rnd.size` of `rnd.available`. Same state, round and generator: same cohort."""
        ...

    def observe(self, result: RoundResult, /) -> None:
        """Learn from one row per dispatched client."""
        ...

    def state_dict(self) -> Arrays:
        """Everything needed to continue in another process, as arrays."""
        ...

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]], /) -> None:
        """Inverse of :meth:`state_dict`; refuses what does not fit."""
        ...


class ServerEvaluator(Protocol):
    """What a method may compute at the server: held-out data and the model's forward and backward pass.

    `split` is "validation" (labelled, never the test set) or "unlabelled". A split that the task does not
    have answers 0 to :meth:`size`.
    """

    @property
    def classes(self) -> int:
        """Width of the logits."""
        ...

    def size(self, split: str) -> int:
        """Samples in this split (0: there is none)."""
        ...

    def labels(self, split: str) -> Index:
        """True labels of the validation split."""
        ...

    def logits(self, params: Real, split: str, buffers: Real | None = None, /) -> Real:
        """Logits of k models, given as (k, p), on the whole split: (k, n, classes).

        `buffers` (k, b) are the models' own; without them, those of the model that was last sent out. Never given
        where the model has none.
        """
        ...

    def gradient(
        self, params: Real, split: str, rows: Index, target: Real, buffers: Real | None = None, /
    ) -> tuple[float, Real]:
        """Mean soft-target cross-entropy on these rows and its gradient with respect to params (p,).

        `buffers` (b,) as for :meth:`logits`.
        """
        ...


class ClientEvaluator(Protocol):
    """What a *simulated* client computes on its own data for a method, at parameters of the method's choice.

    Exists in simulation only, where it stands for work that a deployed client half would do on the client.
    `part` is "train" (labels as the client sees them) or "validation". `buffers` (b,) are the model's own; without
    them, those of the model that was last sent out. Never given where the model has none.
    """

    def size(self, client: int, part: str) -> int:
        """Samples of this client in this part."""
        ...

    def losses(self, params: Real, client: int, part: str, buffers: Real | None = None, /) -> Real:
        """Cross-entropy of every sample (n,), in the order of `Plan.sample_weight`."""
        ...

    def gradient(
        self, params: Real, client: int, part: str, weight: Real | None = None, buffers: Real | None = None, /
    ) -> Real:
        """Gradient (p,) of (1 / n) sum_j weight_j loss_j; weights of one where none are given."""
        ...


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What a method may know beside the model and the updates."""

    index: int  # round
    plan: Plan  # the plan the cohort trained with
    population: int  # registered clients N
    samples: Index  # n_k of every registered client
    dispatched: Index  # S_t: everybody that was asked
    inclusion: Mapping[int, float] = field(default_factory=dict)  # slot -> inclusion probability, where known
    multiplicity: Mapping[int, int] = field(default_factory=dict)  # slot -> how often it was drawn
    server_evaluator: ServerEvaluator | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    client_evaluator: ClientEvaluator | None = None  # only in simulation, and only where the task offers it


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The new model and which of the given updates went into it."""

    model: Model
    accepted: Mask  # one entry per row of the updates
    info: Mapping[str, float] = field(default_factory=dict)  # numbers worth logging
    reasons: Mapping[int, str] = field(default_factory=dict)  # slot -> why its update was left out, where known


@runtime_checkable
class Method(Protocol):
    """An aggregation method: its client half (`prepare`) and its server half (`aggregate`).

    Inherit from :class:`fedcohort.methods.MethodBase` to write one: it drops unusable rows and saves the state.

    >>> from fedcohort.methods import FedProx
    >>> method = FedProx(mu=0.1)
    >>> isinstance(method, Method), method.prepare(Plan(), Model(np.zeros(2, np.float32)), np.array([0])).prox
    (True, 0.1)
    """

    @property
    def name(self) -> str:
        """The name in the catalogue. Usually a class attribute."""
        ...

    @property
    def asynchronous(self) -> bool:
        """Whether updates may come from an older model than the server's. Usually a class attribute."""
        ...

    def prepare(self, plan: Plan, model: Model, clients: Index, /) -> Plan:
        """The client half: return the plan with what this method changes at the client."""
        ...

    def aggregate(self, model: Model, updates: Updates, context: Aggregation, /) -> Aggregated:
        """The server half. Updates may be empty: then model and server state stay as they are."""
        ...

    def state_dict(self) -> Arrays:
        """Server-side state as arrays."""
        ...

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]], /) -> None:
        """Inverse of :meth:`state_dict`."""
        ...


class World(Protocol):
    """The heterogeneity: who owns what, how noisy, how fast, how often there. Draws are keyed, never stored."""

    @property
    def name(self) -> str:
        """The name of the specification."""
        ...

    @property
    def population(self) -> int:
        """How many clients there are."""
        ...

    @property
    def classes(self) -> int:
        """How many classes the labels have."""
        ...

    @property
    def train(self) -> Part:
        """Who trains on what."""
        ...

    @property
    def validation(self) -> Part:
        """Held out per client; may be empty."""
        ...

    @property
    def digest(self) -> str:
        """Changes with anything that can change a run in this world."""
        ...

    def available(self, index: int, clock: float) -> Index:
        """Sorted slots that can be asked in this round."""
        ...

    def seconds(self, index: int, clients: Index, work: Work) -> NDArray[np.float64]:
        """How long each of these would take, drawn per (client, round)."""
        ...

    def dropped(self, index: int, clients: Index, *, probe: bool = False) -> Mask:
        """Who starts and never comes back; for a probe drawn apart, or it would tell who will fail to train."""
        ...

    def boasted(self, clients: Index, answers: Arrays) -> Arrays:
        """What broken or lying clients make of their answers to a probe; honest worlds return the input."""
        ...

    def tamper(self, index: int, updates: Updates, signals: Arrays) -> tuple[Updates, Arrays]:
        """What broken or lying clients make of their replies; honest worlds return the input."""
        ...

    def profiles(self) -> Arrays:
        """Profile columns (samples, label_histogram, cores, ...), one row per client."""
        ...


@dataclass(frozen=True, slots=True)
class Trained:
    """What an engine returns for a cohort, rows in the order of the clients that were given."""

    updates: Updates
    signals: Arrays = field(default_factory=dict)
    failed: Mask = field(default_factory=lambda: np.empty(0, np.bool_))  # NaN loss, no samples, ...
    reasons: Mapping[int, str] = field(default_factory=dict)  # slot -> why it failed


class Task(Protocol):
    """What is trained, bound to a world: dataset, model and local training."""

    @property
    def name(self) -> str:
        """The name of the specification."""
        ...

    @property
    def classes(self) -> int:
        """How many classes there are (0 where that makes no sense)."""
        ...

    @property
    def provides(self) -> frozenset[str]:
        """Client-side and probe-side signals it can measure."""
        ...

    @property
    def last_layer(self) -> slice | Mask | None:
        """Where the last layer lies in the flat parameters; None where that has no meaning."""
        ...

    @property
    def layout(self) -> tuple[slice, ...]:
        """The flat parameters cut into the parts that a client may leave out of its upload, one by one."""
        ...

    def initial(self, rng: np.random.Generator) -> Model:
        """A fresh model."""
        ...

    def plan(self) -> Plan:
        """The task's default local training."""
        ...

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Train each of these clients from the same model."""
        ...

    def probe(self, model: Model, clients: Index, signals: frozenset[str], plan: Plan) -> Arrays:
        """Measure probe-side signals of this model at these clients, without training."""
        ...

    def evaluate(self, model: Model, split: str) -> dict[str, float]:
        """Metrics on "test" or "validation": at least "accuracy" and "loss" where they make sense."""
        ...

    def server_evaluator(self) -> ServerEvaluator | None:
        """What methods may compute at the server, if anything."""
        ...

    def client_evaluator(self) -> ClientEvaluator | None:
        """What a method's client half may compute on the client beyond training, if anything."""
        ...

    def client_accuracy(self, model: Model) -> Real | None:
        """Accuracy of this model at every client, NaN where it cannot be measured; None for tasks that have none."""
        ...
