"""HeteRo-Select's assumption on gradients: b_k in closed form, the replay against the journal, correlations by hand."""

from dataclasses import replace

import numpy as np
import pytest

from fedcohort import papers
from fedcohort.errors import ConfigError
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.metrics.stored_metrics import record
from fedcohort.experiment.runs import build, run
from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce
from fedcohort.papers.hetero_select import hetero_select_misalignment as study_of
from fedcohort.papers.hetero_select import hetero_select_setting as heteroselect
from fedcohort.papers.hetero_select.hetero_select_misalignment import CHANCE, DIVERSITY, REST, SCORE, Seen
from fedcohort.papers.verdicts import FAILS, HOLDS, judge
from fedcohort.rounds.history import History
from fedcohort.selectors.hetero_select import PARTS
from fedcohort.storage.run_folder import RunFolder
from fedcohort.types import Model

STUDY = "hetero-select:misalignment"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The study's run at scale smoke, in a folder."""
    config = from_mapping({**heteroselect.run("smoke", heteroselect.hetero("smoke")), "seed": 0, "workers": 1})
    folder = tmp_path_factory.mktemp("misalignment") / "run"
    run(config, folder)
    return record(folder)


def test_misalignment_of_softmax_regression_in_closed_form():
    """The gradient of the mean cross-entropy is (P - Y)' [X 1] / n; b_k does not depend on the order of parameters."""
    config = from_mapping({"task": "digits-softmax", "world": "hetero-0.1-v1", "cohort_size": 6, "workers": 1})
    simulation = build(config)
    task, part = simulation.task, simulation.world.train
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(10, 64)), rng.normal(size=10)
    gradients = []
    for k in range(12):
        x, y = task.spec.pool[part.index[part.of(k)]].reshape(-1, 64).astype(float), part.label[part.of(k)]
        power = np.exp(x @ weight.T + bias)
        away = power / power.sum(axis=1, keepdims=True) - np.eye(10)[y]
        gradients.append(np.r_[(away.T @ x).ravel(), away.sum(axis=0)] / len(y))
    mean = sum(gradients) / 12
    true = [np.sqrt(((g - mean) ** 2).sum()) for g in gradients]
    others = [np.linalg.norm(g - (12 * mean - g) / 11) for g in gradients]
    model = Model(np.r_[weight.ravel(), bias].astype(np.float32))
    found = study_of.misalignments(task, model, 12)
    np.testing.assert_allclose(found, true, rtol=1e-4)
    np.testing.assert_allclose(found, 11 / 12 * np.array(others), rtol=1e-4)  # that g contains g_k changes no rank


def test_the_replay_asks_whom_the_run_asked_with_the_scores_that_it_wrote_down(done):
    """Cohorts of all rounds, and of every round that was looked at the score and each part of those chosen."""
    again = study_of.replay(done.config, 1)
    asks = [ask.unpack()[0] for ask in RunFolder(done.folder).reader().records(kind="ask")]
    assert [c.tolist() for c in again.cohorts] == [sorted(ask["clients"].tolist()) for ask in asks]
    assert [seen.index for seen in again.seen] == [1, 2, 3, 4, 5]
    for seen in again.seen:
        ask = asks[seen.index]
        assert set(seen.parts) == {"score", *PARTS}
        for name, part in seen.parts.items():
            assert part.shape == (12,)
            np.testing.assert_array_equal(part[ask["clients"]], ask[f"why.{name}"])


def test_gradients_are_those_of_the_model_that_the_round_begins_with(done):
    """After three rounds of a run that nobody looks at."""
    simulation = build(done.config)
    steps = simulation.steps()
    for _ in range(3):
        next(steps)
    true = study_of.misalignments(simulation.task, simulation.model, 12)
    by_round = {seen.index: seen.misalignment for seen in study_of.replay(done.config, 1).seen}
    np.testing.assert_array_equal(by_round[3], true)
    assert not np.allclose(by_round[3], by_round[2])


def test_fewer_rounds_are_looked_at_where_gradients_are_dear(done):
    assert [seen.index for seen in study_of.replay(done.config, 2).seen] == [2, 4]
    assert [study_of.interval(scale) for scale in ("laptop", "desk")] == [1, 5]


def seen_by_hand(index, loss, diversity, b):
    zero = np.zeros(len(loss))
    parts = {"loss": np.array(loss), "diversity": np.array(diversity), **dict.fromkeys(PARTS[2:], zero)}
    return Seen(index, {"score": parts["loss"] + parts["diversity"], **parts}, np.array(b))


def test_correlations_by_hand():
    """Ranks of three clients; 1 - 6 sum d^2 / 24.

    Round 1, b = (1, 2, 3): scores (6, 5, 4) have -1, losses (3, 1, 2) -1/2 (d = 2, -1, -1), diversities (3, 4, 2) -1/2.
    Round 2, b = (9, 5, 7): scores (1, 3, 2) have -1, losses (0, 2.5, 0.5) -1, diversities (1, 0.5, 1.5) 1/2 (ranks
    2, 1, 3 and 3, 1, 2: d = -1, 0, 1).
    """
    first = seen_by_hand(1, [3.0, 1.0, 2.0], [3.0, 4.0, 2.0], [1.0, 2.0, 3.0])
    second = seen_by_hand(2, [0.0, 2.5, 0.5], [1.0, 0.5, 1.5], [9.0, 5.0, 7.0])
    turned = replace(second, misalignment=-second.misalignment)
    found = {row: study_of.correlation((first, second), row, 0) for row in (SCORE, REST, DIVERSITY)}
    assert found == pytest.approx({SCORE: -1, REST: -0.75, DIVERSITY: 0})
    assert study_of.correlation((first, turned), SCORE, 0) == pytest.approx(0)  # rounds are averaged, not pooled
    assert study_of.correlation((), SCORE, 0) is None


def test_chance_shuffles_the_whole_scores_within_each_round():
    """200 rounds of twelve: the deviation of the mean is 1 / sqrt(11 * 200) = 0.02."""
    b = np.arange(12.0)
    rounds = [seen_by_hand(i, b, b, b) for i in range(200)]
    assert study_of.correlation(rounds, SCORE, 0) == pytest.approx(1)
    assert abs(study_of.correlation(rounds, CHANCE, 0)) < 0.08
    assert sorted(rounds[3].scores(CHANCE, 0)) == (2 * b).tolist()
    assert rounds[3].scores(CHANCE, 0).tolist() != rounds[4].scores(CHANCE, 0).tolist()


def test_a_run_that_cannot_be_done_again_is_refused(done):
    cohorts = [*done.history.cohorts]
    cohorts[-1] = np.setdiff1d(np.arange(12), cohorts[-1])
    other = replace(done, history=History(12, done.history.rows, cohorts))
    with pytest.raises(ConfigError, match="other cohorts"):
        study_of.misalignment(SCORE, 1, other, None)


def test_end_to_end(tmp_path):
    """Four correlations of one run, each between -1 and 1, all different."""
    work = reproduce.plan(papers.studies()[STUDY], "smoke")
    found = reproduce.perform(work, Store(tmp_path), workers=1)
    assert not found["failed"]
    means = [c["mean"] for c in found["cells"]]
    assert all(-1 <= value <= 1 for value in means)
    assert len(set(means)) == 4
    assert found["wanted"] == 1


def test_it_is_the_run_of_the_other_tables():
    for scale in ("laptop", "desk"):
        runs = [c.run for c in papers.studies()["hetero-select:table"].cells(scale)]
        assert all(c.run in runs for c in papers.studies()[STUDY].cells(scale))


@pytest.mark.parametrize(("sign", "verdicts"), [(-1, [HOLDS, HOLDS, HOLDS]), (1, [FAILS, FAILS, FAILS])])
def test_which_way_the_claims_go(sign, verdicts):
    """Scores below chance and the diversity above it: all hold; the other way round none does."""
    study = papers.studies()[STUDY]
    level = {SCORE: 0.5 * sign, REST: 0.5 * sign, DIVERSITY: -0.5 * sign, CHANCE: 0.0}
    cells = study.cells("smoke")
    values = {c.place: dict.fromkeys(range(7), level[c.row]) for c in cells}
    better, printed = {c.place: c.quantity.better for c in cells}, {c.place: c.published for c in cells}
    judged = judge(study.claims("smoke"), values, better, printed)
    assert [c["verdict"] for c in judged] == verdicts
    assert [c["ours"] for c in judged] == [False, False, True]
