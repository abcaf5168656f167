"""Every engine under the shipped contract: each feature of a plan against torch_reference."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("torch")

from fedcohort.engines.factory import choose
from fedcohort.engines.networks import (
    AvgPool,
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GroupNorm,
    Linear,
    Network,
    ReLU,
    Residual,
    lenet,
)
from fedcohort.engines.numpy_engine import NumpyEngine
from fedcohort.testing import EngineContract

SMALL = lenet((1, 8, 8), (3, 4), 3, (6,), 4, padding=1)

BODY = (Conv(4, 3, padding=1, bias=False), GroupNorm(2), ReLU(), Conv(4, 3, padding=1))
STEM, HEAD = (Conv(4, 3, padding=1), BatchNorm(), ReLU()), (Dropout(0.3), GlobalAvgPool(), Flatten(), Linear(4))
MODERN = Network((2, 8, 8), (*STEM, Residual(BODY, ()), AvgPool(2), Conv(6, 1, stride=2), *HEAD))


class TestNumpy(EngineContract):
    rtol: ClassVar = 1e-4

    def make(self, model, data):
        return choose(model, data, "numpy")


class TestFused(EngineContract):
    network: ClassVar[Network] = SMALL

    def make(self, model, data):
        return choose(model, data, "fused", workers=1)


class TestFusedNormalised(TestFused):
    """Running statistics, residuals, strides, pooling of every kind, dropout."""

    network: ClassVar[Network] = MODERN


class TestVmap(EngineContract):
    exempt: ClassVar = {"same_bytes": "products of several clients are one product, and round in another order"}

    def make(self, model, data):
        engine = choose(model, data, "torch_vmap", device="cpu")
        assert not engine.obstacle
        return engine


class TestVmapConvolutions(TestVmap):
    network: ClassVar[Network] = SMALL


class TestWorkers(EngineContract):
    network: ClassVar[Network] = SMALL

    @pytest.fixture(autouse=True, scope="class")
    def _cache(self, tmp_path_factory):
        """The fastest variant is measured once."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDCOHORT_CACHE", str(tmp_path_factory.mktemp("cache")))
            yield

    def make(self, model, data):
        return choose(model, data, "torch_workers", workers=1)


def test_the_contract_catches_a_wrong_engine():
    """An engine that forgets the weight decay, and one whose clients take one step more."""

    class Forgetful(EngineContract):
        def make(self, model, data):
            engine = NumpyEngine(model, data)
            train = engine.train

            def without_decay(model, clients, plan):
                from dataclasses import replace

                return train(model, clients, replace(plan, weight_decay=0.0))

            engine.train = without_decay
            return engine

    Forgetful().test_plain_training()
    with pytest.raises(AssertionError, match="momentum and decay: updates: off by"):
        Forgetful().test_momentum_and_weight_decay()

    class Signless(Forgetful):
        def make(self, model, data):
            engine = NumpyEngine(model, data)
            losses = engine.losses

            def doubled(*args):
                found = losses(*args)
                return type(found)(2 * found.loss, found.square, found.accuracy, found.count)

            engine.losses = doubled
            return engine

    with pytest.raises(AssertionError, match="loss of train"):
        Signless().test_looking()
