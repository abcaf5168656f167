"""The rounds of one run: sweep, ask, train, judge, aggregate, evaluate, tell; and going on after a crash."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedcohort import signals as catalogue
from fedcohort.core.rng import generator
from fedcohort.errors import ContractError, FedcohortError
from fedcohort.flower import wire
from fedcohort.flower.model_layout import ModelLayout, record
from fedcohort.flower.server.aggregator import Asked, NewModel, StrategyAggregator
from fedcohort.flower.server.checkpoint import reopen, resume, snapshot, state_of
from fedcohort.flower.server.clients import SERVER_SIDE, Clients, Requirements
from fedcohort.flower.server.driver import Arrival, Driver
from fedcohort.flower.server.flower_replay import MODEL_SIZED
from fedcohort.flower.server.method_aggregator import MethodAggregator
from fedcohort.flower.server.probing import Questions
from fedcohort.flower.server.registration import Attendance
from fedcohort.flower.server.reply_reader import ReplyValidator
from fedcohort.flower.server.round_result import OpenRound, like, plain, result_of
from fedcohort.flower.server.state_dir import Memory, counts, pack_result
from fedcohort.flower.server.strategy_settings import StrategySettings
from fedcohort.flower.wire import Refused
from fedcohort.protocols import Selector
from fedcohort.rounds.over_selection import OverSelection
from fedcohort.rounds.session import Session
from fedcohort.types import Cohort, Index, Outcome, Probed, RoundResult

log = logging.getLogger("flwr")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
_NOT_HERE = frozenset({"drop"})  # directives that Flower clients do not follow
_STRIKES = 3  # rounds in a row in which the wrapped strategy may fail to aggregate


class Rounds:
    """Everything of one run that changes."""

    def __init__(
        self,
        settings: StrategySettings,
        selector: Selector,
        half: StrategyAggregator | MethodAggregator,
        grid: Grid,
        initial: ArrayRecord,
        layout: ModelLayout,
    ) -> None:
        self.settings, self.selector, self.half, self.layout = settings, selector, half, layout
        self.driver = Driver(grid, settings.clock, settings.sleep, settings.poll)
        self.began, self.before = settings.clock(), 0.0
        self.arrays = initial
        self.model = layout.model({str(k): a.numpy() for k, a in initial.items()})
        self.over = OverSelection(settings.over_select)
        self.memory = Memory(settings.state_dir)
        self.judge = ReplyValidator(
            layout,
            limits=settings.limits,
            weight_key=half.weight_key,
            weight_needed=half.weight_needed,
            metrics=settings.metrics,
            check_shapes=settings.check_shapes,
            metric_signals=settings.metric_signals,
        )
        self.questions = Questions(self)
        measure, abilities = (
            half.demands(self.model) if isinstance(half, MethodAggregator) else (frozenset(), frozenset())
        )
        self.clients = Clients(self.driver, self._terms(measure, abilities), settings.max_privacy)
        self.here = Attendance(settings, self.driver, self.clients)
        self.rows: list[dict[str, Any]] = []
        self.strikes = 0
        self.config = ConfigRecord()
        self.probed: Probed | None = None
        self.session: Session

    def _terms(self, measure: frozenset[str], abilities: frozenset[str]) -> Requirements:
        s = self.settings
        names = frozenset(n for n in self.selector.needs | measure if n in catalogue.SIGNALS)
        return Requirements(names, s.app_version, abilities, frozenset(s.metric_signals), s.identity)

    # -- before the first round ------------------------------------------------------------------------------------

    def begin(self, header: Mapping[str, Any]) -> None:
        """Find the clients, refuse what cannot work, open or make the journal, go back to where a crash left us."""
        resumed = self.memory.open(header)
        try:
            for _, _, meta in self.memory.records("roster"):
                self.clients.load(meta)
            self.here.gather(self.arrays)
            self.here.check(type(self.selector).__name__)
            if not resumed:
                self.memory.create(header)
            self.session = Session(
                self.selector,
                cohort_size=self.settings.cohort_size,
                seed=self.settings.seed,
                journal=self.memory.journal,
                provides=self.clients.terms.signals | SERVER_SIDE,
                max_privacy=self.settings.max_privacy,
            )
            if resumed:
                resume(self)
            else:
                snapshot(self)
            self._news()
        except BaseException:
            self.memory.close()
            raise

    # -- one round -------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Seconds that this run has been at work, over all its processes."""
        return self.before + self.settings.clock() - self.began

    def adopt(self, arrays: ArrayRecord) -> None:
        """Go on from this model: a loop that is not ours may have changed it since we made it (noise, for instance)."""
        if arrays is not self.arrays:
            named = {str(k): a.numpy() for k, a in arrays.items()}
            self.arrays, self.model = arrays, self.layout.model(named)

    def open(self, config: ConfigRecord) -> OpenRound:
        """Choose the cohort, commit it, and write the messages."""
        self.config, self.probed = config, None
        self.here.assemble(self.arrays)
        self._news()
        available = self.clients.available()
        profiles = self.clients.profiles(catalogue.of_side(self.selector.needs, "profile"), self.settings.deadline)
        index = self.session.index
        self.memory.keep_ask(index, profiles)
        if "expected_seconds" in profiles:
            self.memory.write("profile", index, {"expected_seconds": profiles["expected_seconds"]}, {})

        def probe(clients: Index, names: frozenset[str]) -> Probed:
            self.probed = answers = self.questions.probe(clients, names)
            self.memory.keep_ask(index, profiles, answers)
            return answers

        cohort = self.session.ask(
            available,
            population=len(self.clients.roster),
            clock=self.clock,
            profiles=profiles,
            probe=probe,
            size=max(self.settings.cohort_size, min(self.over.ask_for(self.settings.cohort_size), available.size)),
        )
        return self._configured(cohort, config)

    def _configured(self, cohort: Cohort, config: ConfigRecord) -> OpenRound:
        index, node = self.session.index, self.clients.node
        if index == 0 and _NOT_HERE & set(cohort.directives):
            log.warning("this selector directs upload dropping, which is not done here: clients upload all")
        nodes = {int(c): node[int(c)] for c in np.sort(cohort.clients) if int(c) in node}
        samples = np.array([int(p.get("samples", 0)) for p in self.clients.profile], np.int64)
        rng = generator(self.settings.seed, "method", index)
        asked = Asked(index, self.arrays, self.model, cohort, nodes, samples, rng)
        wanted = catalogue.of_side(self.selector.needs, "client")
        kind, bodies = self.half.configure(asked, config, self.driver.grid) if nodes else ("train", {})
        wanted |= self.half.measure if isinstance(self.half, MethodAggregator) else frozenset()
        contents = {s: (nodes[s], self._told(body, cohort, s, wanted, index)) for s, body in bodies.items()}
        return OpenRound(asked, contents, kind, wanted, self.settings.clock())

    def _told(self, body: RecordDict, cohort: Cohort, slot: int, wanted: frozenset[str], index: int) -> RecordDict:
        """A message's body with our record: which signals to send, and what the selector directs."""
        told: dict[str, Any] = {"wire": wire.WIRE, "round": index, "measure": sorted(wanted)}
        row = int(np.flatnonzero(cohort.clients == slot)[0])
        for name, column in cohort.directives.items():
            if name not in _NOT_HERE:
                told[f"directive.{name}"] = float(np.asarray(column)[row])
        return RecordDict({**body, wire.REQUEST: ConfigRecord(told)})

    def exchange(self, rnd: OpenRound) -> None:
        """Send, and collect until enough accepted, deadline, or all are in."""
        s = self.settings
        ids, lost = self.driver.push(rnd.contents, rnd.kind, rnd.asked.index, s.ttl)
        rnd.started = s.clock()
        for slot in lost:
            self.fail(rnd, slot, "not-sent")
        self.driver.gather(
            ids,
            s.deadline,
            lambda arrival: self.take(rnd, arrival),
            self.here.registered,
            lambda: len(rnd.believed) >= s.closes_at,
        )
        rnd.timed_out = s.clock() - rnd.started >= s.deadline

    def take(self, rnd: OpenRound, arrival: Arrival) -> None:
        """One reply in time: read it, or note why not."""
        slot = arrival.sent.slot
        rnd.seconds[slot] = arrival.seconds
        if arrival.error is not None:
            self.fail(rnd, slot, arrival.error)
            if arrival.unreachable:
                self.clients.silent.add(slot)
            return
        self.clients.alive(slot)
        self.clients.measured(slot, arrival.seconds)
        try:
            rnd.believed[slot] = self.judge.read(arrival, self.model, rnd.wanted)
            rnd.replied_at.append(float(arrival.message.metadata.created_at))
        except Refused as reason:
            rnd.outcome[slot], rnd.reasons[slot] = Outcome.REJECTED, reason.reason

    def fail(self, rnd: OpenRound, slot: int, why: str) -> None:
        """This client did its part of the round in vain."""
        rnd.outcome[slot], rnd.reasons[slot] = Outcome.FAILED, why

    def close(
        self, rnd: OpenRound, evaluate: ConfigRecord, evaluate_fn: EvaluateFn | None, *, send: bool = True
    ) -> None:
        """ReplyValidator, aggregate, evaluate, and tell; the model stays where nobody came back."""
        elapsed = self.settings.clock() - rnd.started
        lag = time.time() - sorted(rnd.replied_at)[self.settings.closes_at - 1] if self._full(rnd) else math.nan
        for slot, why in self.judge.agree(rnd.believed).items():
            del rnd.believed[slot]
            rnd.outcome[slot], rnd.reasons[slot] = Outcome.REJECTED, why
        made = self._aggregate(rnd)
        for slot, why in made.filtered.items():
            rnd.outcome[slot], rnd.reasons[slot] = Outcome.FILTERED, why
        row = {"round": float(rnd.asked.index), "clock": self.clock, "seconds": elapsed, "close_lag": lag}
        found = {f"train.{k}": v for k, v in made.metrics.items()}
        result = result_of(self, rnd, elapsed)
        if send:
            found.update({f"evaluate.{k}": v for k, v in self.questions.evaluate(rnd.asked, evaluate).items()})
        central = evaluate_fn(rnd.asked.index + 1, self.arrays) if evaluate_fn is not None else None
        found.update({f"server.{k}": v for k, v in (central or {}).items()})
        result = replace(result, score=self._score(found))
        row.update({**counts(result.outcome), "asked": float(result.clients.size), "drop_out": self.over.rate})
        row.update({f"method.{k}": v for k, v in made.info.items()})
        self.tell(
            result, {**{k: v for k, v in row.items() if math.isfinite(v)}, **plain(found), **self.here.late_row()}, rnd
        )

    def tell(self, result: RoundResult, row: dict[str, Any], rnd: OpenRound) -> None:
        """Make the round's end durable, then let journal and selector know."""
        names = {str(s): self.clients.roster.name(s) for s in result.clients.tolist()}
        reasons = {int(k): v for k, v in rnd.reasons.items()}
        arrays = {f"result.{k}": v for k, v in pack_result(result).items()}
        meta = {"row": {**row, "names": names}, "reasons": {str(k): v for k, v in reasons.items()}}
        state, more = state_of(self)
        closing = {**arrays, **{f"state.{k}": v for k, v in state.items()}}
        if self.settings.keep_updates and self.selector.needs & MODEL_SIZED:
            self.memory.keep_vectors(result, self.probed)
        self.memory.keep(self.memory.closings, result.index, closing, {**meta, "state": more})
        self.told(result, meta["row"], reasons)

    def told(self, result: RoundResult, row: dict[str, Any], reasons: dict[int, str]) -> None:
        """Let journal, selector and log know of a round whose end is durable."""
        self.session.tell(result, row, reasons)
        self.rows.append(row)
        self._news()
        snapshot(self)
        said = " ".join(f"{o.name}={int(row[o.name.lower()])}" for o in Outcome if row[o.name.lower()])
        log.info("round %d: asked %d, %s", result.index + 1, int(row["asked"]), said or "nobody came back")
        for slot, why in sorted(reasons.items()):
            log.info("\tclient %s: %s", self.clients.roster.name(slot), why)

    # -- parts of a round ------------------------------------------------------------------------------------------

    def _full(self, rnd: OpenRound) -> bool:
        return len(rnd.believed) >= self.settings.closes_at > 0

    def _aggregate(self, rnd: OpenRound) -> NewModel:
        """A new model, or the old one with the reason why it stays."""
        replies = [rnd.believed[s] for s in sorted(rnd.believed)]
        try:
            made = self.half.aggregate(rnd.asked, replies)
            named = None if made.arrays is None else {str(k): a.numpy() for k, a in made.arrays.items()}
            if named is not None and not all(np.isfinite(v).all() for v in named.values()):
                raise ArithmeticError("the aggregated model is not finite")
        except FedcohortError:
            raise
        except Exception as error:
            self.strikes += 1
            log.error("round %d: the model stays as it is, aggregation failed: %s", rnd.asked.index + 1, error)
            if self.strikes >= _STRIKES:
                raise ContractError(
                    f"aggregation: {type(error).__name__}: {error}", f"it failed {_STRIKES} rounds in a row", "mend it"
                ) from error
            return NewModel(None, {}, {r.slot: f"aggregation-failed: {type(error).__name__}" for r in replies})
        self.strikes = 0
        if named is not None:
            if self.settings.check_shapes:
                named = {k: like(named[k], self.layout.dtypes[k]) for k in self.layout.shapes}
                self.model = self.layout.model(named)
            self.arrays = record(named)
        return made

    def _score(self, found: Mapping[str, Any]) -> float:
        key = self.settings.score
        for side in ("server", "evaluate"):
            value = found.get(f"{side}.{key}")
            if isinstance(value, int | float):
                return float(value)
        return math.nan

    # -- what survives ---------------------------------------------------------------------------------------------

    def _news(self) -> None:
        found = self.clients.news_record()
        if found is not None:
            self.memory.write("roster", self.session.index, *found)

    def again(self, config: ConfigRecord) -> OpenRound | None:
        """The round that an earlier process left open, ready to be sent again."""
        cohort = reopen(self)
        if cohort is None:
            return None
        self.here.assemble(self.arrays)
        self._news()
        self.memory.write("again", self.session.index, {}, {"connected": len(self.clients.node)})
        log.info("round %d was left open: its cohort is asked again", self.session.index + 1)
        return self._configured(cohort, config)
