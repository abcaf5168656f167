"""Every partition, for any parameters: it ends, and either owns as declared or refuses by name."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcohort.errors import BadParameter, FedcohortError
from fedcohort.worlds.allocate import POLICIES, Pool, fit
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.dirichlet import ClassDirichlet, ClientDirichlet, SelfBalancing
from fedcohort.worlds.natural import LabelSkew, LabelsPerClient, Natural, Shards
from fedcohort.worlds.partition import Dominance, Iid, QuantitySkew
from fedcohort.worlds.world_spec import PARTITIONS, Validation, WorldSpec

LABELS = np.arange(1200) % 10
OWNERS = np.arange(1200) % 30
ALL_ONCE = ("iid", "client-dirichlet", "self-balancing-dirichlet", "quantity", "shards")  # nothing is left over
positive = st.floats(1e-9, 1e9)
size = {"samples": st.none() | st.integers(1, 60), "reuse": st.floats(0.1, 3.0), "spread": st.floats(0.0, 2.0)}
PARAMETERS = {
    "iid": {"balanced": st.booleans()},
    "dominance": {
        **size,
        "law": st.sampled_from(["fixed", "uniform", "pareto"]),
        "alpha": st.floats(0, 1),
        "shape": st.floats(1e-3, 50.0),
    },
    "few-class": {**size, "most": st.none() | st.integers(1, 99)},
    "layered-dirichlet": {**size, "middle": st.floats(1e-6, 1.0), "high": st.floats(1.0, 99.0)},
    "flash": {**size, "share": st.floats(0, 1), "major": st.floats(0, 1)},
    "client-dirichlet": {"alpha": positive, "min_size": st.integers(0, 5), "retries": st.integers(1, 5)},
    "self-balancing-dirichlet": {"alpha": positive, "min_size": st.integers(0, 5), "retries": st.integers(1, 5)},
    "class-dirichlet": {
        **size,
        "alpha": positive,
        "alpha_convention": st.sampled_from(["per-class", "prior"]),
        "rounding": st.sampled_from(["multinomial", "largest-remainder"]),
    },
    "shards": {"shards": st.integers(1, 5)},
    "n-labels": {"labels": st.integers(1, 6)},
    "quantity": {
        "law": st.sampled_from(["dirichlet", "lognormal"]),
        "beta": positive,
        "sigma": st.floats(0, 5),
        "min_size": st.integers(0, 5),
        "retries": st.integers(1, 5),
    },
    "natural": {"min_size": st.integers(1, 9)},
    "label-skew": {"labels": st.integers(1, 9), "min_size": st.integers(1, 9)},
}


def test_every_partition_has_a_property_test():
    assert set(PARAMETERS) == set(PARTITIONS)


@pytest.mark.parametrize("kind", sorted(PARTITIONS))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_parameters_end_and_own_as_declared(kind, data):
    labels = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=150), label="labels"))
    owners = np.array(data.draw(st.lists(st.integers(0, 9), min_size=labels.size, max_size=labels.size)))
    clients = data.draw(st.integers(0 if kind in ("natural", "label-skew") else 1, 40), label="clients")
    policy = data.draw(st.sampled_from(POLICIES), label="policy")
    chosen = data.draw(st.fixed_dictionaries(PARAMETERS[kind]), label="parameters")
    held = data.draw(st.floats(0.0, 0.99), label="held out")
    seed = data.draw(st.integers(0, 2**40), label="seed")
    spec = WorldSpec("t", clients, PARTITIONS[kind](**chosen), validation=Validation(held_out=held), allocation=policy)
    world = build_or_refuse(spec, labels, seed, owners)
    if world is not None:
        check_ownership(world, spec, labels, owners, policy)


def build_or_refuse(spec, labels, seed, owners):
    refused = None
    try:
        return build_world(spec, labels, seed=seed, owners=owners)
    except FedcohortError as error:
        refused = error
    assert any(word in refused.value for word in ("clients", "samples", "min_size", "shards", "labels", "class"))
    assert refused.remedy
    return None


def check_ownership(world, spec, labels, owners, policy):
    kind = spec.partition.kind
    assert spec.clients in (0, world.population)
    assert world.train.start[0] == world.validation.start[0] == 0
    both = []
    for part in (world.train, world.validation):
        assert part.start[-1] == part.index.size == part.label.size
        assert (np.diff(part.start) >= 0).all()
        assert np.array_equal(part.clean, labels[part.index])
        both.append(np.repeat(np.arange(world.population), part.sizes))
    index = np.concatenate([world.train.index, world.validation.index])
    owner = np.concatenate(both)
    sizes = world.train.sizes + world.validation.sizes
    assert (world.train.sizes >= np.minimum(sizes, 1)).all()  # who owns anything can train
    if policy != "recycle" or kind not in ("dominance", "few-class", "flash", "class-dirichlet", "layered-dirichlet"):
        assert np.unique(index).size == index.size  # no duplicates
    if kind in ALL_ONCE:
        assert np.array_equal(np.sort(index), np.arange(labels.size))
    if hasattr(spec.partition, "min_size"):
        assert sizes.min() >= spec.partition.min_size
    if kind in ("natural", "label-skew"):
        assert len(set(zip(owner, owners[index], strict=True))) == world.population
    for client in range(world.population):  # no leak between the parts, even with copies
        mine = world.train.index[world.train.of(client)]
        assert not np.isin(world.validation.index[world.validation.of(client)], mine).any()


def test_strict_deals_exact_counts_without_duplicates():
    world = build_world(WorldSpec("t", 20, Dominance(alpha=0.4, samples=50)), LABELS, seed=0)
    sizes = world.train.sizes + world.validation.sizes
    assert (sizes == 50).all()
    index = np.concatenate([world.train.index, world.validation.index])
    assert np.unique(index).size == index.size == 1000


def test_recycle_deals_every_sample_equally_often():
    """12 clients of 600 even samples are six deals of the pool: every sample exactly six times."""
    spec = WorldSpec("t", 12, Dominance(alpha=0.0, samples=600), allocation="recycle")
    world = build_world(spec, LABELS, seed=0)
    times = np.bincount(np.concatenate([world.train.index, world.validation.index]), minlength=1200)
    assert (times == 6).all()


def test_redistribute_keeps_sizes_and_own_proportions():
    """Two clients want 60 of class 0, of which there are 60: the later one gets classes 1 and 2 in its own 2 : 1."""
    labels = np.repeat([0, 1, 2], [60, 60, 60])
    wish = np.array([[60, 0, 0], [60, 20, 10]], np.int32)
    got = fit(wish.copy(), Pool(labels, 3), "redistribute", seed=0)
    assert got.sum(axis=1).tolist() == [60, 90]
    assert got[:, 0].sum() == 60
    assert (got.sum(axis=0) <= 60).all()
    if got[1, 0] == 0:  # client 1 came second: 20 : 10 became 60 : 30
        assert got[1].tolist() == [0, 60, 30]
        assert got[0].tolist() == [60, 0, 0]
    else:  # client 0 came second and wanted nothing else: what is left, in proportion (40 : 50)
        assert got[1].tolist() == [60, 20, 10]
        assert got[0].tolist() == [0, 27, 33]


def test_redistribute_is_fair_to_late_slots():
    """Who goes short is drawn, so the skew of a client does not depend on its number."""
    labels = np.arange(4000) % 10
    spec = WorldSpec("t", 200, ClassDirichlet(alpha=0.1), allocation="redistribute")
    js = np.mean([build_world(spec, labels, seed=s).divergence() for s in range(6)], axis=0)
    assert abs(js[:100].mean() - js[100:].mean()) < 0.03


def test_scale_shrinks_everybody_alike():
    """Class 0 is asked for 100 times and there are 50: everything is halved."""
    labels = np.repeat([0, 1], [50, 1000])
    got = fit(np.array([[60, 30], [40, 80]], np.int32), Pool(labels, 2), "scale", seed=0)
    assert got.tolist() == [[30, 15], [20, 40]]


def test_self_balancing_gives_nothing_to_those_that_have_their_fair_share():
    labels = np.arange(20_000) % 10
    owned = SelfBalancing(alpha=0.5).own(Pool(labels, 10), 50, 1, "strict")
    counts = np.zeros((50, 10), int)
    np.add.at(counts, (np.repeat(np.arange(50), np.diff(owned.start)), labels[owned.index]), 1)
    before = np.cumsum(counts, axis=1) - counts
    assert counts[before >= 400].sum() == 0
    assert (before >= 400).any()
    plain = np.diff(ClientDirichlet(alpha=0.5).own(Pool(labels, 10), 50, 1, "strict").start)
    assert counts.sum(axis=1).std() < plain.std()


def test_shards_are_runs_of_the_label_order():
    labels = np.arange(1000)[::-1] // 100
    owned = Shards(shards=2).own(Pool(labels, 10), 50, 0, "strict")
    order = np.argsort(labels, kind="stable")
    for client in range(50):
        mine = owned.index[owned.start[client] : owned.start[client + 1]].reshape(2, 10)
        for shard in mine:
            first = int(np.flatnonzero(order == shard[0])[0])
            assert first % 10 == 0
            assert np.array_equal(shard, order[first : first + 10])


def test_shards_that_drop_the_remainder_lose_the_last_class():
    """1,797 digits, 200 shards of 8: 197 samples at the end of the label order go, which is more than class 9 has."""
    labels = np.sort(np.arange(1797) % 10)
    kept = Shards(shards=2, remainder="drop").own(Pool(labels, 10), 100, 0, "strict")
    assert 9 not in labels[kept.index]
    assert kept.index.size == 1600
    assert 9 in labels[Shards(shards=2).own(Pool(labels, 10), 100, 0, "strict").index]


def test_n_labels_divides_each_class_evenly_among_its_holders():
    owned = LabelsPerClient(labels=3).own(Pool(LABELS, 10), 20, 0, "strict")
    owner = np.repeat(np.arange(20), np.diff(owned.start))
    counts = np.zeros((20, 10), int)
    np.add.at(counts, (owner, LABELS[owned.index]), 1)
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert (counts[np.arange(20), np.arange(20) % 10] > 0).all()
    for c in range(10):
        held = counts[counts[:, c] > 0, c]
        assert held.sum() == 120
        assert np.ptp(held) <= 1


def test_natural_clients_are_the_owners_and_a_choice_of_them():
    labels, owners = LABELS, np.repeat(["anna", "ben", "carl"], [200, 900, 100])
    world = build_world(WorldSpec("t", 0, Natural()), labels, seed=0, owners=owners)
    assert (world.train.sizes + world.validation.sizes).tolist() == [200, 900, 100]
    two = build_world(WorldSpec("t", 1, Natural(min_size=150)), labels, seed=0, owners=owners)
    assert int((two.train.sizes + two.validation.sizes)[0]) in (200, 900)
    with pytest.raises(BadParameter, match=r"clients = 4: the data have 3 owners"):
        build_world(WorldSpec("t", 4, Natural()), labels, seed=0, owners=owners)
    with pytest.raises(BadParameter, match="name the owner"):
        build_world(WorldSpec("t", 0, Natural()), labels, seed=0)


def test_label_skew_keeps_whole_activities():
    rng = np.random.default_rng(0)
    activity, owners = rng.integers(0, 16, 1200), OWNERS
    falls = (activity > 11).astype(int)
    world = build_world(
        WorldSpec("t", 0, LabelSkew(labels=4)), falls, seed=1, owners=owners, activities=activity, classes=2
    )
    for client in range(30):
        mine = np.concatenate([p.index[p.of(client)] for p in (world.train, world.validation)])
        kept = set(activity[mine])
        assert len(kept) == min(4, len(set(activity[owners == client])))
        assert np.array_equal(np.sort(mine), np.flatnonzero((owners == client) & np.isin(activity, list(kept))))


def test_label_skew_that_would_leave_nothing_out_is_refused():
    with pytest.raises(BadParameter, match=r"labels = 8: the data name no activities and have 2 classes"):
        build_world(WorldSpec("t", 0, LabelSkew(labels=8)), LABELS % 2, seed=0, owners=OWNERS)
    one = build_world(WorldSpec("t", 0, LabelSkew(labels=1)), LABELS % 2, seed=0, owners=np.arange(1200) // 40)
    assert (one.histogram().max(axis=1) == 1).all()


def test_iid_balanced_gives_everybody_every_class():
    world = build_world(WorldSpec("t", 30, Iid(balanced=True), validation=Validation(held_out=0.0)), LABELS, seed=0)
    counts = world.histogram() * world.train.sizes[:, None]
    assert (np.rint(counts) == 4).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClientDirichlet(alpha=0.0), r"alpha = 0.0: it must be positive and finite; use e.g. 0.5"),
        (lambda: ClassDirichlet(alpha=-1), r"alpha = -1.0: it must be positive"),
        (lambda: ClassDirichlet(alpha=float("nan")), r"alpha = nan: it must be positive and finite"),
        (lambda: ClassDirichlet(alpha="high"), r"alpha = 'high': it must be a number"),
        (lambda: Dominance(alpha=1.5), r"alpha = 1.5: it must be between 0 and 1"),
        (lambda: QuantitySkew(beta=0), r"beta = 0.0: it must be positive"),
        (lambda: Shards(shards=0), r"shards = 0: it must be at least 1"),
        (lambda: WorldSpec("t", 0, Iid()), r"clients = 0"),
        (lambda: Validation(held_out=1.0), r"held_out = 1.0: .*1 is not allowed"),
        (lambda: build_world(WorldSpec("t", 5000, Iid()), LABELS, seed=0), r"clients = 5000.*lower clients"),
        (lambda: build_world(WorldSpec("t", 10, Shards(shards=999)), LABELS, seed=0), r"shards = 999"),
        (lambda: build_world(WorldSpec("t", 10, LabelsPerClient(labels=11)), LABELS, seed=0), r"labels = 11"),
        (lambda: build_world(WorldSpec("t", 9, ClientDirichlet(min_size=999)), LABELS, seed=0), r"min_size = 999"),
        (
            lambda: build_world(WorldSpec("t", 50, ClientDirichlet(alpha=1e-3, min_size=5, retries=7)), LABELS, seed=0),
            r"min_size = 5: some client had fewer samples in each of 7 attempts; .*alpha",
        ),
        (
            lambda: build_world(WorldSpec("t", 50, Dominance(samples=200)), LABELS, seed=0),
            r"allocation = 'strict'.*recycle",
        ),
        (
            lambda: build_world(WorldSpec("t", 50, Dominance(samples=200), allocation="redistribute"), LABELS, seed=0),
            r"samples: the clients ask for 10000: the pool holds 1200",
        ),
        (lambda: build_world(WorldSpec("t", 5, Iid()), [], seed=0), r"labels of shape"),
        (lambda: build_world(WorldSpec("t", 5, Iid()), [-1, 2], seed=0), r"label -1"),
        (lambda: build_world(WorldSpec("t", 2, Iid()), [0, 7], seed=0, classes=3), r"label 7: there are 3 classes"),
        (lambda: build_world(WorldSpec("t", 5, Iid()), LABELS, seed=-1), r"seed = -1"),
        (lambda: build_world(WorldSpec("t", 5, Natural()), LABELS, seed=0, owners=[1, 2]), r"owners of shape"),
    ],
)
def test_impossible_parameters_name_themselves_and_the_remedy(make, words):
    with pytest.raises(BadParameter, match=words):
        make()


def test_unknown_words_are_answered_with_the_known_ones():
    with pytest.raises(BadParameter, match="one of strict, recycle, redistribute, scale"):
        WorldSpec("t", 5, Iid(), allocation="redistribut")
    with pytest.raises(BadParameter, match="one of per-class, prior"):
        ClassDirichlet(alpha_convention="perclass")


def test_more_samples_than_memory_are_refused_before_they_are_dealt():
    for partition in ({"samples": 10**9}, {"samples": 10**12}, {"reuse": 1e9}):
        made = {"kind": "dominance", **partition}
        spec = WorldSpec.from_dict({"name": "w", "clients": 50, "partition": made, "allocation": "recycle"})
        with pytest.raises(BadParameter, match=r"more than 268,435,456; lower samples, reuse or clients"):
            build_world(spec, np.arange(100) % 10, seed=0)


@pytest.mark.parametrize("kind", ["client-dirichlet", "class-dirichlet", "self-balancing-dirichlet"])
@pytest.mark.parametrize("alpha", [1e-300, 1e300])
@pytest.mark.filterwarnings("error")
def test_an_alpha_beyond_any_sense_is_still_a_world(kind, alpha):
    """Endless alpha is the even mix, and what is kept of it is finite; without any warning."""
    made = {"kind": kind, "alpha": alpha} | ({} if kind == "class-dirichlet" else {"min_size": 0})
    spec = WorldSpec.from_dict({"name": "w", "clients": 5, "partition": made, "allocation": "redistribute"})
    world = build_world(spec, np.arange(500) % 10, seed=0)
    assert np.isfinite(world.skew).all()
    if alpha > 1 and kind != "class-dirichlet":  # whose counts are drawn
        assert np.ptp(world.histogram(clean=True), axis=1).max() < 0.06
