"""A Flower deployment as a backend of the round engine: single messages, real clients, the real clock."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedcohort import signals as catalogue
from fedcohort.core.columns import part, prefixed
from fedcohort.flower import wire
from fedcohort.flower.model_layout import ModelLayout, record
from fedcohort.flower.server.aggregator import Outgoing, StrategyAggregator
from fedcohort.flower.server.clients import SERVER_SIDE, Clients, Requirements
from fedcohort.flower.server.driver import Arrival, Driver, Sent
from fedcohort.flower.server.evaluation import EvaluateFn, RoundScore, evaluated
from fedcohort.flower.server.json_log import event
from fedcohort.flower.server.method_aggregator import MethodAggregator, plan_from
from fedcohort.flower.server.probing import Questions
from fedcohort.flower.server.registration import Attendance
from fedcohort.flower.server.reply_matrix import matrix
from fedcohort.flower.server.reply_reader import ReplyValidator, ValidReply
from fedcohort.flower.server.state_dir import StateDir
from fedcohort.flower.server.strategy_settings import StrategySettings
from fedcohort.flower.wire import Refused
from fedcohort.protocols import ClientEvaluator, Selector, ServerEvaluator
from fedcohort.rounds.backend import Arrivals, Dispatch, Fates
from fedcohort.types import Array, Arrays, Cohort, Index, Mask, Model, Outcome, Plan, Probed, RoundResult, Updates

log = logging.getLogger("flwr")
_NOT_HERE = frozenset({"drop"})  # directives that Flower clients do not follow


class FlowerBackend:
    """The clients of one deployment."""

    repeatable = False
    client_evaluator: ClientEvaluator | None = None

    def __init__(
        self,
        settings: StrategySettings,
        selector: Selector,
        aggregator: StrategyAggregator | MethodAggregator,
        grid: Grid,
        initial: ArrayRecord,
        layout: ModelLayout,
        evaluator: ServerEvaluator | None = None,
    ) -> None:
        self.settings, self.selector, self.aggregator, self.layout = settings, selector, aggregator, layout
        self.driver = Driver(grid, settings.clock, settings.sleep, settings.poll, settings.max_silence)
        self.began, self.before = settings.clock(), 0.0
        self.arrays, self.model = initial, layout.model(_named(initial))
        self.memory = StateDir(settings.state_dir)
        self.validator = ReplyValidator(
            layout,
            weight_key=aggregator.weight_key,
            weight_needed=aggregator.weight_needed,
            metrics=settings.metrics,
            check_shapes=settings.check_shapes,
            metric_signals=settings.metric_signals,
        )
        measure, abilities = (
            aggregator.demands(self.model) if isinstance(aggregator, MethodAggregator) else (frozenset(), frozenset())
        )
        self.clients = Clients(self.driver, self._requirements(measure, abilities), settings.max_privacy)
        self.here = Attendance(settings, self.driver, self.clients)
        self.questions = Questions(settings, self.driver, self.clients, self.here, self.validator)
        self.server_evaluator = evaluator
        self.train_config = self.evaluate_config = ConfigRecord()
        self.evaluate_fn: EvaluateFn | None = None
        self.send = True  # False: another loop sends the messages and collects the replies
        self.outgoing: tuple[str, dict[int, tuple[int, RecordDict]]] = ("", {})  # what that loop has to send
        self.index = 0
        self.replied: dict[int, ValidReply] = {}  # of the open round, by slot
        aggregator.replies = self.replied
        self._open: dict[int, tuple[Sent, Dispatch]] = {}  # slot -> message and work that a reply is awaited for
        self._inbox: list[Arrival] = []  # replies to open messages that have been pulled
        self.here.awaited = self._awaited
        self._failed: list[tuple[int, str]] = []  # fates that are known before anything was sent
        self._given_up: dict[int, Sent] = {}  # slot -> a message whose fate is not known yet
        self._back: set[int] = set()  # slots whose reply came after all, since fates were last asked for
        self._elapsed, self._started = 0.0, self.began
        self._score = RoundScore(settings.score)
        self.hearers: list[Callable[[RoundResult], None]] = []  # told of every round that is in the journal

    def _requirements(self, measure: frozenset[str], abilities: frozenset[str]) -> Requirements:
        s = self.settings
        names = frozenset(n for n in self.selector.needs | measure if n in catalogue.SIGNALS)
        return Requirements(names, s.app_version, abilities, frozenset(s.metric_signals), s.identity)

    # -- what the engine may know ----------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Seconds that this run has been at work, over all its processes."""
        return self.before + self.settings.clock() - self.began

    @property
    def population(self) -> int:
        """How many clients ever registered."""
        return len(self.clients.roster)

    @property
    def samples(self) -> Index:
        """Samples that each registered client said it has, within limits."""
        return self.clients.samples()

    @property
    def provides(self) -> frozenset[str]:
        """Every signal that a selector can read here."""
        return self.clients.terms.signals | SERVER_SIDE

    @property
    def last_layer(self) -> Mask:
        """Which parameters belong to the last layer."""
        return self.layout.last_layer

    def available(self, index: int) -> Index:
        """Who can be asked; where nobody is there and nobody is out, wait at most one deadline."""
        self.index = index
        self.here.assemble(self.arrays, wait=not self._open)
        self.note_clients()
        return self.clients.available()

    def profiles(self, names: frozenset[str]) -> Arrays:
        """What clients said of themselves, and what the server measured of them (that goes into the journal)."""
        found = self.clients.profiles(names, self.settings.deadline)
        if "expected_seconds" in found:
            self.memory.write("profile", self.index, {"expected_seconds": found["expected_seconds"]}, {})
        return found

    def probe(self, index: int, model: Model, clients: Index, names: frozenset[str]) -> Probed:
        """Ask clients about the current model."""
        self.sync(model)
        return self.questions.probe(index, self.arrays, self.train_config, clients, names)

    def plan(self, index: int, cohort: Cohort) -> Plan:
        """How clients train, as far as the train config says."""
        del cohort
        return plan_from(self.train_config, self.settings.seed, index)

    # -- out and back ----------------------------------------------------------------------------------------------

    def dispatch(self, work: Dispatch) -> None:
        """Write the messages and send them."""
        if work.index == 0 and _NOT_HERE & set(work.cohort.directives):
            log.warning("this selector directs upload dropping, which is not done here: clients upload all")
        slots, node = np.sort(work.cohort.clients).tolist(), self.clients.node
        if work.again:
            self.here.wait_for(slots, self.arrays)
            self.memory.write("again", work.index, {}, {"connected": len(self.clients.node)})
            log.info("round %d was left open: its cohort is asked again", work.index + 1)
        self.sync(work.model)
        nodes = {slot: node[slot] for slot in slots if slot in node}
        self._failed += [(slot, "not-connected") for slot in slots if slot not in node]
        out = Outgoing(work, self.arrays, nodes, self.train_config, self.driver.grid)
        kind, bodies = self.aggregator.configure(out) if nodes else ("train", {})
        contents = {slot: (nodes[slot], self._told(body, work, slot)) for slot, body in bodies.items()}
        self._started, self._elapsed = self.settings.clock(), 0.0
        if not self.send:
            self.outgoing = kind, contents
            return
        ids, lost = self.driver.push(contents, kind, work.index, self.settings.ttl)
        self._started = self.settings.clock()
        self._failed += [(slot, "not-sent") for slot in lost]
        sent = {self.driver.sent[name].slot: self.driver.sent[name] for name in ids}
        self._open.update({slot: (message, work) for slot, message in sent.items()})

    def expect(self, sent: Mapping[int, Sent], work: Dispatch) -> None:
        """Another loop has sent these messages."""
        self._open.update({slot: (message, work) for slot, message in sent.items()})

    def _told(self, body: RecordDict, work: Dispatch, slot: int) -> RecordDict:
        """A message's body with our record: which signals to send, and what the selector directs."""
        told: dict[str, Any] = {"wire": wire.WIRE, "round": work.index, "measure": sorted(work.plan.measure)}
        row = int(np.flatnonzero(work.cohort.clients == slot)[0])
        for name, column in work.cohort.directives.items():
            if name not in _NOT_HERE:
                told[f"directive.{name}"] = float(np.asarray(column)[row])
        return RecordDict({**body, wire.REQUEST: ConfigRecord(told)})

    def replies(self, until: float, enough: int) -> Arrivals:
        """Wait until something is here, or the time is over."""
        del enough
        while True:
            arrivals = self._pull()
            left = until - self.clock
            if arrivals or self._failed or not self._open or left <= 0:
                return self.read(arrivals, timed_out=left <= 0)
            self.settings.sleep(min(self.settings.poll, left))

    def _pull(self) -> list[Arrival]:
        """What came in for open messages; everything else is a registration or a late reply."""
        for arrival in self.driver.pull():
            self.here.registered(arrival)
        inbox, self._inbox = self._inbox, []
        return inbox

    def _awaited(self, arrival: Arrival) -> bool:
        """Keep a reply to an open message, whichever phase has pulled it."""
        slot = arrival.sent.slot
        if slot not in self._open or self._open[slot][0] != arrival.sent:
            return False
        self._inbox.append(arrival)
        return True

    def read(self, arrivals: Iterable[Arrival], *, timed_out: bool) -> Arrivals:
        """Each reply read on its own; whether its numbers are sane is the engine's to judge."""
        ended: dict[int, tuple[Outcome, str, float]] = {s: (Outcome.FAILED, why, 0.0) for s, why in self._failed}
        self._failed, good = [], []
        for arrival in arrivals:
            slot = arrival.sent.slot
            _, work = self._open.pop(slot)
            outcome, why = self._taken(arrival, work)
            ended[slot] = outcome, why, arrival.seconds
            good += [(self.replied[slot], work)] if outcome == Outcome.OK else []
        self._elapsed = self.settings.clock() - self._started
        updates, signals = matrix(good)
        rows = list(ended.items())
        return Arrivals(
            np.array([slot for slot, _ in rows], np.int64),
            np.array([outcome for _, (outcome, _, _) in rows], np.int8),
            np.array([seconds for _, (_, _, seconds) in rows], np.float64),
            updates,
            signals,
            {slot: why for slot, (_, why, _) in rows if why},
            self._elapsed,
            timed_out,
        )

    def _taken(self, arrival: Arrival, work: Dispatch) -> tuple[Outcome, str]:
        slot = arrival.sent.slot
        if arrival.error is not None:
            if arrival.unreachable:
                self.clients.silent.add(slot)
            return Outcome.FAILED, arrival.error
        self.clients.alive(slot)
        self.clients.measured(slot, arrival.seconds)
        try:
            self.replied[slot] = self.validator.read(arrival, work.model, work.plan.measure)
        except Refused as reason:
            return Outcome.REJECTED, reason.reason
        return Outcome.OK, ""

    def review(self, updates: Updates) -> Mapping[int, str]:
        """Reasons against replies that do not fit what the others of this deployment usually send."""
        return self.validator.agree({int(c): self.replied[int(c)] for c in updates.clients})

    def give_up(self, late: Index, *, timed_out: bool) -> Fates:
        """Those that had their time owe a sign of life; the others may still come, and are counted when they do."""
        back, self._back = self._back | set(self.here.late), set()
        came = [slot for slot in self._given_up if slot in back]
        gone = [s for s, sent in self._given_up.items() if s not in came and self.settings.clock() > sent.expires]
        for slot in (*came, *gone):
            del self._given_up[slot]
        for slot in late.tolist():
            sent, _ = self._open.pop(slot, (None, None))
            if timed_out:
                self.clients.silent.add(slot)
            elif sent is not None:
                self._given_up[slot] = sent
        return Fates({}, len(came), len(gone))

    def finish(self, *, idle: bool, pause: float) -> None:
        """Pause after an abandoned round."""
        del idle
        if pause:
            self.settings.sleep(pause)

    def evaluate(self, index: int, model: Model, *, last: bool) -> tuple[float, dict[str, Any]]:
        """Metrics of training, of federated evaluation and of the server's own, and the score among them."""
        del last
        self.sync(model)
        found = {f"train.{k}": v for k, v in self.aggregator.metrics.items()}
        if self.send and isinstance(self.aggregator, StrategyAggregator):
            measured = self.questions.evaluate(self.aggregator, index, self.arrays, self.evaluate_config)
            found.update({f"evaluate.{k}": v for k, v in measured.items()})
        central = evaluated(self.evaluate_fn, index + 1, self.arrays)
        found.update({f"server.{k}": v for k, v in (central or {}).items()})
        return self._score(found), {k: v for k, v in found.items() if _finite(v)}

    def describe(self, result: RoundResult) -> dict[str, Any]:
        """Seconds, how long the close took after the last reply that was needed, and names."""
        made = sorted(float(r.arrival.message.metadata.created_at) for r in self.replied.values())
        full = len(made) >= self.settings.closes_at
        self._back |= set(self.here.late)
        self.validator.remember(self.replied[int(c)] for c in np.sort(result.clients[result.replied]))
        if self.settings.keep_updates and self.selector.needs & catalogue.MODEL_SIZED:
            self.memory.keep_vectors(result)
        return {
            "seconds": self._elapsed,
            "close_lag": time.time() - made[self.settings.closes_at - 1] if full else math.nan,
            "names": {str(s): self.clients.roster.name(s) for s in result.clients.tolist()},
            **self.here.late_row(),
        }

    def under_way(self) -> Index:
        """Clients whose reply is awaited."""
        return np.array(sorted(self._open), np.int64)

    def told(self, result: RoundResult) -> None:
        """Log the round, and forget its replies."""
        for slot in result.clients.tolist():
            self.replied.pop(slot, None)
        self.note_clients()
        counts = {o.name: int((result.outcome == o).sum()) for o in Outcome}
        said = " ".join(f"{name}={count}" for name, count in counts.items() if count)
        asked = int(result.clients.size)
        fields = event("round", round=result.index + 1, asked=asked, **{k.lower(): v for k, v in counts.items()})
        log.info("round %d: asked %d, %s", result.index + 1, asked, said or "nobody came back", extra=fields)
        for hear in self.hearers:
            hear(result)

    # -- what survives ---------------------------------------------------------------------------------------------

    def note_clients(self) -> None:
        """Put clients that registered since into the journal."""
        found = self.clients.news_record()
        if found is not None:
            self.memory.write_roster(self.index, found[1])
            if found[1]["ids"]:
                self.memory.keep_roster(self.clients.roster.ids, self.clients.profile)

    def recall_clients(self) -> None:
        """Give the clients of earlier processes their slots again, also those of which the journal lost the record."""
        for _, _, meta in self.memory.records("roster"):
            self.clients.load(meta)
        lost = self.memory.kept_roster(len(self.clients.roster))
        if lost is not None:
            self.clients.load(lost)
            self.memory.write_roster(self.index, lost)

    def state_dict(self) -> Arrays:
        """The clock, measured latencies, what was learned of replies; the model where the flat one is not all of it."""
        slots = sorted(self.clients.latency)
        arrays: Arrays = {
            "clock": np.array(self.clock),
            "latency.slots": np.array(slots, np.int64),
            "latency.seconds": np.array([self.clients.latency[s] for s in slots], np.float64),
            **prefixed("validator.", self.validator.state_dict()),
        }
        if not self._flat:
            arrays.update({f"model.{i}": a.numpy() for i, a in enumerate(self.arrays.values())})
            arrays["names"] = np.frombuffer("\n".join(str(k) for k in self.arrays).encode(), np.uint8)
        return arrays

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.before, self.began = float(arrays["clock"]), self.settings.clock()
        slots, seconds = arrays["latency.slots"].tolist(), arrays["latency.seconds"].tolist()
        self.clients.latency = dict(zip(slots, seconds, strict=True))
        self.validator.load_state_dict(part(arrays, "validator."))
        if "names" in arrays:
            names = arrays["names"].tobytes().decode().split("\n")
            self.adopt(record({name: arrays[f"model.{i}"] for i, name in enumerate(names)}))

    @property
    def _flat(self) -> bool:
        """Whether the flat model of the engine holds the model to the last digit, and all of it."""
        exact = all(d.kind != "f" or d.itemsize <= 4 for d in self.layout.dtypes.values())
        return self.settings.check_shapes and exact and not self.layout.constants

    def adopt(self, arrays: ArrayRecord) -> Model:
        """Continue from this model: a loop that is not ours may have changed it since we made it."""
        if arrays is not self.arrays:
            self.arrays = arrays
            if self.settings.check_shapes:
                self.model = self.layout.model(_named(arrays))
        return self.model

    def sync(self, model: Model) -> None:
        """Bring the record that is sent in line with the engine's model."""
        newest, self.aggregator.arrays = self.aggregator.arrays, None
        if newest is not None:
            self.arrays = newest
        elif self.settings.check_shapes and model is not self.model and not _equal(model, self.model):
            self.arrays = record(self.layout.named(model))
        self.model = model


def _named(arrays: ArrayRecord) -> dict[str, Any]:
    return {str(k): a.numpy() for k, a in arrays.items()}


def _equal(one: Model, other: Model) -> bool:
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("params", "buffers", "counters"))


def _finite(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(v, int | float) and math.isfinite(v) for v in values)
