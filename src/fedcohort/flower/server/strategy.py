"""`CohortStrategy`: any Flower strategy, with its clients chosen by a fedcohort selector and its replies checked.

::

    strategy = CohortStrategy(FedAvg(), selector="oort", cohort_size=10, deadline=120, state_dir="state")
    result = strategy.start(grid, initial_arrays, num_rounds=20)

`start` is a driver of its own: deadline, early close, over-selection, resume. A loop that calls
`configure_train` and `aggregate_train` itself (Flower's `Strategy.start`) is served too, without those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcohort import signals as catalogue
from fedcohort.errors import BadParameter, OutOfTurn, check, check_object, shown
from fedcohort.flower.model_layout import ModelLayout, refuse_nan
from fedcohort.flower.server.aggregator import StrategyAggregator
from fedcohort.flower.server.driver import Arrival, Sent
from fedcohort.flower.server.evaluation import EvaluateFn, evaluated
from fedcohort.flower.server.flower_backend import FlowerBackend
from fedcohort.flower.server.json_log import event, use_json_logs
from fedcohort.flower.server.method_aggregator import MethodAggregator
from fedcohort.flower.server.prometheus import MetricsServer, RunMetrics
from fedcohort.flower.server.recorded_run import OBJECT
from fedcohort.flower.server.state_dir import ARRAYS, ASYNCHRONOUS, CONSTANTS, METHOD
from fedcohort.flower.server.strategy_settings import StrategySettings
from fedcohort.protocols import Method, Selector, ServerEvaluator
from fedcohort.registry.lookup import make_method, make_selector, parse
from fedcohort.registry.own_objects import check_calls
from fedcohort.rounds.engine import RoundEngine
from fedcohort.rounds.session import Session
from fedcohort.rounds.usage import Usage
from fedcohort.types import Outcome, RoundResult

log = logging.getLogger("flwr")


class CohortStrategy(Strategy):  # type: ignore[misc]
    """Wraps a Flower strategy (or runs one of our methods) and replaces who is asked and what is believed.

    `inner` is any Flower strategy; `method` (a name of the catalogue or a method) takes its place. `selector` is a name
    such as ``"oort(explore=0.8)"`` or a selector. Further keywords are the fields of
    :class:`StrategySettings`: deadline, state_dir, max_privacy, min_available, wait, max_silence, over_select,
    close_after, min_replies, seed, limits, app_version, identity, metrics, metric_signals, check_shapes, score, poll.
    `evaluate_fn` is the default of `start`; a loop that is not ours keeps its own to itself, so a selector that learns
    from a score needs it here.
    """

    def __init__(
        self,
        inner: Strategy | None = None,
        *,
        selector: str | Selector,
        cohort_size: int = 10,
        method: str | Method | None = None,
        server_evaluator: ServerEvaluator | None = None,
        last_layer: tuple[str, ...] | None = None,
        state_dir: str | Path | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **settings: Any,
    ) -> None:
        if (inner is None) == (method is None):
            raise BadParameter(
                "inner and method", "exactly one of them makes the model", "pass a Flower strategy or method="
            )
        _check_inner(inner)
        if getattr(inner, "fraction_train", 1.0) == 0.0:
            raise BadParameter("fraction_train = 0", "the wrapped strategy trains nobody", "leave it at 1.0")
        named = state_dir is None or isinstance(state_dir, str | Path)
        check(named, f"state_dir = {state_dir!r}", "it must be the path of a folder", "write state_dir='state'")
        fits = server_evaluator is None or hasattr(server_evaluator, "size")
        check(
            fits, f"server_evaluator = {server_evaluator!r}", "it lacks size", "give a ServerEvaluator (protocols.py)"
        )
        folder = None if state_dir is None else Path(state_dir).expanduser().resolve()
        check(
            folder is None or not folder.is_file(), f"state_dir = {str(state_dir)!r}", "this is a file", "name a folder"
        )
        try:
            self.settings = StrategySettings(cohort_size=cohort_size, state_dir=folder, **settings)
        except TypeError as error:
            raise BadParameter("CohortStrategy(...)", str(error), "see its documentation") from None
        if self.settings.log_format == "json":
            use_json_logs()
        self.inner = inner
        self.selector = make_selector(selector) if isinstance(selector, str) else selector
        self.method = make_method(method) if isinstance(method, str) else method
        self._spare = make_method(method) if isinstance(method, str) else None
        self._method_text = _spelled(method) if isinstance(method, str) else ""
        if not self.settings.check_shapes:
            _check_free_shapes(self.method, self.selector)
        self.evaluator, self.last_layer, self.evaluate_fn = server_evaluator, last_layer, evaluate_fn
        self._text = selector if isinstance(selector, str) else f"{type(selector).__name__}{OBJECT}"
        self._engine: RoundEngine | None = None
        self._backend: FlowerBackend
        self._messages: list[tuple[Message, Sent]] = []  # what another loop sends for us
        # a selector above the privacy level is refused here, before anything is sent
        Session(self.selector, cohort_size=cohort_size, seed=self.settings.seed, max_privacy=self.settings.max_privacy)
        for kind, given in (("selector", self.selector), ("method", self.method)):
            if given is not None:
                check_calls(kind, type(given).__name__, given, stored=folder is not None)

    def summary(self) -> None:
        """Log the configuration."""
        s = self.settings
        log.info("\t├──> Selector: %s (reads %s)", self._text, ", ".join(sorted(self.selector.needs)) or "nothing")
        log.info("\t├──> Cohort of %d, over-selection %s, closing at %d", s.cohort_size, s.over_select, s.closes_at)
        if s.closes_early:
            log.info(
                "\t├──> Rounds close early: waiting for %g of the slow, floor on use %g", s.wait_for_slow, s.use_floor
            )
        log.info("\t├──> Deadline %g s, privacy at most %s", s.deadline, s.max_privacy)
        log.info("\t└──> State in %s", s.state_dir or "(nowhere: no resume)")
        if self.inner is not None:
            self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the remaining rounds; a `state_dir` that holds an earlier process's rounds is resumed.

        A round lasts until the deadline, or for `timeout` seconds where that is shorter.
        """
        log.info("Starting CohortStrategy with %s:", type(self.inner).__name__ if self.inner else self._method_name)
        self.summary()
        longest = self.settings.deadline if timeout is None else min(self.settings.deadline, timeout)
        log.info("Rounds last at most %g s", longest)
        engine = self._begin(grid, initial_arrays, longest)
        backend = self._backend
        backend.train_config, backend.evaluate_config = (
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
        )
        backend.evaluate_fn = evaluate_fn or self.evaluate_fn
        page = None
        try:
            page = self._metrics_page(engine)
            first = evaluated(backend.evaluate_fn, 0, initial_arrays)
            if engine.session.index >= num_rounds:
                folder = self.settings.state_dir
                log.info("all %d rounds are in %s already; use another state_dir to start over", num_rounds, folder)
            while engine.session.index < num_rounds:
                log.info("[ROUND %d/%d]", engine.session.index + 1, num_rounds)
                engine.round(last=engine.session.index + 1 == num_rounds)
                self._log_reasons(engine)
            engine.session.close()
            self._log_usage(engine)
            return self._result(engine, first)
        finally:
            backend.memory.close()
            if page is not None:
                page.close()

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per round: outcomes, seconds, metrics, names of those asked."""
        return [] if self._engine is None else list(self._engine.history.rows)

    # -- for loops that are not ours -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the cohort and write its messages."""
        engine = self._engine or self._begin(grid, arrays, self.settings.deadline)
        if engine.session.index != server_round - 1:
            raise OutOfTurn(
                f"round {server_round}",
                f"this strategy is at round {engine.session.index + 1}",
                "call CohortStrategy.start, which resumes where it stopped",
            )
        backend = self._backend
        backend.send, backend.train_config, backend.evaluate_fn = False, config, self.evaluate_fn
        engine.model = backend.adopt(arrays)
        rnd = engine.open()
        kind, contents = backend.outgoing
        messages = [
            Message(body, dst_node_id=node, message_type=kind, ttl=self.settings.ttl, group_id=str(server_round))
            for node, body in contents.values()
        ]
        now = self.settings.clock()
        sent = {
            slot: Sent(slot, message.metadata.dst_node_id, kind, rnd.work.index, now, now)
            for slot, message in zip(contents, messages, strict=True)
        }
        backend.expect(sent, rnd.work)
        self._messages = list(zip(messages, sent.values(), strict=True))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate what came; those of whom nothing came are late."""
        if self._engine is None or self._engine.open_round is None:
            raise OutOfTurn(f"round {server_round}", "nobody was asked", "call configure_train first")
        engine, now = self._engine, self.settings.clock()
        waiting = {str(message.metadata.message_id): sent for message, sent in self._messages}  # ids come with sending
        came = []
        for message in replies:
            sent = waiting.pop(str(message.metadata.reply_to_message_id), None)
            if sent is not None:
                came.append(Arrival(sent, message, now - sent.at))
        engine.receive(self._backend.read(came, timed_out=bool(waiting)))
        row = engine.close("replies-handed-over")
        self._log_reasons(engine)
        return self._backend.arrays if row[Outcome.OK.name.lower()] else None, _record(row, "train.")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """In a loop that is not ours, clients do not evaluate; `start` does it."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing was asked, nothing comes of it."""
        del server_round, replies
        return None

    # -- parts -----------------------------------------------------------------------------------------------------

    @property
    def _method_name(self) -> str:
        return self.method.name if self.method is not None else type(self.inner).__name__

    def _begin(self, grid: Grid, arrays: ArrayRecord, timeout: float) -> RoundEngine:
        """Find the clients, refuse what cannot work, open or make the journal, go back to where a crash left us."""
        layout = ModelLayout.of(arrays, self.last_layer)
        settings = replace(self.settings, deadline=min(self.settings.deadline, timeout))
        if settings.check_shapes:
            refuse_nan(arrays)
            _check_evaluator(self.evaluator, layout)
        method: StrategyAggregator | MethodAggregator
        if self.method is not None:
            method = MethodAggregator(self.method, layout, settings.seed, self.evaluator, self._spare)
        else:
            assert self.inner is not None
            method = StrategyAggregator(self.inner, layout if settings.check_shapes else None)
        backend = FlowerBackend(settings, self.selector, method, grid, arrays, layout, self.evaluator)
        header = {"kind": "flower", "selector": self._text, "seed": settings.seed, "model": self._method_name}
        header |= {METHOD: self._method_text} if self._method_text else {}
        header |= {ASYNCHRONOUS: True} if settings.buffer_size else {}
        header |= {ARRAYS: layout.places} if settings.check_shapes else {}
        header |= {CONSTANTS: layout.marks} if settings.check_shapes and layout.constants else {}
        resumed = backend.memory.open(header)
        try:
            backend.recall_clients()
            backend.here.gather(arrays)
            backend.here.check(type(self.selector).__name__)
            if not resumed:
                backend.memory.create(header)
            self._backend, self._engine = backend, self._make_engine(settings, backend, method)
            if resumed:
                done = self._engine.resume()
                log.info(
                    "resumed: %d rounds are done, next is round %d", done, done + 1, extra=event("resumed", rounds=done)
                )
            backend.sync(self._engine.model)
            backend.index = self._engine.session.index
            backend.note_clients()
        except BaseException:
            backend.memory.close()
            raise
        return self._engine

    def _make_engine(
        self, settings: StrategySettings, backend: FlowerBackend, method: StrategyAggregator | MethodAggregator
    ) -> RoundEngine:
        session = Session(
            self.selector,
            cohort_size=settings.cohort_size,
            seed=settings.seed,
            journal=backend.memory.journal,
            provides=backend.provides,
            max_privacy=settings.max_privacy,
            asynchronous=settings.buffer_size > 0,
        )
        recovery = backend.memory.recovery()
        return RoundEngine(session, method, backend, settings, backend.model, limits=settings.limits, recovery=recovery)

    def _metrics_page(self, engine: RoundEngine) -> MetricsServer | None:
        """A page for Prometheus, made anew whenever a round has been told; None where no port is given."""
        s, backend, numbers = self.settings, self._backend, RunMetrics()
        if not s.prometheus_port:
            return None
        page = MetricsServer(s.prometheus_host, s.prometheus_port)

        def show() -> None:
            clients, driver = backend.clients, backend.driver
            states = {"registered": len(clients.roster), "available": int(clients.available().size)}
            states |= {"silent": len(clients.silent), "refused": len(clients.refused)}
            numbers.counts.update({k: v - numbers.counts[k] for k, v in states.items()})
            numbers.counts["sent"], numbers.counts["received"] = driver.bytes_sent, driver.bytes_received
            numbers.gauges["never_used"] = float(engine.usage.never.size)
            page.page = numbers.text().encode()

        def told(result: RoundResult) -> None:
            numbers.add(result, engine.history.rows[-1])
            show()

        backend.hearers.append(told)
        show()
        log.info("metrics for Prometheus on http://%s:%d/metrics", s.prometheus_host, page.port)
        return page

    @property
    def usage(self) -> Usage:
        """How often each client was asked, and how often its work was used."""
        return Usage() if self._engine is None else self._engine.usage

    def _log_usage(self, engine: RoundEngine) -> None:
        """Say who was asked and never used, where that is a notable share."""
        found = engine.usage.sentence(early=self.settings.closes_early)
        if found:
            log.warning("%s", found, extra=event("usage", never_used=int(engine.usage.never.size)))

    def _log_reasons(self, engine: RoundEngine) -> None:
        for slot, why in sorted(engine.history.reasons[-1].items()):
            name, index = self._backend.clients.roster.name(slot), engine.session.index
            log.info("\tclient %s: %s", name, why, extra=event("client", round=index, client=name, why=why))

    def _result(self, engine: RoundEngine, first: MetricRecord | None) -> Result:
        result = Result()
        result.arrays = self._backend.arrays
        if first is not None:
            result.evaluate_metrics_serverapp[0] = first
        for row in engine.history.rows:
            number = int(row["round"]) + 1  # rounds of a damaged journal may be missing
            for prefix, kept in (
                ("train.", result.train_metrics_clientapp),
                ("evaluate.", result.evaluate_metrics_clientapp),
                ("server.", result.evaluate_metrics_serverapp),
            ):
                found = _record(row, prefix)
                if found is not None:
                    kept[number] = found
        return result


def _record(row: Mapping[str, Any], prefix: str) -> MetricRecord | None:
    found = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
    return MetricRecord(found) if found else None


def _spelled(text: str) -> str:
    """The text of a method in one spelling."""
    name, arguments = parse(text)
    given = ", ".join(f"{key}={value!r}" for key, value in sorted(arguments.items()))
    return f"{name}({given})" if given else name


def _check_free_shapes(method: Method | None, selector: Selector) -> None:
    """Refuse what computes with updates: models of any shape have no difference to the one that was sent."""
    given, rule = "check_shapes = False", "where shapes are free there are no updates to compute with"
    name = getattr(method, "name", "")
    check(method is None, f"{given} with method {name!r}", rule, "leave it at True, or wrap a Flower strategy")
    known = [catalogue.get(n) for n in sorted(selector.needs) if n in catalogue.SIGNALS]
    read = [signal.name for signal in known if signal.side == "server" or signal.bytes < 0]
    what = f"{given} with {type(selector).__name__}, which reads {', '.join(read)}"
    check(not read, what, rule, "leave it at True, or choose another selector")


def _check_evaluator(evaluator: ServerEvaluator | None, layout: ModelLayout) -> None:
    """Refuse an evaluator that would be given 0 for the constants of a model, and could not know."""
    check(
        evaluator is None or not layout.constants,
        f"server_evaluator with a model whose array {next(iter(layout.constants), '')!r} has infinite entries",
        "evaluators get flat parameters, which have 0 there",
        "leave constants such as masks out of the model (persistent=False)",
    )


def _check_inner(inner: Any) -> None:
    """Refuse what cannot be a Flower strategy: a class, a name, anything else."""
    given, method = shown("inner", inner), f"write method={inner!r} for a method of ours"
    check_object("inner", inner)
    check(not isinstance(inner, str), given, "a Flower strategy is an object", method)
    check(inner is None or isinstance(inner, Strategy), given, "this is not a Flower strategy", "give e.g. FedAvg()")
