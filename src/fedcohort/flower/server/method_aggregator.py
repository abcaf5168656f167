"""One of our methods as the maker of the model: its server half here, its client half in what clients are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort.errors import BadParameter, FedcohortError
from fedcohort.flower.model_layout import ModelLayout, record
from fedcohort.flower.server.aggregator import Asked, NewModel
from fedcohort.flower.server.reply_reader import ValidReply
from fedcohort.flower.train_instructions import CORRECT, CORRECTION, PROX
from fedcohort.protocols import Aggregation, Method, ServerEvaluator
from fedcohort.types import Arrays, Index, Model, Plan, Updates


class MethodAggregator:
    """One of our methods. Clients are told of a proximal term and of corrections; other client halves are refused."""

    def __init__(
        self,
        method: Method,
        layout: ModelLayout,
        seed: int,
        evaluator: ServerEvaluator | None,
        spare: Method | None = None,
    ) -> None:
        self.method, self.layout, self.seed, self.evaluator = method, layout, seed, evaluator
        self.spare = spare  # another one like it, to try out before training
        self.weight_key, self.weight_needed = "num-examples", True
        self.plan = Plan()
        self.measure: frozenset[str] = frozenset()

    def demands(self, model: Model) -> tuple[frozenset[str], frozenset[str]]:
        """Signals and abilities that the client half asks for, found by preparing a plan for one client."""
        plan = self.method.prepare(Plan(seed=self.seed), model, np.zeros(1, np.int64))
        changed = [n for n in ("objective", "sample_weight", "optimiser") if getattr(plan, n) != getattr(Plan(), n)]
        if changed:
            raise BadParameter(
                f"method {self.method.name}",
                f"its client half changes {changed[0]!r}, of which Flower clients are not told",
                "use it in the simulator, or choose another method",
            )
        self._try(model)
        needed = {PROX} if plan.prox else set()
        return plan.measure, frozenset(needed | ({CORRECT} if plan.correction is not None else set()))

    def _try(self, model: Model) -> None:
        """One aggregation of nothing: what a method lacks at the server is said before training."""
        if self.spare is None:
            return
        few = np.arange(3)
        plan = self.spare.prepare(Plan(seed=self.seed), model, few)
        none = Updates(
            clients=few,
            delta=np.zeros((few.size, model.params.size), np.float32),
            weight=np.ones(few.size),
            steps=np.ones(few.size, np.int64),
            buffers=np.stack([model.buffers] * few.size),
            counters=np.stack([model.counters] * few.size),
            extras={n: np.ones(few.size) for n in plan.measure},
        )
        context = Aggregation(
            index=0,
            plan=plan,
            population=few.size,
            samples=np.ones(few.size, np.int64),
            dispatched=few,
            inclusion={},
            multiplicity={},
            server_evaluator=self.evaluator,
            rng=np.random.default_rng(0),
        )
        try:
            self.spare.aggregate(model, none, context)
        except FedcohortError as error:
            raise BadParameter(
                f"method {self.method.name}",
                f"it cannot work at this server: {error}",
                "pass CohortStrategy(server_evaluator=...) with what it needs, or choose another method",
            ) from None

    def configure(self, asked: Asked, config: ConfigRecord, grid: Grid) -> tuple[str, dict[int, RecordDict]]:
        """The model, the config, and what the client half needs."""
        del grid
        slots = np.array(sorted(asked.nodes), np.int64)
        base = Plan(
            epochs=int(_number(config, "local-epochs", 1)),
            batch_size=int(_number(config, "batch-size", 32)),
            lr=_number(config, "lr", 0.1),
            momentum=_number(config, "momentum", 0.0),
            seed=self.seed,
            round=asked.index,
        )
        self.plan = self.method.prepare(base, asked.model, slots)
        self.measure = self.plan.measure
        told = ConfigRecord({**config, "server-round": asked.index + 1})
        if self.plan.prox:
            told[PROX] = float(self.plan.prox)
        bodies = {int(s): RecordDict({"arrays": asked.arrays, "config": told}) for s in slots}
        if self.plan.correction is not None:
            rows = np.broadcast_to(self.plan.correction, (slots.size, asked.model.params.size))
            for slot, row in zip(slots, rows, strict=True):
                vector = replace(asked.model, params=np.asarray(row, np.float32))
                bodies[int(slot)][CORRECTION] = record(self.layout.named(vector))
        return MessageType.TRAIN, bodies

    def aggregate(self, asked: Asked, replies: Sequence[ValidReply]) -> NewModel:
        """Our server half on the matrix of updates."""
        if not replies:
            return NewModel(None)
        updates = self._updates(asked, replies)
        cohort = asked.cohort
        context = Aggregation(
            index=asked.index,
            plan=self.plan,
            population=asked.samples.size,
            samples=asked.samples,
            dispatched=cohort.clients,
            inclusion=_by_client(cohort.clients, cohort.inclusion),
            multiplicity={
                k: int(v) for k, v in _by_client(cohort.clients, cohort.directives.get("multiplicity")).items()
            },
            server_evaluator=self.evaluator,
            rng=asked.rng,
        )
        made = self.method.aggregate(asked.model, updates, context)
        filtered = {int(c): "filtered" for c in updates.clients[~made.accepted]}
        info = {k: float(v) for k, v in made.info.items()}
        return NewModel(record(self.layout.named(made.model)), _means(replies), filtered, info)

    def _updates(self, asked: Asked, replies: Sequence[ValidReply]) -> Updates:
        per_epoch = [-(-int(r.weight) // self.plan.batch_size) for r in replies]
        at = np.searchsorted(np.sort(asked.cohort.clients), [r.slot for r in replies])
        epochs = self.plan.epochs_of(asked.cohort.clients.size)[at]
        steps = [r.steps or max(int(e) * n, 1) for r, e, n in zip(replies, epochs, per_epoch, strict=True)]
        return Updates(
            clients=np.array([r.slot for r in replies], np.int64),
            delta=np.stack([r.delta for r in replies]),
            weight=np.array([r.weight for r in replies], np.float64),
            steps=np.array(steps, np.int64),
            buffers=np.stack([r.model.buffers for r in replies]),
            counters=np.stack([r.model.counters for r in replies]),
            extras={n: np.stack([np.asarray(r.signals[n]) for r in replies]) for n in sorted(self.measure)},
        )

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The method's own state."""
        return self.method.state_dict(), {}

    def load(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        del meta
        self.method.load_state_dict(arrays)


def _number(config: ConfigRecord, key: str, default: float) -> float:
    value = config.get(key, default)
    return float(value) if isinstance(value, int | float) else default


def _means(replies: Sequence[ValidReply]) -> dict[str, Any]:
    """Weighted means of the scalar metrics, as Flower reports them."""
    total = sum(r.weight for r in replies)
    scalars = [k for k, v in replies[0].metrics.items() if not isinstance(v, list) and k != "num-examples"]
    return {k: float(sum(np.asarray(r.metrics[k]) * r.weight for r in replies)) / total for k in scalars}


def _by_client(clients: Index, column: Any) -> dict[int, float]:
    if column is None:
        return {}
    return {int(c): float(v) for c, v in zip(clients, np.asarray(column), strict=True)}
