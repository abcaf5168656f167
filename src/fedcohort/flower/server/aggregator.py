"""Who makes the model: a wrapped Flower strategy, or one of our methods (method_aggregator.py).

Both are methods to the round engine, and write the messages that Flower sends.

A wrapped strategy is shown a grid on which only the chosen nodes exist, and its own sampling settings are widened for
the length of the call, so that its sampling takes all of them: nothing is drawn, nothing is waited for. What it keeps
between rounds in arrays, records and plain values (momenta of FedAdam, for instance) is part of our checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcohort.core.columns import as_bytes, from_bytes
from fedcohort.core.plain_text import shown
from fedcohort.errors import ContractError, FedcohortError, StateMismatch
from fedcohort.flower.model_layout import ModelLayout, record
from fedcohort.flower.server.reply_reader import ValidReply
from fedcohort.protocols import Aggregated, Aggregation
from fedcohort.rounds.backend import Dispatch
from fedcohort.types import STALENESS, Arrays, Index, Model, Plan, Updates

log = logging.getLogger("flwr")
_WIDE = {
    "fraction_train": 1.0,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 1,
}
_FAILURES = 3  # rounds in a row in which the wrapped strategy may fail to aggregate
_PATIENCE = 3  # calls after which a strategy that waits for more nodes is shown some that do not exist


@dataclass(frozen=True)
class Outgoing:
    """A cohort that is about to be sent out."""

    work: Dispatch
    arrays: ArrayRecord
    nodes: Mapping[int, int]  # slot -> node, of those that are connected
    config: ConfigRecord
    grid: Grid


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


class GuardedAggregator:
    """What both have in common: an aggregation that fails leaves the model as it is, a few times in a row."""

    def __init__(self, weight_key: str, weight_needed: bool) -> None:
        self.weight_key, self.weight_needed = weight_key, weight_needed
        self.replies: Mapping[int, ValidReply] = {}  # those that the backend has at hand, by slot
        self.arrays: ArrayRecord | None = None  # the newest model in its own types, until the backend takes it
        self.metrics: Mapping[str, Any] = {}
        self.failures = 0  # aggregations in a row that failed

    def aggregate(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """A new model from accepted replies; where that fails, the model stays."""
        self.metrics, before = {}, self.arrays
        if not len(updates):
            return Aggregated(model, np.empty(0, np.bool_))
        try:
            made = self._made(model, updates, context)
            if not (np.isfinite(made.model.params).all() and np.isfinite(made.model.buffers).all()):
                raise ArithmeticError("the aggregated model is not finite")
        except FedcohortError:
            raise
        except Exception as error:
            self.arrays = before
            self._failed(error, context.index)
            why = f"aggregation-failed: {type(error).__name__}"
            reasons = {int(c): why for c in updates.clients}
            return Aggregated(model, np.zeros(len(updates), np.bool_), reasons=reasons)
        self.failures = 0
        return made

    def _made(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        raise NotImplementedError

    def _failed(self, error: Exception, index: int) -> None:
        self.failures += 1
        log.error("round %d: the model stays as it is, aggregation failed: %s", index + 1, shown(str(error)))
        if self.failures >= _FAILURES:
            raise ContractError(
                f"aggregation: {type(error).__name__}: {shown(str(error))}",
                f"it failed {_FAILURES} rounds in a row",
                "fix it",
            ) from error


class StrategyAggregator(GuardedAggregator):
    """A wrapped Flower strategy as a method of the round engine; `layout` is None where shapes are not checked."""

    name: ClassVar[str] = "flower-strategy"
    asynchronous: ClassVar[bool] = True

    def __init__(self, inner: Strategy, layout: ModelLayout | None = None) -> None:
        innermost = _chain(inner)[-1]
        key = str(getattr(innermost, "weighted_by_key", "num-examples"))
        super().__init__(key, hasattr(innermost, "weighted_by_key"))
        self.inner, self.layout = inner, layout
        self.unsaved: set[str] = set()  # attributes of it that cannot be stored
        self.arrays_key = str(getattr(innermost, "arrayrecord_key", "arrays"))
        self.config_key = str(getattr(innermost, "configrecord_key", "config"))

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """What clients do is the strategy's business."""
        del model, clients
        return plan

    def configure(self, out: Outgoing) -> tuple[str, dict[int, RecordDict]]:
        """What the strategy sends to each; to those it left out, what it sends to its first."""
        view, shown = View(out.grid, list(out.nodes.values())), self._shown(out.arrays)
        with widened(self.inner):
            messages = list(self.inner.configure_train(out.work.index + 1, shown, out.config, view))
        self._restore_constants(messages, shown, out.arrays)
        return self._spread(messages, out.nodes, RecordDict({self.arrays_key: out.arrays, self.config_key: out.config}))

    def _shown(self, arrays: ArrayRecord) -> ArrayRecord:
        """The model as the strategy sees it: without infinite constants, which no distance or mean can bear."""
        if self.layout is None or not self.layout.constants:
            return arrays
        return record(self.layout.without_constants({str(k): a.numpy() for k, a in arrays.items()}))

    def _restore_constants(self, messages: Sequence[Message], shown: ArrayRecord, arrays: ArrayRecord) -> None:
        """Put the constants into what the strategy sends: mostly the model that it was shown."""
        if self.layout is None or shown is arrays:
            return
        for message in messages:
            given = message.content.get(self.arrays_key)
            if given is shown:
                message.content[self.arrays_key] = arrays
            elif isinstance(given, ArrayRecord) and given is not arrays:
                named = {str(k): a.numpy() for k, a in given.items()}
                message.content[self.arrays_key] = record(self.layout.with_constants(named))

    def _spread(
        self, messages: Sequence[Message], nodes: Mapping[int, int], otherwise: RecordDict
    ) -> tuple[str, dict[int, RecordDict]]:
        by_node = {m.metadata.dst_node_id: m.content for m in messages}
        kind = messages[0].metadata.message_type if messages else MessageType.TRAIN
        first = messages[0].content if messages else otherwise
        return kind, {slot: RecordDict(dict(by_node.get(node, first))) for slot, node in nodes.items()}

    def configure_evaluate(
        self, index: int, arrays: ArrayRecord, nodes: Mapping[int, int], config: ConfigRecord, grid: Grid
    ) -> tuple[str, dict[int, RecordDict]] | None:
        """The same for evaluation; None where the strategy evaluates nowhere."""
        shown = self._shown(arrays)
        with widened(self.inner):
            view = View(grid, list(nodes.values()))
            messages = list(self.inner.configure_evaluate(index + 1, shown, config, view))
        self._restore_constants(messages, shown, arrays)
        return self._spread(messages, nodes, RecordDict()) if messages else None

    def evaluators(self, available: int) -> int:
        """How many clients the strategy's own settings would evaluate on."""
        innermost = _chain(self.inner)[-1]
        fraction = float(getattr(innermost, "fraction_evaluate", 1.0))
        if fraction <= 0.0:
            return 0
        return min(max(int(available * fraction), int(getattr(innermost, "min_evaluate_nodes", 1))), available)

    def _made(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """Hand clean copies of the accepted replies to the strategy."""
        everybody = np.ones(len(updates), np.bool_)
        replies = [self.replies[int(c)] for c in updates.clients]
        weights = np.asarray(updates.weight, np.float64).tolist()
        replies = [self._fresh(r, model, row) for r, row in zip(replies, _stale(updates), strict=True)]
        messages = [_clean(r, self._content(r, w)) for r, w in zip(replies, weights, strict=True)]
        arrays, metrics = self.inner.aggregate_train(context.index + 1, messages)
        self.metrics = dict(metrics or {})
        if arrays is None:
            return Aggregated(model, everybody)
        named = {str(k): a.numpy() for k, a in arrays.items()}
        named = named if self.layout is None else self.layout.without_constants(named)
        if not all(np.isfinite(v).all() for v in named.values()):
            raise ArithmeticError("the aggregated model is not finite")
        if self.layout is None:
            self.arrays = record(named)
            return Aggregated(model, everybody)
        named = self.layout.with_constants({k: _like(named[k], self.layout.dtypes[k]) for k in self.layout.shapes})
        self.arrays = record(named)
        return Aggregated(self.layout.model(named), everybody)

    def _fresh(self, reply: ValidReply, model: Model, stale: bool) -> ValidReply:
        """The reply; where it was computed on an older model, what it changed is added to the present one."""
        if not stale or self.layout is None:
            return reply
        moved = Model(model.params + reply.delta, reply.model.buffers, reply.model.counters)
        return replace(reply, arrays=self.layout.named(moved))

    def _content(self, reply: ValidReply, weight: float) -> RecordDict:
        """The reply as the strategy reads it, with the weight that the round gives it."""
        changed = {self.weight_key: weight} if self.weight_needed and weight != reply.weight else {}
        arrays = reply.arrays if self.layout is None else self.layout.without_constants(reply.arrays)
        clean = replace(reply, arrays=arrays, metrics={**reply.metrics, **changed})
        return clean.content(self.arrays_key, "metrics")

    def aggregate_evaluate(self, index: int, replies: Sequence[tuple[Message, Mapping[str, Any]]]) -> dict[str, Any]:
        """Hand clean copies of the believed evaluations to the strategy."""
        for message, metrics in replies:
            message.content = RecordDict({"metrics": MetricRecord(dict(metrics))})
        found = self.inner.aggregate_evaluate(index + 1, [m for m, _ in replies]) if replies else None
        return dict(found or {})

    def state_dict(self) -> Arrays:
        """Everything plain that the strategy keeps; what is not an array is text in `plain`."""
        arrays: Arrays = {}
        meta: dict[str, Any] = {}
        for depth, strategy in enumerate(_chain(self.inner)):
            for name, value in vars(strategy).items():
                found: Arrays = {}
                form = _save(f"{depth}.{name}", value, found)
                if form is not None:
                    meta[f"{depth}.{name}"] = form
                    arrays.update(found)
                elif isinstance(value, Collection) and name not in self.unsaved:
                    self.unsaved.add(name)
                    kind = type(strategy).__name__
                    log.warning("%s.%s cannot be stored: a resumed run begins without it", kind, name)
        return {"plain": as_bytes(meta), **arrays}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        chain = _chain(self.inner)
        for key, form in from_bytes(arrays["plain"]).items():
            depth, _, name = key.partition(".")
            if int(depth) >= len(chain) or not hasattr(chain[int(depth)], name):
                raise StateMismatch(
                    f"saved {name!r}", "this strategy has no such attribute", "resume with the same one"
                )
            setattr(chain[int(depth)], name, _restore(key, form, arrays))


@contextlib.contextmanager
def widened(strategy: Strategy) -> Iterator[None]:
    """For the length of a call, a strategy that samples takes everybody; the global random state is untouched."""
    kept = [(s, n, getattr(s, n)) for s in _chain(strategy) for n in _WIDE if getattr(s, n, 0.0) > 0.0]
    state = random.getstate()
    try:
        for owner, name, _ in kept:
            setattr(owner, name, _WIDE[name])
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        random.setstate(state)


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


def _stale(updates: Updates) -> list[bool]:
    """Which updates were computed on an older model; only asynchronous runs have such."""
    ages = updates.extras.get(STALENESS, np.zeros(len(updates)))
    return [bool(age > 0) for age in ages]


def _like(value: Any, dtype: np.dtype[np.generic]) -> Any:
    """The value in this type; integers are rounded, not cut."""
    with np.errstate(over="ignore"):  # what is too large is found afterwards
        return np.rint(value).astype(dtype) if dtype.kind != "f" else value.astype(dtype)


def _save(key: str, value: Any, arrays: Arrays) -> dict[str, Any] | None:
    """The form of a value, whose arrays go to `arrays`; None where it cannot be stored (functions, other objects)."""
    if isinstance(value, bool | int | float | str) or value is None:
        return {"plain": value}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        arrays[key] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "number": True}
    if isinstance(value, bytes):
        arrays[key] = np.frombuffer(value, np.uint8)
        return {"bytes": True}
    if isinstance(value, ArrayRecord):
        arrays.update({f"{key}/{i}": a.numpy() for i, a in enumerate(value.values())})
        return {"record": list(value)}
    if isinstance(value, dict) and all(isinstance(k, int | float | str) for k in value):
        forms = [_save(f"{key}/{i}", v, arrays) for i, v in enumerate(value.values())]
        return None if None in forms else {"entries": list(zip(value, forms, strict=True))}
    if type(value) in (list, tuple):
        forms = [_save(f"{key}/{i}", v, arrays) for i, v in enumerate(value)]
        return None if None in forms else {"tuple" if isinstance(value, tuple) else "items": forms}
    return None


def _restore(key: str, form: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    (kind, held), *_ = form.items()
    if kind == "plain":
        return held
    if kind in ("array", "number"):
        return arrays[key].copy() if kind == "array" else arrays[key][()]
    if kind == "bytes":
        return arrays[key].tobytes()
    if kind == "record":
        return record({k: arrays[f"{key}/{i}"] for i, k in enumerate(held)})
    if kind == "entries":
        return {k: _restore(f"{key}/{i}", inside, arrays) for i, (k, inside) in enumerate(held)}
    if kind in ("items", "tuple"):
        made = [_restore(f"{key}/{i}", inside, arrays) for i, inside in enumerate(held)]
        return tuple(made) if kind == "tuple" else made
    if kind == "list":  # this and the next are of older folders
        return [arrays[f"{key}/{i}"].copy() for i in range(held)]
    return {k: arrays[f"{key}/{i}"].copy() for i, k in enumerate(held)}
