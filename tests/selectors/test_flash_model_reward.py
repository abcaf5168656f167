"""FLASH paid by the fall of the server's validation loss under each uploaded model (C4), and what is paid without."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import BadParameter
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import build
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.session import Session
from fedcohort.selectors._parts import flash_context as context
from fedcohort.selectors._parts.flash_context import per_second
from fedcohort.selectors._parts.scoring import best
from fedcohort.selectors.flash import Flash
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Probed, RoundResult, Signals

_SPEC = importlib.util.spec_from_file_location(
    "flash_semibandit", Path(__file__).parents[2] / "benchmarks" / "flash_semibandit.py"
)
semibandit = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(semibandit)


class TestFlashModelContract(SelectorContract):
    def make(self):
        return Flash(preset="model")


def told(flash, t, clients, seconds, gain):
    n = clients.size
    columns = {"robust_loss": np.full(n, 4.0), "val_loss": np.ones(n), "model_gain": np.asarray(gain, np.float64)}
    ok = np.full(n, Outcome.OK, np.int8)
    flash.observe(RoundResult(t, clients, ok, np.asarray(seconds, np.float64), Signals(columns, flash.needs)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.15, -0.2 * 4 / 9]),  # 0.3 / 2; -0.2 took 4 s where 3 s are usual: signed, and without any probe
        ({"per_second": False}, [0.3, -0.2]),
        ({"scope": "global"}, [0.0125, 0.0125]),  # the mean gain 0.05 over the longest duration
    ],
)
def test_the_reward_of_a_model_by_hand(options, expected):
    flash = Flash(reward="model", refresh="none", standardise=False, trim=0.0, **options)
    assert not any(name.startswith("probe") for name in flash.needs)
    told(flash, 0, np.array([0, 1]), [2.0, 4.0], [0.3, -0.2])
    told(flash, 1, np.array([2]), [1.0], [0.1])
    assert flash.state.reward[:2] == pytest.approx(expected)
    assert flash.state.paid[:3].tolist() == [True, True, False]


def test_without_validation_data_the_fall_of_the_own_loss_is_paid():
    flash = Flash(reward="model", standardise=False, trim=0.0, refresh="all")
    told(flash, 0, np.array([0, 1]), [2.0, 4.0], [np.nan, np.nan])
    answers = {"probe_robust_loss": np.array([3.0, 6.0]), "probe_val_loss": np.ones(2)}
    x, y = flash.context.settle(flash.state, 1, Probed(np.array([0, 1]), Signals(answers, flash.needs)))
    assert y.tolist() == [0.5, 0.0]  # (4 - 3) / 2, and nothing for a loss that rose
    assert len(x) == 2


@pytest.mark.parametrize(
    "name", ["flash({})", "neural-bandit(reward='model', {})", "restless-bandit(reward='model', {})"]
)
def test_without_validation_data_a_run_says_once_what_is_learned_instead_or_that_nothing_is(name, recwarn):
    warnings.simplefilter("always")

    def warned(refresh, task, wrapper="{}"):
        recwarn.clear()
        selector = wrapper.format(name.format(f"refresh='{refresh}'"))
        history = build(from_mapping({"selector": selector, "task": task, "rounds": 2, "cohort_size": 3})).run()
        said = [str(w.message) for w in recwarn if "model_gain" in str(w.message)]
        assert said == [text for text in history.notes if "model_gain" in text]
        return said

    (words,) = warned("none", "digits-softmax(validation=0.0)")
    assert words.startswith("round 0 brings no 'model_gain'")
    assert words.endswith("give the server validation data, or probe clients with refresh='selected'.")
    assert len(warned("none", "digits-softmax(validation=0.0)", 'cool-down(inner="{}")')) == 1
    (words,) = warned("selected", "digits-softmax(validation=0.0)")
    assert " learns from the fall of clients' own losses instead: " in words
    assert words.endswith("or say so with reward='improvement'.")
    assert warned("none", "digits-softmax") == warned("selected", "digits-softmax") == []


def skewed_share(selector, seed):
    """Share of skewed clients among those asked from round 10 on, where three of ten are."""
    keys = {"selector": selector, "world": "flash-noniid30-v2", "task": "digits-mlp(epochs=2)", "rounds": 30}
    simulation = build(from_mapping({**keys, "cohort_size": 10, "seed": seed, "evaluate_every": 30}))
    history = simulation.run()
    skewed = simulation.world.divergence() > 0.3
    assert skewed.sum() == 15
    return float(np.mean(skewed[np.concatenate(history.cohorts[10:])]))


@pytest.mark.parametrize("seed", [0, 1])
def test_which_reading_of_the_reward_leads_to_skewed_clients(seed):
    """The truth of the world is the oracle: paid for its own loss FLASH seeks the skewed, for its model it does not."""
    by_model = skewed_share("flash(per_second=False, refresh='all')", seed)
    by_model_per_second = skewed_share("flash(refresh='all')", seed)
    by_own_loss = skewed_share("flash(preset='robust', refresh='all')", seed)
    assert max(by_model, by_model_per_second) < 0.3 < by_own_loss


def test_of_two_equal_gains_the_faster_is_better_also_where_both_are_losses():
    """Over the duration alone, a loss of a slow client would be a small one."""
    gain, seconds = np.array([0.2, 0.2, -0.2, -0.2]), np.array([1.0, 50.0, 1.0, 50.0])
    fast_gain, slow_gain, fast_loss, slow_loss = per_second(gain, seconds)
    assert fast_gain > slow_gain > 0 > fast_loss > slow_loss
    np.testing.assert_array_equal(per_second(np.abs(gain), seconds), np.abs(gain) / seconds)
    assert per_second(np.empty(0), np.empty(0)).size == 0


def test_signed_rewards_of_the_global_scope_keep_their_size_and_nobody_is_lost():
    scaled = context.Context(reward="model", scope="global")
    s = context.ContextState()
    assert scaled._scaled(s, np.full(2, -0.5)).tolist() == [-1.0, -1.0]
    assert scaled._scaled(s, np.full(2, 0.25)).tolist() == [0.5, 0.5]
    chosen = best(np.arange(6), 4, lambda rows: np.array([np.nan, 1, np.nan, np.nan, 2, np.nan]), generator(0, "x", 0))
    assert chosen.size == 4
    assert {1, 4} <= set(chosen.tolist())


def test_a_reward_between_two_probes_needs_probes():
    with pytest.raises(BadParameter, match="refresh = 'none' with reward = 'improvement'"):
        Flash(preset="robust", refresh="none")
    assert Flash(refresh="none").needs


@pytest.mark.parametrize("scope", ["client", "global"])
def test_of_two_equal_losses_the_faster_is_the_smaller_also_in_cohorts_of_one(scope):
    """The median duration of one client is its own: measured in it, a slow loss would be next to nothing."""
    flash = Flash(reward="model", refresh="none", standardise=False, trim=0.0, scope=scope)
    for t, seconds in enumerate([10.0, 10.0, 10.0, 1.0, 100.0, 10.0]):
        told(flash, t, np.array([t]), [seconds], [-1.0])
    assert flash.state.reward[2:5] == pytest.approx([-0.1, -0.01, -1.0])  # as usual, fast, slow; 10 s are usual


@pytest.mark.parametrize("name", ["flash", "restless-bandit", "neural-bandit"])
def test_clients_with_high_slots_may_be_away_where_no_population_is_told(name):
    session, rng = Session(make_selector(name), cohort_size=3, seed=0), np.random.default_rng(0)

    def answer(clients, names):
        return Probed(clients, Signals({n: rng.random(clients.size) for n in names}))

    for t, there in enumerate((np.arange(5, 10), np.arange(4))):
        clients = session.ask(there, probe=answer).clients
        assert np.isin(clients, there).all()
        ones = {n: np.ones(clients.size) for n in ("model_gain", "robust_loss", "val_loss")}
        ok = np.full(clients.size, Outcome.OK, np.int8)
        session.tell(RoundResult(t, clients, ok, np.ones(clients.size), Signals(ones)))
