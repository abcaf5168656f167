"""The simulated federation: a task on a world's clients, behind a virtual clock. A backend of the round engine.

Replies come as whole matrices. When each client would reply is known before anybody trains, so clients that drop out or
reply after the round has closed are not trained at all: nobody would see the result.

In asynchronous rounds clients train when they are sent out, on the model as it is then, and their replies wait here
until their virtual arrival; the bytes of a reply are counted when it is sent out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort import signals as catalogue
from fedcohort.core.columns import part, prefixed
from fedcohort.core.rng import generator
from fedcohort.protocols import ClientEvaluator, ServerEvaluator, Task, World
from fedcohort.rounds.aggregation import width_of
from fedcohort.rounds.backend import Arrivals, Dispatch, Fates
from fedcohort.rounds.outstanding import joined, replies_from, reply_table
from fedcohort.rounds.validation_score import score_of
from fedcohort.sim.run_settings import RunSettings
from fedcohort.sim.uploads import drop_tensors, plan_rows
from fedcohort.types import (
    Array,
    Arrays,
    Cohort,
    Index,
    Mask,
    Model,
    Outcome,
    Plan,
    Probed,
    Real,
    RoundResult,
    Signals,
    Updates,
    Work,
)

FLOAT = 4  # bytes of a parameter on the wire
FORWARD = 1 / 3  # a forward pass costs a third of a training pass
IDLE = 60.0  # virtual seconds that pass when nobody is available
SERVER_SIGNALS = frozenset({"delta_norm", "delta", "last_layer_delta", "weights", "model_gain", "model"})


@dataclass(slots=True)
class _Bill:
    """What a round costs."""

    probing: float = 0.0  # seconds
    elapsed: float = 0.0  # seconds from dispatch to close
    began: float = 0.0
    down: float = 0.0  # bytes from here on
    up: float = 0.0
    probes: float = 0.0
    signals: float = 0.0


@dataclass(slots=True)
class _Sent:
    """A cohort under way in a synchronous round; one entry per client of the cohort."""

    work: Dispatch
    seconds: NDArray[np.float64]  # when each would reply, or be noticed as lost
    lost: Mask
    up: NDArray[np.float64]  # bytes of an upload
    report: float  # bytes of the signals of one client
    here: Mask = field(default_factory=lambda: np.empty(0, np.bool_))  # has arrived
    batches: int = 0


class Federation:
    """One task bound to one world."""

    repeatable = True

    def __init__(self, world: World, task: Task, settings: RunSettings) -> None:
        self.world, self.task, self.settings = world, task, settings
        self.clock = 0.0
        self.columns = world.profiles()
        self.flight: Arrays = {}  # asynchronous: replies that are on their way
        self._doomed: dict[int, str] = {}  # asynchronous: lost, and noticed at their deadline only
        self._sent: _Sent | None = None
        self._bill = _Bill()
        self.stops: Callable[[float], bool] = lambda score: False  # whether a round of this score is the last one

    # -- what the engine may know ----------------------------------------------------------------------------------

    @property
    def population(self) -> int:
        """How many clients there are."""
        return self.world.population

    @property
    def samples(self) -> Index:
        """Training samples of every client."""
        return self.world.train.sizes

    @property
    def provides(self) -> frozenset[str]:
        """Every signal that a selector can read here."""
        server = SERVER_SIGNALS if self.task.last_layer is not None else SERVER_SIGNALS - {"last_layer_delta"}
        return self.task.provides | frozenset(self.columns) | server

    @property
    def last_layer(self) -> slice | Mask | None:
        """Which parameters are the last layer."""
        return self.task.last_layer

    @property
    def server_evaluator(self) -> ServerEvaluator | None:
        """What methods may compute at the server."""
        return self.task.server_evaluator()

    @property
    def client_evaluator(self) -> ClientEvaluator | None:
        """What a method may compute on a client."""
        return self.task.client_evaluator()

    def available(self, index: int) -> Index:
        """Who can be asked now."""
        self._bill = _Bill(began=self.clock)
        return self.world.available(index, self.clock)

    def profiles(self, names: frozenset[str]) -> Arrays:
        """Profile columns of the world."""
        del names
        return self.columns

    def probe(self, index: int, model: Model, clients: Index, names: frozenset[str]) -> Probed:
        """Ask clients a question without training; those that drop out or take too long do not answer."""
        plan = self._plan(index)
        size = FLOAT * (model.params.size + model.buffers.size)
        up = self._signal_bytes(names, model)
        passes = 1.0 if "probe_weights" in names else FORWARD
        seconds = self.world.seconds(index, clients, self._work(clients, model, passes, size, up))
        there = ~self.world.dropped(index, clients, probe=True) & (seconds <= self.settings.deadline)
        answered = clients[there]
        columns = self.task.probe(model, answered, names, plan) if answered.size else {n: np.empty(0) for n in names}
        columns = self.world.boasted(answered, {n: np.asarray(c) for n, c in columns.items()})
        self._bill.probing = min(float(seconds.max()), self.settings.deadline) if clients.size else 0.0
        self._bill.probes = float(clients.size * size + answered.size * up)
        if self.settings.buffer_size:
            self.clock += self._bill.probing
        return Probed(answered, Signals(columns))

    def plan(self, index: int, cohort: Cohort) -> Plan:
        """The task's plan for this round, with what the selector directs."""
        plan = self._plan(index)
        if "work" in cohort.directives:
            work = np.asarray(cohort.directives["work"], np.float64)
            epochs = np.maximum(np.rint(plan.epochs_of(work.size) * work), 1).astype(np.int64)
            plan = replace(plan, epochs=epochs)
        return plan

    def _plan(self, index: int) -> Plan:
        """The task's plan with the learning rate of this round."""
        base, factor = self.task.plan(), self.settings.lr_factor(index)
        lr: Any = base.lr if factor == 1.0 else np.asarray(base.lr) * factor
        return replace(base, seed=self.settings.seed, round=index, lr=lr)

    # -- out and back ----------------------------------------------------------------------------------------------

    def dispatch(self, work: Dispatch) -> None:
        """Draw how long everybody takes; in asynchronous rounds also train, for the model will have moved later."""
        clients, model, plan = work.cohort.clients, work.model, work.plan
        keep = 1.0 - np.asarray(work.cohort.directives.get("drop", np.zeros(clients.size)), np.float64)
        down = FLOAT * (model.params.size * (1 + (plan.correction is not None)) + model.buffers.size)
        report = self._signal_bytes(plan.measure, model)
        up = FLOAT * (model.params.size * keep + model.buffers.size) + report
        passes = plan.epochs_of(clients.size).astype(np.float64)
        seconds = self.world.seconds(work.index, clients, self._work(clients, model, passes, down, up))
        lost = self.world.dropped(work.index, clients)
        self._bill.down = float(clients.size * down)
        self._sent = _Sent(work, seconds, lost, up - report, report, np.zeros(clients.size, np.bool_))
        if self.settings.buffer_size:
            self._depart(self._sent)
            self._sent = None

    def replies(self, until: float, enough: int) -> Arrivals:
        """Let virtual time pass until `enough` replies are here, everybody's fate is known, or the time is over."""
        if self.settings.buffer_size:
            return self._landing(until, enough)
        sent = self._sent
        assert sent is not None
        limit = self.settings.deadline if until >= self.clock + self.settings.deadline else until - self.clock
        left = ~sent.here
        coming = np.sort(sent.seconds[left & ~sent.lost])
        last = coming[enough - 1] if coming.size >= enough else sent.seconds[left].max(initial=0.0)
        self._bill.elapsed = min(max(float(last), self._bill.elapsed), limit)
        rows = np.flatnonzero(left & (sent.seconds <= self._bill.elapsed))
        sent.here[rows] = True
        return replace(self._arrived(sent, rows), elapsed=self._bill.elapsed, timed_out=bool(last > limit))

    def review(self, updates: Updates) -> Mapping[int, str]:
        """Nothing beyond what the engine checks."""
        del updates
        return {}

    def give_up(self, late: Index, *, timed_out: bool) -> Fates:
        """Whom nobody waits for: who dropped out, and who would still have come before the deadline."""
        if self.settings.buffer_size:
            self._take_off(np.isin(self.under_way(), late))
            return Fates({int(c): self._doomed.pop(int(c)) for c in late if int(c) in self._doomed})
        sent = self._sent
        if sent is None or not late.size:
            return Fates()
        rows = np.isin(sent.work.cohort.clients, late)
        lost = {int(c): "dropped-out" for c in sent.work.cohort.clients[rows & sent.lost]}
        if timed_out:
            return Fates(lost, 0, len(lost))
        came = int(np.count_nonzero(rows & ~sent.lost & (sent.seconds <= self.settings.deadline)))
        return Fates(lost, came, late.size - came)

    def finish(self, *, idle: bool, pause: float) -> None:
        """The round's seconds pass."""
        spent = IDLE if idle else self._bill.elapsed
        if self.settings.buffer_size:
            self.clock += spent
        else:
            self.clock += self._bill.probing + spent + pause
        self._sent = None

    def evaluate(self, index: int, model: Model, *, last: bool) -> tuple[float, dict[str, Any]]:
        """The score on validation data, and everything on test data every so many rounds."""
        score = score_of(self.task.evaluate(model, "validation"), self.settings.score)
        due = last or index % self.settings.evaluate_every == 0 or self.stops(score)
        return score, {k: float(v) for k, v in (self.task.evaluate(model, "test") if due else {}).items()}

    def describe(self, result: RoundResult) -> dict[str, Any]:
        """Seconds and bytes of this round."""
        del result
        bill = self._bill
        waited = self.clock - bill.began - bill.probing if self.settings.buffer_size else bill.elapsed
        return {
            "seconds": waited + bill.probing,
            "bytes_down": bill.down,
            "bytes_up": bill.up,
            "bytes_probes": bill.probes,
            "bytes_signals": bill.signals,
        }

    def under_way(self) -> Index:
        """Clients whose reply is on its way."""
        if self._sent is not None:
            return self._sent.work.cohort.clients[~self._sent.here]
        return self.flight["client"] if self.flight else np.empty(0, np.int64)

    def state_dict(self) -> Arrays:
        """The clock, and the replies that are on their way."""
        doomed = {str(c): np.frombuffer(why.encode(), np.uint8) for c, why in self._doomed.items()}
        return {"clock": np.array(self.clock), **prefixed("flight.", self.flight), **prefixed("doomed.", doomed)}

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.clock = float(arrays["clock"])
        self.flight = {k: np.array(v) for k, v in part(arrays, "flight.").items()}
        self._doomed = {int(c): v.tobytes().decode() for c, v in part(arrays, "doomed.").items()}

    def told(self, result: RoundResult) -> None:
        """Nothing to do."""

    # -- parts -----------------------------------------------------------------------------------------------------

    def _arrived(self, sent: _Sent, rows: Index) -> Arrivals:
        """Train those of these rows that reply; what arrives at the server."""
        work, clients = sent.work, sent.work.cohort.clients
        on_time = rows[~sent.lost[rows]]
        trained = self.task.train(work.model, clients[on_time], plan_rows(work.plan, on_time, clients.size))
        updates, columns = trained.updates, {n: c for n, c in trained.signals.items() if n in work.plan.measure}
        if "drop" in work.cohort.directives and len(updates):
            ratio = np.asarray(work.cohort.directives["drop"], np.float64)[on_time]
            keys = (work.index, sent.batches) if sent.batches else (work.index,)
            rng = generator(self.settings.seed, "upload-drop", *keys)
            columns["delta_norm"] = np.linalg.norm(updates.delta.astype(np.float64), axis=1)  # of the whole update
            updates = drop_tensors(updates, ratio, self.task.layout, rng)
        updates, columns = self.world.tamper(work.index, updates, {n: np.asarray(c) for n, c in columns.items()})
        sent.batches += 1
        self._bill.up += float(np.sum(sent.up[on_time]))
        self._bill.signals += float(on_time.size * sent.report)
        outcome = np.where(sent.lost, Outcome.FAILED, Outcome.OK).astype(np.int8)
        reasons = {int(c): "dropped-out" for c in clients[rows[sent.lost[rows]]]}
        if trained.failed.size and trained.failed.any():
            outcome[on_time[trained.failed]] = Outcome.FAILED
            good = np.flatnonzero(~trained.failed)
            updates, columns = updates.rows(good), {n: c[good] for n, c in columns.items()}
        reasons.update({int(k): v for k, v in trained.reasons.items()})
        return Arrivals(clients[rows], outcome[rows], sent.seconds[rows], updates, columns, reasons)

    def _depart(self, sent: _Sent) -> None:
        """Asynchronous: train everybody that will reply in time, and keep the replies until they arrive."""
        clients = sent.work.cohort.clients
        if not clients.size:
            return
        in_time = sent.seconds <= self.settings.deadline
        self._doomed.update({int(c): "dropped-out" for c in clients[sent.lost & ~in_time]})
        rows = np.flatnonzero(in_time)
        there = self._arrived(sent, rows)
        own: Arrays = {"client": there.clients, "outcome": there.outcome, "seconds": there.seconds}
        own["arrival"] = self.clock + there.seconds
        table = {k: v for k, v in reply_table(there.updates, there.signals).items() if k != "client"}
        at = np.flatnonzero(there.outcome == Outcome.OK)
        own |= {k: _spread(v, at, rows.size) for k, v in table.items()}
        for client, why in there.reasons.items():
            self._doomed[client] = why
        self.flight = joined(self.flight, own)

    def _landing(self, until: float, enough: int) -> Arrivals:
        """Asynchronous: those that arrive next, at most until `enough` replies are here or one client has failed."""
        until = max(until, self.clock)  # what came while clients were probed is here before anybody is late
        if not self.flight:
            self.clock = until
            return Arrivals.nothing(timed_out=True)
        arrival, good = self.flight["arrival"], self.flight["outcome"] == Outcome.OK
        coming = np.sort(arrival[good])
        # so few at a time that refusals among them cannot end the round before the last of them
        several = min(enough, max(coming.size - enough + 1, 1))
        end = min(coming[several - 1] if coming.size else math.inf, arrival[~good].min(initial=math.inf))
        self.clock = max(self.clock, min(float(end), until))
        landed = self._take_off(arrival <= min(end, until))
        ok = np.flatnonzero(landed["outcome"] == Outcome.OK)
        updates, columns = replies_from({k: v[ok] for k, v in landed.items()})
        reasons = {int(c): self._doomed.pop(int(c)) for c in landed["client"] if int(c) in self._doomed}
        elapsed = self.clock - self._bill.began
        return Arrivals(
            landed["client"], landed["outcome"], landed["seconds"], updates, columns, reasons, elapsed, end > until
        )

    def _take_off(self, here: Mask) -> Arrays:
        """Asynchronous: these rows of those that are on their way, which they are not any more."""
        taken = {k: v[here] for k, v in self.flight.items()}
        self.flight = {k: v[~here] for k, v in self.flight.items()} if not here.all() else {}
        return taken

    def _signal_bytes(self, names: frozenset[str], model: Model) -> float:
        """Bytes of these signals per client."""
        whole = FLOAT * model.params.size
        sizes = {"insight": FLOAT * width_of(self.task.last_layer, model.params.size)}
        known = [catalogue.SIGNALS[n] for n in names if n in catalogue.SIGNALS]
        extra = whole * (len(names) - len(known))  # what methods ask for: whole gradients
        return float(extra + sum(sizes.get(s.name, whole) if s.bytes < 0 else s.bytes for s in known))

    def _work(self, clients: Index, model: Model, passes: Real | float, down: float, up: Real | float) -> Work:
        m = clients.size
        return Work(
            samples=self.world.train.sizes[clients],
            passes=np.broadcast_to(np.asarray(passes, np.float64), (m,)),
            down=np.broadcast_to(np.asarray(down, np.float64), (m,)),
            up=np.broadcast_to(np.asarray(up, np.float64), (m,)),
            params=model.params.size,
            plain=self.task.plan().epochs_of(m).astype(np.float64),
        )


def _spread(column: Array, at: Index, m: int) -> Array:
    """Rows of those that reply among all that are under way; zero (or NaN) for the others."""
    out = np.full((m, *column.shape[1:]), np.nan if column.dtype.kind == "f" else 0, column.dtype)
    out[at] = column
    return out
