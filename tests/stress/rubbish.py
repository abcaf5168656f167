"""Replies that must be refused, each with its reason: rows of a matrix in the simulator, messages on Flower.

`Liars` and `Liar` send them. Their twins stay silent: they fail at the moment at which the rubbish would have come. A
run with the rubbish and one with the twins must not differ in anything but the records of those who sent it.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Error, MetricRecord, RecordDict
from tests.flower.grid import FakeClient
from tests.flower.test_hostile import HOSTILE, both, honest, metrics
from tests.stress.federation import Task, World

from fedcohort.flower import wire
from fedcohort.flower.model_layout import record
from fedcohort.rounds.backend import Arrivals
from fedcohort.rounds.outstanding import joined, replies_from, reply_table
from fedcohort.types import Model, Outcome

MAX_NORM = 1e3


def _signal(value):
    def lie(updates, signals, rows):
        for column in signals.values():
            column[rows] = value

    return lie


def _field(name, value):
    def lie(updates, signals, rows):
        getattr(updates, name)[rows] = value

    return lie


def _one_infinity(updates, signals, rows):
    updates.delta[rows, -1] = -np.inf


ROWS = {  # kind -> what it does to some rows, the reason code
    "nan": (_field("delta", np.nan), "update-not-finite"),
    "one infinity": (_one_infinity, "update-not-finite"),
    "update that dominates": (_field("delta", 1e6), "update-too-large"),
    "update beyond float32 squares": (_field("delta", 3e38), "update-too-large"),
    "zero weight": (_field("weight", 0.0), "weight-out-of-range"),
    "negative weight": (_field("weight", -5.0), "weight-out-of-range"),
    "NaN weight": (_field("weight", np.nan), "weight-out-of-range"),
    "infinite weight": (_field("weight", np.inf), "weight-out-of-range"),
    "weight that dominates": (_field("weight", 1e300), "weight-out-of-range"),
    "negative steps": (_field("steps", -1), "steps-out-of-range"),
    "endless steps": (_field("steps", 10**12), "steps-out-of-range"),
    "NaN buffers": (_field("buffers", np.nan), "buffers-not-finite"),
    "NaN signal": (_signal(np.nan), "signal-not-sane:utility"),
    "infinite signal": (_signal(np.inf), "signal-not-sane:utility"),
    "signal that dominates": (_signal(-1e30), "signal-not-sane:utility"),
}


def told(message, scalars, **vectors):
    """An honest reply with these signals."""
    body = both(honest(message), metrics())
    if scalars is not None:
        body[wire.SIGNALS] = scalars
    return RecordDict({**body, **({wire.VECTORS: record(vectors)} if vectors else {})})


def steps(message, value):
    return both(honest(message), MetricRecord({"train_loss": 0.5, "num-examples": 10, "num-steps": value}))


def utility(value):
    return lambda message: told(message, MetricRecord({"utility": value}))


MESSAGES = {  # kind -> the body of a reply, the reason codes that it may get
    **HOSTILE,
    "no signals": (lambda m: told(m, MetricRecord({})), "signal-missing:utility"),
    "another signal": (lambda m: told(m, MetricRecord({"val_loss": 1.0})), "signal-missing:utility"),
    "NaN signal": (utility(float("nan")), "signal-not-sane:utility"),
    "infinite signal": (utility(float("inf")), "signal-not-sane:utility"),
    "signal that dominates": (utility(-1e30), "signal-not-sane:utility"),
    "list as signal": (utility([1.0, 2.0]), "signal-not-sane:utility"),
    "vector as signal": (
        lambda m: told(m, MetricRecord({}), utility=np.ones(2, np.float32)),
        "signal-not-scalar:utility",
    ),
    "vectors of the wrong kind": (
        lambda m: RecordDict({**told(m, MetricRecord({})), wire.VECTORS: MetricRecord({"utility": 1.0})}),
        "signals-malformed",
    ),
    "negative steps": (lambda m: steps(m, -1), "steps-out-of-range"),
    "endless steps": (lambda m: steps(m, 10**12), "steps-out-of-range"),
    "list of steps": (lambda m: steps(m, [1, 2]), "steps-out-of-range"),
    "steps beyond 64 bits": (lambda m: steps(m, 1e308), "steps-out-of-range"),
    "whole steps beyond 64 bits": (lambda m: steps(m, 2**63), "steps-out-of-range"),
    "infinite weight": (lambda m: both(honest(m), metrics(num_examples=float("inf"))), "metric-not-finite"),
}


class Counted(Task):
    """Updates that are all different, and buffers, so that a single wrong bit shows in the model."""

    def __init__(self, world, params=16):
        super().__init__(world, params)

    def initial(self, rng):
        return Model(np.zeros(self.params, np.float32), np.zeros(2, np.float32))

    def delta(self, index, clients):
        phase = 1.0 + index + clients[:, None] / 7.0 + np.arange(self.params) / 3.0
        return np.sin(phase).astype(np.float32)

    def train(self, model, clients, plan):
        made = super().train(model, clients, plan)
        updates = made.updates
        buffers = np.tile(clients[:, None].astype(np.float32), (1, 2))
        whole = type(updates)(updates.clients, updates.delta, updates.weight, updates.steps, buffers)
        return type(made)(whole, made.signals, made.failed, made.reasons)


class Liars(World):
    """A world in which `kind_of(round, clients)` says what each client sends: a number of ROWS, or -1 for the truth."""

    def __init__(self, population, kind_of, *, silent=False):
        super().__init__(population)
        self.kind_of, self.silent = kind_of, silent

    def broken(self, index, clients):
        return (self.kind_of(index, clients) >= 0) & self.silent

    def tamper(self, index, updates, signals):
        if self.silent or not len(updates):
            return updates, signals
        updates = updates.rows(np.arange(len(updates)))
        signals = {name: np.array(column, np.float64) for name, column in signals.items()}
        kinds = self.kind_of(index, updates.clients)
        for number, (lie, _) in enumerate(ROWS.values()):
            lie(updates, signals, np.flatnonzero(kinds == number))
        return updates, signals


class Liar(FakeClient):
    """A Flower client that sends what `kind_of(round)` says: a kind of MESSAGES, or "" for the truth."""

    def __init__(self, name, kind_of, *, silent=False, **keys):
        super().__init__(name, provides=["samples", "utility"], **{"utility": 1.0 + int(name), **keys})
        self.kind_of, self.silent = kind_of, silent

    def reply(self, message):
        body = super().reply(message)
        self.seen.clear()
        return body

    def train(self, message):
        kind = self.kind_of(message.content[wire.REQUEST]["round"])
        if not kind:
            return super().train(message)
        if self.silent:
            return Error(2, "it failed")
        body = MESSAGES[kind][0](message)
        if wire.SIGNALS not in body:
            body[wire.SIGNALS] = MetricRecord({"utility": 1.0 + int(self.name)})
        return body


def with_extra(here, again, strangers):
    """Arrivals with the replies at rows `again` of the updates once more, and some from clients that nobody asked."""
    if not (again.size or strangers.size) or not len(here.updates):
        return here
    rows = np.concatenate([again, np.zeros(strangers.size, np.int64)])
    extra = here.updates.rows(rows)
    extra.clients[again.size :] = strangers
    table = reply_table(extra, {n: np.asarray(v)[rows] for n, v in here.signals.items()})
    updates, signals = replies_from(joined(reply_table(here.updates, here.signals), table))
    return Arrivals(
        np.concatenate([here.clients, extra.clients]),
        np.concatenate([here.outcome, np.full(rows.size, Outcome.OK, np.int8)]),
        np.concatenate([here.seconds, np.zeros(rows.size)]),
        updates,
        signals,
        here.reasons,
        here.elapsed,
        here.timed_out,
    )


def listen(engine):
    """Everything that the selector is told from now on."""
    heard, observe = [], engine.session.selector.observe
    engine.session.selector.observe = lambda result: (heard.append(result), observe(result))[1]
    return heard
