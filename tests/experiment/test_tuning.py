"""Tuning: what a trial is asked and told, with a trial of our own and with Optuna's."""

from __future__ import annotations

import pytest

import fedcohort as fc
from fedcohort.errors import BadParameter, UnknownName
from fedcohort.experiment.runs import read

RUN = {"task": "quadratic", "world": "mixed-v1(clients=12)", "rounds": 4}


class Trial:
    """Proposes the lowest or first, and writes everything down."""

    def __init__(self, prune_at=99):
        self.asked, self.told, self.prune_at = [], [], prune_at

    def suggest_float(self, name, low, high):
        self.asked.append((name, "float"))
        return low

    def suggest_int(self, name, low, high):
        self.asked.append((name, "int"))
        return low

    def suggest_categorical(self, name, choices):
        self.asked.append((name, "choice"))
        return choices[0]

    def report(self, value, step):
        self.told.append((step, value))

    def should_prune(self):
        return len(self.told) >= self.prune_at


def test_the_value_is_the_best_validation_accuracy_over_seeds():
    trial = Trial()
    space = {"selector.explore": (0.2, 0.9), "cohort_size": (3, 6), "task.lr": lambda t: 0.05, "deadline": [900.0, 1e4]}
    value = fc.optuna_objective(space, seeds=2, selector="oort", **RUN)(trial)
    assert trial.asked == [("selector.explore", "float"), ("cohort_size", "int"), ("deadline", "choice")]
    same = {**RUN, "task": "quadratic(lr=0.05)", "selector": "oort(explore=0.2)", "cohort_size": 3, "deadline": 900}
    best = [max(fc.simulate(**same, seed=k).column("score")) for k in range(2)]
    assert value == pytest.approx(sum(best) / 2)
    assert [step for step, _ in trial.told] == [0, 1, 2, 3]  # of the first seed
    assert trial.told[-1][1] == best[0]


def test_a_store_keeps_the_runs(tmp_path):
    objective = fc.optuna_objective({"cohort_size": [3, 4]}, store=tmp_path, **RUN)
    first = objective(Trial())
    kept = list(tmp_path.iterdir())
    assert len(kept) == 1
    assert objective(Trial()) == first
    assert list(tmp_path.iterdir()) == kept


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "nothing to tune"),
        ({"cohort_size": 5}, "does not say what may be tried"),
        ({"cohort_size": (9, 3)}, "does not say what may be tried"),
        ({"explore": (0.1, 0.2)}, "write selector.explore"),
    ],
)
def test_mistakes(space, words):
    with pytest.raises((BadParameter, UnknownName), match=words):
        fc.optuna_objective(space, selector="oort", **RUN)(Trial())
    with pytest.raises(BadParameter, match="at least one run"):
        fc.optuna_objective({"cohort_size": (2, 3)}, seeds=0)


def test_with_optuna_itself():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(fc.optuna_objective({"cohort_size": (2, 6), "task.lr": (0.01, 0.2)}, **RUN), n_trials=4)
    assert len(study.trials) == 4
    assert set(study.best_params) == {"cohort_size", "task.lr"}
    assert study.best_value == max(t.value for t in study.trials)
    with pytest.raises(optuna.TrialPruned):
        fc.optuna_objective({"cohort_size": (2, 6)}, **RUN)(Trial(prune_at=2))


def test_a_given_seed_is_the_first_of_them(tmp_path):
    fc.optuna_objective({"cohort_size": (3, 6)}, seeds=3, seed=7, store=tmp_path, **RUN)(Trial())
    assert sorted(read(folder).config.seed for folder in tmp_path.iterdir()) == [7, 8, 9]
