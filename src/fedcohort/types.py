"""The nouns: what passes between the parts of a round. Arrays over clients, frozen, no behaviour beyond look-ups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import UndeclaredSignal

Index = NDArray[np.int64]  # slots: dense client indices
Mask = NDArray[np.bool_]
Real = NDArray[np.floating[Any]]
Array = NDArray[Any]
Arrays = dict[str, NDArray[Any]]

STALENESS = "staleness"  # key of `Updates.extras`: by how many versions the model has moved since the client got it
SENT = "sent"  # another: parameters of the model that the client got, for a `ModelReader` in asynchronous rounds


class Outcome(IntEnum):
    """What became of a dispatched client. Each gets exactly one.

    >>> Outcome(1).name
    'LATE'
    """

    OK = 0  # replied in time, valid, used
    LATE = 1  # nothing before the deadline
    FAILED = 2  # dropped out, crashed, or training broke (NaN loss)
    REJECTED = 3  # replied, but the validator refused the reply
    FILTERED = 4  # replied in time and valid, but the method left it out


class Signals(Mapping[str, Array]):
    """Named columns, one row per client; reading an undeclared one raises.

    `allowed=None` means that everything present may be read (loops, tests, reports).

    >>> signals = Signals({"train_loss": np.array([0.5, 0.7])}, allowed=frozenset({"train_loss"}))
    >>> signals["train_loss"].tolist()
    [0.5, 0.7]
    >>> signals["delta_norm"]
    Traceback (most recent call last):
        ...
    fedcohort.errors.UndeclaredSignal: signal 'delta_norm': only declared signals can be read ...
    """

    __slots__ = ("_allowed", "_columns")

    def __init__(self, columns: Mapping[str, Array] | None = None, allowed: frozenset[str] | None = None) -> None:
        self._columns = dict(columns or {})
        self._allowed = allowed

    def __getitem__(self, name: str) -> Array:
        if self._allowed is not None and name not in self._allowed:
            declared = ", ".join(sorted(self._allowed)) or "nothing"
            raise UndeclaredSignal(
                f"signal {name!r}",
                f"only declared signals can be read (declared: {declared})",
                "add it to `needs`",
            )
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._columns if self._allowed is None or name in self._allowed)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._columns and (self._allowed is None or name in self._allowed)

    def restrict(self, allowed: frozenset[str]) -> Signals:
        """The same columns behind a narrower promise."""
        return Signals(self._columns, allowed)

    def rows(self, at: Array) -> Signals:
        """The rows at these positions (or under this mask)."""
        return Signals({name: value[at] for name, value in self._columns.items()}, self._allowed)

    def columns(self) -> dict[str, Array]:
        """All columns, for storing; not for selectors."""
        return dict(self._columns)


@dataclass(frozen=True, slots=True)
class Probed:
    """Answers to a probe: one row per probed client that answered."""

    clients: Index
    signals: Signals


@dataclass(frozen=True, slots=True)
class Round:
    """What a selector may know when it chooses.

    >>> rnd = Round(index=0, size=2, available=np.array([0, 3, 4]), population=5)
    >>> rnd.available[: rnd.size].tolist()
    [0, 3]
    """

    index: int  # 0-based
    size: int  # how many to choose at most
    available: Index  # sorted slots that can be asked now
    population: int  # slots are 0 .. population - 1
    clock: float = 0.0  # seconds since the start (virtual in simulation)
    profiles: Signals = field(default_factory=Signals)  # declared profile columns, one row per slot
    probed: Probed | None = None  # answers of those named by `probe`


@dataclass(frozen=True, slots=True)
class Cohort:
    """Who is asked to train this round.

    >>> Cohort(np.array([0, 3]), why={"age": np.array([4.0, 2.0])}).clients.tolist()
    [0, 3]
    """

    clients: Index  # unique slots, all available, at most `size`
    directives: Mapping[str, Array] = field(default_factory=dict)  # per-client columns, e.g. local work or multiplicity
    inclusion: Real | None = None  # probability that each was included, where the design is known
    why: Mapping[str, Array] = field(default_factory=dict)  # parts of the score of those chosen


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What came of a round: one row per dispatched client, whatever its outcome.

    Signals are NaN (or 0 for integers) where the client did not reply. A FILTERED client did reply, so its
    signals are there: `replied` is where reports can be read, `ok` where the update was used.

    >>> outcome = np.array([Outcome.OK, Outcome.LATE], np.int8)
    >>> result = RoundResult(0, np.array([0, 3]), outcome, duration=np.array([1.5, 9.0]))
    >>> result.clients[result.ok].tolist()
    [0]
    """

    index: int
    clients: Index
    outcome: NDArray[np.int8]
    duration: Real  # seconds, measured by the server; what was waited for those that never came
    signals: Signals = field(default_factory=Signals)
    score: float = float("nan")  # server-side validation metric of the new model
    probed: Probed | None = None  # the same answers that `select` saw
    model: Real | None = None  # new global parameters, for those that declare "model"

    @property
    def ok(self) -> Mask:
        """Rows whose update was used."""
        return np.equal(self.outcome, Outcome.OK)

    @property
    def replied(self) -> Mask:
        """Rows with readable reports: OK or FILTERED."""
        return np.equal(self.outcome, Outcome.OK) | np.equal(self.outcome, Outcome.FILTERED)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as flat arrays: trainable parameters, float buffers (BN statistics), integer counters.

    >>> Model(np.zeros(3, np.float32)).with_params(np.arange(3)).params.tolist()
    [0.0, 1.0, 2.0]
    """

    params: Real  # (p,) float32
    buffers: Real = field(default_factory=lambda: np.empty(0, np.float32))
    counters: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def with_params(self, params: Array) -> Model:
        """The same buffers, other parameters (cast to float32)."""
        return replace(self, params=np.asarray(params, np.float32))


@dataclass(frozen=True, slots=True)
class Updates:
    """What accepted clients sent: a matrix, in ascending client order.

    >>> clients, delta = np.array([1, 4]), np.zeros((2, 3), np.float32)
    >>> updates = Updates(clients, delta, weight=np.array([20.0, 30.0]), steps=np.array([2, 3]))
    >>> len(updates), updates.rows(updates.weight > 25).clients.tolist()
    (2, [4])
    """

    clients: Index  # (m,) sorted
    delta: Real  # (m, p) float32: local parameters minus broadcast parameters
    weight: Real  # (m,) number of samples trained on
    steps: Index  # (m,) optimiser steps really taken
    buffers: Real | None = None  # (m, b) local buffers, where the model has any
    counters: NDArray[np.int64] | None = None  # (m, c)
    extras: Mapping[str, Array] = field(default_factory=dict)  # what a method asked its client half to send

    def rows(self, at: Array) -> Updates:
        """The clients at these positions (or under this mask)."""
        return Updates(
            clients=self.clients[at],
            delta=self.delta[at],
            weight=self.weight[at],
            steps=self.steps[at],
            buffers=None if self.buffers is None else self.buffers[at],
            counters=None if self.counters is None else self.counters[at],
            extras={name: value[at] for name, value in self.extras.items()},
        )

    def __len__(self) -> int:
        return int(self.clients.size)


@dataclass(frozen=True, slots=True)
class Objective:
    """A local loss on logits z, labels y and frozen predictions q of the broadcast model.

    loss = ce * CE(smooth(y)) + pseudo * CE(q) + rce * RCE(y),   RCE = -floor * (1 - p_y).
    Cross-entropy is (1, 0, 0); FLASH's robust loss (1, alpha, beta); symmetric CE (alpha, 0, beta).
    """

    ce: float = 1.0
    pseudo: float = 0.0
    rce: float = 0.0
    floor: float = -4.0  # [A] stands for log 0
    smoothing: float = 0.0  # mass moved from the label to the uniform distribution


@dataclass(frozen=True, slots=True)
class Plan:
    """How the cohort trains locally this round. Scalars hold for all; arrays have one entry per client.

    >>> plan = Plan(epochs=np.array([1, 2, 5]), lr=0.05)
    >>> plan.epochs_of(3).tolist(), plan.lr_of(3).tolist()
    ([1, 2, 5], [0.05, 0.05, 0.05])
    """

    epochs: int | Index = 1
    batch_size: int = 32
    lr: float | Real = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: str = "sgd"  # "sgd" or "adam"
    objective: Objective = field(default_factory=Objective)
    reported: Objective | None = None  # what the signal robust_loss is of; None: of the objective
    prox: float = 0.0  # [mu] adds mu * (w - w_broadcast) to every gradient
    correction: Real | None = None  # (m, p) or (p,) added to every gradient (SCAFFOLD, FedDyn)
    sample_weight: Mapping[int, Real] | None = None  # slot -> one weight per owned training sample
    measure: frozenset[str] = frozenset()  # client-side signals to compute
    seed: int = 0  # batch order is a function of (seed, round, client, epoch)
    round: int = 0

    def epochs_of(self, m: int) -> Index:
        """Epochs per client."""
        return np.broadcast_to(np.asarray(self.epochs, np.int64), (m,)).copy()

    def lr_of(self, m: int) -> NDArray[np.float64]:
        """Learning rate per client."""
        return np.broadcast_to(np.asarray(self.lr, np.float64), (m,)).copy()


@dataclass(frozen=True, slots=True)
class Part:
    """Who owns which samples: a ragged array in CSR form. Client i owns `start[i] : start[i + 1]`.

    >>> rows = np.array([7, 2, 5])
    >>> part = Part(start=np.array([0, 1, 3]), index=rows, label=np.array([0, 1, 1]), clean=np.array([0, 1, 0]))
    >>> part.sizes.tolist(), part.index[part.of(1)].tolist()
    ([1, 2], [2, 5])
    """

    start: Index  # (N + 1,)
    index: Index  # rows of the dataset
    label: Index  # the label as this client sees it (noise included)
    clean: Index  # the true label, for oracles only

    @property
    def sizes(self) -> Index:
        """Samples per client."""
        return np.diff(self.start)

    def of(self, client: int) -> slice:
        """The positions that belong to one client."""
        return slice(int(self.start[client]), int(self.start[client + 1]))


@dataclass(frozen=True, slots=True)
class Work:
    """What a dispatched client has to do, for the latency model. One row per client."""

    samples: Index  # samples it owns
    passes: Real  # passes over them (epochs; 1/3 for a forward-only probe)
    down: Real  # bytes received
    up: Real  # bytes sent
    params: int  # parameters of the model
    plain: Real | float = 1.0  # passes of an ordinary round of training: what a duration "of a round" is for
