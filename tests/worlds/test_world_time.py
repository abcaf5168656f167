"""Latency and availability: keyed draws, closed forms, traces by hand."""

import json
import math

import numpy as np
import pytest

from fedcohort.errors import BadParameter, DataError
from fedcohort.types import Work
from fedcohort.worlds import catalogue, devices
from fedcohort.worlds.availability import Always, Bernoulli, FromTrace, Markov
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.given_latency import LATENCIES, GivenLatency, load_seconds
from fedcohort.worlds.latency import (
    FixedExponential,
    FlashRLLatency,
    Lognormal,
    Pareto,
    Physical,
    ShiftedExponential,
)
from fedcohort.worlds.natural import Natural
from fedcohort.worlds.partition import Iid
from fedcohort.worlds.trace import load_trace
from fedcohort.worlds.world_spec import WorldSpec

LABELS = np.arange(2000) % 10


def world(clients=40, seed=0, **sections):
    return build_world(WorldSpec("t", clients, Iid(balanced=True), **sections), LABELS, seed=seed)


def work_of(w, ids, params=1000, passes=1.0, plain=1.0):
    sent = np.full(ids.size, 4.0 * params)
    return Work(w.train.sizes[ids], np.full(ids.size, passes), sent, sent, params, np.full(ids.size, plain))


FLEET = [("north", 2.0), ("south", 9.0), ("north", 4.0), ("west", 5.0), ("east", 1.0)]


def fleet(tmp_path, rows=FLEET):
    path = tmp_path / "fleet.csv"
    path.write_text("client,seconds\n" + "".join(f"{name},{s}\n" for name, s in rows))
    return GivenLatency(path=str(path))


def named_world(spec, owners):
    return build_world(spec, np.arange(len(owners)) % 2, seed=0, owners=owners)


def test_given_seconds_go_to_the_clients_of_that_name(tmp_path):
    spec = WorldSpec("w", 0, Natural(), latency=fleet(tmp_path))
    w = named_world(spec, ["south", "north", "west"] * 4)
    ids = np.arange(3)
    assert w.names == ("north", "south", "west")
    assert w.expected_seconds(ids, work_of(w, ids)).tolist() == [3.0, 9.0, 5.0]
    drawn = np.array([w.seconds(r, ids, work_of(w, ids, passes=5.0, plain=5.0)) for r in range(50)])
    assert [set(column) for column in drawn.T] == [{2.0, 4.0}, {9.0}, {5.0}]
    assert w.seconds(0, ids, work_of(w, ids, passes=1 / 3))[1] == pytest.approx(3.0)  # a probe
    assert w.seconds(0, ids, work_of(w, ids, passes=1 / 3, plain=5.0))[1] == pytest.approx(0.6)
    scaled = named_world(spec.replace(latency__passes=5.0), ["south", "north"] * 4)
    assert scaled.expected_seconds(ids[:2], work_of(scaled, ids[:2], passes=10.0)).tolist() == [6.0, 18.0]
    np.savez(tmp_path / "fleet.npz", client=["south", "north"], seconds=[[9.0, 9.0], [2.0, 4.0]])
    assert load_seconds(tmp_path / "fleet.npz")[0] == ["south", "north"]
    invented = build_world(WorldSpec("w", 10, Iid(), latency=fleet(tmp_path)), np.arange(40) % 2, seed=0)
    assert set(invented.expected_seconds(np.arange(10), work_of(invented, np.arange(10)))) == {3.0, 9.0, 5.0, 1.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,seconds\nnorth,1\n", "1 of 2 clients are not in it: south"),
        ("name,time\nnorth,1\n", "must be client and seconds; it has name, time"),
        ("client,seconds\nnorth,fast\nsouth,1\n", "cannot be read"),
        ("client,seconds\nnorth,-1\nsouth,1\n", "takes -1.0 seconds"),
        ("client,seconds\n", "it has no rows"),
    ],
)
def test_mistakes_in_a_file_of_seconds_are_named(tmp_path, text, says):
    (tmp_path / "fleet.csv").write_text(text)
    spec = WorldSpec("w", 0, Natural(), latency=GivenLatency(path=str(tmp_path / "fleet.csv")))
    with pytest.raises(DataError) as caught:
        named_world(spec, ["north", "south"] * 3)
    assert says in str(caught.value)


def test_a_trace_with_the_names_of_the_clients_is_followed_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("device,begin,end\nsouth,0,10\nnorth,20,30\n")
    spec = WorldSpec("w", 0, Natural(), availability=FromTrace(path=str(tmp_path / "t.csv")))
    w = named_world(spec, ["north", "south"] * 3)
    assert [w.names[i] for i in w.available(0, 5.0)] == ["south"]
    assert [w.names[i] for i in w.available(0, 25.0)] == ["north"]
    with pytest.raises(DataError, match="1 of 2 clients are not in it: west"):
        named_world(spec, ["north", "west"] * 3)


@pytest.mark.parametrize("kind", sorted(set(LATENCIES) - {"given"}))
def test_a_clients_time_does_not_depend_on_who_else_is_asked(kind):
    w = world(latency=LATENCIES[kind]())
    everybody = np.arange(40)
    whole = w.seconds(7, everybody, work_of(w, everybody))
    assert (whole > 0).all()
    for cohort in (np.array([3]), np.array([31, 3, 8]), everybody[::-1]):
        assert np.array_equal(w.seconds(7, cohort, work_of(w, cohort)), whole[cohort])
    if kind != "constant":
        stays = kind == "flash-fixed"
        assert np.array_equal(w.seconds(8, everybody, work_of(w, everybody)), whole) == stays
        other = world(latency=LATENCIES[kind](), seed=1)
        assert not np.array_equal(other.seconds(7, everybody, work_of(w, everybody)), whole)


def test_dropout_and_availability_are_keyed_too():
    from fedcohort.worlds.faults import Faults

    w = world(faults=Faults(dropout=0.5), availability=Bernoulli(rate=0.5))
    whole = w.dropped(4, np.arange(40))
    assert np.array_equal(w.dropped(4, np.array([9, 2])), whole[[9, 2]])
    assert np.array_equal(w.available(4, 0.0), w.available(4, 99.0))
    again = world(faults=Faults(dropout=0.5), availability=Bernoulli(rate=0.5))
    again.available(0, 0.0)  # what was asked before changes nothing
    assert np.array_equal(w.available(4, 0.0), again.available(4, 0.0))


@pytest.mark.parametrize(
    "law", [ShiftedExponential(a=0.5, lam=2.0), Lognormal(a=2.0, sigma=0.8), Pareto(a=2.0, shape=4.0)]
)
def test_expected_seconds_is_the_mean_of_the_draws(law):
    w = world(latency=law)
    ids = np.arange(40)
    work = work_of(w, ids, passes=2.0)
    draws = np.stack([w.seconds(r, ids, work) for r in range(1500)])
    assert np.allclose(w.expected_seconds(ids, work), w.train.sizes * 2.0 * (2.5 if law.kind == "flash" else 2.0))
    ratio = (draws / w.expected_seconds(ids, work)).ravel()
    assert abs(ratio.mean() - 1.0) < 4 * ratio.std() / math.sqrt(ratio.size)


def test_speeds_that_stay_have_the_law_of_those_that_are_drawn_again():
    """T_i - a n ~ Exp(mean lam n) over the clients: mean and deviation lam n, and P(above lam n) = 1/e."""
    w = world(clients=1000, latency=FixedExponential(a=1.0, lam=10.0))
    ids = np.arange(1000)
    took = w.seconds(3, ids, work_of(w, ids))
    assert np.array_equal(took, w.expected_seconds(ids, work_of(w, ids)))
    own = (took / w.train.sizes - 1.0) / 10.0
    assert abs(own.mean() - 1.0) < 4 / math.sqrt(1000)
    assert abs(own.std() - 1.0) < 0.2
    assert abs(np.mean(own > 1.0) - math.exp(-1)) < 4 * math.sqrt(0.24 / 1000)
    assert np.array_equal(w.seconds(0, ids, work_of(w, ids, passes=2.0)), 2.0 * took)


def test_the_second_version_of_flashs_worlds_differs_in_time_only():
    labels = np.arange(5000) * 7 % 10
    for name in ("flash-noniid30", "flash-noise15", "flash-noniid30-noise15"):
        old, new = (build_world(catalogue.get(f"{name}-{v}"), labels, seed=2) for v in ("v1", "v2"))
        assert np.array_equal(old.train.index, new.train.index)
        assert np.array_equal(old.train.label, new.train.label)
        assert (old.spec.latency.a, old.spec.latency.lam) == (new.spec.latency.a, new.spec.latency.lam) == (1.0, 10.0)


def test_pareto_has_a_power_tail_and_lognormal_the_right_width():
    ids = np.arange(40)
    w = world(latency=Pareto(a=1.0, shape=2.0))
    x = np.concatenate([w.seconds(r, ids, work_of(w, ids)) / w.train.sizes for r in range(1000)]) * 2.0
    assert x.min() >= 1.0
    assert abs(np.mean(x > 10.0) - 0.01) < 4 * math.sqrt(0.01 / x.size)  # P(X > 10) = 10^-2
    w = world(latency=Lognormal(a=1.0, sigma=0.7))
    logs = np.log(np.concatenate([w.seconds(r, ids, work_of(w, ids)) / w.train.sizes for r in range(1000)]))
    assert abs(logs.std() - 0.7) < 0.02
    assert abs(logs.mean() + 0.245) < 0.02


def test_speed_classes_are_exact_and_stay_with_the_client():
    law = ShiftedExponential(a=1.0, lam=0.0, factors=(0.5, 1.0, 8.0), shares=(0.25, 0.5, 0.25))
    w = world(latency=law)
    ids = np.arange(40)
    first = w.seconds(0, ids, work_of(w, ids)) / w.train.sizes
    assert sorted(np.unique(first, return_counts=True)[1].tolist()) == [10, 10, 20]
    assert np.array_equal(first, w.seconds(5, ids, work_of(w, ids)) / w.train.sizes)


@pytest.mark.parametrize("rho", [-1.0, 0.0, 0.8, 1.0])
def test_slowness_can_be_tied_to_noise(rho):
    from fedcohort.worlds.label_noise import BetaNoise

    law = ShiftedExponential(factors=(1.0, 2.0, 4.0, 8.0), shares=(0.25,) * 4, tied_to="noise", rho=rho)
    w = world(clients=400, latency=law, noise=BetaNoise(a=20))
    got = np.corrcoef(np.argsort(np.argsort(w.noise_rate)), np.log2(w.fixed["slowness"]))[0, 1]
    assert abs(got - {-1.0: -0.97, 0.0: 0.0, 0.8: 0.77, 1.0: 0.97}[rho]) < 0.12


def test_flash_rl_catalogue_and_formula_by_hand():
    """Counts of the release per 100 clients; l = 64 40 20 B / (cores f) + 64 P / b with the spread switched off."""
    device, link = devices.assign(100, 3)
    assert np.bincount(link).tolist() == [24, 26, 24, 26]
    assert np.bincount(device).tolist() == [8] * 12 + [4]
    law = FlashRLLatency()
    fixed = {"device": np.array([5], np.uint8), "link": np.array([0], np.uint8)}  # Pi 3 with 2 cores, 6 Mbit/s
    work = Work(np.array([500]), np.array([1.0]), np.array([0.0]), np.array([0.0]), 108_098)
    got = law.time(np.array([0]), work, fixed, np.array([350.0]), np.array([6.0]))
    assert got[0] == pytest.approx(10 * 51_200 / (2 * 350e6) + 64 * 108_098 / 6e6)


def test_physical_counts_operations_and_both_directions():
    """Nano: 3 x 2e6 x 100 / (0.2 x 235.8e9) s of compute; 8 (1e6 + 2e6) bits over 30 Mbit/s."""
    fixed = {"device": np.array([12], np.uint8), "link": np.array([1], np.uint8)}
    work = Work(np.array([100]), np.array([1.0]), np.array([1e6]), np.array([2e6]), 1_000_000)
    got = Physical().time(np.array([0]), work, fixed, np.array([921.0]), np.array([30.0]))
    assert got[0] == pytest.approx(6e8 / (0.2 * 235.8e9) + 0.8)
    device, _ = devices.assign(500, 0, trainable=True)
    assert 4 not in device  # TPU v1 can only infer


def test_bernoulli_rates_and_spread():
    w = world(clients=200, availability=Bernoulli(rate=0.6, spread=0.3))
    seen = np.zeros(200)
    for r in range(800):
        seen[w.available(r, 0.0)] += 1
    own = w.spec.availability.rates(0, np.arange(200))
    assert own.min() > 0.3
    assert own.max() < 0.9
    assert own.std() > 0.15
    assert abs(seen / 800 - own).max() < 4.5 * math.sqrt(0.25 / 800)


def test_markov_has_the_stationary_share_and_the_dwell_times_of_its_chain():
    """Share on = 12 / 16; a stay on lasts 12 ticks and one off 4 on average, geometrically."""
    w = world(clients=300, availability=Markov(on=12.0, off=4.0))
    state = np.zeros((400, 300), bool)
    for r in range(400):
        state[r, w.available(r, 0.0)] = True
    assert abs(state.mean() - 0.75) < 0.012
    leave = (state[:-1] & ~state[1:]).sum() / state[:-1].sum()
    enter = (~state[:-1] & state[1:]).sum() / (~state[:-1]).sum()
    assert abs(leave - 1 / 12) < 4 * math.sqrt(1 / 12 / state[:-1].sum())
    assert abs(enter - 1 / 4) < 4 * math.sqrt(0.1875 / (~state[:-1]).sum())
    back = np.zeros(300, bool)
    back[w.available(37, 0.0)] = True
    assert np.array_equal(back, state[37])  # going back in time is possible


def test_diurnal_rhythm_follows_the_clock():
    law = Markov(on=3.0, off=3.0, depth=1.0, period=24.0, zones=0.0, tick=3600.0)
    w = world(clients=200, availability=law)
    day = np.array([[w.available(0, 3600.0 * (24 * d + h)).size for h in range(24)] for d in range(6)]) / 200
    mean = day.mean(axis=0)
    assert mean.argmax() in (0, 1, 2, 23)
    assert mean.argmin() in (12, 13, 14, 15)
    assert mean.max() > 0.8
    assert mean.min() < 0.2


def test_outages_take_whole_regions_for_their_length():
    law = Always(groups=4, outage=0.05, outage_ticks=3)
    w = world(clients=40, availability=law)
    region = w.fixed["region"]
    assert np.bincount(region).tolist() == [10] * 4
    dark = np.zeros((600, 4), bool)
    for r in range(600):
        there = np.isin(np.arange(40), w.available(r, 0.0))
        for g in range(4):
            assert len(set(there[region == g])) == 1
            dark[r, g] = not there[region == g][0]
    assert abs(dark.mean() - (1 - 0.95**3)) < 0.04
    runs = [len(x) for g in range(4) for x in "".join("x" if d else "." for d in dark[3:, g]).split(".") if x]
    assert min(runs[1:-1]) >= 3


def test_fedscale_trace_by_hand_and_by_bisection(tmp_path):
    """On from active[j] to inactive[j], both included; the record repeats after finish_time."""
    file = tmp_path / "trace.json"
    file.write_text(
        json.dumps(
            {
                "1": {"active": [0, 900], "inactive": [300, 1500], "finish_time": 2000, "duration": 9, "model": "a"},
                "2": {"active": [500], "inactive": [600], "finish_time": 1000},
                "10": {"active": [], "inactive": [], "finish_time": 1000},
            }
        )
    )
    trace = load_trace(file)
    for clock, expected in {
        0: [1, 0, 0],
        300: [1, 0, 0],
        300.5: [0, 0, 0],
        550: [0, 1, 0],
        899: [0, 0, 0],
        1500: [1, 1, 0],
        1501: [0, 1, 0],
        2100: [1, 0, 0],
        3550: [0, 1, 0],
    }.items():
        assert trace.active(float(clock)).astype(int).tolist() == expected, clock
    w = world(clients=7, availability=FromTrace(path=str(file)))
    assert np.bincount(w.fixed["trace_device"]).tolist() == [3, 2, 2]
    late, early = w.available(9, 550.0), w.available(0, 0.0)
    assert np.array_equal(w.available(0, 550.0), late)  # only the clock counts, not the order of questions
    assert early.size == 3
    assert late.size == 2


def test_other_trace_forms(tmp_path):
    (tmp_path / "a.csv").write_text("device,begin,end\nx,0,10\nx,5,20\ny,30,40\n")
    (tmp_path / "b.json").write_text(json.dumps({"period": 40, "devices": [[[0, 20]], [[30, 40]]]}))
    for name in ("a.csv", "b.json"):
        trace = load_trace(tmp_path / name)
        assert trace.active(15.0).tolist() == [True, False]
        assert trace.active(35.0).tolist() == [False, True]
        assert trace.active(55.0).tolist() == [True, False]


def test_missing_and_damaged_traces_name_the_file(tmp_path):
    with pytest.raises(DataError, match=r"nothing.json'.*does not exist; set path"):
        world(availability=FromTrace(path=str(tmp_path / "nothing.json")))
    for name, text in {
        "a.json": "{",
        "b.json": "[1, 2]",
        "c.json": '{"1": {"active": [0]}}',
        "d.csv": "no,header\n1,2\n",
        "e.json": '{"period": 0, "devices": [[[0, 1]]]}',
        "f.json": '{"period": 9, "devices": [[[5, 1]]]}',
        "g.json": '{"period": 9, "devices": []}',
    }.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=rf"{name}'.*is not a trace"):
            load_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Markov(on=1.5, off=1.5), r"1 / on \+ 1 / off must be at most 1"),
        (lambda: Markov(depth=2.0), "depth = 2.0: it must be between 0 and 1"),
        (lambda: Bernoulli(rate=1.5), "rate = 1.5: it must be between 0 and 1"),
        (lambda: Always(outage=0.1), "outage = 0.1: there are no groups that could fail; set groups as well"),
        (lambda: FromTrace(), "path = ''"),
        (lambda: ShiftedExponential(lam=-1), "lam = -1.0: it must be at least 0"),
        (lambda: Pareto(shape=1.0), "shape = 1.0: it must be more than 1"),
        (lambda: Lognormal(factors=(1.0, 2.0), shares=(1.0,)), "one share per factor"),
        (lambda: Lognormal(factors=(1.0, 2.0), shares=(0.5, 0.6)), "must add up to 1"),
        (lambda: Lognormal(factors=(0.0,)), r"factors = \(0.0,\): every entry must be positive"),
        (lambda: Physical(efficiency=0.0), r"efficiency = 0.0: .*0 is not allowed"),
        (lambda: FlashRLLatency(batch=0), "batch = 0: it must be at least 1"),
    ],
)
def test_impossible_times_name_themselves(make, words):
    with pytest.raises(BadParameter, match=words):
        make()
