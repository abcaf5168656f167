"""The two questions beside training: probes before a cohort is chosen, and federated evaluation after a round."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedcohort.core.rng import generator
from fedcohort.flower import wire
from fedcohort.flower.server.aggregator import Asked, StrategyAggregator
from fedcohort.flower.server.driver import Arrival
from fedcohort.flower.server.reply_reader import MetricKeyVote, read_evaluation, read_signals
from fedcohort.flower.wire import Refused
from fedcohort.rounds.validation import SANE
from fedcohort.types import Cohort, Index, Probed, Signals

if TYPE_CHECKING:
    from fedcohort.flower.server.flower_rounds import Rounds

log = logging.getLogger("flwr")


class Questions:
    """Asks clients something cheaper than training, and believes no more than it must."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.evaluation = MetricKeyVote()

    def probe(self, clients: Index, names: frozenset[str]) -> Probed:
        """Ask these clients for probe signals of the current model; those that do not answer well are left out."""
        told = {"wire": wire.WIRE, "round": self.rounds.session.index, "measure": sorted(names)}
        body = RecordDict(
            {"arrays": self.rounds.arrays, "config": self.rounds.config, wire.REQUEST: ConfigRecord(told)}
        )
        answers: dict[int, Any] = {}

        def take(arrival: Arrival) -> None:
            slot = arrival.sent.slot
            if arrival.error is None:
                self.rounds.clients.alive(slot)
                try:
                    answers[slot] = self._answer(arrival, names)
                except Refused as reason:
                    log.info("probe of client %s: %s", self.rounds.clients.roster.name(slot), reason.reason)

        contents = {int(c): (self.rounds.clients.node[int(c)], body) for c in clients}
        ids, _ = self.rounds.driver.push(contents, wire.PROBE, self.rounds.session.index, self.rounds.settings.ttl)
        self.rounds.driver.gather(ids, self.rounds.settings.deadline, take, self.rounds.here.registered, lambda: False)
        slots = np.array(sorted(answers), np.int64)
        columns = {n: np.array([answers[int(s)][n] for s in slots]) for n in sorted(names)}
        return Probed(slots, Signals(columns))

    def _answer(self, arrival: Arrival, names: frozenset[str]) -> Mapping[str, Any]:
        try:
            if arrival.message.metadata.src_node_id != arrival.sent.node:
                raise Refused("sender-is-not-the-one-asked")
            found = read_signals(arrival.message.content, names, {}, {}, self.rounds.judge.widths)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"malformed: {type(error).__name__}") from None
        for name, value in found.items():
            if not np.all(np.abs(np.asarray(value, np.float64)) <= SANE):
                raise Refused(f"signal-not-sane:{name}")
        return found

    def evaluate(self, asked: Asked, config: ConfigRecord) -> dict[str, Any]:
        """Federated evaluation, on as many clients as the wrapped strategy's settings say."""
        half = self.rounds.half
        if not isinstance(half, StrategyAggregator):
            return {}
        available = self.rounds.clients.available()
        count = half.evaluators(available.size)
        if count == 0:
            return {}
        index = asked.index
        chosen = np.sort(
            generator(self.rounds.settings.seed, "evaluate", index).choice(available, count, replace=False)
        )
        nodes = {int(c): self.rounds.clients.node[int(c)] for c in chosen}
        question = Asked(index, self.rounds.arrays, self.rounds.model, Cohort(chosen), nodes, asked.samples, asked.rng)
        configured = half.configure_evaluate(question, config, self.rounds.driver.grid)
        if configured is None:
            return {}
        kind, bodies = configured
        replies = self._evaluations(kind, {s: (nodes[s], b) for s, b in bodies.items()}, index)
        keys = set(self.evaluation.vote({s: m for s, (_, m) in replies.items()}))
        same = [(a.message, m) for s, (a, m) in sorted(replies.items()) if set(m) == keys]
        try:
            return half.aggregate_evaluate(index, same)
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
            self.rounds.clients.alive(slot)
            try:
                metrics = read_evaluation(arrival)
                weight = metrics.get(self.rounds.half.weight_key, 1)
                if isinstance(weight, list) or not 0 < weight <= self.rounds.settings.limits.max_weight:
                    raise Refused("weight-out-of-range")
                out[slot] = arrival, metrics
            except Refused as reason:
                log.info("evaluation of client %s: %s", self.rounds.clients.roster.name(slot), reason.reason)

        ids, _ = self.rounds.driver.push(contents, kind, index, self.rounds.settings.ttl)
        self.rounds.driver.gather(ids, self.rounds.settings.deadline, take, self.rounds.here.registered, lambda: False)
        return out
