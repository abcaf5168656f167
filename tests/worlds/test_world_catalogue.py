"""Specifications as data, the catalogue, its pinned digests, and the same bytes in a fresh process."""

import json
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter, DataError, UnknownName
from fedcohort.registry.lookup import make_world_spec, names
from fedcohort.testing import WorldContract
from fedcohort.worlds import catalogue
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.label_noise import BetaNoise, GivenNoise, NoNoise
from fedcohort.worlds.world_spec import WorldSpec

PROMISED = [
    "iid-v1",
    "dirichlet-0.1-v1",
    "fedacs-uniform-v1",
    "fedacs-pareto-v1",
    "fedacs-dirichlet-v1",
    "fedacs-fewclass-v1",
    "flash-noniid30-v1",
    "flash-noise15-v1",
    "flash-noniid30-noise15-v1",
    "flash-noniid30-v2",
    "flash-noise15-v2",
    "flash-noniid30-noise15-v2",
    "flashrl-dirichlet0.8-v1",
    "flashrl-dirichlet0.5-v1",
    "flashrl-shards-v1",
    "flashrl-noniid-label-v1",
    "fedcm-client-0.1-v1",
    "fedcm-class-0.1-v1",
    "hetero-0.1-v1",
    "volunteers-v1",
    "label-skew-8-v1",
    "label-skew-4-v1",
    "mixed-v1",
    "owners-v1",
]
# Digests for labels i * 7 % 10 (i < 2000), owners i % 25, activities i // 25 % 13, seed 1. A published world never
# changes: if one of these differs, the bytes of everybody's experiments differ.
PINNED = {
    "iid-v1": "4b1fad80b9703dd56449f4ed8374ec005218ea6ba8abffebbc9c4a4736aa29fc",
    "dirichlet-0.1-v1": "33284e3c9ad585cdcc3c33ac468b1b970f9abe3ad35f9a31b8eb7d7e138d8eaa",
    "fedacs-uniform-v1": "60c58ea3a7c54edd2f23e97892fda918f186c6d8410564fd405a1770c12f0079",
    "fedacs-pareto-v1": "51dd4b779485c0e9d4cbb40b3ff30716d3272758b87c96b919661578de8efdc2",
    "fedacs-dirichlet-v1": "07f3d4d6035676aeaaa801f8b1b048408b52e2f4437a5f4f2ce5a3abaa492579",
    "fedacs-fewclass-v1": "dab3a95fb8008df000b5589bd3b6515223bbed646badb831b9171251ead7b003",
    "flash-noniid30-v1": "2e0ac0da36e5f5bca37223436a8107efc709316aea4ee00e05def70cb11f55e7",
    "flash-noise15-v1": "29c6313e0d970176cfd26ab0c5673f682590782dbc93fb1ba27547092cbbd7b0",
    "flash-noniid30-noise15-v1": "e2d19efa3758f712e7c8e7bd5337214cdc7ef909863d86c37074a351978f42ef",
    "flash-noniid30-v2": "30402d6b60f17bd5586793d00b1148f565c0fe822963b9c90902810f62688499",
    "flash-noise15-v2": "6b70da46bcf19dc136ba0c911574898340809d522a093337ad118b09dfd47075",
    "flash-noniid30-noise15-v2": "cb17295810cdcd787d544ee993f28ae9e1bc05525b95bd6485f68771051cd0cc",
    "flashrl-dirichlet0.8-v1": "65954f26057b3dfc65d5f6e896adc1045e65818d193e5ddf5357aa3706a54bf0",
    "flashrl-dirichlet0.5-v1": "1e141f00d3d1ee85914328fe8600d781b2a262d51ffc22d3f5b9f7b88d969220",
    "flashrl-shards-v1": "1f9408b2abbd68f058191881ad7a02c996f582eae25cb62831e8425a52b2a00a",
    "flashrl-noniid-label-v1": "c10947b8c0e3f1293a04a33ae5a0d8f6dd6eb9aa8df9609ea60c73b3d0ebfaaa",
    "fedcm-client-0.1-v1": "14ffdd7d5831a6a9ac80c0333e8fdafd395d521e8b2d2bc0af607640dded4f99",
    "fedcm-class-0.1-v1": "33f270b82ac5b7949e7808acac49311213ef0e70007df63d25954b5b3e66ca85",
    "hetero-0.1-v1": "58f707ae16b2864104fb482f2e9e1c1b09118f7c66baf319d7f19bd12bb366af",
    "owners-v1": "04dd18212c3d6fea8bf5e6a74a93f9dab6f7d019c872f0484ab95ef5ad624d5f",
    "volunteers-v1": "5b94e2afe5a9213bbed0b0e7a519f671705806f35f4437557ee74d3bf6563a88",
    "label-skew-8-v1": "b4ee9140543b6626e5bfab2c6be579af65610ec4defafb652a80e8b01dafc8be",
    "label-skew-4-v1": "0c2cf56b6d2cae26a24295a7a38d8f254051e0d65f2db30de92f25ee0291dfa4",
    "quantity-v1": "9381a90b835d201afdd4133ddf8b0071073484377c72b50548978366dedc5864",
    "diurnal-v1": "728dd36e4646a5c688987afb25a57dd6fccd20c428aa26719b11b4e8a847b9c5",
    "liars-v1": "127db7da6da2e56e4a0ab38a7bb520ebf22a6d517e43e218b26b2545eb28df13",
    "mixed-v1": "4a33a2cc4910d02575ccc5370a79eed41201bad52ac7380a753208d3637bb323",
}
MAKE = """
import json, numpy as np
from fedcohort.worlds import catalogue
from fedcohort.worlds.built_world import build_world
i = np.arange(2000)
made = {n: build_world(catalogue.get(n), i * 7 % 10, seed=1, owners=i % 25, activities=i // 25 % 13).digest
        for n in catalogue.names()}
print(json.dumps(made))
"""


def build(name, seed=1, **overrides):
    i = np.arange(2000)
    spec = catalogue.get(name, **overrides)
    return build_world(spec, i * 7 % 10, seed=seed, owners=i % 25, activities=i // 25 % 13)


def test_every_world_of_the_design_is_there():
    assert set(PROMISED) <= set(catalogue.names()) == set(names("world"))


@pytest.mark.parametrize("name", catalogue.names())
def test_digest_is_the_pinned_one(name):
    assert build(name).digest == PINNED[name]


def test_digests_are_distinct_and_depend_on_the_seed():
    assert len(set(PINNED.values())) == len(PINNED)
    assert build("mixed-v1", seed=2).digest != PINNED["mixed-v1"]
    assert build("mixed-v1", alpha=0.31).digest != PINNED["mixed-v1"]


def test_same_seed_same_bytes_in_a_fresh_process():
    env = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, env=env, check=True)
    assert json.loads(done.stdout) == PINNED


def test_building_leaves_global_generators_alone():
    np.random.seed(4)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    build("mixed-v1")
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("name", catalogue.names())
def test_specifications_go_to_json_and_back(name):
    spec = catalogue.get(name)
    assert WorldSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_specifications_refuse_unknown_keys_by_the_nearest_name():
    data = catalogue.get("mixed-v1").to_dict()
    with pytest.raises(UnknownName, match="did you mean latency"):
        WorldSpec.from_dict({**data, "latencey": {}})
    with pytest.raises(UnknownName, match="did you mean alpha"):
        WorldSpec.from_dict({**data, "partition": {**data["partition"], "alpa": 1}})
    with pytest.raises(UnknownName, match="class-dirichlet"):
        WorldSpec.from_dict({**data, "partition": {"kind": "clas-dirichlet"}})
    with pytest.raises(BadParameter, match="must be a table with a `kind`"):
        WorldSpec.from_dict({**data, "noise": 3})
    with pytest.raises(BadParameter, match="without partition"):
        WorldSpec.from_dict({"name": "x", "clients": 3})


def test_worlds_from_files(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nclients = 20\n[partition]\nkind = "shards"\nshards = 3\n')
    spec = catalogue.load(file)
    assert spec == WorldSpec.from_dict(tomllib.loads(file.read_text()))
    assert spec.partition.shards == 3
    (tmp_path / "bad.json").write_text("{")
    for name, words in {"none.toml": "does not exist", "bad.json": "cannot be read"}.items():
        with pytest.raises(DataError, match=words):
            catalogue.load(tmp_path / name)


def test_overrides_by_top_level_section_and_plain_names():
    spec = catalogue.get(
        "mixed-v1", clients=20, alpha=0.7, noise__flip="pair", latency={"kind": "pareto"}, dropout=0.3, availability=0.5
    )
    assert (spec.clients, spec.partition.alpha, spec.noise.flip) == (20, 0.7, "pair")
    assert (spec.latency.kind, spec.faults.dropout, spec.availability.rate) == ("pareto", 0.3, 0.5)
    assert spec.name.startswith("mixed-v1(alpha=0.7, availability=0.5, clients=20")
    assert make_world_spec("dirichlet-0.1-v1(clients=20)").clients == 20
    assert catalogue.get("dirichlet-0.1-v1").clients == 50


def test_a_number_for_noise_is_the_mean_rate():
    beta = catalogue.get("mixed-v1", noise=0.4).noise
    assert isinstance(beta, BetaNoise)
    assert beta.a / beta.concentration == pytest.approx(0.4)
    assert catalogue.get("iid-v1", noise=0.4).noise == GivenNoise(rate=(0.4,))
    assert isinstance(catalogue.get("mixed-v1", noise=0).noise, NoNoise)


def test_bad_overrides_are_named():
    with pytest.raises(UnknownName, match="did you mean mixed-v1"):
        catalogue.get("mixed-v2")
    with pytest.raises(UnknownName, match="clients"):
        catalogue.get("mixed-v1", client=3)
    with pytest.raises(UnknownName, match="did you mean alpha"):
        catalogue.get("mixed-v1", partition__alfa=3)
    with pytest.raises(BadParameter, match="name = 'x': a world of the catalogue has its own"):
        make_world_spec("mixed-v1(name='x')")
    with pytest.raises(UnknownName, match="section of a world"):
        catalogue.get("mixed-v1", partitoin__alpha=3)
    with pytest.raises(BadParameter, match="write partition__spread or availability__spread"):
        catalogue.get("mixed-v1", availability="bernoulli", spread=0.1)
    with pytest.raises(BadParameter, match="clients = 'many': it must be a whole number"):
        catalogue.get("mixed-v1", clients="many")
    with pytest.raises(BadParameter, match="noise = 2: it must be between 0 and 1"):
        catalogue.get("mixed-v1", noise=2)


def test_mixed_world_rewards_a_good_selector():
    """Slow clients are slow for good, noise differs strongly, and the two are not the same clients."""
    world = build("mixed-v1")
    profile = world.profiles()
    assert world.fixed["slowness"].max() / world.fixed["slowness"].min() == 16
    assert np.quantile(world.noise_rate, 0.9) > 0.4
    assert np.quantile(world.noise_rate, 0.2) < 0.06
    assert abs(spearman(world.noise_rate, profile["expected_seconds"])) < 0.3
    assert 0.2 < world.divergence().mean() < 0.6


def test_profiles_have_one_row_per_client_and_declared_names():
    from fedcohort import signals

    profiles = build("flashrl-dirichlet0.5-v1").profiles()
    assert {"samples", "label_histogram", "cores", "frequency", "bandwidth", "expected_seconds"} == set(profiles)
    for name, column in profiles.items():
        assert signals.get(name).side == "profile"
        assert len(column) == 100
    assert np.allclose(profiles["label_histogram"].sum(axis=1), 1.0)


class TestMixed(WorldContract):
    noisy = True

    def make(self, seed):
        return build("mixed-v1", seed)


class TestDiurnal(WorldContract):
    noisy = False

    def make(self, seed):
        return build("diurnal-v1", seed)


class TestLiars(WorldContract):
    noisy = True

    def make(self, seed):
        return build("liars-v1", seed)


class TestFlashRL(WorldContract):
    noisy = False

    def make(self, seed):
        return build("flashrl-dirichlet0.8-v1", seed)


class TestVolunteers(WorldContract):
    noisy = False

    def make(self, seed):
        return build("label-skew-4-v1", seed)


class OtherMachine:
    """NumPy whose logarithms, exponentials, cosines and powers differ in their last two bits."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getattr__(self, name):
        real = getattr(np, name)
        if name not in ("log", "exp", "cos", "sqrt"):
            return real

        def shaken(*arguments, **options):
            value = np.asarray(real(*arguments, **options))
            return value * (1.0 + self.rng.integers(-2, 3, value.shape) * 2.0**-52)

        return shaken


@pytest.mark.parametrize("name", catalogue.names())
def test_the_last_bits_of_the_maths_library_do_not_matter(name, monkeypatch):
    from fedcohort.worlds import keyed_draws, latency, partition

    for module in (keyed_draws, partition, latency):
        monkeypatch.setattr(module, "np", OtherMachine())
    shaken = keyed_draws.log_gamma(0, "test", 0, np.arange(100), 0.5)
    monkeypatch.undo()
    assert not np.array_equal(shaken, keyed_draws.log_gamma(0, "test", 0, np.arange(100), 0.5))  # the shaking works
    for module in (keyed_draws, partition, latency):
        monkeypatch.setattr(module, "np", OtherMachine())
    assert build(name).digest == PINNED[name]


def test_fields_that_fit_only_together_are_set_together():
    both = make_world_spec("mixed-v1(latency__factors=(0.5, 2.0), latency__shares=(0.5, 0.5))").latency
    assert (tuple(both.factors), tuple(both.shares)) == ((0.5, 2.0), (0.5, 0.5))
    kind_last = make_world_spec("mixed-v1(latency__sigma=0.7, latency='lognormal')").latency
    assert (kind_last.kind, kind_last.sigma) == ("lognormal", 0.7)
