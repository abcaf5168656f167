"""FLASH: its numbers by hand, its oracles, its semi-bandit, and the contract."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter, UnknownName
from fedcohort.selectors._parts import flash_context as context
from fedcohort.selectors._parts.scoring import best
from fedcohort.selectors.flash import Flash, gamma
from fedcohort.testing import SyntheticFederation
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

_SPEC = importlib.util.spec_from_file_location(
    "flash_semibandit", Path(__file__).parents[2] / "benchmarks" / "flash_semibandit.py"
)
semibandit = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(semibandit)


class World:
    """Losses and durations set by the test; every client answers and replies."""

    def __init__(self, selector, robust, val=None):
        self.selector, self.t = selector, 0
        self.robust = np.asarray(robust, np.float32)
        self.val = np.ones_like(self.robust) if val is None else np.asarray(val, np.float32)

    def ask(self, size):
        n = self.robust.size
        rnd = Round(self.t, size, np.arange(n), n)
        asked = self.selector.probe(rnd, generator(0, "probe", self.t))
        answers = {"probe_robust_loss": self.robust[asked], "probe_val_loss": self.val[asked]}
        self.probed = Probed(asked, Signals(answers, self.selector.needs))
        rnd = Round(self.t, size, np.arange(n), n, probed=self.probed)
        return self.selector.select(rnd, generator(0, "select", self.t))

    def tell(self, clients, seconds, robust_after, outcome=None):
        reports = Signals({"robust_loss": self.robust[clients], "val_loss": self.val[clients]}, self.selector.needs)
        outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else outcome
        seconds = np.asarray(seconds, np.float64)[clients]
        self.selector.observe(RoundResult(self.t, clients, outcome, seconds, reports, probed=self.probed))
        self.robust, self.t = np.asarray(robust_after, np.float32), self.t + 1


def test_six_clients_by_hand():
    """Context (loss ratio, duration), nothing scaled, greedy (v = 0), lambda = 1.

    Round 0: everybody (S_0). All losses are 2, so ratios are 1; no duration is known, so x = (1, 0) for all.
    Durations are T = 1 1 2 2 4 4. The losses become 1, 1.5, 1, 1.5, 1, 1.5, so the rewards |dL| / T are
    1, .5, .5, .25, .25, .125: sum 2.625.
    Round 1: V = I + 6 (1,0)(1,0)' = diag(7, 1), b = (2.625, 0), theta = (.375, 0). Ratios are .5 and .75: the three
    best are 1, 3, 5, each with score .75 * .375 = .28125.
    They bring their losses to 1, 1.1, 1.3: rewards .5/1, .4/2, .2/4 = .5, .2, .05 at x = (.75, 1), (.75, 2), (.75, 4).
    Round 2: V = [[7 + 3 * .5625, .75 * 7], [5.25, 1 + 21]] = [[8.6875, 5.25], [5.25, 22]], determinant 163.5625;
    b = (2.625 + .75 * .75, .5 + .4 + .2) = (3.1875, 1.1);
    theta = ((22 * 3.1875 - 5.25 * 1.1), (8.6875 * 1.1 - 5.25 * 3.1875)) / 163.5625 = (.393428, -.043886).
    Scores: 0 and 1 (.5, 1): .1528; 2 (.5, 2): .1089; 3 (.55, 2): .1286; 4 (.5, 4): .0212; 5 (.65, 4): .0802.
    The three best are 0, 1, 3.
    """
    flash = Flash(preset="literal", context="loss,duration", explore=0.0, refresh="all")
    world, seconds = World(flash, [2.0] * 6), [1, 1, 2, 2, 4, 4]
    first = world.ask(6)
    assert sorted(first.clients) == [0, 1, 2, 3, 4, 5]
    world.tell(first.clients, seconds, [1, 1.5, 1, 1.5, 1, 1.5])

    second = world.ask(3)
    assert sorted(second.clients) == [1, 3, 5]
    assert second.why["score"] == pytest.approx([0.28125] * 3)
    assert second.why["loss"] == pytest.approx([0.28125] * 3)
    assert second.why["duration"] == pytest.approx([0.0] * 3)
    world.tell(second.clients, seconds, [1, 1.0, 1, 1.1, 1, 1.3])

    third = world.ask(3)
    assert sorted(third.clients) == [0, 1, 3]
    score = dict(zip(third.clients.tolist(), third.why["score"].tolist(), strict=True))
    assert score == pytest.approx({0: 0.15283, 1: 0.15283, 3: 0.12861}, abs=2e-5)
    world.tell(third.clients, seconds, world.robust)
    assert pytest.approx(np.array([[8.6875, 5.25], [5.25, 22.0]]), abs=1e-5) == flash.state.V
    assert flash.state.b == pytest.approx([3.1875, 1.1], abs=1e-5)


def test_gamma_has_the_values_of_the_specification():
    """d = 4, lambda = 1, delta = 0.05: section 1.7-A."""
    at = [gamma(t, 50, 4, 1.0, 0.05) for t in (0, 1, 100, 1500)]
    assert np.round(at, 2) == pytest.approx([4.46, 6.26, 7.79, 8.54])
    assert round(gamma(1500, 3550, 4, 1.0, 0.05), 2) == 9.60


def test_noise_free_linear_rewards_give_the_oracle():
    """v = 0, lambda = 1e-6, reward exactly theta' x: from round 1 on (V has full rank) the cohort is the oracle's."""
    theta, rng = np.array([0.004, 0.002]), generator(3, "linear")
    flash = Flash(preset="literal", context="loss,val", explore=0.0, ridge=1e-6, refresh="all")
    world = World(flash, rng.uniform(4, 6, 20), rng.uniform(2, 3, 20))
    first, first_val = world.robust.copy(), world.val.copy()
    for t in range(12):
        x = np.stack([world.robust / first, world.val / first_val], axis=1)
        chosen = world.ask(20 if t == 0 else 5).clients
        if t > 1:  # in round 0 all ratios are 1, so that V has rank 1 until round 1 was seen
            assert sorted(chosen) == sorted(np.argsort(x @ theta)[-5:])
        after = world.robust.copy()
        after[chosen] -= (x @ theta)[chosen]
        if t == 0:
            after -= rng.uniform(0, 1, 20).astype(np.float32)  # spreads the ratios; spoils the first rewards
        world.tell(chosen, np.ones(20), after)
        world.val = (world.val * rng.uniform(0.9, 1.0, 20)).astype(np.float32)
        if t == 0:
            flash.state.asked = flash.state.asked[:0]  # those first rewards are not linear: leave them out
            flash.state.asked_x = flash.state.asked_x[:0]


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "literal"},
        {"preset": "paper_scaled", "refresh": "all"},
        {"method": "ucb", "refresh": "sample:3"},
        {"scope": "global", "forget": 0.9, "refresh": "all"},
        {"context": "reward", "staleness": 2},
        {"context": "duration,loss", "initial": "random:2"},
        {"preset": "model", "refresh": "none"},
        {"reward": "model", "per_second": False, "scope": "global"},
    ],
)
def test_every_variant_plays_and_keeps_v_positive_definite(options):
    flash, fed = Flash(**options), SyntheticFederation(20, seed=1, availability=0.8)
    for index in range(15):
        steps = fed.play(flash, [index], 5)
        assert steps[0][1].clients.size == (2 if index == 0 and "initial" in options else 5)
        V = flash.state.V
        assert pytest.approx(V.T) == V
        assert np.linalg.eigvalsh(V).min() > 0
        assert np.linalg.eigvalsh(V).max() < 1e12
        assert np.isfinite(flash.state.b).all()


def test_rewards_are_trimmed_before_they_are_standardised():
    """(1, 2, 3, 1000): the largest becomes the next, 3; mean 2.25, variance 0.6875, deviation 0.829156."""
    s = context.ContextState()
    y = context.standardise(s, np.array([1.0, 2.0, 3.0, 1000.0]), 0.05)
    assert y == pytest.approx([-1.507557, -0.301511, 0.904534, 0.904534], abs=1e-5)


def test_few_rewards_are_set_against_past_rounds():
    """Two rewards say nothing on their own: the first round gives 0, later ones deviate from what was usual."""
    s = context.ContextState()
    assert context.standardise(s, np.array([2.0, 4.0]), 0.05) == pytest.approx([0.0, 0.0])
    assert (s.level, s.spread) == pytest.approx((3.0, 1.0))
    assert context.standardise(s, np.array([4.0]), 0.05) == pytest.approx([1.0])
    assert s.level == pytest.approx(3.1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"reward": "abs"}, [0.5, 0.5]),  # |4 - 3| / 2 and |4 - 6| / 4
        ({"reward": "improvement"}, [0.5, 0.0]),
        ({"reward": "abs", "scope": "global"}, [0.125, 0.125]),  # |(1 - 2) / 2| / max(2, 4)
    ],
)
def test_rewards_by_hand(options, expected):
    flash = Flash(standardise=False, trim=0.0, refresh="all", **options)
    world = World(flash, [4.0, 4.0])
    world.tell(np.sort(world.ask(2).clients), [2.0, 4.0], [3.0, 6.0])
    world.tell(np.sort(world.ask(2).clients), [2.0, 4.0], [3.0, 6.0])
    assert flash.state.reward == pytest.approx(expected)
    assert flash.state.paid.all()


@pytest.mark.parametrize("preset", ["model", "robust"])  # without validation data both pay the fall of the own loss
def test_a_client_cannot_claim_a_scale_of_its_own(preset):
    """First losses 4 4 4 4 4000: the last counts as if it had started at 4: halving is worth 2 / T for all."""
    flash = Flash(preset=preset, standardise=False, refresh="all", explore=0.0)
    world = World(flash, [4.0, 4.0, 4.0, 4.0, 4000.0])
    for _ in range(2):
        world.ask(5)
        world.tell(np.arange(5), np.ones(5), world.robust / 2)
    assert flash.state.reward == pytest.approx([2.0] * 5)


def test_who_fails_earns_nothing_but_is_known_to_be_slow():
    flash = Flash(refresh="all")
    world = World(flash, [4.0, 4.0, 4.0])
    world.ask(3)
    world.tell(np.arange(3), [1.0, 1.0, 9.0], [3.0, 3.0, 3.0], np.array([0, 0, Outcome.FAILED], np.int8))
    world.ask(3)
    world.tell(np.arange(3), [1.0, 1.0, 9.0], [3.0, 3.0, 3.0])
    assert flash.state.paid.tolist() == [True, True, False]
    assert flash.state.seconds.tolist() == [1.0, 1.0, 9.0]


def test_who_is_probed():
    """all: everybody; selected: the last cohort, and at round 3 those never measured in 3 rounds; sample: both."""

    def probes(**options):
        flash, out = Flash(initial="all", **options), []
        world = World(flash, np.linspace(4, 5, 8))
        for _ in range(5):
            chosen = world.ask(2).clients
            out.append((set(world.probed.clients.tolist()), set(chosen.tolist())))
            world.tell(chosen, np.ones(8), world.robust * 0.9)
        return out

    assert all(asked == set(range(8)) for asked, _ in probes(refresh="all"))
    never = probes(refresh="selected", staleness=0)
    assert never[0][0] == set()
    assert all(never[t][0] == never[t - 1][1] for t in range(1, 5))
    stale = probes(refresh="selected", staleness=3)
    assert stale[1][0] == stale[0][1]
    assert set(range(8)) == stale[1][0] | stale[2][0] | stale[0][1] | stale[1][1]  # round 2 asks all never measured
    sampled = probes(refresh="sample:3")
    assert all(sampled[t - 1][1] <= sampled[t][0] and 3 <= len(sampled[t][0]) <= 5 for t in range(1, 5))


def test_an_ablated_context_asks_for_less():
    assert Flash(preset="robust", context="loss,duration,reward").needs == {"robust_loss", "probe_robust_loss"}
    whole = {"robust_loss", "probe_robust_loss", "val_loss", "probe_val_loss"}
    assert Flash(preset="robust").needs == whole
    assert Flash().needs == {*whole, "model_gain"}
    assert Flash(context="loss").state.V.shape == (1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "no"},
        {"method": "no"},
        {"context": "loss,speed"},
        {"context": "loss,loss"},
        {"context": ""},
        {"refresh": "sample:0"},
        {"refresh": "some"},
        {"initial": "random:x"},
        {"scaling": "no"},
        {"scope": "no"},
        {"reward": "no"},
        {"forget": 0.0},
        {"ridge": 0.0},
        {"confidence": 1.0},
        {"explore": -1.0},
        {"trim": 0.5},
        {"staleness": -1},
    ],
)
def test_bad_values_are_refused(options):
    with pytest.raises((BadParameter, UnknownName)):
        Flash(**options)


@pytest.mark.parametrize(
    ("preset", "low", "high"),
    [("literal", -0.2, 0.1), ("paper_scaled", 0.65, 1.0), ("robust", 0.65, 1.0), ("model", 0.65, 1.0)],
)
def test_semibandit(preset, low, high):
    """Section 1.7-A in short (2 of 40 seeds): the printed scales choose blindly, the scaled ones do not."""
    runs = [semibandit.play(Flash(preset=preset, refresh="all"), seed)[0][-100:].mean() for seed in range(2)]
    assert low <= np.mean(runs) <= high


def test_a_liar_does_not_move_the_honest():
    """One client reports a thousand times its losses: rank correlation of worth and picks among the others stays."""
    honest = np.arange(1, semibandit.CLIENTS)
    plain, lied = [], []
    for seed in range(3):
        for liar, out in ((None, plain), (0, lied)):
            _, picks, worth = semibandit.play(Flash(preset="robust"), seed, 120, liar)
            out.append(spearman(picks[honest], worth[honest]))
    assert np.mean(plain) > 0.5
    assert abs(np.mean(plain) - np.mean(lied)) < 0.05


@pytest.mark.parametrize("k", [0, 1, 7, 500, 40_000])
def test_best_in_chunks_equals_a_full_sort(k):
    """Scores with many ties: whoever is strictly better than the border is in, the rest is at the border."""
    clients = np.sort(generator(4, "clients").choice(60_000, 40_000, replace=False))
    score = generator(5, "score").integers(0, 300, 60_000).astype(np.float32)
    chosen = best(clients, k, lambda rows: score[rows], generator(6, "ties"))
    assert chosen.size == np.unique(chosen).size == k
    assert np.isin(chosen, clients).all()
    assert np.sort(score[chosen]).tolist() == np.sort(score[clients])[clients.size - k :].tolist()
