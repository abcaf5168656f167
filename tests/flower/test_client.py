"""CohortApp: what a client measures and sends, checked against numbers computed here; and the example and template."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, as_record, start, timing

from fedcohort.errors import BadParameter, FedcohortError, RunExists
from fedcohort.flower import CohortApp, CohortStrategy, Outputs, instructions, wire
from fedcohort.flower.dev.project import write_project
from fedcohort.flower.train_instructions import CORRECTION, work
from fedcohort.registry import lookup as registry

CLASSES, FEATURES = 3, 4


def data(partition: int):
    rng = np.random.default_rng(partition)
    return rng.normal(size=(20 + partition, FEATURES)), rng.integers(0, CLASSES, 20 + partition)


def outputs(arrays, context, part):
    if part == "validation":
        return None
    x, y = data(int(context.node_config["partition-id"]))
    model = arrays_of(arrays)
    return Outputs(x @ model["w"].T + model["b"], y)


def softmax(z):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def gradient(arrays, context):
    x, y = data(int(context.node_config["partition-id"]))
    found = outputs(arrays, context, "train")
    away = softmax(found.logits) - np.eye(CLASSES)[y]
    return {"w": away.T @ x / len(y), "b": away.mean(axis=0)}


def make_app(**keys) -> CohortApp:
    app = CohortApp(outputs=outputs, gradient=gradient, **keys)

    @app.train()
    def train(message, context):
        model = arrays_of(message.content["arrays"])
        grad = gradient(message.content["arrays"], context)
        new = {k: (v - 0.5 * grad[k]).astype(np.float32) for k, v in model.items()}
        n = len(data(int(context.node_config["partition-id"]))[1])
        return Message(
            RecordDict({"arrays": as_record(new), "metrics": MetricRecord({"num-examples": n})}), reply_to=message
        )

    return app


def context_of(partition: int, partitions: int = 6, **more) -> Context:
    node = {"partition-id": partition, "num-partitions": partitions, **more}
    return Context(run_id=1, node_id=1001 + partition, node_config=node, state=RecordDict(), run_config=RUN)


RUN = {"local-epochs": 1, "lr": 0.1}


class AppClient(FakeClient):
    """A real ClientApp behind the in-memory grid."""

    def __init__(self, app: ClientApp, partition: int, partitions: int) -> None:
        super().__init__(str(partition))
        self.app, self.context = app, context_of(partition, partitions)

    def reply(self, message):
        self.seen.append(message)
        return self.app(message, self.context).content


def message(kind, measure=(), **content):
    told = ConfigRecord({"wire": wire.WIRE, "round": 0, "measure": list(measure), "profiles": list(measure)})
    return Message(RecordDict({wire.REQUEST: told, **content}), dst_node_id=1003, message_type=kind)


MODEL = {
    "w": np.linspace(-1, 1, CLASSES * FEATURES).reshape(CLASSES, FEATURES).astype(np.float32),
    "b": np.array([0.1, -0.2, 0.3], np.float32),
}


def expected():
    x, y = data(2)
    p = softmax(x @ MODEL["w"].astype(np.float64).T + MODEL["b"])
    loss = -np.log(p[np.arange(len(y)), y])
    return x, y, p, loss


def test_signals_of_a_training_reply():
    """Every number against its definition, computed here from softmax and labels."""
    names = ["train_loss", "train_loss_sq", "loss_count", "utility", "loss_before", "loss_after", "val_loss"]
    names += ["robust_loss", "grad_norm", "insight", "network_insight"]
    reply = make_app()(message("train", names, arrays=as_record(MODEL), config=ConfigRecord()), context_of(2))
    found, vectors = reply.content[wire.SIGNALS], reply.content[wire.VECTORS]
    x, y, p, loss = expected()
    n = len(y)
    assert found["loss_before"] == pytest.approx(loss.mean())
    assert found["train_loss_sq"] == pytest.approx((loss**2).mean())
    assert found["utility"] == pytest.approx(n * np.sqrt((loss**2).mean()))
    assert found["loss_count"] == n
    entropy, p_y = -(p * np.log(p)).sum(axis=1), p[np.arange(n), y]
    assert found["robust_loss"] == pytest.approx((loss + 0.1 * entropy + 4 * 4 * (1 - p_y)).mean())
    assert np.isnan(found["val_loss"])  # there are no validation data here
    away = p - np.eye(CLASSES)[y]
    flat = np.concatenate([(away.T @ x / n).reshape(-1), away.mean(axis=0)])
    assert found["grad_norm"] == pytest.approx(np.linalg.norm(flat), rel=1e-5)
    np.testing.assert_allclose(vectors["insight"].numpy(), -0.1 * flat, rtol=1e-4)
    np.testing.assert_allclose(vectors["network_insight"].numpy(), -0.1 * flat, rtol=1e-4)  # of one layer
    after = arrays_of(reply.content["arrays"])
    q = softmax(x @ after["w"].astype(np.float64).T + after["b"])
    assert found["loss_after"] == pytest.approx(-np.log(q[np.arange(n), y]).mean())


def test_only_what_was_asked_is_sent_and_nothing_above_the_clients_own_level():
    app = make_app(max_privacy="P1")
    reply = app(message("train", ["utility", "insight"], arrays=as_record(MODEL), config=ConfigRecord()), context_of(2))
    assert list(reply.content[wire.SIGNALS]) == ["utility"]
    assert wire.VECTORS not in reply.content
    silent = app(message("train", [], arrays=as_record(MODEL), config=ConfigRecord()), context_of(2))
    assert set(silent.content) == {"arrays", "metrics"}
    card = app(message(wire.REGISTER, ["label_histogram"], arrays=as_record(MODEL)), context_of(2)).content
    assert "label_histogram" not in card[wire.REQUEST]["provides"]
    assert wire.SIGNALS not in card


def test_registration_tells_id_version_and_profiles():
    app = make_app(version="7", max_privacy="P3", applies=["proximal-mu"])
    asked = message(wire.REGISTER, ["samples", "label_histogram", "bandwidth"], arrays=as_record(MODEL))
    reply = app(asked, context_of(2, bandwidth=20.0)).content
    body, profile = reply[wire.REQUEST], reply[wire.SIGNALS]
    assert (body["id"], body["app-version"], body["wire"]) == ("2", "7", wire.WIRE)
    assert body["abilities"] == ["proximal-mu"]
    _, y, _, _ = expected()
    assert profile["samples"] == len(y)
    assert profile["bandwidth"] == 20.0
    np.testing.assert_allclose(profile["label_histogram"], np.bincount(y, minlength=3) / len(y))
    named = app(asked, context_of(2, **{"client-id": "hospital-3", "bandwidth": 1.0})).content
    assert named[wire.REQUEST]["id"] == "hospital-3"


def test_probes_are_answered_without_training():
    names = ["probe_loss", "probe_batch_loss", "probe_robust_loss", "probe_grad_norm", "probe_accuracy"]
    asked = message(wire.PROBE, [*names, "probe_weights"], arrays=as_record(MODEL), config=ConfigRecord())
    reply = make_app()(asked, context_of(2)).content
    _, y, p, loss = expected()
    assert reply[wire.SIGNALS]["probe_loss"] == pytest.approx(loss.mean())
    assert reply[wire.SIGNALS]["probe_accuracy"] == pytest.approx((p.argmax(axis=1) == y).mean())
    assert set(reply[wire.SIGNALS]) == set(names)
    assert reply[wire.VECTORS]["probe_weights"].numpy().shape == (CLASSES * FEATURES + CLASSES,)


def test_work_directed_by_the_selector():
    told = Message(
        RecordDict({wire.REQUEST: ConfigRecord({"directive.work": 0.5})}), dst_node_id=3, message_type="train"
    )
    assert (work(told, 4), work(told, 1), work(message("train"), 3)) == (2, 1, 3)


def test_an_unknown_privacy_level_is_refused():
    with pytest.raises(BadParameter, match="P7"):
        CohortApp(max_privacy="P7")


@pytest.mark.parametrize("selector", registry.names("selector"))
def test_every_selector_of_the_catalogue_runs_with_a_real_client_app(selector):
    """One function `outputs` and one `gradient` are enough for all of them."""
    grid = FakeGrid([AppClient(make_app(), i, 6) for i in range(6)])
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), selector=selector, cohort_size=2, over_select=1.0, deadline=9.0, **timing(grid)
    )
    first = {k: v * 0 for k, v in MODEL.items()}
    start(strategy, grid, first, rounds=4, evaluate_fn=lambda r, a: MetricRecord({"accuracy": 0.5}))
    assert sum(row["ok"] for row in strategy.history) >= 4, strategy.history


def test_example_app_learns_with_its_own_server_code(monkeypatch):
    """examples/flower_app as it is, on the in-memory grid: five rounds of PyTorch on digits."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "flower_app"))
    torch.manual_seed(0)
    client, server = (importlib.import_module(f"flower_app.{n}_app") for n in ("client", "server"))
    grid = FakeGrid([AppClient(client.app, i, 5) for i in range(5)])
    made = []

    def strategy(inner, **keys):
        made.append(CohortStrategy(inner, **keys, **timing(grid)))
        return made[-1]

    monkeypatch.setattr(server, "CohortStrategy", strategy)
    config = {"num-server-rounds": 5, "lr": 0.1, "local-epochs": 1}
    server.main(grid, Context(1, 1, {}, RecordDict(), config))
    scores = [row["server.accuracy"] for row in made[0].history]
    assert scores[-1] > 0.6 > 0.2
    assert all("evaluate.eval_acc" in row for row in made[0].history)
    for name in [n for n in sys.modules if n.startswith("flower_app")]:
        del sys.modules[name]


def test_the_written_project_runs_and_learns(tmp_path, monkeypatch):
    written = write_project(tmp_path / "my-app")
    assert all(p.exists() for p in written)
    monkeypatch.syspath_prepend(str(tmp_path / "my-app"))
    client = importlib.import_module("my_app.client_app")
    server = importlib.import_module("my_app.server_app")
    task = importlib.import_module("my_app.task")
    grid = FakeGrid([AppClient(client.app, i, 5) for i in range(5)])
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector="fedacs",
        cohort_size=3,
        app_version="1.0.0",
        deadline=9.0,
        **timing(grid),
    )
    result = start(strategy, grid, task.initial(), rounds=6, evaluate_fn=server.test_metrics)
    assert result.evaluate_metrics_serverapp[6]["accuracy"] > 0.7
    assert isinstance(result.arrays, ArrayRecord)


@pytest.mark.parametrize("method", ["fedprox(mu=0.5)", "scaffold", "feddyn(alpha=0.1)", "fedadam(server_lr=0.03)"])
def test_the_written_project_applies_the_client_half_of_our_methods(tmp_path, monkeypatch, method):
    write_project(tmp_path / "a-app")
    monkeypatch.syspath_prepend(str(tmp_path / "a-app"))
    try:
        client, server, task = (importlib.import_module(f"a_app.{n}") for n in ("client_app", "server_app", "task"))
        clients = [AppClient(client.app, i, 5) for i in range(5)]
        grid = FakeGrid(clients)
        strategy = CohortStrategy(method=method, selector="uniform", cohort_size=3, deadline=9.0, **timing(grid))
        keys = {"train_config": ConfigRecord({"lr": 0.1}), "evaluate_fn": server.test_metrics}
        result = start(strategy, grid, task.initial(), rounds=6, **keys)
    finally:
        for name in [n for n in sys.modules if n.startswith("a_app")]:
            del sys.modules[name]
    assert result.evaluate_metrics_serverapp[6]["accuracy"] > 0.5
    asked = [m for c in clients for m in c.seen if m.metadata.message_type == "train"]
    assert any(CORRECTION in m.content for m in asked) == (method.partition("(")[0] in ("scaffold", "feddyn"))


def test_orders_adjust_the_gradient_by_prox_term_and_correction():
    """g + mu (w - w0) + c with g = 1, mu = 0.5, w = 4, w0 = 2, c = 3: 1 + 1 + 3 = 5."""
    content = {
        "arrays": as_record({"w": np.full(2, 2.0)}),
        "config": ConfigRecord({"proximal-mu": 0.5}),
        CORRECTION: as_record({"w": np.full(2, 3.0)}),
    }
    asked = instructions(message("train", **content), epochs=2, lr=0.3)
    assert (asked.epochs, asked.lr) == (2, 0.3)
    np.testing.assert_array_equal(asked.adjust({"w": np.ones(2)}, {"w": np.full(2, 4.0)})["w"], 5.0)
    plain = instructions(message("train", arrays=as_record({"w": np.ones(2)})))
    np.testing.assert_array_equal(plain.adjust({"w": np.ones(2)}, {"w": np.ones(2)})["w"], 1.0)


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("scaffold", "does not apply 'correction'"),
        ("fedprox", "does not apply 'proximal-mu'"),
        ("fedpdp", "does not provide the signal 'samples'"),
        ("fedavg(form='original')", "does not provide the signal 'samples'"),
        ("rhfl", "its client half changes 'objective'"),
        ("fedca", "cannot work at this server"),
        ("fedbio", "cannot work at this server"),
    ],
)
def test_a_method_that_cannot_run_here_is_refused_by_name_before_training(method, what):
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    strategy = CohortStrategy(method=method, selector="uniform", cohort_size=2, deadline=5.0, wait=3.0, **timing(grid))
    with pytest.raises(FedcohortError, match=what):
        start(strategy, grid)
    assert [m for m in grid.pushed if m.metadata.message_type == "train"] == []


@pytest.mark.parametrize("name", ["My App", "1app", "a.b", "app;rm"])
def test_bad_project_names_are_refused(tmp_path, name):
    with pytest.raises(BadParameter, match="project name"):
        write_project(tmp_path / name)


def test_a_folder_with_something_in_it_is_not_written_over(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "precious").write_text("x")
    with pytest.raises(RunExists, match="not empty"):
        write_project(tmp_path / "app")
