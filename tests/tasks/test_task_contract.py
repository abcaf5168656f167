"""The shipped contract on each engine that this room holds; `auto` is covered by the contract of the catalogue."""

import numpy as np
import pytest

from fedcohort.tasks import catalogue
from fedcohort.tasks.quadratic import Quadratic
from fedcohort.testing import TaskContract


def digits(make_world, name, engine):
    spec = catalogue.get(name, batch_size=16)
    world = make_world(spec.labels()[:300], 6, 10, held=3)
    return spec.bind(world, engine=engine)


class Worldly(TaskContract):
    @pytest.fixture(autouse=True)
    def _world(self, make_world):
        self.make_world = make_world


class TestNumpyMlp(Worldly):
    rtol = atol = 0.0  # the very same bytes, alone or in company

    def make(self):
        return digits(self.make_world, "digits-mlp", "numpy")


class TestNumpySoftmax(Worldly):
    rtol = atol = 0.0

    def make(self):
        return digits(self.make_world, "digits-softmax", "numpy")


class TestReferenceCnn(Worldly):
    def make(self):
        pytest.importorskip("torch")
        return digits(self.make_world, "digits-cnn", "torch_reference")


class TestQuadraticArrays(TaskContract):
    def make(self):
        rng = np.random.default_rng(0)
        return Quadratic.from_arrays(rng.uniform(0.5, 2, (6, 4)), rng.standard_normal((6, 4)), rng.integers(5, 50, 6))
