"""A grid in memory with a clock of its own: what a SuperLink and its SuperNodes would do, under the test's control."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as stock
from flwr.supercore.task_identity import TaskIdentity

from fedcohort.flower import CohortStrategy, wire

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
APP_RAISED = 2


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {k: a.numpy() for k, a in record.items()}


def as_record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({k: Array(np.asarray(v)) for k, v in arrays.items()})


class FakeClient:
    """Adds `step` to every parameter; everything about it can be changed by subclass or attribute."""

    def __init__(self, name: str, *, step=1.0, samples=10, seconds=1.0, provides=(), app_version="", **signals):
        self.name, self.step, self.samples, self.seconds = name, step, samples, seconds
        self.provides, self.app_version, self.signals = list(provides), app_version, signals
        self.plain = False  # a ClientApp without our queries
        self.seen: list[Message] = []

    def delay(self, message: Message) -> float | None:
        """Seconds until the reply; None: never."""
        return 0.0 if message.metadata.message_type == wire.REGISTER else self.seconds

    def reply(self, message: Message) -> RecordDict | Error:
        self.seen.append(message)
        kind = message.metadata.message_type
        if kind == wire.REGISTER:
            return self.register(message)
        if kind == wire.PROBE:
            return RecordDict({wire.SIGNALS: MetricRecord(self.measured(message))})
        if kind.startswith("evaluate"):
            return RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": self.samples})})
        return self.train(message)

    def register(self, message: Message) -> RecordDict | Error:
        if self.plain:
            return Error(APP_RAISED, "No query function registered with name 'fedcohort_register'")
        asked = message.content[wire.REQUEST]["profiles"]
        body = {
            "wire": wire.WIRE,
            "id": self.name,
            "app-version": self.app_version,
            "provides": self.provides,
            "abilities": [],
        }
        profile = {n: self.samples if n == "samples" else self.signals[n] for n in asked if n in self.provides}
        return RecordDict({wire.REQUEST: ConfigRecord(body), wire.SIGNALS: MetricRecord(profile)})

    def measured(self, message: Message) -> dict[str, float]:
        return {n: self.signals[n] for n in message.content[wire.REQUEST]["measure"] if n in self.signals}

    def train(self, message: Message) -> RecordDict | Error:
        arrays = {k: v + np.asarray(self.step, v.dtype) for k, v in arrays_of(message.content["arrays"]).items()}
        metrics = MetricRecord({"train_loss": 0.5, "num-examples": self.samples})
        content = {"arrays": as_record(arrays), "metrics": metrics, wire.SIGNALS: MetricRecord(self.measured(message))}
        return RecordDict(content)


class FakeGrid(Grid):
    """Nodes 1001, 1002, ... in the order of the clients; virtual time passes only when somebody sleeps."""

    def __init__(self, clients: list[FakeClient]) -> None:
        self.clients = {1001 + i: c for i, c in enumerate(clients)}
        self.now = 100.0
        self.queue: list[tuple[float, int, Message]] = []  # (arrival, order, reply)
        self.order = itertools.count()
        self.pushed: list[Message] = []
        self.online: Callable[[], list[int]] = lambda: list(self.clients)
        self.tamper: Callable[[Message], list[Message]] = lambda m: [m]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        nearest = min((at for at, _, _ in self.queue if at > self.now), default=np.inf)
        self.now = min(nearest, self.now + seconds)

    def set_run(self, run) -> None:
        pass

    @property
    def run(self):
        return None

    def create_message(self, *args, **keys):
        raise NotImplementedError

    def get_node_ids(self):
        return self.online()

    def push_messages(self, messages):
        ids = []
        for message in messages:
            number = next(self.order)
            message.metadata.__dict__["_message_id"] = f"m{number}"
            self.pushed.append(message)
            ids.append(f"m{number}")
            client = self.clients.get(message.metadata.dst_node_id)
            wait = None if client is None else client.delay(message)
            if wait is None:
                continue
            body = client.reply(message)
            for reply in self.tamper(Message(body, reply_to=message)):
                self.queue.append((self.now + wait, number, reply))
        return ids

    def pull_messages(self, message_ids):
        due = sorted((x for x in self.queue if x[0] <= self.now), key=lambda x: x[:2])
        self.queue = [x for x in self.queue if x[0] > self.now]
        return [m for _, _, m in due]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.push_messages(messages)
        end, got = self.now + (timeout or 0), self.pull_messages([])
        while len(got) < len(messages) and self.now < end:
            self.sleep(end - self.now)
            got.extend(self.pull_messages([]))
        return got


def start(strategy, grid, arrays=None, rounds=3, **keys):
    """Run with a model of two arrays."""
    first = arrays or {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    return strategy.start(grid, as_record(first), num_rounds=rounds, **keys)


def timing(grid):
    """StrategySettings that let virtual time pass."""
    return {"clock": grid.clock, "sleep": grid.sleep, "poll": 1e6}


def fedavg(**keys):
    return stock.FedAvg(fraction_evaluate=0.0, **keys)


def make(grid, inner=None, **keys):
    settings = {"selector": "uniform", "cohort_size": 3, "deadline": 10.0, "over_select": 1.0, **timing(grid), **keys}
    return CohortStrategy(inner or fedavg(), **settings)
