"""The simulated federation: a task on a world's clients, behind a virtual clock.

It answers what a real one would: who is there, what a probe says, and what became of a dispatched cohort.
Clients that drop out or come after the closing of the round are not trained at all: nobody would see the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedcohort import signals as catalogue
from fedcohort.core.rng import generator
from fedcohort.protocols import Task, Trained, World
from fedcohort.rounds.validation import Limits, validate
from fedcohort.types import Arrays, Cohort, Index, Mask, Model, Outcome, Plan, Probed, Real, Signals, Updates, Work

FLOAT = 4  # bytes of a parameter on the wire
FORWARD = 1 / 3  # a forward pass costs a third of a training pass
SERVER_SIGNALS = frozenset({"delta_norm", "delta", "last_layer_delta", "weights", "model"})


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one round."""

    down: float = 0.0
    up: float = 0.0
    probes: float = 0.0
    signals: float = 0.0


@dataclass(frozen=True, slots=True)
class Replies:
    """What became of a dispatched cohort. Rows of `outcome`, `duration` and `signals` follow `clients`."""

    clients: Index
    outcome: NDArray[np.int8]
    duration: NDArray[np.float64]
    updates: Updates  # accepted rows only, ascending client order
    signals: Arrays
    reasons: dict[int, str]
    seconds: float  # how long the round took
    traffic: Traffic = field(default_factory=Traffic)
    came: int = 0  # how many replied in time, or would have if the round had not closed early


class Federation:
    """One task bound to one world."""

    def __init__(
        self,
        world: World,
        task: Task,
        *,
        seed: int,
        deadline: float = math.inf,
        limits: Limits | None = None,
    ) -> None:
        self.world, self.task, self.seed, self.deadline = world, task, seed, deadline
        self.limits = limits or Limits()
        self.profiles = world.profiles()

    @property
    def provides(self) -> frozenset[str]:
        """Every signal that can be had here."""
        server = SERVER_SIGNALS if hasattr(self.task, "last_layer") else SERVER_SIGNALS - {"last_layer_delta"}
        return self.task.provides | frozenset(self.profiles) | server

    def probe(
        self, index: int, model: Model, clients: Index, names: frozenset[str], plan: Plan
    ) -> tuple[Probed, float, Traffic]:
        """Ask clients a question without training: answers, seconds it took, bytes it cost."""
        size = FLOAT * (model.params.size + model.buffers.size)
        up = self._signal_bytes(names, model)
        passes = 1.0 if "probe_weights" in names else FORWARD
        seconds = self.world.seconds(index, clients, self._work(clients, model, passes, size, up))
        there = ~self.world.dropped(index, clients) & (seconds <= self.deadline)
        answered = clients[there]
        columns = self.task.probe(model, answered, names, plan) if answered.size else {n: np.empty(0) for n in names}
        wait = min(float(seconds.max()), self.deadline) if clients.size else 0.0
        traffic = Traffic(probes=float(clients.size * size + answered.size * up))
        return Probed(answered, Signals(columns)), wait, traffic

    def train(
        self, index: int, model: Model, cohort: Cohort, plan: Plan, needs: frozenset[str], quorum: int
    ) -> Replies:
        """Dispatch a cohort and close the round at the quorum-th reply, at the deadline, or when all are in."""
        clients = cohort.clients
        keep = 1.0 - np.asarray(cohort.directives.get("drop", np.zeros(clients.size)), np.float64)
        down = FLOAT * (model.params.size * (1 + (plan.correction is not None)) + model.buffers.size)
        report = self._signal_bytes(plan.measure, model)
        up = FLOAT * (model.params.size * keep + model.buffers.size) + report
        work = self._work(clients, model, plan.epochs_of(clients.size).astype(np.float64), down, up)
        seconds = self.world.seconds(index, clients, work)
        lost = self.world.dropped(index, clients)
        closing = _closing(seconds, lost, quorum, self.deadline)
        outcome = np.where(lost, Outcome.FAILED, np.where(seconds > closing, Outcome.LATE, Outcome.OK)).astype(np.int8)
        reasons = {int(c): "dropped-out" for c in clients[lost]}

        on_time = np.flatnonzero(outcome == Outcome.OK)
        trained = self.task.train(model, clients[on_time], _plan_rows(plan, on_time, clients.size))
        updates, columns = self._received(index, trained, cohort, on_time, plan.measure, model)
        failed = trained.failed if trained.failed.size else np.zeros(on_time.size, np.bool_)
        outcome[on_time[failed]] = Outcome.FAILED
        reasons.update({int(k): v for k, v in trained.reasons.items()})
        good = self._validated(updates, columns, failed, outcome, on_time, reasons)

        rows = np.flatnonzero(good)
        rows = rows[np.argsort(updates.clients[rows], kind="stable")]
        columns.update(_server_signals(needs, updates, model, getattr(self.task, "last_layer", None)))
        traffic = Traffic(
            down=float(clients.size * down),
            up=float(np.sum((up - report)[on_time])),
            signals=float(on_time.size * report),
        )
        spread = {n: _scatter(c, on_time, clients.size) for n, c in columns.items()}
        waited = np.minimum(seconds, closing)
        came = int(np.count_nonzero(~lost & (seconds <= self.deadline)))
        return Replies(clients, outcome, waited, updates.rows(rows), spread, reasons, closing, traffic, came)

    def _received(
        self, index: int, trained: Trained, cohort: Cohort, on_time: Index, wanted: frozenset[str], model: Model
    ) -> tuple[Updates, Arrays]:
        """What arrives at the server: after upload dropping, and after what broken clients do to it."""
        updates = trained.updates
        if "drop" in cohort.directives and len(updates):
            ratio = np.asarray(cohort.directives["drop"], np.float64)[on_time]
            layout = getattr(self.task, "layout", (slice(0, model.params.size),))
            updates = drop_tensors(updates, ratio, layout, generator(self.seed, "upload-drop", index))
        columns = {n: np.asarray(c) for n, c in trained.signals.items() if n in wanted}
        return self.world.tamper(index, updates, columns)

    def _validated(
        self,
        updates: Updates,
        columns: Arrays,
        failed: Mask,
        outcome: NDArray[np.int8],
        on_time: Index,
        reasons: dict[int, str],
    ) -> Mask:
        judged = np.flatnonzero(~failed)
        verdict = validate(updates.rows(judged), {n: c[judged] for n, c in columns.items()}, self.limits)
        good = np.zeros(on_time.size, np.bool_)
        good[judged] = verdict.accepted
        outcome[on_time[judged[~verdict.accepted]]] = Outcome.REJECTED
        reasons.update(verdict.reasons)
        return good

    def _signal_bytes(self, names: frozenset[str], model: Model) -> float:
        """Bytes of these signals per client."""
        last: slice | None = getattr(self.task, "last_layer", None)
        head = model.params.size if last is None else last.stop - last.start
        sizes = {"insight": FLOAT * head}
        found = (catalogue.SIGNALS[n] for n in names if n in catalogue.SIGNALS)
        return float(sum(sizes.get(s.name, FLOAT * model.params.size) if s.bytes < 0 else s.bytes for s in found))

    def _work(self, clients: Index, model: Model, passes: Real | float, down: float, up: Real | float) -> Work:
        m = clients.size
        return Work(
            samples=self.world.train.sizes[clients],
            passes=np.broadcast_to(np.asarray(passes, np.float64), (m,)),
            down=np.broadcast_to(np.asarray(down, np.float64), (m,)),
            up=np.broadcast_to(np.asarray(up, np.float64), (m,)),
            params=model.params.size,
        )


def drop_tensors(
    updates: Updates, ratio: NDArray[np.float64], layout: tuple[slice, ...], rng: np.random.Generator
) -> Updates:
    """Each tensor of each update is left out with its client's probability.

    What is sent is scaled by (all weight) / (weight of those that sent this tensor), so that a weighted mean over
    all rows is the weighted mean over those that sent it.
    """
    delta = updates.delta.copy()
    weight = np.asarray(updates.weight, np.float64)
    for part in layout:
        sent = rng.random(len(updates)) >= ratio
        total = float(weight[sent].sum())
        delta[~sent, part] = 0.0
        if total > 0:
            delta[np.flatnonzero(sent)[:, None], np.arange(part.start, part.stop)[None, :]] *= np.float32(
                weight.sum() / total
            )
    return replace(updates, delta=delta)


def _closing(seconds: NDArray[np.float64], lost: Mask, quorum: int, deadline: float) -> float:
    """When the round closes: quorum-th reply, deadline, or the last that was waited for."""
    if seconds.size == 0:
        return 0.0
    replies = np.sort(seconds[~lost])
    if replies.size >= quorum:
        return min(float(replies[quorum - 1]), deadline)
    return min(float(seconds.max()), deadline)


def _plan_rows(plan: Plan, at: Index, m: int) -> Plan:
    """The plan of some rows of the cohort."""
    changes: dict[str, object] = {}
    if np.ndim(plan.epochs):
        changes["epochs"] = np.asarray(plan.epochs)[at]
    if np.ndim(plan.lr):
        changes["lr"] = np.asarray(plan.lr)[at]
    if plan.correction is not None and plan.correction.ndim == 2 and plan.correction.shape[0] == m:
        changes["correction"] = plan.correction[at]
    return replace(plan, **changes) if changes else plan  # type: ignore[arg-type]


def _server_signals(needs: frozenset[str], updates: Updates, model: Model, last_layer: slice | None) -> Arrays:
    """What the server can compute from uploads it has anyway."""
    out: Arrays = {}
    if "delta_norm" in needs:
        with np.errstate(over="ignore", invalid="ignore"):
            out["delta_norm"] = np.sqrt(np.einsum("ij,ij->i", updates.delta, updates.delta, dtype=np.float64))
    if "delta" in needs:
        out["delta"] = updates.delta
    if "weights" in needs:
        out["weights"] = updates.delta + model.params
    if "last_layer_delta" in needs and last_layer is not None:
        out["last_layer_delta"] = updates.delta[:, last_layer]
    return out


def _scatter(column: NDArray[np.generic], at: Index, m: int) -> NDArray[np.float64]:
    """Rows of those that replied, NaN for the others."""
    out = np.full((m, *column.shape[1:]), np.nan, np.float32 if column.ndim > 1 else np.float64)
    out[at] = column
    return out
