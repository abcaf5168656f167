"""The synthetic federation is what it says it is."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.errors import ContractError, UndeclaredSignal
from fedcohort.signals import SIGNALS, of_side
from fedcohort.testing import SyntheticFederation
from fedcohort.types import Cohort, Outcome

ALL = frozenset(SIGNALS)


class Everything:
    """Declares, probes and asks for everything."""

    needs = ALL

    def __init__(self, choose=lambda rnd: rnd.available[: rnd.size], probe=lambda rnd: rnd.available):
        self.choose, self.ask, self.results = choose, probe, []

    def probe(self, rnd, rng):
        return self.ask(rnd)

    def select(self, rnd, rng):
        return Cohort(self.choose(rnd))

    def observe(self, result):
        self.results.append(result)


def test_every_signal_of_the_catalogue_is_there():
    selector = Everything()
    rnd, _ = SyntheticFederation(10).play(selector, 1, 5)[0]
    result = selector.results[0]
    assert set(rnd.profiles) == of_side(ALL, "profile")
    assert set(rnd.probed.signals) == of_side(ALL, "probe")
    assert set(result.signals) | {"model"} == of_side(ALL, "client") | of_side(ALL, "server")
    assert result.model.shape == result.signals["delta"].shape[1:]
    assert result.probed is rnd.probed
    np.testing.assert_allclose(rnd.profiles["label_histogram"].sum(axis=1), 1.0, rtol=1e-6)


def test_undeclared_signals_raise():
    federation = SyntheticFederation(6, full=True)
    rnd = federation.round(0, 3, frozenset({"samples"}))
    assert rnd.profiles["samples"].shape == (6,)
    with pytest.raises(UndeclaredSignal):
        rnd.profiles["cores"]
    result = federation.result(rnd, Cohort(np.arange(3)), frozenset({"samples"}))
    assert result.model is None
    with pytest.raises(UndeclaredSignal):
        result.signals["train_loss"]


def test_all_outcomes_occur_and_the_silent_say_nothing():
    selector = Everything()
    SyntheticFederation(30, failure=0.6).play(selector, 10, 30)
    seen = np.concatenate([r.outcome for r in selector.results])
    assert set(seen.tolist()) == {int(o) for o in Outcome}
    for result in selector.results:
        for column in result.signals.values():
            known = np.isfinite(column.reshape(column.shape[0], -1)).all(axis=1)
            assert np.array_equal(known, result.replied)
        assert np.isfinite(result.duration).all()


def test_relabelling_permutes_everything():
    order = np.random.default_rng(0).permutation(8)
    plain, moved = SyntheticFederation(8, seed=5), SyntheticFederation(8, seed=5, identity=order)
    a, b = Everything(), Everything()
    plain.play(a, 3, 8)
    moved.play(b, 3, 8)
    for one, two in zip(a.results, b.results, strict=True):
        assert np.array_equal(two.outcome, one.outcome[order])
        assert np.array_equal(two.duration, one.duration[order])
        for name in one.signals:
            assert np.array_equal(two.signals[name], one.signals[name][order], equal_nan=True), name


def test_no_contrast_and_no_noise_make_clients_identical():
    selector = Everything()
    rnd, _ = SyntheticFederation(8, contrast=0.0, noise=0.0, failure=0.0).play(selector, 2, 8)[1]
    result = selector.results[1]
    for columns in (rnd.profiles, rnd.probed.signals, result.signals, {"duration": result.duration}):
        for name in columns:
            assert np.ptp(columns[name], axis=0).max() == 0, name


def test_random_draws_do_not_depend_on_who_is_asked():
    few, all_ = Everything(choose=lambda rnd: np.array([6, 1])), Everything()
    SyntheticFederation(8).play(few, 2, 8)
    SyntheticFederation(8).play(all_, 2, 8)
    for one, two in zip(few.results, all_.results, strict=True):
        assert one.clients.tolist() == [1, 6]
        assert np.array_equal(one.duration, two.duration[[1, 6]])
        assert np.array_equal(one.signals["utility"], two.signals["utility"][[1, 6]], equal_nan=True)


def test_good_clients_are_good():
    selector = Everything()
    federation = SyntheticFederation(20, failure=0.0)
    federation.play(selector, 1, 20)
    signals, good = selector.results[0].signals, federation.good
    assert signals["utility"][good].min() > signals["utility"][~good].max()
    assert selector.results[0].duration[good].max() < selector.results[0].duration[~good].min()
    turned = Everything()
    SyntheticFederation(20, failure=0.0, flipped=frozenset({"utility"})).play(turned, 1, 20)
    assert turned.results[0].signals["utility"][good].max() < turned.results[0].signals["utility"][~good].min()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rnd: np.array([0, 0]),
        lambda rnd: np.array([99]),
        lambda rnd: np.array([0.0]),
        lambda rnd: np.arange(rnd.size + 1),
    ],
    ids=["twice", "unknown", "float", "too many"],
)
def test_wrong_choices_are_refused(wrong):
    with pytest.raises(ContractError):
        SyntheticFederation(8).play(Everything(choose=wrong), 1, 4)


def test_a_wrong_probe_is_refused():
    with pytest.raises(ContractError, match="probed"):
        SyntheticFederation(8).play(Everything(probe=lambda rnd: np.array([50])), 1, 4)


def test_growth_keeps_the_old_clients():
    federation = SyntheticFederation(6, identity=np.array([5, 4, 3, 2, 1, 0]))
    before = federation.round(0, 2, ALL).profiles["samples"]
    federation.grow(9)
    after = federation.round(0, 2, ALL).profiles["samples"]
    assert after.size == 9
    assert np.array_equal(after[:6], before)
