"""Infinite entries of the first model, such as those of an attention mask: sent, sent back, never computed with."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp import strategy as stock
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, as_record, start, timing
from tests.flower.test_any_strategy import STOCK, stock_strategy
from typer.testing import CliRunner

from fedcohort.cli.main import app
from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.flower import CohortStrategy
from fedcohort.flower.client.measurement import _gradient
from fedcohort.flower.model_layout import ModelLayout
from fedcohort.testing import LinearEvaluator

INF = np.inf


def first(mask=((0.0, -INF), (0.0, 0.0))):
    return {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32), "mask": np.array(mask, np.float32)}


def run(clients, inner=None, rounds=3, arrays=None, **keys):
    grid = FakeGrid(clients)
    made = {} if "method" in keys else {"inner": inner or stock.FedAvg(fraction_evaluate=0.0)}
    keys = {"selector": "uniform", "cohort_size": len(clients), "deadline": 10.0, **timing(grid), **keys}
    strategy = CohortStrategy(**made, **keys)
    return strategy, arrays_of(start(strategy, grid, arrays or first(), rounds=rounds).arrays), grid


@pytest.mark.parametrize("name", [*STOCK, "fedavg", "fedadam", "krum", "geometric-median", "fedbuff(size=2)"])
def test_constants_go_out_and_come_back_and_all_else_is_trained(name):
    """Every client adds the same to every entry, so that those of the mask which are finite end like the others."""
    if name in STOCK:
        try:
            keys = {"inner": stock_strategy(name)}
        except (TypeError, ValueError) as error:
            pytest.skip(f"{name}: {error}")
    else:
        keys = {"method": name}
    clients = [FakeClient(str(i), step=0.5 if i < 7 else 9.0) for i in range(8)]
    strategy, found, grid = run(clients, **keys)
    assert [row["ok"] + row["filtered"] for row in strategy.history] == [8.0] * 3
    assert [row["rejected"] for row in strategy.history] == [0.0] * 3
    assert found["mask"][0, 1] == -INF
    assert found["mask"].dtype == np.float32
    assert found["w"][0, 0] > 0.0
    assert np.unique([*found["w"].ravel(), *found["b"], *np.delete(found["mask"].ravel(), 1)]).size == 1
    if name.lower() in ("krum", "multikrum", "bulyan", "fedmedian", "geometric-median"):
        assert found["w"][0, 0] == pytest.approx(1.5, abs=0.1)  # the one that is far from the others is told apart
    sent = [m.content["arrays"] for m in grid.pushed if m.metadata.message_type == "train"]
    assert all(arrays_of(record)["mask"][0, 1] == -INF for record in sent)


def test_evaluation_gets_them_too_and_a_strategy_may_send_arrays_of_its_own():
    class Mine(stock.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            doubled = as_record({k: 2 * v for k, v in arrays_of(arrays).items()})
            return super().configure_train(server_round, doubled, config, grid)

    _, found, grid = run([FakeClient(str(i)) for i in range(3)], Mine())
    sent = [m.content["arrays"] for m in grid.pushed if m.metadata.message_type in ("train", "evaluate")]
    assert len(sent) == 18
    assert all(arrays_of(record)["mask"][0, 1] == -INF for record in sent)
    np.testing.assert_allclose(found["mask"], [[7.0, -INF], [7.0, 7.0]], rtol=1e-6)  # x -> 2 x + 1, three times


class Breaker(FakeClient):
    """Trains like the others, and then writes a value somewhere."""

    def __init__(self, name, array, at, value):
        super().__init__(name)
        self.place = array, at, value

    def train(self, message):
        content, (array, at, value) = super().train(message), self.place
        arrays = {k: np.array(v) for k, v in arrays_of(content["arrays"]).items()}
        arrays[array][at] = value
        content["arrays"] = as_record(arrays)
        return content


@pytest.mark.parametrize("keys", [{}, {"method": "fedavg"}, {"buffer_size": 2}], ids=["strategy", "method", "async"])
@pytest.mark.parametrize(
    ("array", "at", "value", "why"),
    [
        ("w", (0, 0), INF, "update-not-finite"),
        ("mask", (1, 1), -INF, "update-not-finite"),
        ("mask", (0, 1), INF, "constant-changed:mask"),
        ("mask", (0, 1), 0.0, "constant-changed:mask"),
        ("mask", (0, 1), np.nan, "constant-changed:mask"),
    ],
)
def test_a_client_that_brings_in_or_changes_one_is_rejected(keys, array, at, value, why):
    honest = [FakeClient(str(i)) for i in range(2)]
    strategy, found, _ = run([*honest, Breaker("2", array, at, value)], rounds=1, **keys)
    _, without, _ = run(honest, rounds=1, **keys)
    assert [reasons for reasons in strategy._engine.history.reasons if reasons] == [{2: why}]
    assert sum(row["rejected"] for row in strategy.history) == 1.0
    for name, value in without.items():
        np.testing.assert_array_equal(found[name], value)


def test_what_cannot_work_is_refused_before_anybody_trains():
    clients = [FakeClient("0")]
    with pytest.raises(BadParameter, match=r"array 'mask' of the first model: it has entries that are not a number"):
        run(clients, arrays=first([[0.0, np.nan]]))
    with pytest.raises(BadParameter, match=r"server_evaluator with a model whose array 'mask' has infinite entries"):
        run(clients, method="fedavg", server_evaluator=LinearEvaluator())


def test_a_run_goes_on_with_its_constants_and_with_no_others(tmp_path):
    clients = [FakeClient(str(i)) for i in range(3)]
    run(clients, state_dir=tmp_path / "run")
    for other in ([[0.0, INF], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]):
        with pytest.raises(StateMismatch, match="its model has other infinite entries in mask than this one"):
            run(clients, arrays=first(other), rounds=4, state_dir=tmp_path / "run")
    _, found, _ = run(clients, rounds=4, state_dir=tmp_path / "run")
    assert (found["mask"].tolist(), found["b"].tolist()) == ([[4.0, -INF], [4.0, 4.0]], [4.0, 4.0])
    CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--npz", str(tmp_path / "m.npz")], catch_exceptions=False)
    with np.load(tmp_path / "m.npz") as kept:
        assert {k: v.tolist() for k, v in kept.items()} == {k: v.tolist() for k, v in found.items()}


def test_a_mask_that_is_infinite_in_single_precision_is_a_constant():
    clients = [FakeClient(str(i)) for i in range(3)]
    arrays = {**first(), "mask": np.array([[0.0, -1e300]])}
    strategy, found, _ = run(clients, arrays=arrays)
    assert (found["mask"].tolist(), found["b"].tolist()) == ([[3.0, -1e300]], [3.0, 3.0])
    assert sum(row["rejected"] for row in strategy.history) == 0.0


def test_a_folder_with_constants_is_resumed_where_shapes_are_not_checked(tmp_path):
    clients = [FakeClient(str(i)) for i in range(3)]
    run(clients, state_dir=tmp_path / "run")
    strategy, _, _ = run(clients, rounds=3, state_dir=tmp_path / "run", check_shapes=False)
    assert len(strategy.history) == 3


def test_a_client_measures_the_same_entries_as_the_server():
    """A mask does not begin the last layer, though one behind it is counted, as zeros; an app has no gradient of it."""
    layout = ModelLayout.of(as_record(first()))
    assert layout.last == ("w", "b", "mask")
    found = _gradient({"w": np.ones((2, 3)), "b": np.ones(2)}, layout)
    assert found["network_insight"].size == layout.last_layer.size == 12
    assert found["grad_norm"] == pytest.approx(np.sqrt(8))
