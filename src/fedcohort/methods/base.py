"""What all aggregation methods share: state, guards, order, buffers, and weighted sums in double precision.

A method overrides `prepare` (its client half) and `combine` (its server half). Around `combine` it is ensured that

* rows come in ascending client order, so that arrival order cannot change a bit;
* rows with a non-finite update or weight are left out (accepted = False);
* with no row left, model and server state stay exactly as they are;
* buffers and counters are merged by policy and never touched by server mathematics.

What a method remembers between rounds is its `state`, usually a :class:`~fedcohort.core.table.Table`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Interval
from fedcohort.core.finite import finite_or, sound_rows
from fedcohort.core.table import Table, TableError
from fedcohort.errors import MissingSignal, StateMismatch, checked
from fedcohort.protocols import Aggregated, Aggregation
from fedcohort.types import Arrays, Index, Mask, Model, Plan, Real, Updates

Double = NDArray[np.float64]
Buffers = Annotated[str, Choice("average", "server_keep")]
Weighting = Annotated[str, Choice("uniform", "data")]
Decay = Annotated[float, Interval(0, 1, ends="[)")]


class MethodState(Protocol):
    """What a method remembers between rounds; every :class:`~fedcohort.core.table.Table` qualifies."""

    def to_arrays(self) -> Arrays:
        """Everything as arrays, copied."""
        ...

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]], /) -> None:
        """Inverse of :meth:`to_arrays`; raises TableError for arrays that do not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What `combine` decides: the change of the parameters and which rows went into it."""

    change: Double  # (p,) added to the parameters
    kept: Mask  # one entry per row that `combine` was given
    info: Mapping[str, float] = field(default_factory=dict)


class GuardedMethod:
    """Gives `apply` sound rows in order, and saves and loads `state`. Subclasses that remember something set it."""

    name: ClassVar[str] = ""
    exempt: Mapping[str, str] = MappingProxyType({})  # clause of fedcohort.testing.MethodContract -> why it cannot hold
    asynchronous: bool = True  # whether an update may be older than the server's state
    needs: frozenset[str] = frozenset()  # profile signals of all clients that `aggregate` reads
    reads_models: bool = False  # whether it looks at the clients' own models: see `protocols.ModelReader`
    state: MethodState = Table()  # a table without fields: nothing to remember
    prefix: str = ""  # of the keys under which the state is saved

    def aggregate(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """Leave out rows that cannot be computed with; without any row left nothing changes."""
        accepted = np.zeros(len(updates), np.bool_)
        usable = usable_rows(updates, model.buffers)
        if usable.size == 0:
            return Aggregated(model, accepted)
        done = self.apply(model, updates.rows(usable), context)
        accepted[usable] = done.accepted
        return Aggregated(done.model, accepted, dict(done.info))

    def apply(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """The server half on at least one finite row, in ascending client order."""
        raise NotImplementedError

    def state_dict(self) -> Arrays:
        """Server state as arrays."""
        return {self.prefix + key: value for key, value in self.state.to_arrays().items()}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`; refuses what does not fit and then changes nothing."""
        self.state = self.loaded(arrays)

    def loaded(self, arrays: Mapping[str, NDArray[Any]]) -> Any:
        """A new state made of these arrays; the present one stays as it is."""
        fresh = copy.copy(self.state)
        try:
            foreign = sorted(key for key in arrays if not key.startswith(self.prefix))
            if foreign:
                raise TableError(f"keys must start with {self.prefix!r}, unlike {foreign}")
            fresh.load_arrays({key.removeprefix(self.prefix): value for key, value in arrays.items()})
            self.check_state(fresh)
        except TableError as error:
            remedy = "load it into the method that wrote it"
            raise StateMismatch(f"state of {self.name}", str(error), remedy) from error
        return fresh

    def check_state(self, fresh: Any) -> None:
        """Raise TableError for a state of the right form that this method cannot have written."""


class MethodBase(GuardedMethod):
    """Base of the aggregation methods: set `name`, override `combine`, and `prepare` where clients train differently.

    `buffers` says what becomes of float buffers (BN statistics): "average" with weights n_k, or "server_keep".

    >>> class Sum(MethodBase):
    ...     name = "sum"
    ...     def combine(self, model, updates, context):
    ...         return Step(updates.delta.sum(axis=0, dtype=float), updates.weight >= 0)
    >>> Sum().state_dict()
    {}
    """

    @checked
    def __init__(self, *, buffers: Buffers = "average") -> None:
        self.buffers = buffers

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Plain local training unless a method says otherwise."""
        del model, clients
        return plan

    def apply(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """Combine, then merge buffers."""
        step = self.combine(model, updates, context)
        if not step.kept.any():
            return Aggregated(model, step.kept, step.info)
        merged = self.merge(model, as_drawn(updates.rows(step.kept), context))
        params = (model.params.astype(np.float64) + step.change).astype(np.float32)
        return Aggregated(Model(params, *merged), step.kept, step.info)

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """The server half on at least one finite row, in ascending client order."""
        raise NotImplementedError

    def merge(self, model: Model, updates: Updates) -> tuple[Real, NDArray[np.int64]]:
        """New buffers and counters by policy, from the rows that were kept, each as often as it was drawn."""
        return merge_buffers(model, updates, self.buffers)


def usable_rows(updates: Updates, sent: Real | None = None) -> Index:
    """Positions of the rows a server can compute with, in ascending client order.

    These have a finite update, a finite weight that is not negative, and buffers that are finite or as they were sent.
    """
    weight = np.asarray(updates.weight, np.float64)
    finite: Mask = np.isfinite(updates.delta).all(axis=1) & np.isfinite(weight) & (weight >= 0)
    if updates.buffers is not None:
        finite &= sound_rows(updates.buffers, sent)
    order = np.argsort(updates.clients, kind="stable")
    return order[finite[order]]


def multiplicity(updates: Updates, context: Aggregation) -> Double:
    """How often each client was drawn; 1 unless the selector sampled with replacement."""
    times = context.multiplicity
    if not times:
        return np.ones(len(updates))
    return np.array([times.get(int(c), 1) for c in updates.clients], np.float64)


def as_drawn(updates: Updates, context: Aggregation) -> Updates:
    """The updates with each row as often as its client was drawn."""
    times = multiplicity(updates, context).astype(np.int64)
    return updates if bool((times == 1).all()) else updates.rows(np.repeat(np.arange(len(updates)), times))


def normalised(weight: Real) -> Double:
    """Weights that sum to one; equal ones where all are zero."""
    w = np.asarray(weight, np.float64)
    total = float(w.sum())
    return w / total if total > 0 else np.full(w.size, 1.0 / max(w.size, 1))


def data_weights(updates: Updates, context: Aggregation) -> Double:
    """n_k times multiplicity, normalised over those that returned."""
    return normalised(np.asarray(updates.weight, np.float64) * multiplicity(updates, context))


def shares(weighting: str, updates: Updates, context: Aggregation) -> Double:
    """Weights that sum to one: how often each was drawn, times its samples if `weighting` is "data"."""
    if weighting == "data":
        return data_weights(updates, context)
    return normalised(multiplicity(updates, context))


def total_samples(context: Aggregation) -> float:
    """The samples of all clients together, by which shares of all data are computed."""
    total = float(context.samples.sum())
    if total <= 0.0:
        raise MissingSignal(
            f"samples of all {context.population} clients = {total:g}",
            "shares of all data need their sum",
            "let clients say how many samples they have, or choose a method that needs none such as fedavg",
        )
    return total


def weighted_sum(weight: Double, matrix: Real) -> Double:
    """sum_k weight_k * matrix_k in double precision, row by row in order."""
    total = np.zeros(matrix.shape[1], np.float64)
    for w, row in zip(weight, matrix, strict=True):
        total += w * row.astype(np.float64)
    return total


def sized(vector: Double, size: int, name: str, fill: float = 0.0) -> Double:
    """The vector, or a fresh one where there is none yet; refuses a model of another size."""
    if vector.size == 0:
        return np.full(size, fill, np.float64)
    if vector.size != size:
        rule = f"the state of {name} is for {vector.size}"
        raise StateMismatch(f"a model of {size} parameters", rule, "use a fresh method for another model")
    return vector


def merge_buffers(model: Model, updates: Updates, policy: str) -> tuple[Real, NDArray[np.int64]]:
    """Buffers averaged with weights n_k or kept as the server has them; counters by maximum, never averaged."""
    buffers, counters = model.buffers, model.counters
    if updates.counters is not None and updates.counters.size:
        counters = np.maximum(model.counters, updates.counters.max(axis=0))
    if policy != "server_keep" and updates.buffers is not None and updates.buffers.size:
        with np.errstate(invalid="ignore"):  # a weight of 0 times an infinite constant
            mean = weighted_sum(normalised(updates.weight), updates.buffers).astype(np.float32)
        buffers = finite_or(mean, model.buffers)
    return buffers, counters
