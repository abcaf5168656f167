"""A million registered clients: memory in a process of its own, and bytes per client that nobody selects."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fedcohort.worlds import catalogue
from fedcohort.worlds.built_world import build_world

MAKE = """
import json, resource, numpy as np
from fedcohort.worlds import catalogue
from fedcohort.worlds.built_world import build_world
labels = np.arange(2_000_000) % 10
spec = catalogue.get("mixed-v1", clients=1_000_000)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
build_world(catalogue.get("mixed-v1"), labels[:2000], seed=0)
before = peak()
world = build_world(spec, labels, seed=0)
after = peak()
ids = np.array([0, 999_999])
print(json.dumps({"mb": after - before, "population": world.population, "owned": int(world.train.index.size
      + world.validation.index.size), "dropped": world.dropped(0, ids).size, "there": world.available(0, 0.0).size}))
"""


@pytest.mark.slow
def test_a_million_clients_fit_into_200_mb():
    done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    got = json.loads(done.stdout)
    assert got["mb"] < 200
    assert (got["population"], got["owned"], got["dropped"], got["there"]) == (1_000_000, 2_000_000, 2, 1_000_000)


@pytest.mark.parametrize("name", ["mixed-v1", "flashrl-dirichlet0.8-v1", "diurnal-v1"])
def test_a_client_costs_at_most_100_bytes_beside_its_samples(name):
    n = 20_000
    extra = {"min_size": 0} if "flashrl" in name else {}
    world = build_world(catalogue.get(name, clients=n, **extra), np.arange(3 * n) % 10, seed=0)
    columns = [world.train.start, world.validation.start, world.noise_rate, world.skew, *world.fixed.values()]
    assert sum(c.nbytes for c in columns) / n < 100
