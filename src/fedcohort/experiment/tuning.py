"""Tuning with Optuna: a run, averaged over seeds, as the objective of a study.

::

    study = optuna.create_study(direction="maximize")
    space = {"selector.explore": (0.1, 0.9), "cohort_size": [5, 10, 20]}
    study.optimize(fc.optuna_objective(space, selector="oort", task="digits-mlp"), n_trials=20)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedcohort.errors import BadParameter, MissingExtra, check
from fedcohort.experiment import config as configuration
from fedcohort.experiment.api import simulate
from fedcohort.experiment.runs import OnRound
from fedcohort.experiment.store import Store

Space = Mapping[str, Sequence[Any] | Callable[["Trial"], Any]]


class Trial(Protocol):
    """The part of `optuna.Trial` that is used."""

    def suggest_float(self, name: str, low: float, high: float) -> float:
        """A number of an interval."""

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """A whole number of an interval."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of a few values."""

    def report(self, value: float, step: int) -> None:
        """The value after so many rounds."""

    def should_prune(self) -> bool:
        """Whether the trial should end here."""


def optuna_objective(
    space: Space, *, seeds: int = 1, store: str | Path | None = None, **keys: Any
) -> Callable[[Trial], float]:
    """The objective of an Optuna study: the best validation accuracy (or `score`), averaged over `seeds` runs.

    `space` says what is tuned: a key of a run, or a parameter such as "selector.explore", with a tuple (low, high) of
    numbers, a list of values, or a function of the trial. `keys` is what else `simulate` takes, where `seed` is the
    first of the seeds. The test set is not looked at. After every round of the first seed the trial may be pruned. With
    a `store`, runs are kept in that folder, those that it has already are read, and nothing is pruned.

    >>> class Fixed:  # in place of optuna.Trial
    ...     def suggest_int(self, name, low, high): return low
    ...     def report(self, value, step): ...
    ...     def should_prune(self): return False
    >>> objective = optuna_objective({"cohort_size": (2, 5)}, task="quadratic", rounds=3)
    >>> 0 < objective(Fixed()) < 1
    True
    """
    check(seeds >= 1, f"seeds = {seeds}", "a trial needs at least one run", "use e.g. 3")
    check(bool(space), "space = {}", "there is nothing to tune", 'give e.g. {"selector.explore": (0.1, 0.9)}')
    place = None if store is None else Store(Path(store))

    def objective(trial: Trial) -> float:
        values = dict(keys)
        first = values.pop("seed", 0)
        for key, choice in space.items():
            configuration.assign(values, key, _suggested(trial, key, choice))
        found = []
        for seed in range(first, first + seeds):
            run = {"seed": seed, **values}
            if place is not None:
                history = place.obtain(configuration.from_mapping(run).canonical()).finished.history
            else:
                history = simulate(**run, on_round=_told(trial, seed - first))
            scores = history.column("score")
            rule = f"no round of this run has a validation {values.get('score', 'accuracy')}"
            measured = bool(np.isfinite(scores).any())
            check(measured, f"task {values.get('task', '')}", rule, "choose a task that measures one")
            found.append(float(np.nanmax(scores)))
        return float(np.mean(found))

    return objective


def _suggested(trial: Trial, key: str, choice: Any) -> Any:
    """What the trial proposes for one key."""
    if callable(choice):
        return choice(trial)
    if isinstance(choice, list) and choice:
        return trial.suggest_categorical(key, choice)
    numbers = isinstance(choice, tuple) and len(choice) == 2 and all(type(v) in (int, float) for v in choice)
    if not numbers or choice[0] > choice[1]:
        remedy = "give (low, high), a list of values, or a function of the trial"
        raise BadParameter(f"{key} = {choice!r}", "this does not say what may be tried", remedy)
    low, high = choice
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high)
    return trial.suggest_float(key, low, high)


def _told(trial: Trial, seed: int) -> OnRound:
    """Tells the trial the best score so far after every round of the first seed; a pruned trial ends there."""
    best = [-np.inf]

    def tell(row: dict[str, float]) -> None:
        best[0] = max(best[0], row.get("score", -np.inf))
        if seed == 0 and np.isfinite(best[0]):
            trial.report(best[0], int(row["round"]))
            if trial.should_prune():
                raise _pruned()

    return tell


def _pruned() -> Exception:
    try:
        from optuna import TrialPruned
    except ModuleNotFoundError:
        raise MissingExtra.of("pruning", "optuna") from None
    found: Exception = TrialPruned()
    return found
