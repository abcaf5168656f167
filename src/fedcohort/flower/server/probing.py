"""The two questions beside training: probes before a cohort is chosen, and federated evaluation after a round."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedcohort.core.plain_text import shown
from fedcohort.core.rng import generator
from fedcohort.flower import wire
from fedcohort.flower.server.aggregator import StrategyAggregator
from fedcohort.flower.server.clients import Clients
from fedcohort.flower.server.driver import Arrival, Driver
from fedcohort.flower.server.registration import Attendance
from fedcohort.flower.server.reply_reader import MetricKeyVote, ReplyValidator, read_evaluation, read_signals
from fedcohort.flower.server.strategy_settings import StrategySettings
from fedcohort.flower.wire import Refused
from fedcohort.rounds.validation import sane
from fedcohort.types import Index, Probed, Signals

log = logging.getLogger("flwr")


class Questions:
    """Asks clients something cheaper than training, and believes no more than it must."""

    def __init__(
        self, settings: StrategySettings, driver: Driver, clients: Clients, here: Attendance, validator: ReplyValidator
    ) -> None:
        self.settings, self.driver, self.clients, self.here, self.validator = settings, driver, clients, here, validator
        self.evaluation = MetricKeyVote()

    def probe(
        self, index: int, arrays: ArrayRecord, config: ConfigRecord, clients: Index, names: frozenset[str]
    ) -> Probed:
        """Ask these clients for probe signals of the current model; those that do not answer well are left out."""
        told = {"wire": wire.WIRE, "round": index, "measure": sorted(names)}
        body = RecordDict({"arrays": arrays, "config": config, wire.REQUEST: ConfigRecord(told)})
        answers: dict[int, Any] = {}

        def take(arrival: Arrival) -> None:
            slot = arrival.sent.slot
            if arrival.error is None:
                self.clients.alive(slot)
                try:
                    answers[slot] = self._answer(arrival, names)
                except Refused as reason:
                    log.info("probe of client %s: %s", self.clients.roster.name(slot), shown(reason.reason))

        contents = {int(c): (self.clients.node[int(c)], body) for c in clients}
        ids, _ = self.driver.push(contents, wire.PROBE, index, self.settings.ttl)
        self.driver.gather(ids, self.settings.deadline, take, self.here.registered, lambda: False)
        slots = np.array(sorted(answers), np.int64)
        columns = {n: np.array([answers[int(s)][n] for s in slots]) for n in sorted(names)}
        return Probed(slots, Signals(columns))

    def _answer(self, arrival: Arrival, names: frozenset[str]) -> Mapping[str, Any]:
        try:
            if arrival.message.metadata.src_node_id != arrival.sent.node:
                raise Refused("sender-is-not-the-one-asked")
            found = read_signals(arrival.message.content, names, {}, {}, self.validator.widths)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"malformed: {type(error).__name__}") from None
        for name, value in found.items():
            if not sane(name, np.atleast_1d(np.asarray(value, np.float64))).all():
                raise Refused(f"signal-not-sane:{name}")
        return found

    def evaluate(
        self, strategy: StrategyAggregator, index: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> dict[str, Any]:
        """Federated evaluation, on as many clients as the wrapped strategy's settings say."""
        available = self.clients.available()
        count = strategy.evaluators(available.size)
        if count == 0:
            return {}
        rng = generator(self.settings.seed, "evaluate", index)
        nodes = {int(c): self.clients.node[int(c)] for c in np.sort(rng.choice(available, count, replace=False))}
        configured = strategy.configure_evaluate(index, arrays, nodes, config, self.driver.grid)
        if configured is None:
            return {}
        kind, bodies = configured
        contents = {s: (nodes[s], b) for s, b in bodies.items()}
        replies = self._evaluations(kind, contents, index, strategy.weight_key)
        odd = self.evaluation.judge({s: m for s, (_, m) in replies.items()})
        heavy = self.validator.too_heavy({s: m.get(strategy.weight_key, 1) for s, (_, m) in replies.items()})
        for slot, why in {**dict.fromkeys(heavy, "weight-out-of-range"), **odd}.items():
            log.info("evaluation of client %s: %s", self.clients.roster.name(slot), shown(why))
        same = [(a.message, m) for s, (a, m) in sorted(replies.items()) if s not in odd and s not in heavy]
        try:
            return strategy.aggregate_evaluate(index, same)
        except Exception as error:
            log.error("round %d: evaluation could not be aggregated: %s", index + 1, shown(str(error)))
            return {}

    def _evaluations(
        self, kind: str, contents: Mapping[int, tuple[int, RecordDict]], index: int, weight_key: str
    ) -> dict[int, tuple[Arrival, dict[str, Any]]]:
        out: dict[int, tuple[Arrival, dict[str, Any]]] = {}

        def take(arrival: Arrival) -> None:
            slot = arrival.sent.slot
            if arrival.error is not None:
                return
            self.clients.alive(slot)
            try:
                metrics = read_evaluation(arrival)
                weight = metrics.get(weight_key, 1)
                if isinstance(weight, list) or not 0 < weight <= self.settings.limits.max_weight:
                    raise Refused("weight-out-of-range")
                out[slot] = arrival, metrics
            except Refused as reason:
                log.info("evaluation of client %s: %s", self.clients.roster.name(slot), shown(reason.reason))

        ids, _ = self.driver.push(contents, kind, index, self.settings.ttl)
        self.driver.gather(ids, self.settings.deadline, take, self.here.registered, lambda: False)
        return out
