"""Wrappers: the contract around Oort, what each one promises, and what passes through them.

The contract around uniform, their default, is that of the catalogue (tests/testing).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcohort.core.table import TableError
from fedcohort.errors import BadParameter
from fedcohort.registry.lookup import make_selector
from fedcohort.selectors.oort import Oort
from fedcohort.selectors.pyramidfl import PyramidFL
from fedcohort.selectors.uniform import Uniform
from fedcohort.selectors.wrappers.blocklist import Blocklist
from fedcohort.selectors.wrappers.cool_down import CoolDown
from fedcohort.selectors.wrappers.explore import Explore, evenly_rounded
from fedcohort.selectors.wrappers.probability_cap import ProbabilityCap
from fedcohort.selectors.wrappers.quota import Quota
from fedcohort.selectors.wrappers.warm_up import WarmUp
from fedcohort.testing import SelectorContract
from fedcohort.testing.synthetic_federation import SyntheticFederation
from fedcohort.types import Cohort, Outcome, Probed, Round, RoundResult, Signals

OPTIONS = {
    "warm_up": (WarmUp, {"rounds": 2}),
    "explore": (Explore, {"share": 0.2}),
    "cool_down": (CoolDown, {"rounds": 1}),
    "cool_down_filled": (CoolDown, {"rounds": 4, "fill": True}),
    "blocklist": (Blocklist, {}),
    "blocklist_filled": (Blocklist, {"misses": 1, "fill": True}),
    "quota": (Quota, {"least": 0.3}),
    "quota_capped": (Quota, {"most": 5, "window": 10}),
    "quota_filled": (Quota, {"most": 2, "window": 10, "fill": True}),
    "probability_cap": (ProbabilityCap, {"cap": 2.0}),
    "probability_cap_filled": (ProbabilityCap, {"cap": 1.5, "fill": True}),
}


def list_contract(name, made, options):
    """A contract class for one wrapper around Oort, whose blacklist would rest most of the good in 60 rounds."""

    def make(self):
        return made(inner=Oort(blacklist=0), **options)

    knobs = {"make": make, "__module__": __name__, "runs": 40}
    if name in ("cool_down_filled", "quota_filled"):
        knobs["exempt"] = {"learns": "with 24 clients and 6 places these limits leave the inner selector no choice"}
    globals()[f"Test_{name}"] = type(f"Test_{name}", (SelectorContract,), knobs)


for _name, (_made, _options) in OPTIONS.items():
    list_contract(_name, _made, _options)


class Fixed:
    """Chooses the first of a fixed order that are available, and keeps what it is told and asked."""

    needs = frozenset({"probe_loss"})

    def __init__(self, order):
        self.order, self.told, self.rounds = list(order), [], []

    def probe(self, rnd, rng):
        self.probed = rnd
        return rnd.available[:2]

    def select(self, rnd, rng):
        self.rounds.append(rnd)
        here = [i for i in self.order if i in set(rnd.available.tolist())][: rnd.size]
        size = len(here)
        columns = {"work": np.full(size, 2.0), "drop": np.full(size, 0.5), "multiplicity": np.full(size, 3)}
        return Cohort(np.array(here, np.int64), columns, np.full(size, 0.5), {"score": np.arange(size) + 1.0})

    def observe(self, result):
        self.told.append(result)

    def state_dict(self):
        return {"heard": np.array(len(self.told))}

    def load_state_dict(self, arrays):
        if set(arrays) != {"heard"} or arrays["heard"].ndim:
            raise TableError("no")
        self.told = [None] * int(arrays["heard"])


def ask(size, n, index=0, available=None):
    return Round(index, size, np.arange(n) if available is None else np.asarray(available), n)


def told(index, clients, outcome=Outcome.OK):
    clients = np.sort(np.asarray(clients, np.int64))
    kinds = np.broadcast_to(np.asarray(outcome, np.int8), clients.shape).copy()
    return RoundResult(index, clients, kinds, np.ones(clients.size), Signals({}))


def run(selector, rounds, size, n, available=None, seed=0):
    """Cohorts of so many rounds in which everybody replies; `available` is a function of the round."""
    out = []
    for index in range(rounds):
        here = None if available is None else available(index)
        chosen = selector.select(ask(size, n, index, here), np.random.default_rng([seed, index]))
        selector.observe(told(index, chosen.clients))
        out.append(chosen.clients)
    return out


# what passes through


@pytest.mark.parametrize(("made", "options"), OPTIONS.values(), ids=OPTIONS)
def test_needs_probes_and_state_are_the_inner_ones(made, options):
    inner = Fixed(range(12))
    outer = made(inner=inner, **options)
    assert outer.needs == inner.needs
    assert outer.probe(ask(4, 12), np.random.default_rng(0)).tolist() == [0, 1]
    assert "inner.heard" in outer.state_dict()
    assert made(inner=Uniform(), **options).probe(ask(4, 12), np.random.default_rng(0)).size == 0


@pytest.mark.parametrize(("made", "options"), OPTIONS.values(), ids=OPTIONS)
def test_the_inner_selector_hears_of_everybody_that_was_asked(made, options):
    inner = Fixed(range(12))
    outer = made(inner=inner, **options)
    cohorts = run(outer, 12, 4, 12)
    assert len(inner.told) == 12
    for cohort, result in zip(cohorts, inner.told, strict=True):
        assert sorted(cohort.tolist()) == result.clients.tolist()


@pytest.mark.parametrize(("made", "options"), OPTIONS.values(), ids=OPTIONS)
def test_probe_and_select_show_the_same_round(made, options):
    """Whoever is probed can be chosen: the inner selector sees the same clients and places twice."""
    inner = Fixed(range(12))
    outer = made(inner=inner, **options)
    for index in range(8):
        rnd = ask(4, 12, index)
        outer.probe(rnd, np.random.default_rng(77))
        seen = len(inner.rounds)
        chosen = outer.select(rnd, np.random.default_rng(index))
        if len(inner.rounds) > seen:
            assert inner.rounds[-1].available.tolist() == inner.probed.available.tolist()
            assert inner.rounds[-1].size == inner.probed.size
        outer.observe(told(index, chosen.clients))


@pytest.mark.parametrize(("made", "options"), OPTIONS.values(), ids=OPTIONS)
def test_a_load_that_the_inner_selector_refuses_changes_nothing(made, options):
    outer = made(inner=Fixed(range(12)), **options)
    run(outer, 5, 4, 12)
    kept = outer.state_dict()
    fresh = made(inner=Fixed(range(12)), **options)
    run(fresh, 2, 4, 12)
    before = fresh.state_dict()
    with pytest.raises(TableError):
        fresh.load_state_dict({**kept, "inner.heard": np.zeros(2)})
    for name, value in fresh.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    fresh.load_state_dict(kept)
    for name, value in fresh.state_dict().items():
        np.testing.assert_array_equal(value, kept[name])


def test_wrappers_nest_and_are_made_from_text():
    selector = make_selector("warm-up(inner=\"explore(inner='oort(explore=0.5)', share=0.25)\", rounds=3)")
    assert isinstance(selector, WarmUp)
    assert isinstance(selector.inner, Explore)
    assert isinstance(selector.inner.inner, Oort)
    assert (selector.rounds, selector.inner.share, selector.inner.inner.explore) == (3, 0.25, 0.5)
    assert selector.needs == Oort().needs
    assert "inner.inner.utility" in selector.state_dict()
    federation = SyntheticFederation(24)
    federation.play(selector, 10, 6)
    assert selector.inner.inner.state.times.sum() == 60


@pytest.mark.parametrize("name", ["warm-up", "explore", "quota", "cool-down", "blocklist", "probability-cap"])
def test_uniform_is_the_inner_selector_where_none_is_named(name):
    selector = make_selector(name)
    assert isinstance(selector.inner, Uniform)
    assert run(selector, 3, 4, 12)[0].size == 4


def test_an_inner_selector_by_name_is_refused_with_the_way_out():
    with pytest.raises(BadParameter, match=r"warm-up\(inner='oort'\)"):
        WarmUp(inner="oort")


def test_added_clients_get_ordinary_directives():
    """Four places, one random: it works once, drops nothing, was drawn once, and has no inner score."""
    cohort = Explore(inner=Fixed(range(12)), share=0.25).select(ask(4, 12), np.random.default_rng(0))
    assert cohort.clients[:3].tolist() == [0, 1, 2]
    assert cohort.clients[3] > 2
    assert cohort.directives["work"].tolist() == [2, 2, 2, 1]
    assert cohort.directives["drop"].tolist() == [0.5, 0.5, 0.5, 0]
    assert cohort.directives["multiplicity"].tolist() == [3, 3, 3, 1]
    assert cohort.directives["multiplicity"].dtype.kind == "i"
    assert np.isnan(cohort.why["score"][3])
    assert cohort.why["explored"].tolist() == [0, 0, 0, 1]
    assert cohort.inclusion is None


def test_directives_of_pyramidfl_pass_through_a_wrapper():
    federation = SyntheticFederation(24)
    _, cohort = federation.play(CoolDown(inner=PyramidFL(), rounds=1), 6, 6)[-1]
    assert {"work", "drop"} <= set(cohort.directives)


def test_busy_clients_are_not_added():
    """A published bug elsewhere: whoever is not available now must not be asked, whichever rule wants it."""
    rng = np.random.default_rng(0)
    for made, options in OPTIONS.values():
        outer = made(inner=Oort(), **options)
        for index in range(12):
            here = np.sort(rng.choice(20, 7, replace=False))
            chosen = outer.select(ask(5, 20, index, here), np.random.default_rng(index)).clients
            assert np.isin(chosen, here).all()
            outer.observe(replace(told(index, chosen), signals=Signals({"utility": np.ones(chosen.size)})))


# warm-up


def test_warm_up_draws_uniformly_and_then_steps_aside():
    outer = WarmUp(inner=Fixed(range(12)), rounds=3)
    first = [outer.select(ask(4, 12, i), np.random.default_rng(i)) for i in range(3)]
    assert len({tuple(sorted(c.clients.tolist())) for c in first}) > 1
    assert all(np.allclose(c.inclusion, 4 / 12) for c in first)
    assert outer.select(ask(4, 12, 3), np.random.default_rng(3)).clients.tolist() == [0, 1, 2, 3]


def test_warm_up_is_uniform():
    hits = np.zeros(10)
    for seed in range(3000):
        hits[WarmUp(inner=Fixed(range(10)), rounds=1).select(ask(3, 10), np.random.default_rng(seed)).clients] += 1
    np.testing.assert_allclose(hits / 3000, 0.3, atol=0.035)  # four standard deviations of sqrt(.21 / 3000) = 0.0084


# exploration share


def test_explored_share_is_exact_in_the_long_run():
    """0.15 * 4 = 0.6 places a round: 60 of the 400 places of 100 rounds, and never off by one on the way."""
    outer = Explore(inner=Fixed(range(4)), share=0.15)
    places = np.array([outer.places(ask(4, 40, i)) for i in range(100)])
    assert set(places.tolist()) == {0, 1}
    assert (np.abs(np.cumsum(places) - 0.6 * np.arange(1, 101)) < 1).all()
    marked = [outer.select(ask(4, 40, i), np.random.default_rng(i)).why["explored"].sum() for i in range(100)]
    assert sum(marked) == 60


def test_exploration_reaches_everybody_and_decays():
    outer = Explore(inner=Fixed(range(40)), share=0.5)
    assert np.unique(np.concatenate(run(outer, 120, 4, 40))).size == 40
    fading = Explore(inner=Fixed(range(40)), share=1.0, decay=0.5, floor=0.25)
    assert [fading.places(ask(4, 40, i)) for i in range(5)] == [4, 2, 1, 1, 1]


def test_a_short_inner_cohort_does_not_take_the_explored_places():
    cohort = Explore(inner=Fixed([0]), share=0.5).select(ask(4, 12), np.random.default_rng(0))
    assert cohort.clients.size == 3
    assert cohort.why["explored"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("wanted", [0.0, 0.1, 0.6, 1.0, 2.7, 3.0])
def test_evenly_rounded_is_next_to_what_is_wanted(wanted):
    got = np.array([evenly_rounded(wanted, i) for i in range(1000)])
    assert set(got.tolist()) <= {int(np.floor(wanted)), int(np.ceil(wanted))}
    assert (np.abs(np.cumsum(got) - wanted * np.arange(1, 1001)) < 1 + 1e-6).all()


# cool-down


@pytest.mark.parametrize("inner", [Oort, Uniform, lambda: Fixed(range(20))])
@pytest.mark.parametrize("rest", [1, 2, 3])
def test_nobody_is_asked_while_resting(inner, rest):
    outer = CoolDown(inner=inner(), rounds=rest)
    last = np.full(20, -100)
    federation = SyntheticFederation(20)
    for index in range(30):
        rnd, cohort = federation.ask(outer, index, 6)
        assert (index - last[cohort.clients] > rest).all()
        last[cohort.clients] = index
        outer.observe(federation.result(rnd, cohort, outer.needs))


def test_a_filled_cool_down_takes_those_that_rested_longest():
    """Six clients, two places, rest of four rounds: from round 3 on, only filling helps, in the order of asking."""
    outer = CoolDown(inner=Fixed(range(6)), rounds=4, fill=True)
    cohorts = [sorted(c.tolist()) for c in run(outer, 6, 2, 6)]
    assert cohorts == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]
    hard = CoolDown(inner=Fixed(range(6)), rounds=4)
    assert [c.size for c in run(hard, 6, 2, 6)] == [2, 2, 2, 0, 0, 2]


# blocklist


def test_listed_clients_are_never_asked_not_even_to_fill():
    for fill in (False, True):
        outer = Blocklist(inner=Uniform(), clients=[1, 3, 99], misses=0, fill=fill)
        chosen = np.concatenate(run(outer, 20, 5, 6))
        assert set(chosen.tolist()) == {0, 2, 4, 5}


def test_three_misses_in_a_row_rest_and_one_more_is_enough():
    """Client 0 misses rounds 0 to 2 and rests 3 to 7; it misses again in 8 and rests 9 to 13; then it replies."""
    outer = Blocklist(inner=Fixed(range(4)), misses=3, rounds=5)
    asked = []
    for index in range(20):
        chosen = outer.select(ask(2, 4, index), np.random.default_rng(0)).clients
        if 0 in chosen:
            asked.append(index)
        kinds = [Outcome.FAILED if c == 0 and index < 10 else Outcome.OK for c in np.sort(chosen)]
        outer.observe(told(index, chosen, kinds))
    assert asked == [0, 1, 2, 8, 14, 15, 16, 17, 18, 19]


def test_a_reply_wipes_the_slate_clean_and_filtered_is_a_reply():
    outer = Blocklist(inner=Fixed(range(4)), misses=2, rounds=5)
    kinds = [Outcome.LATE, Outcome.FILTERED, Outcome.REJECTED, Outcome.OK, Outcome.FAILED]
    for index, kind in enumerate(kinds):
        outer.observe(told(index, [0, 1], [kind, Outcome.OK]))
    assert 0 in outer.select(ask(4, 4, 5), np.random.default_rng(0)).clients


def test_an_outage_of_everybody_blocks_nobody():
    outer = Blocklist(inner=Uniform(), misses=1, rounds=50)
    for index in range(5):
        outer.observe(told(index, range(8), Outcome.FAILED))
    assert outer.select(ask(8, 8, 5), np.random.default_rng(0)).clients.size == 8


# quota and cap


@pytest.mark.parametrize("least", [0.1, 0.5, 1.0])
def test_the_neglected_get_their_quota(least):
    """The inner selector wants only clients 0 to 3 of 20; beta K t / N = least * 4 * 300 / 20 = 60 least requests."""
    outer = Quota(inner=Fixed(range(20)), least=least)
    counts = np.zeros(20)
    for index, cohort in enumerate(run(outer, 300, 4, 20)):
        assert cohort.size == 4
        counts[cohort] += 1
        assert (counts >= least * 4 * (index + 1) / 20 - 2).all()
    assert counts[:4].sum() >= (1 - least) * 1200  # the other places are left to the inner selector


def test_no_quota_changes_nothing():
    assert all(c.tolist() == [0, 1, 2, 3] for c in run(Quota(inner=Fixed(range(20)), least=0.0), 30, 4, 20))


@pytest.mark.parametrize("window", [1, 4, 10])
@pytest.mark.parametrize("least", [0.0, 0.5])
def test_the_cap_holds_in_every_window(window, least):
    outer = Quota(inner=Fixed(range(12)), least=least, most=2, window=window)
    asked = np.zeros((60, 12))
    rng = np.random.default_rng(5)
    for index, cohort in enumerate(run(outer, 60, 3, 12, lambda i: np.sort(rng.choice(12, 9, replace=False)))):
        asked[index, cohort] = 1
    sums = np.stack([asked[i : i + window].sum(axis=0) for i in range(60 - window + 1)])
    assert sums.max() <= 2
    assert asked.sum() > 60  # it is a cap, not a stop


def test_the_cap_of_the_whole_run():
    cohorts = run(Quota(inner=Uniform(), least=0.0, most=3), 20, 4, 8)
    counts = np.bincount(np.concatenate(cohorts), minlength=8)
    assert counts.tolist() == [3] * 8
    filled = run(Quota(inner=Uniform(), least=0.0, most=3, fill=True), 20, 4, 8)
    assert all(c.size == 4 for c in filled)


# probability cap


def windows_hold(asked, share, cap, burst=1.0):
    """Eq. 4 in every window, by brute force: asks minus cap times the uniform share never exceeds the burst."""
    excess = np.cumsum(asked - cap * share, axis=0)
    excess = np.vstack([np.zeros(asked.shape[1]), excess])
    lowest = np.minimum.accumulate(excess, axis=0)
    return float((excess - lowest).max()) <= burst + 1e-6


@pytest.mark.parametrize("cap", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("here", [30, 17])
def test_no_window_exceeds_the_cap_whatever_the_inner_selector_wants(cap, here):
    outer = ProbabilityCap(inner=Fixed(range(30)), cap=cap)
    rng = np.random.default_rng(1)
    asked, share = np.zeros((200, 30)), np.zeros((200, 30))

    def available(index):
        slots = np.sort(rng.choice(30, here, replace=False))
        share[index, slots] = 5 / here
        return slots

    for index, cohort in enumerate(run(outer, 200, 5, 30, available)):
        asked[index, cohort] = 1
    assert windows_hold(asked, share, cap)
    assert not windows_hold(asked, share, 0.8 * cap)  # and the cap is really used


def test_capped_requests_by_hand():
    """Ten clients, two places, c = 2.5: half a credit a round. Clients 0 and 1 are always wanted.

    They start at 1, have 1.5 in round 0 (asked: 0.5), 1.0 in round 1 (asked: 0), 0.5 in round 2 (not enough), and so
    on: after the first round, every other one. Clients 2 and 3 fill the gaps.
    """
    cohorts = run(ProbabilityCap(inner=Fixed(range(10)), cap=2.5), 8, 2, 10)
    assert [sorted(c.tolist()) for c in cohorts[:6]] == [[0, 1], [0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]


def test_liars_get_at_most_the_cap_and_honest_clients_the_rest():
    """20 % of 50 clients report a thousandfold utility. Unbounded, Oort gives them most places; with c = 1.5, at most
    1.5 times their share of 20 % (and the burst of one request each)."""

    def liars_share(selector):
        federation, counts = SyntheticFederation(50, failure=0.0, contrast=0.0), np.zeros(50)
        for index in range(200):
            rnd, cohort = federation.ask(selector, index, 5)
            result = federation.result(rnd, cohort, selector.needs)
            columns = {k: np.array(v) for k, v in result.signals.columns().items()}
            columns["utility"][result.clients < 10] *= 1000
            selector.observe(replace(result, signals=Signals(columns, selector.needs)))
            counts[cohort.clients] += 1
        return counts[:10].sum() / counts.sum(), counts

    plain, _ = liars_share(Oort(blacklist=0, clip=1.0))
    capped, counts = liars_share(ProbabilityCap(inner=Oort(blacklist=0, clip=1.0), cap=1.5))
    assert plain > 0.5
    assert capped <= 1.5 * 0.2 + 10 / 1000
    assert counts.max() <= 1.5 * 5 / 50 * 200 + 1
    assert counts.sum() == 1000  # nothing is lost: the places go to others


def test_filled_places_do_not_depend_on_reports():
    """Ten clients, four places, c = 1, an inner selector that wants two only: the others come in turn, all alike."""
    outer = ProbabilityCap(inner=Fixed([0, 1]), cap=1.0, fill=True)
    cohorts = run(outer, 100, 4, 10)
    assert all(c.size == 4 for c in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=10)
    assert counts[2:].max() - counts[2:].min() <= 2


def test_a_result_that_was_never_asked_for_here_accrues_as_if_all_were_there():
    """As inside a warm-up: observe without select."""
    outer = ProbabilityCap(inner=Fixed(range(10)), cap=1.0)
    outer.observe(told(0, range(10)))
    assert outer.state.spent.tolist() == [0.0] * 10
    outer.observe(told(1, [0, 1, 2, 3, 4]))
    np.testing.assert_allclose(outer.state.spent, [0.5] * 5 + [-0.5] * 5)


@pytest.mark.parametrize(
    ("made", "bad"),
    [
        (WarmUp, {"rounds": -1}),
        (Explore, {"share": 1.2}),
        (Explore, {"floor": -0.1}),
        (Explore, {"decay": 0.0}),
        (CoolDown, {"rounds": -1}),
        (Blocklist, {"clients": [-1]}),
        (Blocklist, {"misses": -1}),
        (Blocklist, {"rounds": 0}),
        (Quota, {"least": 1.5}),
        (Quota, {"most": -1}),
        (Quota, {"window": -1}),
        (ProbabilityCap, {"cap": 0.9}),
        (ProbabilityCap, {"burst": 0.5}),
    ],
)
def test_bad_parameters_are_named(made, bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        made(**bad)


def test_probed_answers_reach_the_inner_selector():
    inner = Fixed(range(6))
    answers = Probed(np.array([0, 1]), Signals({"probe_loss": np.array([1.0, 2.0])}, inner.needs))
    CoolDown(inner=inner).select(replace(ask(2, 6), probed=answers), np.random.default_rng(0))
    assert inner.rounds[-1].probed is answers


def test_needs_follow_those_of_the_inner_selector():
    inner = Uniform()
    wrapped = WarmUp(inner=inner)
    inner.needs = frozenset({"samples"})
    assert wrapped.needs == frozenset({"samples"})


@pytest.mark.parametrize("text", ["cool-down(inner='flash')", "cool-down(inner=\"warm-up(inner='flash')\")"])
def test_remedies_say_whose_arguments_they_name(text):
    selector = make_selector(text)
    assert selector.does_without["model_gain"] == "preset='robust' of the inner Flash"
    assert selector.learns_from["model_gain"].endswith("reward='improvement' of the inner Flash")
