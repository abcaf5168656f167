"""The contract of an engine as tests: every feature of a plan against `torch_reference`. Subclass, override `make`::

    class TestMyEngine(EngineContract):
        def make(self, model, data):
            return MyEngine(model, data)

`network` is what is trained; give one that the engine takes. What does not apply is named in `exempt` with the reason.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np

from fedcohort.engines import losses as objectives
from fedcohort.engines.interface import ClientData, Engine
from fedcohort.engines.networks import Network, mlp
from fedcohort.protocols import Trained
from fedcohort.signals import SIGNALS, of_side
from fedcohort.types import Index, Model, Objective, Part, Plan, Real

SIZES = (23, 1, 0, 7, 40, 16)  # of the clients: one sample, none, fewer than a batch, several batches
HELD = 3  # validation samples of each
BATCH, CLASSES = 8, 4
WHO: Index = np.arange(len(SIZES))
MEASURED = of_side(SIGNALS, "client") | {"full_gradient"}
ENGINE_CLAUSES = frozenset(
    {
        "objectives",  # smoothing, symmetric and robust objectives
        "adam",
        "sample_weight",
        "correction",
        "same_bytes",  # the same bytes for the same plan, alone or in company (else within the tolerance)
    }
)


@cache
def contract_data(shape: tuple[int, ...]) -> ClientData:
    """Clients of SIZES with Gaussian inputs of this shape."""
    rng = np.random.default_rng(0)
    n, held = sum(SIZES), HELD * len(SIZES)
    x = rng.standard_normal((n + held, *shape)).astype(np.float32)
    y = rng.integers(CLASSES, size=n + held)
    start = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
    train = Part(start, rng.permutation(n), y[:n], y[:n])
    validation = Part(np.arange(len(SIZES) + 1) * HELD, np.arange(n, n + held), y[n:], y[n:])
    return ClientData(x, train, validation, CLASSES)


def _normal(*shape: int) -> Real:
    return 0.1 * np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _weights() -> dict[int, Real]:
    rng = np.random.default_rng(2)
    return {k: rng.uniform(0, 2, n).astype(np.float32) for k, n in enumerate(SIZES) if k != 3}


RATES = np.array([0.1, 0.2, 0.1, 0.05, 0.3, 0.02])


@cache
def contract_plans(p: int) -> Mapping[str, Plan]:
    """One plan for each feature, and one with everything, for a model of p parameters."""
    base = Plan(batch_size=BATCH, epochs=2, seed=3, round=2)
    mixed = Objective(0.8, 0.3, 0.5, -4.0, 0.1)
    plans = {
        "plain": base,
        "momentum and decay": replace(base, momentum=0.9, weight_decay=0.01),
        "adam": replace(base, optimiser="adam", lr=0.01, weight_decay=0.01),
        "prox": replace(base, prox=0.5, momentum=0.5),
        "correction of each": replace(base, correction=_normal(len(SIZES), p)),
        "correction of all": replace(base, correction=_normal(p)),
        "epochs of each": replace(base, epochs=np.array([1, 4, 2, 0, 2, 3])),
        "rates of each": replace(base, lr=RATES),
        "sample weights": replace(base, sample_weight=_weights()),
        "smoothing": replace(base, objective=objectives.label_smoothing(0.2)),
        "robust": replace(base, objective=objectives.flash_robust(0.5, 2.0)),
        "symmetric": replace(base, objective=objectives.symmetric_ce(0.1, 1.0, objectives.RHFL_FLOOR)),
        "whole batches": replace(base, batch_size=1000),
        "single samples": replace(base, batch_size=1, epochs=1),
        "everything": replace(
            base, objective=mixed, momentum=0.8, prox=0.1, weight_decay=0.001, correction=_normal(p),
            sample_weight=_weights(), lr=RATES, epochs=np.array([1, 4, 2, 0, 2, 3]),
        ),
    }  # fmt: skip
    return {name: replace(plan, measure=MEASURED) for name, plan in plans.items()}


@cache
def _reference(network: Network) -> Engine:
    from fedcohort.engines.torch_reference import ReferenceEngine

    return ReferenceEngine(network, contract_data(network.input_shape))


@cache
def _expected(network: Network, name: str) -> Trained:
    """What torch_reference makes of a plan."""
    return _reference(network).train(_first(network), WHO, contract_plans(network.n_params)[name])


@cache
def _first(network: Network) -> Model:
    return network.fresh(np.random.default_rng(5))


class EngineContract:
    """What every engine promises: the updates, signals and failures of torch_reference, for every plan."""

    network: ClassVar[Network] = mlp(12, 9, 6, classes=CLASSES)
    exempt: ClassVar[Mapping[str, str]] = {}  # clause -> why it does not apply
    rtol: ClassVar[float] = 2e-4  # of the largest entry
    atol: ClassVar[float] = 2e-6

    def make(self, model: Network, data: ClientData) -> Engine:
        """The engine for this network and these clients."""
        raise NotImplementedError("override make(model, data) to return your engine")

    def test_exemptions_are_known_and_reasoned(self) -> None:
        """Only known clauses, each with a reason; the engine says its name and how many parameters there are."""
        for clause, reason in self.exempt.items():
            assert clause in ENGINE_CLAUSES, f"no clause {clause!r}; exempt may name {sorted(ENGINE_CLAUSES)}"
            assert reason.strip(), f"the exemption from {clause!r} needs a reason"
        engine = self._engine()
        assert isinstance(engine.name, str), "an engine has a name"
        assert engine.n_params == self.network.n_params
        assert engine.last_layer == self.network.last_layer
        engine.close()

    def test_plain_training(self) -> None:
        """SGD: updates, steps, weights, signals, the full gradient; the client without samples fails with a reason."""
        self._agrees("plain")

    def test_momentum_and_weight_decay(self) -> None:
        """The first buffer is the gradient; the decay is part of it."""
        self._agrees("momentum and decay")

    def test_adam(self) -> None:
        """With bias correction, and a fresh state every round."""
        self._agrees("adam", "adam")

    def test_prox(self) -> None:
        """mu (w - w_broadcast) is added to every gradient."""
        self._agrees("prox")

    def test_corrections(self) -> None:
        """One for everybody, and one for each client."""
        self._agrees("correction of each", "correction")
        self._agrees("correction of all", "correction")

    def test_epochs_and_rates_of_each_client(self) -> None:
        """Entry by entry; zero epochs move nothing and are no failure."""
        self._agrees("epochs of each")
        self._agrees("rates of each")

    def test_sample_weights(self) -> None:
        """The sum of weight times loss, divided by the number of samples."""
        self._agrees("sample weights", "sample_weight")

    def test_objectives(self) -> None:
        """Label smoothing, symmetric cross-entropy, and FLASH's with pseudo-labels of the broadcast model."""
        for name in ("smoothing", "robust", "symmetric"):
            self._agrees(name, "objectives")

    def test_batches_of_every_size(self) -> None:
        """One batch of everything, and one for each sample."""
        self._agrees("whole batches")
        self._agrees("single samples")

    def test_everything_at_once(self) -> None:
        """All features in one plan."""
        if {"objectives", "sample_weight", "correction"} & set(self.exempt):
            raise unittest.SkipTest("exempt from a part of it")
        self._agrees("everything")

    def test_same_plan_same_bytes_whoever_else_is_there(self) -> None:
        """Again: the same bytes. Alone or in another order: the same bytes, or within the tolerance where exempt."""
        engine, model = self._engine(), _first(self.network)
        plan = replace(contract_plans(self.network.n_params)["momentum and decay"], measure=frozenset())
        first = engine.train(model, WHO, plan).updates.delta
        assert engine.train(model, WHO, plan).updates.delta.tobytes() == first.tobytes(), "another time, other bytes"
        for some in ([4], [5, 3, 0]):
            found = engine.train(model, np.array(some), plan).updates.delta
            if "same_bytes" in self.exempt:
                self._close(found, first[some], f"clients {some} without the others")
            else:
                assert found.tobytes() == first[some].tobytes(), f"clients {some} without the others: other bytes"
        engine.close()

    def test_a_broken_client_fails_alone(self) -> None:
        """A rate at which one client's weights explode: it fails with a reason and a zero row; nobody else notices."""
        engine, model = self._engine(), _first(self.network)
        plan = replace(contract_plans(self.network.n_params)["plain"], measure=frozenset({"train_loss", "loss_after"}))
        whole = engine.train(model, WHO, plan)
        found = engine.train(model, WHO, replace(plan, lr=np.where(WHO == 4, 1e30, 0.1)))
        assert found.failed.tolist() == [False, False, True, False, True, False], f"failed: {found.failed}"
        assert "non-finite" in found.reasons[4], f"the reason is {found.reasons[4]!r}"
        assert not found.updates.delta[[2, 4]].any(), "a failed client has an update"
        assert all(np.isnan(column[[2, 4]]).all() for column in found.signals.values()), "a failed client has signals"
        others = [0, 1, 3, 5]
        self._close(found.updates.delta[others], whole.updates.delta[others], "the others")
        engine.close()

    def test_nobody_trains(self) -> None:
        """An empty cohort gives empty answers."""
        engine = self._engine()
        found = engine.train(_first(self.network), np.empty(0, np.int64), Plan(measure=frozenset({"train_loss"})))
        assert found.updates.delta.shape == (0, self.network.n_params)
        assert found.failed.size == 0
        engine.close()

    def test_looking(self) -> None:
        """Losses on both parts, gradients and the last layer's, logits of two models, gradients of soft targets."""
        engine, reference, model = self._engine(), _reference(self.network), _first(self.network)
        data = contract_data(self.network.input_shape)
        for part, objective in (("train", Objective()), ("validation", objectives.flash_robust())):
            mine, theirs = (e.losses(model, WHO, part, objective) for e in (engine, reference))
            assert np.array_equal(mine.count, theirs.count)
            for column in ("loss", "square", "accuracy"):
                self._close(getattr(mine, column), getattr(theirs, column), f"{column} of {part}")
        gradient = engine.gradients(model, WHO)
        self._close(gradient, reference.gradients(model, WHO), "gradients")
        last = engine.gradients(model, WHO, last_layer=True)
        self._close(last, gradient[:, self.network.last_layer], "gradients of the last layer")
        buffers = model.buffers[None] if model.buffers.size else None
        pair = np.stack([model.params, -model.params])
        mine_z, their_z = (e.logits(pair, data.x, buffers) for e in (engine, reference))
        self._close(mine_z, their_z, "logits")
        target = np.full((len(data.x), CLASSES), 1.0 / CLASSES, np.float32)
        asked = (model.params, data.x, target, *(() if buffers is None else (0.5 * model.buffers + 0.25,)))
        (loss, slope), (other, true) = (e.soft_gradient(*asked) for e in (engine, reference))
        self._close(np.array([loss]), np.array([other]), "loss of soft targets")
        self._close(slope, true, "gradient of soft targets")
        engine.close()

    def _engine(self) -> Engine:
        return self.make(self.network, contract_data(self.network.input_shape))

    def _agrees(self, name: str, clause: str = "") -> None:
        if clause in self.exempt:
            raise unittest.SkipTest(f"exempt from {clause}: {self.exempt[clause]}")
        engine, want = self._engine(), _expected(self.network, name)
        assert np.abs(want.updates.delta).max() > 1e-3, "nothing moved"
        plan = contract_plans(self.network.n_params)[name]
        found = engine.train(_first(self.network), WHO, plan)
        engine.close()
        self._close(found.updates.delta, want.updates.delta, f"{name}: updates")
        assert np.array_equal(found.updates.steps, want.updates.steps), f"{name}: steps {found.updates.steps}"
        assert np.array_equal(found.updates.weight, want.updates.weight), f"{name}: weights"
        assert np.array_equal(found.failed, want.failed), f"{name}: failed {found.failed}"
        assert dict(found.reasons) == dict(want.reasons), f"{name}: reasons {found.reasons}"
        assert set(found.signals) == set(want.signals), f"{name}: signals {sorted(found.signals)}"
        for signal, column in want.signals.items():
            self._close(found.signals[signal], column, f"{name}: {signal}")
        full = "full_gradient"
        self._close(found.updates.extras[full], want.updates.extras[full], f"{name}: {full}")
        for part in ("buffers", "counters"):
            mine, theirs = getattr(found.updates, part), getattr(want.updates, part)
            assert (mine is None) == (theirs is None), f"{name}: {part}"
            if theirs is not None:
                self._close(mine, theirs, f"{name}: {part}")

    def _close(self, got: Real, want: Real, what: str) -> None:
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
        assert np.array_equal(np.isnan(got), np.isnan(want)), f"{what}: NaN in other places"
        scale = float(np.nanmax(np.abs(want), initial=0.0))
        worst = float(np.nanmax(np.abs(got - want), initial=0.0))
        assert worst <= self.atol + self.rtol * scale, f"{what}: off by {worst:.3g} at scale {scale:.3g}"
