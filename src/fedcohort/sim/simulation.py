"""The loop: ask, train, validate, aggregate, tell, until the rounds are done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedcohort import signals as catalogue
from fedcohort.core.rng import generator
from fedcohort.errors import JournalDamaged, StateMismatch, check
from fedcohort.protocols import Aggregation, Method, Selector, Task, World
from fedcohort.rounds.history import History
from fedcohort.rounds.over_selection import BackOff, OverSelection
from fedcohort.rounds.session import Session
from fedcohort.rounds.validation import Limits
from fedcohort.sim.federation import Federation, Replies, Traffic
from fedcohort.sim.run_settings import RunSettings
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Arrays, Cohort, Index, Model, Outcome, Plan, Probed, RoundResult, Signals

IDLE = 60.0  # virtual seconds that pass when nobody is available


class Simulation:
    """One selector and one method on one task in one world."""

    def __init__(
        self,
        selector: Selector,
        method: Method,
        world: World,
        task: Task,
        settings: RunSettings,
        *,
        journal: Journal | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        check(
            settings.cohort_size <= world.population,
            f"cohort_size = {settings.cohort_size}",
            f"the world has {world.population} clients",
            f"use at most {world.population}",
        )
        self.settings, self.method, self.world, self.task, self.snapshots = settings, method, world, task, snapshots
        limits = Limits(max_norm=settings.max_norm)
        self.federation = Federation(world, task, seed=settings.seed, deadline=settings.deadline, limits=limits)
        self.over_selection, self.back_off = OverSelection(settings.over_select), BackOff(settings.back_off)
        self.session = Session(
            selector,
            cohort_size=settings.cohort_size
            if self.over_selection.adaptive
            else self.over_selection.ask_for(settings.cohort_size),
            seed=settings.seed,
            journal=journal,
            provides=self.federation.provides,
            max_privacy=settings.max_privacy,
            asynchronous=settings.buffer_size > 0,
        )
        self.model = task.initial(generator(settings.seed, "model"))
        self.clock = 0.0
        self.history = History(world.population)

    def run(self, on_round: Callable[[dict[str, float]], None] | None = None) -> History:
        """All remaining rounds."""
        for row in self.steps():
            if on_round is not None:
                on_round(row)
        self.session.close()
        return self.history

    def steps(self) -> Iterator[dict[str, float]]:
        """One round after the other; yields the round's numbers."""
        while self.session.index < self.settings.rounds:
            row = self._round()
            done = self.session.index
            if self.snapshots is not None and (
                done % self.settings.snapshot_every == 0 or done == self.settings.rounds
            ):
                self.snapshots.save(done, *self._state())
            yield row

    def resume(self) -> int:
        """Go back to the newest snapshot; the round to go on with (0: from the start)."""
        found = self.snapshots.latest() if self.snapshots is not None else None
        if found is None:
            return 0
        _, arrays, meta = found
        self._load(arrays, meta)
        return self.session.index

    def _round(self) -> dict[str, float]:
        index = self.session.index
        probing = Probing(self, index)
        cohort = self._ask(probing, self.over_selection.ask_for(self.settings.cohort_size))
        plan, asked = self._prepared(index, cohort)
        replies = self.federation.train(index, self.model, cohort, plan, self._needs, self.settings.cohort_size)
        info = self._aggregate(index, cohort, plan, asked, replies)
        pause = self.back_off.pause("abandoned" in info)
        self.clock += probing.seconds + (replies.seconds if cohort.clients.size else IDLE) + pause
        self.over_selection.learn(replies.came, int(cohort.clients.size) - replies.came)
        return self._tell(index, replies, probing, info)

    def _ask(self, probing: Probing, seats: int) -> Cohort:
        return self.session.ask(
            self.world.available(self.session.index, self.clock),
            population=self.world.population,
            clock=self.clock,
            profiles=self.federation.profiles,
            probe=probing,
            size=seats,
        )

    def _prepared(self, index: int, cohort: Cohort) -> tuple[Plan, frozenset[str]]:
        """How this cohort trains, and which of what it measures the method wants to hear."""
        plan = self.method.prepare(self._plan(index, cohort), self.model, cohort.clients)
        return replace(plan, measure=plan.measure | catalogue.of_side(self._needs, "client")), plan.measure

    def _tell(self, index: int, replies: Replies, probing: Probing, info: dict[str, float]) -> dict[str, float]:
        result = self._result(index, replies)
        row = self._row(index, result, replies, probing, info)
        self.session.tell(result, row, replies.reasons)
        self.history.rows.append(row)
        self.history.cohorts.append(result.clients)
        self.history.reasons.append(dict(replies.reasons))
        return row

    @property
    def _needs(self) -> frozenset[str]:
        """What the selector reads in this round: one that stops measuring (FedACS) needs less later."""
        return self.session.selector.needs

    def _plan(self, index: int, cohort: Cohort) -> Plan:
        """The task's plan for this round, with what the selector directs."""
        base = self.task.plan()
        lr: Any = base.lr if self.settings.lr_decay == 1.0 else np.asarray(base.lr) * self.settings.lr_decay**index
        plan = replace(base, seed=self.settings.seed, round=index, lr=lr)
        if "work" in cohort.directives:
            work = np.asarray(cohort.directives["work"], np.float64)
            epochs = np.maximum(np.rint(plan.epochs_of(work.size) * work), 1).astype(np.int64)
            plan = replace(plan, epochs=epochs)
        return plan

    def _aggregate(
        self, index: int, cohort: Cohort, plan: Plan, asked: frozenset[str], replies: Replies
    ) -> dict[str, float]:
        """Let the method make a new model; mark whom it left out as FILTERED."""
        at = np.searchsorted(np.sort(replies.clients), replies.updates.clients)
        rows = np.argsort(replies.clients, kind="stable")[at]
        extras = {n: replies.signals[n][rows] for n in asked if n in replies.signals}
        updates = replace(replies.updates, extras={**extras, **replies.updates.extras})
        context = Aggregation(
            index=index,
            plan=plan,
            population=self.world.population,
            samples=self.world.train.sizes,
            dispatched=cohort.clients,
            inclusion=_by_client(cohort.clients, cohort.inclusion),
            multiplicity={
                k: int(v) for k, v in _by_client(cohort.clients, cohort.directives.get("multiplicity")).items()
            },
            server_evaluator=self.task.server_evaluator(),
            client_evaluator=self.task.client_evaluator(),
            rng=generator(self.settings.seed, "method", index),
        )
        if cohort.clients.size and len(updates) < self.settings.min_replies:
            replies.outcome[rows] = Outcome.FILTERED
            replies.reasons.update({int(c): "round-abandoned" for c in updates.clients})
            self.method.aggregate(self.model, updates.rows(rows[:0]), context)
            return {"abandoned": 1.0}
        made = self.method.aggregate(self.model, updates, context)
        self.model = made.model
        replies.outcome[rows[~made.accepted]] = Outcome.FILTERED
        return {f"method.{k}": float(v) for k, v in made.info.items()}

    def _result(self, index: int, replies: Replies) -> RoundResult:
        score = float(self.task.evaluate(self.model, "validation").get("accuracy", math.nan))
        return RoundResult(
            index=index,
            clients=replies.clients,
            outcome=replies.outcome,
            duration=replies.duration,
            signals=Signals(replies.signals),
            score=score,
            model=self.model.params if "model" in self._needs else None,
        )

    def _row(
        self, index: int, result: RoundResult, replies: Replies, probing: Probing, info: dict[str, float]
    ) -> dict[str, float]:
        """The round's numbers, in plain floats (JSON has no NaN: what was not measured is left out)."""
        last = index + 1 == self.settings.rounds
        measured = self.task.evaluate(self.model, "test") if last or index % self.settings.evaluate_every == 0 else {}
        counts = {o.name.lower(): float((result.outcome == o).sum()) for o in Outcome}
        row = {
            "round": float(index),
            "clock": self.clock,
            "seconds": replies.seconds + probing.seconds,
            **{k: float(v) for k, v in measured.items()},
            "score": result.score,
            "asked": float(result.clients.size),
            **counts,
            "probed": float(probing.count),
            "bytes_down": replies.traffic.down,
            "bytes_up": replies.traffic.up,
            "bytes_probes": probing.traffic.probes,
            "bytes_signals": replies.traffic.signals,
            **info,
        }
        return {k: v for k, v in row.items() if math.isfinite(v)}

    def _state(self) -> tuple[Arrays, dict[str, Any]]:
        arrays: Arrays = {
            "model.params": self.model.params,
            "model.buffers": self.model.buffers,
            "model.counters": self.model.counters,
            "clock": np.array(self.clock),
        }
        arrays.update({f"session.{k}": v for k, v in self.session.state_dict().items()})
        arrays.update({f"method.{k}": v for k, v in self.method.state_dict().items()})
        if self.over_selection.adaptive or self.settings.back_off:
            arrays["rounds"] = np.array([self.over_selection.lost, self.over_selection.seen, self.back_off.count])
        meta: dict[str, Any] = {"world": self.world.digest}
        if self.session.journal is not None:
            meta["journal"] = [self.session.journal.length, self.session.journal.head.hex()]
        return arrays, meta

    def _load(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        if meta.get("world") != self.world.digest:
            raise StateMismatch("snapshot", "it was made in another world", "resume with the same data and seed")

        journal = self.session.journal
        if journal is not None and "journal" in meta and not _goes_on(journal, *meta["journal"]):
            raise JournalDamaged(
                f"journal {journal.path}",
                "it lacks records that were there when the snapshot was made",
                "restore it from a copy, or remove the snapshots to start from the beginning",
            )

        def part(prefix: str) -> Arrays:
            return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}

        self.session.load_state_dict(part("session."))
        self.method.load_state_dict(part("method."))
        self.model = Model(**part("model."))
        self.clock = float(arrays["clock"])
        if "rounds" in arrays:
            self.over_selection.lost, self.over_selection.seen = (float(v) for v in arrays["rounds"][:2])
            self.back_off.count = int(arrays["rounds"][2])
        if self.session.journal is not None:
            self.history = read_history(self.session.journal, self.world.population, upto=self.session.index)


class Probing:
    """Answers the selector's probe and keeps the bill."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self.simulation, self.index = simulation, index
        self.seconds, self.count, self.traffic = 0.0, 0, Traffic()

    def __call__(self, clients: Index, names: frozenset[str]) -> Probed:
        """Measure these signals at these clients."""
        sim = self.simulation
        plan = replace(sim.task.plan(), seed=sim.settings.seed, round=self.index)
        answers, self.seconds, self.traffic = sim.federation.probe(self.index, sim.model, clients, names, plan)
        self.count = int(clients.size)
        return answers


def read_history(journal: Journal, population: int, upto: int | None = None) -> History:
    """The history of the rounds that a journal holds."""
    history = History(population)
    for record in journal.records(kind="tell"):
        if upto is not None and record.round >= upto:
            break
        arrays, meta = record.unpack()
        history.rows.append(meta["metrics"])
        history.cohorts.append(arrays["clients"])
        history.reasons.append({int(k): v for k, v in meta["reasons"].items()})
    return history


def _goes_on(journal: Journal, length: int, head: str) -> bool:
    return journal.holds(int(length), bytes.fromhex(head))


def _by_client(clients: Index, column: Any) -> dict[int, float]:
    if column is None:
        return {}
    return {int(c): float(v) for c, v in zip(clients, np.asarray(column), strict=True)}
