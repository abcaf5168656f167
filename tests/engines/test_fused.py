"""The fused engine against float64 PyTorch: every layer kind, every feature of a plan, and broken clients.

Tolerance: float32 rounding of one pass is about 1e-6 of the largest gradient entry; over a few local steps at these
rates it grows to a few 1e-5 of the largest update. 2e-4 is far above that and far below any real mistake.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import numba
import numpy as np
import pytest

from fedcohort.engines import losses as objectives
from fedcohort.engines.fused import FusedEngine
from fedcohort.engines.fused import compile as compiling
from fedcohort.engines.interface import ClientData
from fedcohort.engines.networks import Conv, Flatten, Linear, MaxPool, Network, ReLU, lenet, mlp
from fedcohort.errors import BadParameter
from fedcohort.types import Model, Objective, Plan

from . import oracle

TINY = lenet((1, 8, 8), (4, 7), 3, (12,), 5, padding=1)
NETWORKS = {
    "softmax": mlp(7, classes=3),
    "mlp": mlp(20, 13, 9, classes=4),
    "tiny": TINY,
    "tutorial": lenet((3, 32, 32), (6, 16), 5, (120, 84), 10),
    "odd sides, pool drops a row": lenet((2, 11, 9), (5,), 2, (), 3),
    "kernel 7, padding 3": lenet((3, 9, 9), (3, 2), 7, (6,), 4, padding=3),
    "no pool, no relu": Network((2, 6, 5), (Conv(3, 3), Conv(9, 1), ReLU(), Flatten(), Linear(4))),
    "pool of 3 before relu": Network((1, 10, 10), (Conv(10, 4, 1), MaxPool(3), ReLU(), Flatten(), Linear(6))),
    "rows of 15 and 7 vectors": Network(
        (3, 9, 8), (Conv(34, 3), ReLU(), Conv(50, 3), MaxPool(2), ReLU(), Conv(5, 1), Flatten(), Linear(3))
    ),
    "rows of 8 and 3 vectors": Network(
        (5, 12, 12), (Conv(9, 4, 2), MaxPool(2), ReLU(), Conv(3, 4), ReLU(), Conv(17, 3), Flatten(), Linear(4))
    ),
    "flat image": Network((2, 4, 4), (Flatten(), Linear(11), ReLU(), Linear(3))),
}
SIZES = [1, 20, 70, 9]


def close(found, true, tolerance=2e-4):
    np.testing.assert_allclose(found, true, rtol=0, atol=tolerance * max(np.abs(true).max(), 1e-12))


def setting(network, sizes=SIZES, seed=3):
    return oracle.body(network, sizes), Model(network.initial(np.random.default_rng(seed)))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_losses_of_every_network(name):
    network = NETWORKS[name]
    data, model = setting(network, [1, 3, 9, 50, 130])
    engine = FusedEngine(network, data, 2)
    everyone = np.arange(5)
    found = engine.gradients(model, everyone)
    stats = engine.losses(model, everyone, "train", objectives.CROSS_ENTROPY)
    for k in everyone:
        close(found[k], oracle.gradient(network, data, model.params, k), 1e-5)
        each, right = oracle.look(network, data, model.params, k, objectives.CROSS_ENTROPY)
        assert stats.loss[k] == pytest.approx(each.mean(), rel=1e-5)
        assert stats.square[k] == pytest.approx((each**2).mean(), rel=1e-5)
        assert stats.accuracy[k] == pytest.approx(right.mean(), abs=1e-6)
    close(engine.gradients(model, everyone, last_layer=True), found[:, network.last_layer], 1e-6)
    engine.close()


def test_gradient_by_finite_differences():
    """(L(w + h e) - L(w - h e)) / 2h for some weights of every tensor, with the engine's own losses."""
    network = TINY
    data, model = setting(network, [40])
    engine = FusedEngine(network, data, 1)
    only = np.array([0])
    gradient = engine.gradients(model, only)[0]
    rng = np.random.default_rng(0)
    for tensor in network.tensors:
        for i in rng.integers(tensor.start, tensor.stop, 2):
            ends = []
            for h in (1e-2, -1e-2):
                moved = model.params.copy()
                moved[i] += h
                ends.append(engine.losses(Model(moved), only, "train", objectives.CROSS_ENTROPY).loss[0])
            slack = 1e-2 * float(np.abs(gradient).max())  # kinks of ReLU and pool, and the curvature over h
            assert gradient[i] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=slack)


PLANS = {
    "plain": Plan(epochs=2, batch_size=16, lr=0.1),
    "batch above a block": Plan(epochs=2, batch_size=100, lr=0.1),
    "single samples": Plan(epochs=1, batch_size=1, lr=0.02),
    "momentum, decay": Plan(epochs=3, batch_size=16, lr=0.05, momentum=0.9, weight_decay=0.02),
    "adam": Plan(epochs=2, batch_size=16, lr=0.002, optimiser="adam", weight_decay=0.01),
    "prox": Plan(epochs=3, batch_size=16, lr=0.1, prox=0.5),
    "smoothing": Plan(epochs=2, batch_size=16, lr=0.1, objective=objectives.label_smoothing(0.2)),
    "flash": Plan(epochs=2, batch_size=16, lr=0.05, objective=objectives.flash_robust(0.7, 2.0)),
    "symmetric": Plan(epochs=2, batch_size=16, lr=0.05, objective=objectives.symmetric_ce(0.3, 1.5, -6.0)),
    "per client": Plan(epochs=np.array([1, 3, 2, 4]), batch_size=16, lr=np.array([0.1, 0.02, 0.05, 0.2]), seed=9),
}


@pytest.mark.parametrize("name", PLANS)
def test_training_equals_pytorch(name):
    check_training(TINY, PLANS[name])


@pytest.mark.parametrize("name", ["tutorial", "mlp"])
def test_training_of_other_networks(name):
    check_training(NETWORKS[name], Plan(epochs=1, batch_size=50, lr=0.05, momentum=0.5))


@pytest.mark.parametrize("rows", [None, len(SIZES)])
def test_correction_and_sample_weights(rows):
    rng = np.random.default_rng(5)
    shape = (TINY.n_params,) if rows is None else (rows, TINY.n_params)
    weight = {k: rng.random(SIZES[k]).astype(np.float32) * 2 for k in (1, 2)}
    correction = (rng.standard_normal(shape) * 0.01).astype(np.float32)
    check_training(TINY, Plan(epochs=2, batch_size=16, lr=0.1, correction=correction, sample_weight=weight))


def check_training(network, plan):
    data, model = setting(network)
    clients = np.array([2, 0, 3, 1])
    engine = FusedEngine(network, data, 2)
    out = engine.train(model, clients, replace(plan, measure=frozenset({"train_loss", "train_loss_sq", "loss_count"})))
    engine.close()
    epochs, lr = plan.epochs_of(4), plan.lr_of(4)
    assert not out.failed.any()
    for row, k in enumerate(clients):
        correction = plan.correction if plan.correction is None or plan.correction.ndim == 1 else plan.correction[row]
        delta, steps, first = oracle.train(
            network, data, model.params, int(k), plan, epochs=int(epochs[row]), lr=float(lr[row]),
            correction=correction, weight=(plan.sample_weight or {}).get(int(k)),
        )  # fmt: skip
        close(out.updates.delta[row], delta)
        assert out.updates.steps[row] == steps
        assert out.updates.weight[row] == SIZES[k]
        assert out.signals["loss_count"][row] == first.size
        assert out.signals["train_loss"][row] == pytest.approx(first.mean(), rel=1e-4)
        assert out.signals["train_loss_sq"][row] == pytest.approx((first**2).mean(), rel=1e-4)


def test_signals():
    data, model = setting(TINY)
    clients = np.array([1, 2])
    plan = Plan(epochs=2, batch_size=16, lr=0.1)
    want = {
        "loss_before",
        "loss_after",
        "val_loss",
        "robust_loss",
        "grad_norm",
        "insight",
        "full_gradient",
        "utility",
    } | {"network_insight"}
    engine = FusedEngine(TINY, data, 2)
    out = engine.train(model, clients, replace(plan, measure=frozenset(want)))
    assert set(out.signals) == want - {"full_gradient"}
    robust = Objective(1.0, 0.1, 4.0)
    for row, k in enumerate(clients):
        gradient = oracle.gradient(TINY, data, model.params, k)
        close(out.updates.extras["full_gradient"][row], gradient, 1e-5)
        close(out.signals["insight"][row], -0.1 * gradient[TINY.last_layer], 1e-5)
        close(out.signals["network_insight"][row], -0.1 * gradient, 1e-5)
        delta, _, first = oracle.train(TINY, data, model.params, int(k), plan, epochs=2, lr=0.1)
        after = oracle.look(TINY, data, model.params + delta, k, objectives.CROSS_ENTROPY)[0]
        before = oracle.look(TINY, data, model.params, k, objectives.CROSS_ENTROPY)[0]
        held = oracle.look(TINY, data, model.params, k, objectives.CROSS_ENTROPY, "validation")[0]
        expected = {
            "grad_norm": np.linalg.norm(gradient),
            "loss_before": before.mean(),
            "loss_after": after.mean(),
            "val_loss": held.mean(),
            "robust_loss": oracle.look(TINY, data, model.params, k, robust)[0].mean(),
            "utility": first.size * np.sqrt((first**2).mean()),
        }
        for name, value in expected.items():
            assert out.signals[name][row] == pytest.approx(value, rel=2e-4), name


def test_logits_and_soft_gradient():
    import torch

    data, model = setting(TINY)
    other = model.params * 0.5
    engine = FusedEngine(TINY, data, 2)
    x = data.x[:70]
    found = engine.logits(np.stack([model.params, other]), x)
    for k, params in enumerate((model.params, other)):
        close(found[k], oracle.loaded(TINY, params)(torch.tensor(x).double()).detach().numpy(), 1e-5)
    target = np.random.default_rng(0).dirichlet(np.ones(5), 70)
    target[3] *= 2.5  # targets need not sum to one
    module = oracle.loaded(TINY, model.params)
    loss = -(torch.tensor(target) * torch.log_softmax(module(torch.tensor(x).double()), 1)).sum() / 70
    loss.backward()
    value, gradient = engine.soft_gradient(model.params, x, target)
    assert value == pytest.approx(loss.item(), rel=1e-5)
    close(gradient, oracle.flat([p.grad for p in module.parameters()]), 1e-5)


def test_same_bytes_for_any_number_of_workers_and_any_company():
    data, model = setting(TINY, [5, 33, 64, 65, 17, 90, 1, 40])
    plan = Plan(epochs=2, batch_size=16, lr=0.1, objective=objectives.flash_robust(), measure=frozenset({"utility"}))
    results = []
    for workers in (1, 2, 5):
        engine = FusedEngine(TINY, data, workers)
        results.append(engine.train(model, np.arange(8), plan))
        engine.close()
    for other in results[1:]:
        assert other.updates.delta.tobytes() == results[0].updates.delta.tobytes()
        assert other.signals["utility"].tobytes() == results[0].signals["utility"].tobytes()
    alone = FusedEngine(TINY, data, 1).train(model, np.array([5]), plan)
    assert alone.updates.delta[0].tobytes() == results[0].updates.delta[5].tobytes()


def test_a_diverging_client_fails_alone_and_leaves_no_trace():
    """Client 1 has one infinite pixel: it must fail, and those after it in the same buffers must not."""
    network = NETWORKS["odd sides, pool drops a row"]
    data, model = setting(network, [30, 64, 9, 0, 20])
    x = data.x.copy()
    x[data.train.index[data.train.of(1)][5], 0, 3, 3] = np.inf
    plan = Plan(epochs=2, batch_size=32, lr=0.1, measure=frozenset({"train_loss"}))
    sick = FusedEngine(network, ClientData(x, data.train, data.validation, data.classes), 1)
    out = sick.train(model, np.arange(5), plan)
    assert out.failed.tolist() == [False, True, False, True, False]
    assert "non-finite" in out.reasons[1]
    assert out.reasons[3] == "owns no samples"
    assert not out.updates.delta[[1, 3]].any()
    assert np.isnan(out.signals["train_loss"]).tolist() == out.failed.tolist()
    healthy = FusedEngine(network, data, 1).train(model, np.array([0, 2, 4]), plan)
    assert healthy.updates.delta.tobytes() == out.updates.delta[[0, 2, 4]].tobytes()


def test_weights_that_explode_in_the_last_step_are_a_failure():
    """With one step there is no later loss to tell."""
    data, model = setting(TINY)
    rates = np.array([0.1, np.inf])
    out = FusedEngine(TINY, data, 1).train(model, np.array([1, 2]), Plan(epochs=1, batch_size=999, lr=rates))
    assert out.updates.steps.tolist() == [1, 1]
    assert out.failed.tolist() == [False, True]
    assert not out.updates.delta[1].any()


def test_too_high_a_rate_is_a_failure_not_a_number():
    data, model = setting(TINY)
    out = FusedEngine(TINY, data, 1).train(model, np.array([2]), Plan(epochs=9, batch_size=16, lr=1e9))
    assert out.failed.all()
    assert not out.updates.delta.any()


def test_nobody_and_read_only_data():
    data, model = setting(TINY)
    for array in (data.x, data.train.index, data.train.label, model.params):
        array.setflags(write=False)
    engine = FusedEngine(TINY, data, 2)
    assert engine.train(model, np.empty(0, np.int64), Plan()).updates.delta.shape == (0, TINY.n_params)
    assert not engine.train(model, np.arange(4), Plan()).failed.any()
    empty = engine.losses(model, np.empty(0, np.int64), "train", objectives.CROSS_ENTROPY)
    assert empty.loss.size == 0


def test_a_model_of_the_wrong_size_is_refused():
    data, _ = setting(TINY)
    with pytest.raises(BadParameter, match="parameters of shape"):
        FusedEngine(TINY, data).losses(Model(np.zeros(3, np.float32)), np.arange(2), "train", Objective())


def test_kernels_are_compiled_once_per_machine_and_said_so(caplog):
    """What this process compiled is on disk; a second engine says nothing, and a process of its own finds it there."""
    data, model = setting(TINY)
    FusedEngine(TINY, data).logits(model.params[None], data.x)
    caplog.clear()
    with caplog.at_level("WARNING", logger="fedcohort.engine"):
        FusedEngine(TINY, data).logits(model.params[None], data.x)
    assert "compiling" not in caplog.text
    code = (
        "from fedcohort.engines.fused import kernels as k, local_training as c\n"
        "assert all(f.on_disk for f in (c.evaluate, k.take, k.conv_forward, k.linear_forward))\n"
        "s = c.evaluate.made.stats; assert s.cache_hits and not s.cache_misses, s\n"
        "assert 'made' not in vars(c.train)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200, env=dict(os.environ))


def test_the_same_learning_curve_as_the_reference():
    """Eight rounds of FedAvg on separable classes: per-round accuracy of both engines within 2 % for two seeds."""
    from fedcohort.engines.torch_reference import ReferenceEngine

    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        data = oracle.body(TINY, [40] * 6, held=30, seed=seed)
        centres = 1.5 * rng.standard_normal((5, 1, 8, 8)).astype(np.float32)
        x = data.x.copy()
        for part in (data.train, data.validation):
            x[part.index] += centres[part.label]
        data = ClientData(x, data.train, data.validation, 5)
        curves = []
        for engine in (FusedEngine(TINY, data, 2), ReferenceEngine(TINY, data)):
            model, curve = Model(TINY.initial(np.random.default_rng(seed))), []
            for index in range(8):
                cohort = np.sort(np.random.default_rng([seed, index]).choice(6, 3, replace=False))
                out = engine.train(model, cohort, Plan(epochs=2, batch_size=16, lr=0.1, seed=seed, round=index))
                model = model.with_params(model.params + out.updates.delta.mean(axis=0))
                stats = engine.losses(model, np.arange(6), "validation", objectives.CROSS_ENTROPY)
                curve.append(stats.accuracy.mean())
            curves.append(curve)
        np.testing.assert_allclose(curves[0], curves[1], atol=0.02)
        assert curves[0][-1] > 0.4  # chance is 0.2


def test_a_second_process_compiles_from_the_other_end_and_is_waited_for(monkeypatch):
    """It is asked for all kernels in reverse; what it is compiling when this process gets there is left to it."""

    class Kernel:
        def __init__(self, name):
            self.where, self.on_disk, self.calls = name, False, 0

        @property
        def absent(self):
            return not self.on_disk

        @property
        def made(self):
            self.calls += 1
            log.append(self.where)
            self.on_disk = True

    class Second:
        """At "b" when it is first looked at, and done with it some looks later."""

        looks = 0

        def start(self, names):
            log.append(list(names))

        @property
        def now(self):
            self.looks += 1
            some[1].on_disk = some[1].on_disk or self.looks > 5
            return "b" if self.looks <= 5 else ""

    log, some = [], [Kernel(name) for name in "abcd"]
    monkeypatch.setattr(compiling, "_partner", Second())
    compiling.prepare(some[:3], some[2:])
    expected = [["d", "c", "b", "a"], "a", "c", "b"] if (os.cpu_count() or 1) > 1 else ["a", "c", "b"]
    assert log[: len(expected)] == expected  # then all are loaded
    log.clear()
    compiling.prepare(some[:3], some[2:])
    assert log == ["a", "b", "c"]  # nothing is missing: nobody is started


def test_the_second_process_skips_what_is_on_disk_and_says_what_it_is_at(monkeypatch, capsys):
    from fedcohort.engines.fused import compile_process, kernels, loss

    data, model = setting(TINY)
    FusedEngine(TINY, data).losses(model, np.arange(2), "train", Objective())
    names = [one.where for one in (kernels.take, kernels.linear_forward, kernels.conv_forward, loss.measure)]

    def files():
        return [
            f.stat().st_mtime_ns for n in names for f in compiling._FOLDER.glob(f"*/*.{n.rpartition(':')[2]}-*.nbi")
        ]

    before = files()
    assert len(before) == 4
    second = compile_process.Partner()
    assert second.now == ""
    second.start(names)
    assert second.now == "start"
    while second.now:
        time.sleep(0.05)
    assert files() == before
    monkeypatch.setattr(kernels.take.__class__, "on_disk", False)  # already loaded here: said, not compiled
    monkeypatch.setattr(sys, "argv", ["compile_process", *names[:2]])
    compile_process.main()
    assert capsys.readouterr().out.split() == names[:2]
    second.start(names)
    second.end()
    assert second.now == ""


_BITS = """
import sys
import numpy as np
from fedcohort.engines.fused import FusedEngine
from fedcohort.engines.interface import ClientData
from fedcohort.engines.networks import Conv, Flatten, GroupNorm, Linear, Network, ReLU
from fedcohort.types import Model, Part, Plan

layers = (Conv(8, 3, 1), GroupNorm(2), ReLU(), Conv(8, 3, 1, 2), GroupNorm(4), ReLU(), Flatten(), Linear(5))
network, rng = Network((3, 12, 12), layers), np.random.default_rng(0)
x, y = rng.standard_normal((90, 3, 12, 12), np.float32), rng.integers(5, size=90)
part = Part(np.array([0, 37, 90]), np.arange(90), y, y)
none = Part(np.zeros(3, np.int64), *(np.empty(0, np.int64),) * 3)
engine = FusedEngine(network, ClientData(x, part, none, 5), 1)
out = engine.train(Model(network.initial(rng)), np.arange(2), Plan(epochs=4, batch_size=20, lr=0.1, momentum=0.9))
sys.stdout.buffer.write(out.updates.delta.tobytes())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_that_compiles_computes_the_bits_of_one_that_loads(tmp_path):
    """Copies of a called function differ between objects; which one is used must not depend on who made them."""
    env = {**os.environ, "FEDCOHORT_CACHE": str(tmp_path)}
    env.pop("NUMBA_CACHE_DIR", None)
    runs = [subprocess.run([sys.executable, "-c", _BITS], env=env, capture_output=True, check=True) for _ in range(2)]
    assert b"compiling kernels" in runs[0].stderr
    assert b"compiling kernels" not in runs[1].stderr
    assert len(runs[0].stdout) > 1000
    assert runs[0].stdout == runs[1].stdout


@compiling.kernel
def _called(x, y):
    total = np.float32(0.0)
    for i in range(x.size):
        for j in range(y.size):
            total += x[i] * y[j] + np.float32(1.0) / (x[i] + y[j])
    for i in range(x.size):
        y[i % y.size] += total * x[i]
    return total


def _outer(x, y):
    return _called(x, y) + _called(x[1:], y) + _called(y, x[2:]) + _called(x[3:], y[4:])


def test_no_object_offers_its_copies_of_called_functions_to_others(monkeypatch):
    """Plain Numba makes weak symbols of them, and the first that is loaded serves everybody."""
    kind = numba.float32[::1]

    def visible():
        made = numba.njit(numba.float32(kind, kind), **compiling._OPTIONS)(_outer)
        assert made(np.ones(10, np.float32), np.ones(9, np.float32)) > 0
        found = made.overloads[made.signatures[0]].library.get_defined_functions()
        return [f.name for f in found if "_called" in f.name and f.linkage.name == "linkonce_odr"]

    assert visible()
    room = __name__.split(".")[0]
    monkeypatch.setattr(compiling, "_OURS", f"_ZN{len(room)}{room}")
    with compiling._closed("_outer"):
        assert not visible()
