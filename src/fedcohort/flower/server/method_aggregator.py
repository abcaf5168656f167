"""One of our methods as the maker of the model: its server half here, its client half in what clients are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MessageType, RecordDict
from numpy.typing import NDArray

from fedcohort.errors import BadParameter, FedcohortError
from fedcohort.flower.model_layout import ModelLayout, record
from fedcohort.flower.server.aggregator import GuardedAggregator, Outgoing
from fedcohort.flower.server.reply_reader import ValidReply
from fedcohort.flower.train_instructions import CORRECT, CORRECTION, PROX
from fedcohort.protocols import Aggregated, Aggregation, Method, ProfileReader, ServerEvaluator
from fedcohort.rounds.sent_models import reads_models
from fedcohort.types import Arrays, Index, Model, Plan, Updates


class MethodAggregator(GuardedAggregator):
    """One of our methods. Clients are told of a proximal term and of corrections; other client halves are refused."""

    def __init__(
        self,
        method: Method,
        layout: ModelLayout,
        seed: int,
        evaluator: ServerEvaluator | None,
        spare: Method | None = None,
    ) -> None:
        super().__init__("num-examples", weight_needed=True)
        self.method, self.layout, self.seed, self.evaluator = method, layout, seed, evaluator
        self.spare = spare  # another one like it, to try out before training

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name

    @property
    def asynchronous(self) -> bool:
        """Whether the method can do without rounds."""
        return self.method.asynchronous

    @property
    def reads_models(self) -> bool:
        """Whether the method looks at the clients' own models."""
        return reads_models(self.method)

    def demands(self, model: Model) -> tuple[frozenset[str], frozenset[str]]:
        """Signals and abilities that the method asks clients for, found by preparing a plan for one client."""
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
        signals = plan.measure | (self.method.needs if isinstance(self.method, ProfileReader) else frozenset())
        return signals, frozenset(needed | ({CORRECT} if plan.correction is not None else set()))

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

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """The method's client half."""
        return self.method.prepare(plan, model, clients)

    def configure(self, out: Outgoing) -> tuple[str, dict[int, RecordDict]]:
        """The model, the config, and what the client half needs."""
        work, plan = out.work, out.work.plan
        told = ConfigRecord({**out.config, "server-round": work.index + 1})
        if plan.prox:
            told[PROX] = float(plan.prox)
        bodies = {slot: RecordDict({"arrays": out.arrays, "config": told}) for slot in out.nodes}
        if plan.correction is not None:
            clients = work.cohort.clients
            rows = np.broadcast_to(plan.correction, (clients.size, work.model.params.size))
            for slot, row in zip(clients.tolist(), rows, strict=True):
                if slot in bodies:
                    vector = replace(work.model, params=np.asarray(row, np.float32))
                    bodies[slot][CORRECTION] = record(self.layout.without_constants(self.layout.named(vector)))
        return MessageType.TRAIN, bodies

    def _made(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """The method's server half; the metrics are weighted means, as Flower reports them."""
        self.metrics = means([self.replies[int(c)] for c in updates.clients])
        return self.method.aggregate(model, updates, context)

    def state_dict(self) -> Arrays:
        """The method's own state."""
        return self.method.state_dict()

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.method.load_state_dict(arrays)


def plan_from(config: ConfigRecord, seed: int, index: int) -> Plan:
    """How clients train, as far as the train config says."""
    return Plan(
        epochs=int(_number(config, "local-epochs", 1)),
        batch_size=int(_number(config, "batch-size", 32)),
        lr=_number(config, "lr", 0.1),
        momentum=_number(config, "momentum", 0.0),
        seed=seed,
        round=index,
    )


def _number(config: ConfigRecord, key: str, default: float) -> float:
    value = config.get(key, default)
    return float(value) if isinstance(value, int | float) else default


def means(replies: Sequence[ValidReply]) -> dict[str, Any]:
    """Weighted means of the scalar metrics."""
    if not replies:
        return {}
    total = sum(r.weight for r in replies)
    scalars = [k for k, v in replies[0].metrics.items() if not isinstance(v, list) and k != "num-examples"]
    return {k: float(sum(np.asarray(r.metrics[k]) * r.weight for r in replies)) / total for k in scalars}
