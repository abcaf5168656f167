"""Every metric on numbers worked by hand, and F1 against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics import run_metrics as m
from fedcohort.experiment.metrics.stored_metrics import METRICS, RunRecord, correct_labels, evenness, measure, metric
from fedcohort.experiment.runs import build
from fedcohort.rounds.history import History

NAN = math.nan
ACC = [0.1, 0.5, NAN, 0.8, 0.7, 0.75]


def test_best_final_drop():
    """Peak 0.8 in round 3, final 0.75: a drop of 0.05. HeteRo-Select's own: 74.75 - 72.76 = 1.99."""
    assert m.best(ACC) == m.At(0.8, 3)
    assert m.best([0.3, 0.9, 0.9]) == m.At(0.9, 1)  # the first of equals
    assert m.final(ACC) == 0.75
    assert m.final([0.2, NAN]) == 0.2
    assert m.stability_drop(ACC) == pytest.approx(0.05)
    assert m.stability_drop([70.0, 74.75, 72.76]) == pytest.approx(1.99)
    for empty in ([], [NAN, NAN]):
        assert (m.best(empty), m.final(empty), m.stability_drop(empty), m.terminal(empty)) == (None,) * 4


def test_early_stop_looks_at_validation_only():
    """Validation is best in round 1 (0.6); the test set's own best, round 3, must not be taken."""
    validation, test = [0.2, 0.6, 0.5, 0.6, 0.1], [0.3, 0.4, 0.9, 1.0, 0.2]
    assert m.early_stop(validation, test) == m.At(0.4, 1)


def test_early_stop_with_patience():
    """Rounds 2 and 3 are no better than round 1: with patience 2 training ends after round 3, and 0.9 is never seen."""
    validation, test = [0.2, 0.6, 0.5, 0.6, 0.9], [0.1, 0.2, 0.3, 0.4, 0.5]
    assert m.early_stop(validation, test, patience=2) == m.At(0.2, 1)
    assert m.early_stop(validation, test, patience=3) == m.At(0.5, 4)
    assert m.early_stop(validation, test, patience=1) == m.At(0.2, 1)
    with pytest.raises(BadParameter, match="patience"):
        m.early_stop(validation, test, patience=0)


def test_early_stop_uses_rounds_in_which_both_were_measured():
    assert m.early_stop([0.1, 0.9, 0.3], [0.5, NAN, 0.7]) == m.At(0.7, 2)
    assert m.early_stop([NAN, 0.9], [0.5, NAN]) is None


def test_terminal_by_rounds_and_by_share():
    """1..100: the last 50 have mean 75.5, the last tenth 95.5. Measured every fifth round, 50 rounds are 10 points."""
    x = np.arange(1.0, 101.0)
    assert m.terminal(x) == 75.5
    assert m.terminal(x, 0.1) == 95.5
    assert m.terminal(x, 1) == 100.0
    sparse = np.where(np.arange(100) % 5 == 4, x, NAN)  # 5, 10, ..., 100
    assert m.terminal(sparse) == np.mean([55, 60, 65, 70, 75, 80, 85, 90, 95, 100])
    assert m.terminal([1.0, 2.0], 50) == 1.5  # a run that is shorter than the window
    assert [m.terminal_rounds(r) for r in (1, 10, 60, 249, 250, 1000)] == [1, 2, 12, 50, 50, 50]
    with pytest.raises(BadParameter, match="last"):
        m.terminal(x, 0)


def test_never_is_none_and_not_the_horizon():
    clock = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    assert m.reached(ACC, 0.7, clock) == m.Reached(3, 4, 40.0)
    assert m.reached(ACC, 0.5, clock) == m.Reached(1, 2, 20.0)  # reaching it is enough
    assert m.reached(ACC, 0.81, clock) is None
    assert m.words(None) == "not reached"
    assert (m.words(0.123456), m.words(12345.6), m.words(NAN), m.words(3)) == ("0.1235", "12,346", "-", "3")


def test_improvement_is_fedacs_table_two():
    """(73.3 - 70.8) / (74.0 - 70.8) = 78.1 %; (71.6 - 68.8) / (74.0 - 68.8) = 53.8 %; CMFL (68.3) loses 78.1 %."""
    assert m.improvement(73.3, 70.8, 74.0) == pytest.approx(0.781, abs=5e-4)
    assert m.improvement(71.6, 68.8, 74.0) == pytest.approx(0.538, abs=5e-4)
    assert m.improvement(68.3, 70.8, 74.0) == pytest.approx(-0.781, abs=5e-4)
    assert m.improvement(0.9, 0.8, 0.8) is None  # there is no gap to close


def test_f1_by_hand():
    """Labels 1 1 1 0 0, said 1 1 0 1 0: TP 2, FN 1, FP 1: F1 = 4 / 6; class 0: TP 1, FN 1, FP 1: 2 / 4."""
    y, p = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    assert m.f1(y, p) == pytest.approx(2 / 3)
    assert m.f1(y, p, positive=0) == 0.5
    assert m.macro_f1(y, p) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert (m.f1([0, 0], [0, 0]), m.f1([0, 0], [0, 0], zero_division=1.0)) == (0.0, 1.0)
    assert m.macro_f1([0, 0], [0, 0]) == 1.0  # class 1 occurs nowhere and is left out
    assert m.macro_f1([0, 0], [0, 0], classes=2) == 0.5
    assert m.macro_f1([0, 0], [0, 0], classes=2, zero_division=1.0) == 1.0
    assert m.macro_f1([], []) is None


def test_f1_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    for n in (1, 5, 40):
        y, p = rng.integers(0, 2, n), rng.integers(0, 2, n)
        for zero in (0.0, 1.0):
            assert m.f1(y, p, zero_division=zero) == pytest.approx(f1_score(y, p, zero_division=zero))
        y, p = rng.integers(0, 4, n), rng.integers(0, 4, n)
        assert m.macro_f1(y, p) == pytest.approx(f1_score(y, p, average="macro", zero_division=0))
        every = f1_score(y, p, average="macro", labels=range(6), zero_division=1.0)
        assert m.macro_f1(y, p, classes=6, zero_division=1.0) == pytest.approx(every)


def test_participation_by_hand():
    """Asked 4, 2, 2, 0 times: Jain (8)^2 / (4 * 24) = 2/3, three of four covered, max / min not defined."""
    found = m.participation([4, 2, 2, 0])
    assert found.jain == pytest.approx(2 / 3)
    assert (found.coverage, found.ratio) == (0.75, None)
    assert m.participation([6, 2, 4]).ratio == 3.0
    assert m.participation([1, 1]).jain == 1.0
    assert (
        m.participation([0, 0]).jain is m.participation([]).jain is None
    )  # nobody was asked: nothing to be fair about


def test_spread_by_hand():
    """20 clients 0.05 .. 1.00: the worst tenth are 0.05 and 0.10, mean 0.075; NaN has no samples and is left out."""
    x = np.r_[np.arange(1, 21) / 20, NAN]
    found = m.spread(x[::-1])
    assert found.worst_tenth == pytest.approx(0.075)
    assert found.mean == pytest.approx(0.525)
    assert found.variance == pytest.approx((20**2 - 1) / 12 / 400)  # of 1 .. 20, scaled
    assert m.spread([0.5]).worst_tenth == 0.5
    assert m.spread([NAN]) is None


def test_regret_by_hand():
    """Rewards 5 3 1 0. Best pair 4, asked {0, 2}: 3, {2, 3}: 0.5. Regret 1, then 3.5 more. Nobody asked: none."""
    c = [np.array(s, np.int64) for s in ([0, 2], [2, 3], [], [0, 1])]
    assert m.regret([5.0, 3.0, 1.0, 0.0], c).tolist() == [1.0, 4.5, 4.5, 4.5]
    there = [np.array([0, 1, 2, 3]), np.array([2, 3]), np.array([1]), np.array([0, 1])]
    assert m.regret([5.0, 3.0, 1.0, 0.0], c, there).tolist() == [1.0, 1.0, 1.0, 1.0]  # round 1 had no choice
    moving = [[1.0, 0.0], [0.0, 1.0]]
    assert m.regret(moving, [np.array([0]), np.array([0])]).tolist() == [0.0, 1.0]


def test_dueling_regret_by_hand():
    """0 beats 1 with 0.7 and 2 with 0.9. Asked {0, 1}: (0 + 0.2) / 2 = 0.1; {2}: 0.4. In a circle nobody wins."""
    p = np.array([[NAN, 0.7, 0.9], [0.3, NAN, 0.6], [0.1, 0.4, NAN]])
    assert m.dueling_regret(p, [np.array([0, 1]), np.array([2])]) == pytest.approx([0.1, 0.5])
    circle = np.array([[0.5, 0.6, 0.4], [0.4, 0.5, 0.6], [0.6, 0.4, 0.5]])
    assert m.dueling_regret(circle, [np.array([0])]) is None


def history():
    rows = [
        {"round": t, "clock": 10.0 * (t + 1), "accuracy": a, "score": s, "loss": 1.0 - a, "macro_f1": a / 2,
         "bytes_down": 100.0, "bytes_up": 50.0, "bytes_probes": 7.0, "bytes_signals": 1.0}
        for t, (a, s) in enumerate([(0.2, 0.3), (0.6, 0.9), (0.8, 0.5), (0.4, 0.4), (0.5, 0.2)])
    ]  # fmt: skip
    return History(4, rows, [np.array([0, 1])] * 5, [{}] * 5)


def test_measure_of_a_run():
    """Five rounds; terminal is the last fifth, one round. 5 * (100 + 50 + 7 + 1) = 790 bytes."""
    record = RunRecord(RunConfig(rounds=5), history(), np.array([0.2, 0.4, NAN, 0.6]), target=0.8)
    names = tuple(n for n in METRICS if not n.startswith("regret"))
    found = measure(record, names)
    expected = {
        "terminal": 0.5, "best": 0.8, "early_stop": 0.6, "final": 0.5, "drop": 0.3, "rounds_to_target": 3.0,
        "time_to_target": 30.0, "seconds": 50.0, "loss": 0.5, "macro_f1": 0.25, "f1": None, "bytes_down": 500.0,
        "bytes_up": 250.0, "bytes_probes": 35.0, "bytes_signals": 5.0, "bytes": 790.0, "jain": 0.5, "coverage": 0.5,
        "never_used": 0.0, "max_min": None, "client_mean": 0.4, "client_variance": 0.08 / 3, "client_worst": 0.2,
    }  # fmt: skip
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value)), name
    record.target = 0.81
    assert measure(record, ("rounds_to_target", "time_to_target")) == {
        "rounds_to_target": None,
        "time_to_target": None,
    }
    with pytest.raises(UnknownName, match="terminal"):
        metric("termnal")


def test_oracles_of_a_world():
    """Right labels and evenness by counting client by client; choosing the cleanest has no regret."""
    config = RunConfig(task="quadratic(pool=2000)", world="mixed-v1(clients=20)", rounds=3, cohort_size=4)
    world = build(config).world
    right, even = correct_labels(world), evenness(world)
    assert world.wrong_labels() == pytest.approx(1 - right)  # everybody owns something
    part = world.train
    whole = np.bincount(part.clean, minlength=10) / part.clean.size
    for k in range(20):
        own = part.of(k)
        assert right[k] == pytest.approx(np.mean(part.label[own] == part.clean[own]))
        mix = np.bincount(part.clean[own], minlength=10) / (own.stop - own.start)
        mid = (mix + whole) / 2
        js = sum(0.5 * a * np.log2(a / c) for p in (mix, whole) for a, c in zip(p, mid, strict=True) if a > 0)
        assert even[k] == pytest.approx(1 - js)
    cleanest = np.argsort(-right)[:4]
    perfect = History(20, [{"clock": float(t)} for t in range(3)], [cleanest] * 3)
    assert RunRecord(config, perfect).regret(right) == pytest.approx(0.0)
    worst = History(20, [{"clock": float(t)} for t in range(3)], [np.argsort(right)[:4]] * 3)
    gap = np.sort(right)[-4:].mean() - np.sort(right)[:4].mean()
    assert measure(RunRecord(config, worst), ("regret_noise",))["regret_noise"] == pytest.approx(3 * gap)
