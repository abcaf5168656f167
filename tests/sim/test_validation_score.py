"""The key `score`: which metric of the validation data a selector learns from, in every kind of run."""

from __future__ import annotations

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.errors import BadParameter, UnknownName
from fedcohort.experiment.config import RunConfig, from_mapping
from fedcohort.experiment.runs import Objects, build, read, resume, run
from fedcohort.experiment.verification import verify
from fedcohort.selectors import HeteroSelect, Uniform
from fedcohort.types import Outcome, RoundResult, Signals

SMALL = {"task": "digits-softmax", "world": "mixed-v1(clients=12)", "cohort_size": 4, "rounds": 3}


class Listens(Uniform):
    """Keeps the scores that it was told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def observe(self, result):
        self.told.append(result.score)
        super().observe(result)


@pytest.mark.parametrize("more", [{}, {"buffer_size": 2}])
@pytest.mark.parametrize(("name", "sign"), [("accuracy", 1), ("macro_f1", 1), ("loss", -1)])
def test_the_selector_is_told_the_metric_that_is_named(name, sign, more):
    selector = Listens()
    simulation = build(RunConfig(**SMALL, **more, score=name), Objects(selector=selector))
    wanted = []
    for _ in simulation.steps():
        wanted.append(sign * simulation.task.evaluate(simulation.model, "validation")[name])
    assert selector.told == wanted
    assert simulation.history.column("score").tolist() == wanted


def test_f1_of_class_1():
    """Ten times more of class 0: the accuracy begins near 0.9, the F1 of the rare class does not."""
    rng = np.random.default_rng(0)
    y = (np.arange(600) % 11 == 0).astype(int)
    data = fc.Dataset.from_arrays(rng.normal(size=(600, 4)) + 1.5 * y[:, None], y)
    task = fc.task_from(data, hidden=())
    keys = {"task": task, "world": "iid-v1(clients=6)", "rounds": 2, "cohort_size": 3}
    plain = fc.simulate("uniform", **keys).column("score")
    rare = fc.simulate("uniform", **keys, score="f1").column("score")
    assert (rare < plain - 0.1).all()
    with pytest.raises(UnknownName, match="this task has no validation data"):
        fc.simulate("uniform", **{**keys, "task": fc.task_from(data, hidden=(), validation=0.0)}, score="f1")


@pytest.mark.parametrize("more", [{}, {"buffer_size": 2}])
def test_a_resumed_run_goes_on_with_its_score(tmp_path, more):
    config = RunConfig(**SMALL, **more, selector="flash-rl(warmup='none')", score="macro_f1")
    whole = run(config).history

    def interrupt(row):
        if row["round"] == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt)
    assert read(tmp_path / "run").config == config
    assert resume(tmp_path / "run").history.rows == whole.rows
    assert verify(tmp_path / "run").rounds == 3


def test_a_metric_that_is_not_measured_is_refused_before_training():
    with pytest.raises(UnknownName, match="this task measures accuracy, loss, gap, distance; name one of these"):
        build(RunConfig(task="quadratic", world="mixed-v1(clients=12)", cohort_size=3, score="macro_f1"))
    with pytest.raises(BadParameter, match=r"stop_at = 0\.5 with score = 'loss'"):
        RunConfig(score="loss", stop_at=0.5)


def test_runs_end_by_the_score():
    ended = run(RunConfig(**SMALL, score="macro_f1", stop_at=0.01)).history.ended
    assert ended.startswith("target: validation macro_f1 0.")
    config = RunConfig(**{**SMALL, "rounds": 12, "task": "quadratic(lr=1.9)"}, patience=2, score="loss")
    history = run(config).history
    best = -history.column("score").max()
    assert history.ended.startswith(f"patience: no better validation loss than {best:.4f} (round ")


def test_the_default_is_not_part_of_the_digest():
    assert "score" not in RunConfig(score="accuracy").to_dict()
    assert RunConfig(score="accuracy").digest().startswith("aef461ce39dfa454")
    other = RunConfig(score="loss")
    assert from_mapping(other.to_dict()) == other


def test_adaptive_temperature_with_scores_below_zero():
    """A loss that falls from 2.3 to 1.9 is the best so far, twice: the temperature falls twice."""
    selector, who = HeteroSelect(adaptive=True), np.arange(2)
    for index, score in enumerate((-2.3, -1.9)):
        columns = {name: np.ones((2, 3) if "delta" in name[-5:] else 2) for name in selector.needs}
        outcome = np.full(2, Outcome.OK, np.int8)
        selector.observe(RoundResult(index, who, outcome, np.ones(2), Signals(columns), score))
    assert selector.state.heat == pytest.approx(0.81)
