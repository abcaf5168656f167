"""Wrong labels, drop-out, stragglers and faulty clients: exact counts, the right clients, the right rows."""

import math

import numpy as np
import pytest

from fedcohort.errors import BadParameter
from fedcohort.types import Updates, Work
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.faults import LIES, Faults
from fedcohort.worlds.label_noise import BetaNoise, GivenNoise, NoNoise
from fedcohort.worlds.partition import Iid
from fedcohort.worlds.world_spec import Validation, WorldSpec

LABELS = np.arange(10_000) % 10


def world(noise=None, flipped=True, seed=0, faults=None, clients=50):
    spec = WorldSpec(
        "t",
        clients,
        Iid(),
        noise=noise or NoNoise(),
        faults=faults or Faults(),
        validation=Validation(held_out=0.2, flipped=flipped),
    )
    return build_world(spec, LABELS, seed=seed)


def wrong(part):
    """Naive count of wrong labels per client."""
    return np.array([np.sum(part.label[part.of(i)] != part.clean[part.of(i)]) for i in range(part.start.size - 1)])


def test_exact_count_is_the_rounded_rate_of_each_client():
    w = world(BetaNoise(a=15))
    for part in (w.train, w.validation):
        assert np.array_equal(wrong(part), np.floor(w.noise_rate.astype(float) * part.sizes + 0.5 + 1e-6))
    assert wrong(w.train).sum() > 1000


def test_clean_labels_are_kept_and_the_data_are_untouched():
    w = world(GivenNoise(rate=(0.3,)))
    assert np.array_equal(w.train.clean, LABELS[w.train.index])
    assert np.array_equal(np.unique(w.train.label), np.arange(10))
    assert (np.arange(10_000) % 10 == LABELS).all()


def test_validation_is_flipped_only_if_asked_and_training_does_not_change():
    both, train_only = world(GivenNoise(rate=(0.3,))), world(GivenNoise(rate=(0.3,)), flipped=False)
    assert wrong(both.validation).sum() > 0
    assert wrong(train_only.validation).sum() == 0
    assert np.array_equal(both.train.label, train_only.train.label)
    assert both.digest != train_only.digest


def test_symmetric_flips_go_to_every_other_class_alike():
    w = world(GivenNoise(rate=(0.5,)))
    bad = w.train.label != w.train.clean
    step = np.bincount((w.train.label[bad] - w.train.clean[bad]) % 10, minlength=10)
    assert step[0] == 0
    expected = bad.sum() / 9
    assert (((step[1:] - expected) ** 2) / expected).sum() < 27.9  # chi-square, 8 degrees of freedom, p = 0.0005


def test_pair_flips_go_to_the_next_class():
    w = world(GivenNoise(rate=(0.4,), flip="pair"))
    bad = w.train.label != w.train.clean
    assert (w.train.label[bad] == (w.train.clean[bad] + 1) % 10).all()
    assert bad.mean() == pytest.approx(0.4, abs=1e-9)


def test_include_self_leaves_nine_tenths_of_the_rate():
    """Effective rate r (K - 1) / K = 0.45 for r = 0.5; sd of the share sqrt(n r / K (1 - 1 / K)) / n."""
    w = world(GivenNoise(rate=(0.5,), flip="include-self"))
    n = w.train.label.size
    share = np.mean(w.train.label != w.train.clean)
    assert abs(share - 0.45) < 4 * math.sqrt(n * 0.5 * 0.09) / n


def test_bernoulli_counts_vary_around_the_rate():
    w = world(GivenNoise(rate=(0.25,), count="bernoulli"))
    bad, n = wrong(w.train), w.train.sizes
    z = (bad - 0.25 * n) / np.sqrt(n * 0.1875)
    assert abs(z.mean()) < 4 / math.sqrt(50)
    assert 0.6 < z.std() < 1.5


def test_given_rates_one_per_client_and_some_clients_spared():
    rate = tuple(np.linspace(0, 0.49, 50))
    w = world(GivenNoise(rate=rate))
    assert np.allclose(w.noise_rate, rate)
    assert (np.diff(wrong(w.train)) >= 0).all()
    some = world(BetaNoise(a=30, noisy=0.3))
    assert (some.noise_rate > 0).sum() == 15
    with pytest.raises(BadParameter, match=r"rate with 3 entries: there are 50 clients"):
        world(GivenNoise(rate=(0.1, 0.2, 0.3)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BetaNoise(a=0), "a = 0.0: it must be positive"),
        (lambda: BetaNoise(a=100), "a = 100: it must be less than concentration = 100"),
        (lambda: GivenNoise(rate=(1.2,)), r"rate = \(1.2,\): every entry must be between 0 and 1"),
        (lambda: Faults(dropout=-0.1), "dropout = -0.1: it must be between 0 and 1"),
        (lambda: Faults(nan=0.6, scaled=0.6), "nan = 0.6, scaled = 0.6: they must add up to at most 1, not 1.2"),
        (lambda: Faults(straggle=0.5), "straggle = 0.5: it must be at least 1"),
        (
            lambda: build_world(WorldSpec("t", 2, Iid(), noise=GivenNoise(rate=(0.5,))), [0, 0, 0, 0], seed=0),
            "classes = 1",
        ),
    ],
)
def test_impossible_noise_and_faults_name_themselves(make, words):
    with pytest.raises(BadParameter, match=words):
        make()


def test_unknown_flips_are_refused():
    with pytest.raises(BadParameter, match="one of symmetric, pair, include-self"):
        BetaNoise(flip="pairs")


def test_dropout_has_its_rate_and_flaky_clients_theirs():
    w = world(faults=Faults(dropout=0.05, flaky=0.2, flaky_dropout=0.6))
    ids = np.arange(50)
    gone = np.mean([w.dropped(r, ids) for r in range(1500)], axis=0)
    flaky = gone > 0.3
    assert flaky.sum() == 10
    assert np.array_equal(flaky, w.fixed["dropout"] > 0.5)
    assert abs(gone[flaky].mean() - 0.6) < 4 * math.sqrt(0.24 / 15_000)
    assert abs(gone[~flaky].mean() - 0.05) < 4 * math.sqrt(0.0475 / 60_000)


def test_stragglers_take_the_factor_as_often_as_said():
    w = world(faults=Faults(stragglers=0.1, straggle=20.0))
    ids, one = np.arange(50), np.ones(50)
    work = Work(w.train.sizes, one, one, one, 10)
    times = np.concatenate([w.seconds(r, ids, work) for r in range(200)])
    assert set(np.unique(times)) == {1.0, 20.0}
    assert abs((times == 20.0).mean() - 0.1) < 4 * math.sqrt(0.09 / 10_000)
    assert w.expected_seconds(ids, work)[0] == pytest.approx(0.9 + 2.0)


def liars():
    part = 0.1
    return world(
        faults=Faults(
            nan=part, scaled=part, sign_flipped=part, free_riders=part, boasting=part, label_flipped=part, scale=7.0
        )
    )


def test_liars_are_exactly_as_many_as_said_and_tamper_with_their_own_rows_only():
    w = liars()
    lie = w.fixed["lie"]
    assert [int((lie == i).sum()) for i in range(len(LIES))] == [5] * 6
    ids = np.arange(50)
    delta = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    updates = Updates(ids, delta.copy(), np.ones(50), np.ones(50, np.int64))
    signals = {"train_loss": np.ones(50, np.float32), "steps": np.arange(50)}
    got, told = w.tamper(3, updates, signals)
    rows = {name: np.flatnonzero(lie == i) for i, name in enumerate(LIES)}
    honest = np.flatnonzero((lie == -1) | (lie == LIES.index("label_flipped")))
    assert np.array_equal(got.delta[honest], delta[honest])
    assert np.isnan(got.delta[rows["nan"]]).all()
    assert np.allclose(got.delta[rows["scaled"]], 7 * delta[rows["scaled"]])
    assert np.array_equal(got.delta[rows["sign_flipped"]], -delta[rows["sign_flipped"]])
    riders = np.linalg.norm(got.delta[rows["free_riders"]], axis=1)
    assert (riders < 0.01 * np.linalg.norm(delta, axis=1).mean()).all()
    assert (riders > 0).all()
    assert (told["train_loss"][rows["boasting"]] == 7).all()
    assert np.isnan(told["train_loss"][rows["nan"]]).all()
    assert (told["train_loss"][honest] == 1).all()
    assert np.array_equal(told["steps"], np.arange(50))
    assert np.array_equal(updates.delta, delta)  # the input is not changed
    assert (signals["train_loss"] == 1).all()


def test_label_flippers_mirror_their_labels_at_build_time():
    w = liars()
    for client in range(50):
        for part in (w.train, w.validation):
            at = part.of(client)
            flips = w.fixed["lie"][client] == LIES.index("label_flipped")
            assert np.array_equal(part.label[at], 9 - part.clean[at] if flips else part.clean[at])


def test_an_honest_world_hands_replies_through():
    updates = Updates(np.arange(2), np.ones((2, 3), np.float32), np.ones(2), np.ones(2, np.int64))
    signals = {"train_loss": np.ones(2)}
    got = world().tamper(0, updates, signals)
    assert got[0] is updates
    assert got[1] is signals
