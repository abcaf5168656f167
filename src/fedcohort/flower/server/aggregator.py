"""Who makes the model: a wrapped Flower strategy, or one of our methods (ours.py). The driver sees one seam.

A wrapped strategy is shown a grid on which only the chosen nodes exist, and its own sampling settings are widened for
the length of the call, so that its sampling takes all of them: nothing is drawn, nothing is waited for. What it keeps
between rounds in arrays, records and plain values (momenta of FedAdam, for instance) is part of our snapshots.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcohort.errors import StateMismatch
from fedcohort.flower.model_layout import record
from fedcohort.flower.server.reply_reader import ValidReply
from fedcohort.types import Arrays, Cohort, Index, Model

log = logging.getLogger("flwr")
_WIDE = {
    "fraction_train": 1.0,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 1,
}
_PATIENCE = 3  # calls after which a strategy that waits for more nodes is shown some that do not exist


@dataclass(frozen=True)
class NewModel:
    """What became of a round's replies."""

    arrays: ArrayRecord | None  # None: the model stays
    metrics: Mapping[str, Any] = field(default_factory=dict)
    filtered: Mapping[int, str] = field(default_factory=dict)  # slot -> why it was left out
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """What both halves of a round know."""

    index: int
    arrays: ArrayRecord
    model: Model
    cohort: Cohort
    nodes: Mapping[int, int]  # slot -> node, of the cohort
    samples: Index  # of every registered client
    rng: np.random.Generator


class Aggregator(Protocol):
    """One that configures and aggregates."""

    weight_key: str
    weight_needed: bool

    def configure(self, asked: Asked, config: ConfigRecord, grid: Grid) -> tuple[str, dict[int, RecordDict]]:
        """Message type, and what to send to each slot of the cohort."""
        ...

    def aggregate(self, asked: Asked, replies: Sequence[ValidReply]) -> NewModel:
        """A new model from believed replies, in ascending slot order."""
        ...

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """All that is needed to go on in another process."""
        ...

    def load(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        ...


class View(Grid):  # type: ignore[misc]
    """A grid on which only some nodes exist. Sending and receiving is not for strategies: the driver does it."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid, self._nodes, self._calls = grid, list(nodes), 0

    def set_run(self, run: Any) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Pass on."""
        return self._grid.run

    def create_message(self, *args: Any, **keys: Any) -> Message:
        """Pass on."""
        return self._grid.create_message(*args, **keys)

    def get_node_ids(self) -> Iterable[int]:
        """The chosen ones; one that keeps asking for more gets numbers nobody answers to."""
        self._calls += 1
        extra = 2 ** min(self._calls - _PATIENCE, 20) if self._calls > _PATIENCE else 0
        return [*self._nodes, *range(2, 2 + extra)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return list(self._grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return list(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Pass on."""
        return list(self._grid.send_and_receive(messages, timeout=timeout))


class StrategyAggregator:
    """A wrapped Flower strategy."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        innermost = _chain(inner)[-1]
        self.weight_key = str(getattr(innermost, "weighted_by_key", "num-examples"))
        self.weight_needed = hasattr(innermost, "weighted_by_key")
        self.arrays_key = str(getattr(innermost, "arrayrecord_key", "arrays"))
        self.config_key = str(getattr(innermost, "configrecord_key", "config"))

    def configure(self, asked: Asked, config: ConfigRecord, grid: Grid) -> tuple[str, dict[int, RecordDict]]:
        """What the strategy sends to each; to those it left out, what it sends to its first."""
        view = View(grid, list(asked.nodes.values()))
        with widened(self.inner):
            messages = list(self.inner.configure_train(asked.index + 1, asked.arrays, config, view))
        return self._spread(messages, asked.nodes, RecordDict({self.arrays_key: asked.arrays, self.config_key: config}))

    def _spread(
        self, messages: Sequence[Message], nodes: Mapping[int, int], otherwise: RecordDict
    ) -> tuple[str, dict[int, RecordDict]]:
        by_node = {m.metadata.dst_node_id: m.content for m in messages}
        kind = messages[0].metadata.message_type if messages else MessageType.TRAIN
        first = messages[0].content if messages else otherwise
        return kind, {slot: RecordDict(dict(by_node.get(node, first))) for slot, node in nodes.items()}

    def configure_evaluate(
        self, asked: Asked, config: ConfigRecord, grid: Grid
    ) -> tuple[str, dict[int, RecordDict]] | None:
        """The same for evaluation; None where the strategy evaluates nowhere."""
        view = View(grid, list(asked.nodes.values()))
        with widened(self.inner):
            messages = list(self.inner.configure_evaluate(asked.index + 1, asked.arrays, config, view))
        return self._spread(messages, asked.nodes, RecordDict()) if messages else None

    def evaluators(self, available: int) -> int:
        """How many clients the strategy's own settings would evaluate on."""
        innermost = _chain(self.inner)[-1]
        fraction = float(getattr(innermost, "fraction_evaluate", 1.0))
        if fraction <= 0.0:
            return 0
        return min(max(int(available * fraction), int(getattr(innermost, "min_evaluate_nodes", 1))), available)

    def aggregate(self, asked: Asked, replies: Sequence[ValidReply]) -> NewModel:
        """Hand clean copies of the believed replies to the strategy."""
        if not replies:
            return NewModel(None)
        messages = [_clean(r, r.content(self.arrays_key, "metrics")) for r in replies]
        arrays, metrics = self.inner.aggregate_train(asked.index + 1, messages)
        return NewModel(arrays, dict(metrics or {}))

    def aggregate_evaluate(self, index: int, replies: Sequence[tuple[Message, Mapping[str, Any]]]) -> dict[str, Any]:
        """Hand clean copies of the believed evaluations to the strategy."""
        for message, metrics in replies:
            message.content = RecordDict({"metrics": MetricRecord(dict(metrics))})
        found = self.inner.aggregate_evaluate(index + 1, [m for m, _ in replies]) if replies else None
        return dict(found or {})

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Everything plain that the strategy keeps."""
        arrays: Arrays = {}
        meta: dict[str, Any] = {}
        for depth, strategy in enumerate(_chain(self.inner)):
            for name, value in vars(strategy).items():
                _save(f"{depth}.{name}", value, arrays, meta)
        return arrays, meta

    def load(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Put it back."""
        chain = _chain(self.inner)
        for key, form in meta.items():
            depth, _, name = key.partition(".")
            if int(depth) >= len(chain) or not hasattr(chain[int(depth)], name):
                raise StateMismatch(
                    f"saved {name!r}", "this strategy has no such attribute", "resume with the same one"
                )
            setattr(chain[int(depth)], name, _restore(key, form, arrays))


@contextlib.contextmanager
def widened(strategy: Strategy) -> Iterator[None]:
    """For the length of a call, a strategy that samples takes everybody, and Python's global luck is untouched."""
    kept = [(s, n, getattr(s, n)) for s in _chain(strategy) for n in _WIDE if getattr(s, n, 0.0) > 0.0]
    luck = random.getstate()
    try:
        for owner, name, _ in kept:
            setattr(owner, name, _WIDE[name])
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        random.setstate(luck)


def _chain(strategy: Strategy) -> list[Strategy]:
    """The strategy and those it wraps, outermost first."""
    chain = [strategy]
    while isinstance(getattr(chain[-1], "strategy", None), Strategy):
        chain.append(chain[-1].strategy)
    return chain


def _clean(reply: ValidReply, content: RecordDict) -> Message:
    message = reply.arrival.message
    message.content = content
    return message


def _save(key: str, value: Any, arrays: Arrays, meta: dict[str, Any]) -> None:
    """Store a plain value; what cannot be stored (functions, other objects) is made again by the program."""
    if isinstance(value, bool | int | float | str) or value is None:
        meta[key] = {"plain": value}
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        meta[key], arrays[key] = {"array": True}, value
    elif isinstance(value, ArrayRecord):
        meta[key] = {"record": list(value)}
        arrays.update({f"{key}/{i}": a.numpy() for i, a in enumerate(value.values())})
    elif isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
        meta[key] = {"arrays": [str(k) for k in value]}
        arrays.update({f"{key}/{i}": v for i, v in enumerate(value.values())})
    elif isinstance(value, list) and value and all(isinstance(v, np.ndarray) for v in value):
        meta[key] = {"list": len(value)}
        arrays.update({f"{key}/{i}": v for i, v in enumerate(value)})


def _restore(key: str, form: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    if "plain" in form:
        return form["plain"]
    if "array" in form:
        return arrays[key].copy()
    if "list" in form:
        return [arrays[f"{key}/{i}"].copy() for i in range(form["list"])]
    if "record" in form:
        return record({k: arrays[f"{key}/{i}"] for i, k in enumerate(form["record"])})
    return {k: arrays[f"{key}/{i}"].copy() for i, k in enumerate(form["arrays"])}
