"""A simulated run: the round engine on a simulated federation, for a number of rounds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakMethod

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.errors import RunWarning, check
from fedcohort.protocols import Method, Selector, Task, World
from fedcohort.rounds.engine import RoundEngine
from fedcohort.rounds.history import History
from fedcohort.rounds.over_selection import OverSelection
from fedcohort.rounds.recovery import Recovery
from fedcohort.rounds.run_notes import findings
from fedcohort.rounds.schedules import sizes
from fedcohort.rounds.session import Session
from fedcohort.rounds.validation import Limits
from fedcohort.rounds.validation_score import ACCURACY, check_score
from fedcohort.sim.federation import Federation
from fedcohort.sim.run_settings import RunSettings
from fedcohort.sim.stopping import Stopping
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Model


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
        scheduled = max((size or 0 for _, size in sizes(settings.size_schedule)), default=0)
        rule, remedy = f"the world has {world.population} clients", f"use at most {world.population}"
        check(scheduled <= world.population, f"size_schedule = {settings.size_schedule!r}", rule, f"{remedy}, or all")
        check(settings.cohort_size <= world.population, f"cohort_size = {settings.cohort_size}", rule, remedy)
        self.settings, self.method, self.world, self.task = settings, method, world, task
        self.federation = Federation(world, task, settings)
        asking = OverSelection(settings.over_select)
        self.session = Session(
            selector,
            cohort_size=settings.cohort_size if asking.adaptive else asking.ask_for(settings.cohort_size),
            seed=settings.seed,
            provides=self.federation.provides,
            max_privacy=settings.max_privacy,
            asynchronous=settings.buffer_size > 0,
        )
        self.engine = RoundEngine(
            self.session,
            method,
            self.federation,
            settings,
            task.initial(generator(settings.seed, "model")),
            limits=Limits(max_norm=settings.max_norm),
        )
        if settings.score != ACCURACY:
            check_score(task.evaluate(self.engine.model, "validation"), settings.score)
        self.stopping = Stopping(settings.stop_at, settings.patience, settings.score)
        stops = WeakMethod(self._stops)  # without a cycle a run's data go with it, not with a garbage collection later
        self.engine.stops = self.federation.stops = lambda score: bool((known := stops()) and known(score))
        self.attach(journal, snapshots)

    def attach(self, journal: Journal | None, snapshots: Snapshots | None) -> None:
        """Where the run is kept; before the first round."""
        self.session.attach(journal)
        self.engine.recovery = Recovery(
            snapshots, every=self.settings.snapshot_every, identity={"world": self.world.digest}
        )

    @property
    def model(self) -> Model:
        """The model as it is now."""
        return self.engine.model

    @property
    def history(self) -> History:
        """What has happened so far."""
        return self.engine.history

    def run(self, on_round: Callable[[dict[str, Any]], None] | None = None) -> History:
        """All remaining rounds."""
        for row in self.steps():
            if on_round is not None:
                on_round(row)
        self._conclude()
        return self.history

    def steps(self) -> Iterator[dict[str, Any]]:
        """One round after the other; yields the round's numbers."""
        while self.session.index < self.settings.rounds and not self._reason():
            yield self.engine.round(last=self.session.index + 1 == self.settings.rounds)

    def _reason(self, *more: float) -> str:
        """Why the run ends early, if it does; with `more`, after a round of this score."""
        if not (self.stopping.target or self.stopping.patience):
            return ""  # without looking at the scores of all rounds, in every round
        return self.stopping.reason([*self.history.column("score"), *more])

    def _stops(self, score: float) -> bool:
        return bool(self._reason(score))

    def _conclude(self) -> None:
        """Say why the run has ended and what is wrong with it, in the history and in the journal."""
        history, settings = self.history, self.settings
        history.ended = self._reason() or f"all {settings.rounds} rounds were run"
        before = self.task.evaluate(self.task.initial(generator(settings.seed, "model")), "test")
        found = findings(history, settings, before, self.model, self.world)
        if (settings.stop_at or settings.patience) and not np.isfinite(history.column("score")).any():
            found.append(f"stop_at and patience had no effect: this task measures no validation {settings.score}.")
        history.notes += [*self.session.notes, *found]  # of the session: warned of when it was seen
        for text in found:
            warnings.warn(text, RunWarning, stacklevel=3)
        self.session.close({"ended": history.ended, **({"notes": found} if found else {})})

    def resume(self) -> int:
        """Go back to the newest snapshot; the round to continue with (0: from the start)."""
        return self.engine.resume()
