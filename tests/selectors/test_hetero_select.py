"""HeteRo-Select: the contract per variant, the six parts by hand, inclusion by softmax, liars, privacy."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fedcohort import signals
from fedcohort.core.stats import js_divergence, spearman
from fedcohort.errors import BadParameter, MissingSignal
from fedcohort.rounds.session import Session
from fedcohort.selectors._parts.label_divergence import divergence, mean_shares
from fedcohort.selectors.hetero_select import PARTS, HeteroSelect
from fedcohort.testing import SelectorContract, SyntheticFederation
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestMultiplicative(SelectorContract):
    runs = 40

    def make(self):
        return HeteroSelect(variant="multiplicative", diversity="cosine-last")


class TestJS(SelectorContract):
    runs = 40

    def make(self):
        return HeteroSelect(diversity="js")


class TestNone(SelectorContract):
    runs = 40

    def make(self):
        return HeteroSelect(diversity="none", w_m=0.0, tau0=0.5)


def ask(size, n, index=0, shares=None, available=None):
    profiles = Signals({} if shares is None else {"label_histogram": np.asarray(shares, np.float32)})
    here = np.arange(n) if available is None else np.asarray(available)
    return Round(index, size, here, n, profiles=profiles)


def told(index, clients, loss, norm, delta=None, outcome=None):
    clients = np.asarray(clients, np.int64)
    m = clients.size
    columns = {"train_loss": np.asarray(loss, float), "delta_norm": np.asarray(norm, float)}
    columns["delta"] = np.ones((m, 2)) if delta is None else np.asarray(delta, float)
    outcome = np.full(m, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    return RoundResult(index, clients, outcome, np.ones(m), Signals(columns))


def parts_of(selector, rnd):
    """Every candidate's parts, in slot order (all are chosen)."""
    cohort = selector.select(rnd, np.random.default_rng(0))
    order = np.argsort(cohort.clients)
    return {name: value[order] for name, value in cohort.why.items()}


def played(**options):
    """Six clients. Round 0: 0-3 report losses 4 3 2 1 and norms 1 2 3 5. Round 1: 0 and 1 report 2 and 3, norms 1 2."""
    s = HeteroSelect(diversity="none", clip=1.0, **options)
    s.observe(told(0, [0, 1, 2, 3], [4, 3, 2, 1], [1, 2, 3, 5]))
    s.observe(told(1, [0, 1], [2, 3], [1, 2]))
    return s


def test_additive_parts_by_hand():
    """Asked in round t = 2, after `played`.

    V: last losses 2 3 2 1 over [1, 3]: 1/2 1 1/2 0; never reported: 1 1.       D: unknown, 1/2.
    M: client 0: g = (4 - 2)/4 = 1/2, m = 1/4; client 1: g = 0, m = 0; scaled 1 and 0; one report or none: 1/2.
    F: h = 2 2 1 1 0 0, mean 1: h/mean = 2 2 1 1 0 0, so 0 0 1/2 1/2 1 1.
    St: t - l = 1 1 2 2 3 3 (never: l = -1): 0.7 ln 2 / ln 4 = 0.35, 0.7 ln 3 / ln 4 = 0.554739, 0.7.
    N: norms 1 2 3 5 over [1, 5]: 1 - (0 1/4 1/2 1) = 1 3/4 1/2 0; unknown 1/2.
    """
    got = parts_of(played(), ask(6, 6, index=2))
    want = {
        "loss": [0.5, 1, 0.5, 0, 1, 1],
        "diversity": [0.5] * 6,
        "momentum": [1, 0, 0.5, 0.5, 0.5, 0.5],
        "fairness": [0, 0, 0.5, 0.5, 1, 1],
        "staleness": [0.35, 0.35, 0.554739, 0.554739, 0.7, 0.7],
        "norm": [1, 0.75, 0.5, 0, 0.5, 0.5],
    }
    assert tuple(want) == PARTS
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(got["score"], np.sum(list(want.values()), axis=0), rtol=1e-5)


def test_multiplicative_by_hand():
    """The same six: base V + D + M = 2 1.5 1.5 1 2 2; mean h = 1, eta = 1: F = 1/3 1/3 1/2 1/2 1 1;
    St = 1 + 0.7 ln(1 + t - l) with t - l = 1 1 2 2 3 3; norms 1 2 3 5, median 2.5: N = 1/1.4 1/1.8 1/2.2 1/3 1/2 1/2.
    """
    got = parts_of(played(variant="multiplicative"), ask(6, 6, index=2))
    base = np.array([2, 1.5, 1.5, 1, 2, 2])
    fair = 1 / np.array([3, 3, 2, 2, 1, 1])
    stale = 1 + 0.7 * np.log([2, 2, 3, 3, 4, 4])
    light = 1 / np.array([1.4, 1.8, 2.2, 3, 2, 2])
    score = base * fair * stale * light
    np.testing.assert_allclose(got["fairness"], fair, rtol=1e-5)
    np.testing.assert_allclose(got["staleness"], stale, rtol=1e-5)
    np.testing.assert_allclose(got["norm"], light, rtol=1e-5)
    np.testing.assert_allclose(got["score"], score / score.max(), rtol=1e-5)


@pytest.mark.parametrize("diversity", ["cosine", "cosine-last", "js", "none"])
def test_parts_stay_in_their_ranges(diversity):
    s, fed = HeteroSelect(diversity=diversity), SyntheticFederation(40, failure=0.3)
    for _, cohort in fed.play(s, 30, 12):
        for name in PARTS:
            top = 0.7 if name == "staleness" else 1.0
            assert cohort.why[name].min() >= 0, name
            assert cohort.why[name].max() <= top + 1e-6, name
        total = np.sum([cohort.why[name] for name in PARTS], axis=0)
        np.testing.assert_allclose(cohort.why["score"], total, rtol=1e-5)


def test_weights_scale_their_part():
    plain, heavy = parts_of(played(), ask(6, 6, 2)), parts_of(played(w_n=2.0, w_d=-1.0), ask(6, 6, 2))
    np.testing.assert_allclose(heavy["norm"], 2 * plain["norm"])
    np.testing.assert_allclose(heavy["diversity"], -plain["diversity"])


def test_temperature_schedule():
    """tau0 (1 - 0.5 min(t / 100, 1))."""
    s = HeteroSelect(tau0=2.0)
    assert [s._temperature(t) for t in (0, 50, 100, 400)] == [2.0, 1.5, 1.0, 1.0]


def test_adaptive_numbers_by_hand():
    """Validation 0.5, 0.6 (both the best so far), 0.4: heat 0.9, 0.81, 0.9. Asked 2, 2, 1, 1, 0, 0 times: mean 1,
    deviation sqrt(2/3), so gamma is 0.7 (1 + sqrt(2/3))."""
    s, fixed = played(adaptive=True), played()
    assert s.state.heat == 1.0  # no round had a score
    for t, (score, heat) in enumerate(((0.5, 0.9), (0.6, 0.81), (0.4, 0.9)), start=2):
        s.observe(replace(told(t, [], [], []), score=score))
        assert s.state.heat == pytest.approx(heat)
    assert s._temperature(0) == pytest.approx(0.9)
    times = np.array([2, 2, 1, 1, 0, 0], np.float32)
    assert s._gamma(times) == pytest.approx(0.7 * (1 + np.sqrt(2 / 3)))
    assert fixed._gamma(times) == 0.7
    for t in range(5, 60):
        s.observe(replace(told(t, [], [], []), score=0.1))
    assert s.state.heat == 2.0  # within [0.1, 2]


class TestAdaptiveHeteroSelect(SelectorContract):
    exempt = HeteroSelect.exempt
    runs = 25

    def make(self):
        return HeteroSelect(adaptive=True, diversity="none")


def exact_inclusion(score, tau, m):
    """By enumeration of ordered draws without replacement."""
    w, out = np.exp(np.asarray(score) / tau), np.zeros(len(score))
    for order in itertools.permutations(range(len(score)), m):
        p, left = 1.0, w.sum()
        for k in order:
            p, left = p * w[k] / left, left - w[k]
        out[list(order)] += p
    return out


@pytest.mark.parametrize("variant", ["additive", "multiplicative"])
def test_inclusion_frequencies_are_those_of_sequential_draws(variant):
    """Three of the six clients of `played`, temperature 0.99 tau0 in round 2: 2,000 cohorts against all 120 orders."""
    s, n = played(variant=variant, tau0=0.5), 2_000
    score = parts_of(s, ask(6, 6, index=2))["score"]
    want = exact_inclusion(score, 0.5 * (1 - 0.5 * 0.02), 3)
    hits = np.zeros(6)
    for seed in range(n):
        hits[s.select(ask(3, 6, index=2), np.random.default_rng(seed)).clients] += 1
    assert np.abs(hits / n - want).max() < 4.5 * 0.5 / math.sqrt(n)


@pytest.mark.parametrize(("tau", "best", "worst"), [(2.0, 0.70, 0.30), (1.0, 0.87, 0.18), (0.5, 0.97, 0.08)])
def test_inclusion_of_best_and_worst_as_in_the_specification(tau, best, worst):
    """Six uniform [0, 1] terms, 12 clients, 6 chosen. Scores are set through one part and its weight.

    The figures of the specification are averages over random scores: here over 250 of them.
    """
    rng, hits = np.random.default_rng(0), np.zeros(2)
    for run in range(250):
        score = rng.random((6, 12)).sum(axis=0)
        span = float(np.ptp(score))
        s = HeteroSelect(diversity="none", clip=1.0, tau0=tau, w_v=span, w_m=0, w_f=0, w_st=0, w_n=0, w_d=0)
        s.observe(told(0, range(12), score, np.ones(12)))
        for seed in range(3):
            chosen = s.select(ask(6, 12, index=0), np.random.default_rng([run, seed])).clients
            hits += [score.argmax() in chosen, score.argmin() in chosen]
    np.testing.assert_allclose(hits / 750, [best, worst], atol=0.06)


def test_gamma_changes_the_choice():
    """Client 0 was asked now, 1 long ago: with gamma = 0 they tie, with gamma = 5 the rested one is preferred."""

    def often(gamma):
        s = HeteroSelect(diversity="none", gamma=gamma, w_v=0, w_m=0, w_f=0, w_n=0)
        s.observe(told(0, [1], [1], [1]))
        s.observe(told(40, [0], [1], [1]))
        hits = [s.select(ask(1, 2, 41), np.random.default_rng(i)).clients[0] for i in range(200)]
        return np.mean(hits)

    assert abs(often(0.0) - 0.5) < 0.1
    assert often(5.0) > 0.9


def test_first_round_is_uniform_in_score():
    got = parts_of(HeteroSelect(), ask(8, 8))
    assert np.ptp(got["score"]) == 0


def test_js_is_zero_for_equal_one_for_disjoint_and_symmetric():
    half = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    assert divergence(half[:1], half[0] + 1e-12)[0] == pytest.approx(0, abs=1e-4)
    assert divergence(half[:1], half[1] + 1e-12)[0] == pytest.approx(1, abs=1e-4)
    p, q = np.array([[0.7, 0.2, 0.1, 0.0]]), np.array([[0.1, 0.3, 0.3, 0.3]])
    there, back = divergence(p, q[0])[0], divergence(q, p[0] + 1e-12)[0]
    assert there == pytest.approx(back, abs=1e-4)
    assert there == pytest.approx(float(js_divergence(p, q)[0]), abs=1e-4)


def test_js_part_against_the_plain_formula():
    """300 clients against a loop. Broken rows count 1/2 and are not averaged."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(5, 0.3), 300)
    shares[7], shares[9] = np.nan, 0.0
    sound = np.delete(np.arange(300), [7, 9])
    mean = shares[sound].mean(axis=0)
    np.testing.assert_allclose(mean_shares(shares), mean, atol=1e-5)
    got = parts_of(HeteroSelect(diversity="js"), ask(300, 300, shares=shares))["diversity"]
    assert got[[7, 9]].tolist() == [0.5, 0.5]
    for k in sound[::10]:
        mix = (shares[k] + mean) / 2
        kl = [sum(a * math.log2(a / b) for a, b in zip(x, mix, strict=True) if a > 0) for x in (shares[k], mean)]
        assert got[k] == pytest.approx(sum(kl) / 2, abs=2e-4)


def test_cosine_is_measured_against_the_way_before_the_round():
    """Round 0 makes the way (1, 0). Round 1: the same 0, a right angle 1, opposite 2 (counts as 1), halfway 0.293."""
    s = HeteroSelect()
    s.observe(told(0, [0, 1], [1, 1], [1, 1], [[1, 0], [2, 0]]))
    assert (s.state.apart[:2] == -1).all()  # nothing to compare with yet
    s.observe(told(1, [0, 1, 2, 3], np.ones(4), np.ones(4), [[3, 0], [0, 1], [-1, 0], [1, 1]]))
    found = parts_of(s, ask(5, 5, 2))
    angles = [0, 1, 2, 1 - math.sqrt(0.5)]
    np.testing.assert_allclose(found["diversity"], [*np.minimum(angles, 1), 0.5], atol=1e-6)


def test_one_huge_update_does_not_turn_the_way():
    """Four point along x, a fifth along y, a million times longer: shortened to the median it counts as one of five."""
    s = HeteroSelect()
    s.observe(told(0, range(5), np.ones(5), np.ones(5), [[1, 0]] * 4 + [[0, 1e6]]))
    np.testing.assert_allclose(s.state.way, [0.8, 0.2], rtol=1e-5)


def test_only_js_asks_for_label_shares():
    level = {d: signals.privacy(HeteroSelect(diversity=d).needs) for d in ("cosine", "cosine-last", "js", "none")}
    assert level == {"cosine": 2, "cosine-last": 2, "js": 3, "none": 1}
    with pytest.raises(MissingSignal, match="label_histogram"):
        Session(HeteroSelect(diversity="js"), cohort_size=2, seed=0)
    Session(HeteroSelect(diversity="js"), cohort_size=2, seed=0, max_privacy="P3")


@pytest.mark.parametrize("variant", ["additive", "multiplicative"])
def test_a_liar_does_not_flatten_the_honest(variant):
    """One of 100 reports a thousandfold loss, twice; the honest ranking by selection moves by less than 0.05."""

    def correlation(lie):
        truth = np.linspace(1, 10, 100)
        s = HeteroSelect(diversity="none", variant=variant, tau0=0.1, w_f=0.0)
        for index in (0, 1):
            s.observe(told(index, range(100), np.r_[truth[0] * lie ** (index + 1), truth[1:]], np.ones(100)))
        counts = np.zeros(100)
        for seed in range(400):
            counts[s.select(ask(10, 100, 2), np.random.default_rng(seed)).clients] += 1
        return spearman(truth[1:], counts[1:])

    honest, lied = correlation(1.0), correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05


def test_failed_clients_count_as_asked_and_keep_what_is_known():
    s = HeteroSelect()
    s.observe(told(0, [0, 1], [4, 5], [1, 2]))
    nan = [np.nan, np.nan]
    s.observe(told(1, [0, 1], nan, nan, [nan, nan], [Outcome.FAILED, Outcome.LATE]))
    assert s.state.times.tolist() == [2, 2]
    assert s.state.last.tolist() == [1, 1]
    assert s.state.loss.tolist() == [4, 5]
    assert not s.state.paced.any()


@pytest.mark.parametrize("variant", ["additive", "multiplicative"])
def test_prefers_high_losses_where_norms_do_not_object(variant):
    """Good clients have high losses in the kit; with small norms and no diversity part they are preferred."""
    shares = []
    for seed in range(2):
        fed = SyntheticFederation(24, seed=seed, flipped=frozenset({"delta_norm"}))
        steps = fed.play(HeteroSelect(diversity="none", variant=variant, tau0=0.5), 45, 6, seed)
        shares.append(fed.good[np.concatenate([c.clients for _, c in steps[-15:]])].mean())
    assert np.mean(shares) > 0.62


@pytest.mark.parametrize(
    "bad",
    [
        {"variant": "sum"},
        {"diversity": "kl"},
        {"gamma": -1.0},
        {"eta": -1.0},
        {"tau0": 0.0},
        {"horizon": 0},
        {"clip": 0.2},
        {"memory": 1.0},
    ],
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        HeteroSelect(**bad)


def test_factors_refuse_negative_weights():
    with pytest.raises(BadParameter, match="additive"):
        HeteroSelect(variant="multiplicative", w_d=-1.0)
