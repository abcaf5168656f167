"""Losses and gradients by logits, against finite differences and closed forms."""

import math

import numpy as np
import pytest

from fedcohort.engines import losses as objectives
from fedcohort.errors import BadParameter, UnknownName
from fedcohort.types import Objective

ALL = [
    Objective(),
    objectives.label_smoothing(0.2),
    objectives.symmetric_ce(0.1, 1.0, objectives.RHFL_FLOOR),
    objectives.flash_robust(0.5, 2.0),
    objectives.flash_robust(0.3, 1.0, alpha_on="ce"),
    Objective(ce=0.7, pseudo=0.4, rce=0.9, floor=-3.0, smoothing=0.1),
]


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.fixture
def batch():
    rng = np.random.default_rng(3)
    return rng.standard_normal((7, 5)) * 2, rng.integers(5, size=7), softmax(rng.standard_normal((7, 5)))


def naive(o, z, y, q):
    """Term by term, sample by sample, as printed in the module."""
    out = []
    for zi, yi, qi in zip(z, y, q, strict=True):
        p = softmax(zi)
        t = np.full(len(p), o.smoothing / len(p))
        t[yi] += 1 - o.smoothing
        log_label = np.where(np.arange(len(p)) == yi, 0.0, o.floor)
        reverse = -sum(p[k] * log_label[k] for k in range(len(p)))
        out.append(o.ce * -(t @ np.log(p)) + o.pseudo * -(qi @ np.log(p)) + o.rce * reverse)
    return np.array(out)


@pytest.mark.parametrize("o", ALL)
def test_losses_are_the_printed_sum(o, batch):
    z, y, q = batch
    assert np.allclose(objectives.losses(o, objectives.log_softmax(z), y, q), naive(o, z, y, q), rtol=1e-12)


@pytest.mark.parametrize("o", ALL)
def test_gradient_by_finite_differences(o, batch):
    z, y, q = batch
    got = objectives.gradient(o, objectives.log_softmax(z), y, q)
    for k in range(z.shape[1]):
        step = np.zeros_like(z)
        step[:, k] = 1e-5
        slope = (naive(o, z + step, y, q) - naive(o, z - step, y, q)) / 2e-5
        assert np.allclose(got[:, k], slope, atol=1e-7)


def test_rce_closed_form(batch):
    """With one-hot labels and log 0 := A, RCE = -A mean(1 - p_y), and d/dz = A p_y (e_y - p); bounded by -A."""
    z, y, _ = batch
    p = softmax(z)
    p_y = p[np.arange(7), y]
    only = Objective(ce=0.0, rce=1.0, floor=-4.0)
    log_p = objectives.log_softmax(z)
    assert np.allclose(objectives.losses(only, log_p, y).mean(), 4.0 * np.mean(1 - p_y))
    expected = -4.0 * p_y[:, None] * (np.eye(5)[y] - p)
    assert np.allclose(objectives.gradient(only, log_p, y), expected)
    far = objectives.log_softmax(np.array([[-500.0, 500.0]]))
    assert objectives.losses(only, far, np.array([0]))[0] == pytest.approx(4.0)


def test_minus_two_is_mean_absolute_error(batch):
    """A = -2: 2 (1 - p_y) = sum_k |e_y - p|_k."""
    z, y, _ = batch
    mae = np.abs(np.eye(5)[y] - softmax(z)).sum(axis=1)
    only = Objective(ce=0.0, rce=1.0, floor=-2.0)
    assert np.allclose(objectives.losses(only, objectives.log_softmax(z), y), mae)


def test_self_targets_have_no_gradient_and_frozen_ones_do(batch):
    z, y, q = batch
    only = Objective(ce=0.0, pseudo=1.0)
    log_p = objectives.log_softmax(z)
    assert np.abs(objectives.gradient(only, log_p, y, np.exp(log_p))).max() < 1e-15
    assert np.abs(objectives.gradient(only, log_p, y, q)).max() > 0.1


def test_evaluated_at_the_broadcast_model_the_pseudo_term_is_entropy(batch):
    z, y, _ = batch
    p = softmax(z)
    only = Objective(ce=0.0, pseudo=1.0)
    assert np.allclose(objectives.losses(only, objectives.log_softmax(z), y), -(p * np.log(p)).sum(axis=1))


def test_huge_logits_stay_finite():
    log_p = objectives.log_softmax(np.array([[1e4, 0.0, -1e4]], np.float32))
    assert np.isfinite(objectives.losses(objectives.flash_robust(), log_p, np.array([2]))).all()
    assert np.isfinite(objectives.gradient(Objective(), log_p, np.array([2]))).all()


def test_presets():
    assert objectives.get("ce") == Objective()
    assert objectives.get("flash-robust", alpha=0.5, beta=1.0) == Objective(1.0, 0.5, 1.0, -4.0)
    assert objectives.get("flash-robust", alpha=0.5, alpha_on="ce") == Objective(0.5, 1.0, 4.0, -4.0)
    assert objectives.get("symmetric-ce") == Objective(ce=0.1, rce=1.0, floor=-4.0)
    assert pytest.approx(-9.2103, abs=1e-4) == objectives.RHFL_FLOOR == math.log(1e-4)
    assert objectives.robust_of(Objective()) == objectives.flash_robust()
    own = objectives.symmetric_ce()
    assert objectives.robust_of(own) is own


def test_bad_presets():
    with pytest.raises(UnknownName, match="symmetric-ce"):
        objectives.get("symetric-ce")
    with pytest.raises(BadParameter, match="arguments"):
        objectives.get("ce", alpha=1.0)
    with pytest.raises(BadParameter, match=r"floor = 4.0: it must be less than 0"):
        objectives.symmetric_ce(floor=4.0)
    with pytest.raises(BadParameter, match="one of pseudo, ce"):
        objectives.flash_robust(alpha_on="both")
    with pytest.raises(BadParameter):
        objectives.label_smoothing(1.5)
