"""Flower's own strategies wrapped, and our methods, on an in-memory grid."""

from __future__ import annotations

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import strategy as stock
from tests.flower.grid import FakeClient, FakeGrid, fedavg, make, start, timing

from fedcohort.errors import (
    BadParameter,
    MissingSignal,
)
from fedcohort.flower import CohortStrategy, wire
from fedcohort.methods.fedca import FedCA
from fedcohort.selectors.uniform import Uniform
from fedcohort.testing import LinearEvaluator
from fedcohort.types import Cohort

STOCK = {
    "FedAvg": {},
    "FedProx": {"proximal_mu": 0.1},
    "FedAdam": {},
    "FedYogi": {},
    "FedAdagrad": {},
    "FedAvgM": {"server_learning_rate": 1.0, "server_momentum": 0.5},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.2},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 2},
    "Bulyan": {"num_malicious_nodes": 1},
    "QFedAvg": {"client_learning_rate": 0.1},
}


class OneArgument(Uniform):
    def select(self, rnd):
        return Cohort(rnd.available[: rnd.size])


class Unsaved:
    needs = frozenset()

    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])

    def observe(self, result): ...


@pytest.mark.parametrize(
    ("inner", "keys", "words"),
    [
        (stock.FedAvg, {}, r"this is a class; give an object of it, e.g. FedAvg\(\)"),
        ("fedavg", {}, "write method='fedavg'"),
        (object(), {}, "this is not a Flower strategy"),
        (stock.FedAvg(), {"selector": Uniform}, "this is a class"),
        (stock.FedAvg(), {"selector": OneArgument()}, r"write def select\(self, rnd, rng\)"),
        (stock.FedAvg(), {"selector": Unsaved(), "state_dir": "there"}, "it lacks state_dict"),
        (
            stock.FedAvg(),
            {"selector": "divfl", "check_shapes": False},
            "DivFL, which reads last_layer_delta: where shapes",
        ),
        (stock.FedAvg(), {"selector": "hetero-select", "check_shapes": False}, "which reads delta, delta_norm"),
        (None, {"method": "fedavg", "check_shapes": False}, "False with method 'fedavg': .* or wrap a Flower strategy"),
        (stock.FedAvg(), {"state_dir": __file__}, "this is a file; name a folder"),
    ],
)
def test_objects_that_do_not_fit_are_refused_before_anything_starts(inner, keys, words):
    with pytest.raises(BadParameter, match=words):
        CohortStrategy(inner, **{"selector": "uniform", **keys})


def stock_strategy(name, **keys):
    return getattr(stock, name)(fraction_evaluate=0.0, **STOCK[name], **keys)


@pytest.mark.parametrize("name", STOCK)
def test_any_stock_strategy_is_wrapped_whatever_its_sampling(name):
    """min_available_nodes=1000 would make the stock sampling wait for ever; the global luck must not be touched."""
    try:
        inner = stock_strategy(name, min_available_nodes=1000, min_train_nodes=500, fraction_train=0.3)
    except (TypeError, ValueError) as error:
        pytest.skip(f"{name}: {error}")
    grid = FakeGrid([FakeClient(str(i), step=0.1 + 0.01 * i) for i in range(8)])
    strategy = make(grid, inner, cohort_size=8)
    before = random.getstate()
    result = start(strategy, grid, rounds=3)
    assert random.getstate() == before
    assert [row["ok"] for row in strategy.history] == [8.0] * 3
    assert all(np.isfinite(a).all() for a in result.arrays.to_numpy_ndarrays())
    assert inner.min_available_nodes == 1000


def test_wrapped_fedavg_gives_what_fedavg_gives():
    """Weighted mean by hand: weights 10, 20, 30 and steps 1, 2, 3 give 140 / 60 per round."""
    grid = FakeGrid([FakeClient(str(i), step=1.0 + i, samples=10 * (i + 1)) for i in range(3)])
    result = start(make(grid), grid, rounds=2)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 2 * 140 / 60, rtol=1e-6)
    assert result.train_metrics_clientapp[2]["train_loss"] == pytest.approx(0.5)


@pytest.mark.parametrize("buffer_size", [1, 2])
def test_a_stale_update_moves_the_present_model_of_a_wrapped_strategy(buffer_size):
    """Every update adds one, whatever model it was computed on, so that every step of the model does."""
    grid = FakeGrid([FakeClient(str(i), seconds=1.0 if i < 3 else 7.5) for i in range(4)])
    seen = []
    strategy = make(grid, cohort_size=4, buffer_size=buffer_size, deadline=60)
    start(strategy, grid, rounds=12, evaluate_fn=lambda _, arrays: seen.append(float(arrays["b"].numpy()[0])))
    assert max(row["staleness"] for row in strategy.history) > 0
    np.testing.assert_allclose(seen, range(13), atol=1e-5)


def test_a_stale_update_is_judged_as_the_model_that_its_client_has():
    """Clients add one to what they were sent, so that of step i, computed a versions ago, has the value i - a + 1."""
    seen = []

    class Asked(LinearEvaluator):
        def logits(self, params, split, buffers=None):
            seen.append(float(params[0, 0]))
            return super().logits(params, split)

    grid = FakeGrid([FakeClient(str(i), seconds=1.0 if i < 3 else 7.5) for i in range(4)])
    keys = {"selector": "uniform", "cohort_size": 4, "buffer_size": 1, "deadline": 60, **timing(grid)}
    strategy = CohortStrategy(method=FedCA(), server_evaluator=Asked(classes=2), **keys)
    start(strategy, grid, rounds=12)
    ages = [row["staleness"] for row in strategy.history]
    assert max(ages) > 0
    assert seen == [i - age + 1 for i, age in enumerate(ages)]


def test_fedprox_sends_its_mu_and_our_record_is_beside_it():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid, stock_strategy("FedProx")), grid, rounds=1, train_config=ConfigRecord({"lr": 0.5}))
    config = grid.clients[1001].seen[-1].content["config"]
    assert (config["proximal-mu"], config["lr"], config["server-round"]) == (0.1, 0.5, 1)


def test_a_strategy_of_ones_own_with_a_message_for_each():
    class Mine(stock.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                message.content = type(message.content)(dict(message.content))
                message.content["own"] = ConfigRecord({"you": str(message.metadata.dst_node_id)})
                yield message

    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid, Mine(fraction_evaluate=0.0)), grid, rounds=1)
    assert [grid.clients[n].seen[-1].content["own"]["you"] for n in (1001, 1002, 1003)] == ["1001", "1002", "1003"]


def test_wrappers_of_wrappers():
    inner = stock.DifferentialPrivacyServerSideFixedClipping(fedavg(), 0.0, 100.0, 3)
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    result = start(make(grid, inner), grid, rounds=2)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 2.0, rtol=1e-5)


def test_federated_evaluation_uses_the_strategys_share():
    grid = FakeGrid([FakeClient(str(i)) for i in range(10)])
    result = start(make(grid, stock.FedAvg(fraction_evaluate=0.4)), grid, rounds=2)
    asked = [m for m in grid.pushed if m.metadata.message_type == "evaluate"]
    assert len(asked) == 8
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)


def test_central_evaluation_and_its_score():
    seen = []
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = make(grid)
    observe = strategy.selector.observe
    strategy.selector.observe = lambda result: (seen.append(result.score), observe(result))

    def evaluate(server_round, arrays):
        assert isinstance(arrays, ArrayRecord)
        return MetricRecord({"accuracy": 0.1 * server_round})

    result = start(strategy, grid, rounds=2, evaluate_fn=evaluate)
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert seen == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("method", ["fedavg", "median", "fedadam", "krum", "scaffold", "feddyn", "fedprox", "fednova"])
def test_our_methods_run_on_flower(method):
    class Able(FakeClient):
        def register(self, message):
            content = super().register(message)
            content[wire.REQUEST]["abilities"] = ["correction", "proximal-mu"]
            return content

    grid = FakeGrid([Able(str(i), step=0.1) for i in range(4)])
    strategy = CohortStrategy(method=method, selector="uniform", cohort_size=4, deadline=9.0, **timing(grid))
    result = start(strategy, grid, rounds=2)
    assert sum(row["ok"] for row in strategy.history) >= 2
    assert all(np.isfinite(a).all() for a in result.arrays.to_numpy_ndarrays())


@pytest.mark.parametrize("method", ["fedpdp", "fedpdp(unknown='uniform')", "fedavg(form='original')"])
@pytest.mark.parametrize("selector", ["uniform", "oort"])
def test_shares_of_all_data_are_those_that_clients_register(method, selector):
    """All four are asked and each adds one, so every round adds one, whether the selector reads samples or not."""
    keys = {"provides": ["samples", "utility"], "utility": 1.0}
    grid = FakeGrid([FakeClient(str(i), samples=10 * (i + 1), **keys) for i in range(4)])
    strategy = CohortStrategy(method=method, selector=selector, cohort_size=4, deadline=9.0, **timing(grid))
    result = start(strategy, grid, rounds=2)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 2.0, rtol=1e-6)


def test_nobody_freezes_the_model_by_the_size_it_registers():
    """What counts is at most 100 times the usual size: with 40 of 1040 samples the model still moves."""

    class Boasting(FakeClient):
        def register(self, message):
            content = super().register(message)
            content[wire.SIGNALS]["samples"] = 10**12
            return content

    grid = FakeGrid(
        [*(FakeClient(str(i), provides=["samples"]) for i in range(4)), Boasting("4", provides=["samples"])]
    )
    strategy = CohortStrategy(method="fedpdp", selector="uniform", cohort_size=5, deadline=9.0, **timing(grid))
    result = start(strategy, grid, rounds=1)
    assert strategy._backend.samples.tolist() == [10, 10, 10, 10, 1000]
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 50 / 1040, rtol=1e-6)


def test_a_method_whose_client_half_nobody_applies_is_refused_by_name():
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = CohortStrategy(method="scaffold", selector="uniform", cohort_size=2, wait=5.0, **timing(grid))
    with pytest.raises(MissingSignal, match=r"client 0.*'correction'"):
        start(strategy, grid)


def test_a_loop_that_is_not_ours_may_change_the_model_between_rounds():
    """As strategies that add noise do: the next round goes on from what the loop passes, not from what we made."""
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = make(grid)
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    replies = grid.send_and_receive(strategy.configure_train(1, first, ConfigRecord(), grid), timeout=9.0)
    made, _ = strategy.aggregate_train(1, replies)
    np.testing.assert_array_equal(made["w"].numpy(), 1.0)
    noisy = ArrayRecord({"w": Array(np.full(2, 5.0, np.float32))})
    messages = list(strategy.configure_train(2, noisy, ConfigRecord(), grid))
    assert all((m.content["arrays"]["w"].numpy() == 5.0).all() for m in messages)
    made, _ = strategy.aggregate_train(2, grid.send_and_receive(messages, timeout=9.0))
    np.testing.assert_array_equal(made["w"].numpy(), 6.0)


def test_unchanged_client_apps_work_with_selectors_that_need_nothing():
    clients = [FakeClient(str(i)) for i in range(3)]
    for client in clients:
        client.plain = True
    grid = FakeGrid(clients)
    strategy = make(grid)
    start(strategy, grid, rounds=2)
    assert strategy._backend.clients.roster.ids == ("node-1001", "node-1002", "node-1003")
    assert strategy.history[1]["ok"] == 3.0


def test_metrics_of_an_unchanged_app_can_carry_signals():
    clients = [FakeClient(str(i)) for i in range(3)]
    for client in clients:
        client.plain = True
    grid = FakeGrid(clients)
    strategy = make(grid, selector="hetero-select", metric_signals={"train_loss": "train_loss"})
    start(strategy, grid, rounds=2)
    assert strategy.history[1]["ok"] == 3.0
