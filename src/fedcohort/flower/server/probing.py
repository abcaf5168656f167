"""The two questions beside training: probes before a cohort is chosen, and federated evaluation after a round."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedcohort.core.rng import generator
from fedcohort.flower import wire
from fedcohort.flower.server.aggregator import StrategyAggregator
from fedcohort.flower.server.driver import Arrival
from fedcohort.flower.server.reply_reader import MetricKeyVote, read_evaluation, read_signals
from fedcohort.flower.wire import Refused
from fedcohort.rounds.validation import SANE
from fedcohort.types import Index, Probed, Signals

if TYPE_CHECKING:
    from fedcohort.flower.server.flower_backend import FlowerBackend

log = logging.getLogger("flwr")


class Questions:
    """Asks clients something cheaper than training, and believes no more than it must."""

    def __init__(self, backend: FlowerBackend) -> None:
        self.backend = backend
        self.evaluation = MetricKeyVote()

    def probe(self, clients: Index, names: frozenset[str]) -> Probed:
        """Ask these clients for probe signals of the current model; those that do not answer well are left out."""
        told = {"wire": wire.WIRE, "round": self.backend.index, "measure": sorted(names)}
        body = RecordDict(
            {"arrays": self.backend.arrays, "config": self.backend.train_config, wire.REQUEST: ConfigRecord(told)}
        )
        answers: dict[int, Any] = {}

        def take(arrival: Arrival) -> None:
            slot = arrival.sent.slot
            if arrival.error is None:
                self.backend.clients.alive(slot)
                try:
                    answers[slot] = self._answer(arrival, names)
                except Refused as reason:
                    log.info("probe of client %s: %s", self.backend.clients.roster.name(slot), reason.reason)

        contents = {int(c): (self.backend.clients.node[int(c)], body) for c in clients}
        ids, _ = self.backend.driver.push(contents, wire.PROBE, self.backend.index, self.backend.settings.ttl)
        self.backend.driver.gather(
            ids, self.backend.settings.deadline, take, self.backend.here.registered, lambda: False
        )
        slots = np.array(sorted(answers), np.int64)
        columns = {n: np.array([answers[int(s)][n] for s in slots]) for n in sorted(names)}
        return Probed(slots, Signals(columns))

    def _answer(self, arrival: Arrival, names: frozenset[str]) -> Mapping[str, Any]:
        try:
            if arrival.message.metadata.src_node_id != arrival.sent.node:
                raise Refused("sender-is-not-the-one-asked")
            found = read_signals(arrival.message.content, names, {}, {}, self.backend.validator.widths)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"malformed: {type(error).__name__}") from None
        for name, value in found.items():
            if not np.all(np.abs(np.asarray(value, np.float64)) <= SANE):
                raise Refused(f"signal-not-sane:{name}")
        return found

    def evaluate(self, index: int) -> dict[str, Any]:
        """Federated evaluation, on as many clients as the wrapped strategy's settings say."""
        backend, strategy = self.backend, self.backend.aggregator
        if not isinstance(strategy, StrategyAggregator):
            return {}
        available = backend.clients.available()
        count = strategy.evaluators(available.size)
        if count == 0:
            return {}
        rng = generator(backend.settings.seed, "evaluate", index)
        nodes = {int(c): backend.clients.node[int(c)] for c in np.sort(rng.choice(available, count, replace=False))}
        config, grid = backend.evaluate_config, backend.driver.grid
        configured = strategy.configure_evaluate(index, backend.arrays, nodes, config, grid)
        if configured is None:
            return {}
        kind, bodies = configured
        replies = self._evaluations(kind, {s: (nodes[s], b) for s, b in bodies.items()}, index)
        keys = set(self.evaluation.vote({s: m for s, (_, m) in replies.items()}))
        same = [(a.message, m) for s, (a, m) in sorted(replies.items()) if set(m) == keys]
        try:
            return strategy.aggregate_evaluate(index, same)
        except Exception as error:
            log.error("round %d: evaluation could not be aggregated: %s", index + 1, error)
            return {}

    def _evaluations(
        self, kind: str, contents: Mapping[int, tuple[int, RecordDict]], index: int
    ) -> dict[int, tuple[Arrival, dict[str, Any]]]:
        out: dict[int, tuple[Arrival, dict[str, Any]]] = {}

        def take(arrival: Arrival) -> None:
            slot = arrival.sent.slot
            if arrival.error is not None:
                return
            self.backend.clients.alive(slot)
            try:
                metrics = read_evaluation(arrival)
                weight = metrics.get(self.backend.aggregator.weight_key, 1)
                if isinstance(weight, list) or not 0 < weight <= self.backend.settings.limits.max_weight:
                    raise Refused("weight-out-of-range")
                out[slot] = arrival, metrics
            except Refused as reason:
                log.info("evaluation of client %s: %s", self.backend.clients.roster.name(slot), reason.reason)

        ids, _ = self.backend.driver.push(contents, kind, index, self.backend.settings.ttl)
        self.backend.driver.gather(
            ids, self.backend.settings.deadline, take, self.backend.here.registered, lambda: False
        )
        return out
