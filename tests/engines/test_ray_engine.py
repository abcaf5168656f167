"""The ray engine: the bits of a local run on a cluster of two nodes, also when one is killed in mid-round."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest

from fedcohort.engines import ray_engine
from fedcohort.engines.factory import choose
from fedcohort.engines.fused import FusedEngine
from fedcohort.engines.networks import mlp
from fedcohort.engines.ray_cluster import connect
from fedcohort.errors import ConfigError
from fedcohort.types import Model, Plan

from . import oracle


class NoRay:
    """A Ray that was never started, and must not be asked to connect."""

    def is_initialized(self):
        return False


def test_an_actor_computes_in_the_precision_of_the_local_engine():
    torch = pytest.importorskip("torch")
    data, model = oracle.body(mlp(6, classes=4), [5, 7]), Model(np.zeros(0, np.float32))
    local = choose(lambda: torch.nn.Linear(6, 4), data, "torch_reference", 1, device="cpu", precision="bfloat16")
    inner = ray_engine.inner_of(local, model, np.arange(2), Plan())
    assert ray_engine.inner_engine(choose, lambda: torch.nn.Linear(6, 4), data, **inner).precision == "bfloat16"


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_answers_is_one_sentence(scheme, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(ConfigError, match="nobody answers") as refused:
        connect(NoRay(), address)
    assert address in str(refused.value)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="nobody answers"):
        connect(NoRay())
    assert time.monotonic() - start < 10


@pytest.mark.deployment
def test_two_nodes_give_the_bits_of_a_local_run_also_when_one_is_killed(monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    network = mlp(20, 16, classes=4)
    data = oracle.body(network, [30, 0, 12, 45, 8, 60, 25, 17])
    start, clients = Model(network.initial(np.random.default_rng(0))), np.array([6, 0, 1, 3, 2, 7, 5, 4])
    rng = np.random.default_rng(1)
    plan = Plan(
        epochs=np.arange(1, 9), batch_size=8, lr=0.1, momentum=0.9, seed=5, round=3,
        measure=frozenset({"train_loss", "loss_after", "full_gradient"}),
        correction=rng.normal(0, 0.01, (8, network.n_params)).astype(np.float32),
        sample_weight={3: rng.random(45).astype(np.float32)},
    )  # fmt: skip
    local = FusedEngine(network, data, 2)
    expected = local.train(start, clients, plan)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        engine = ray_engine.RayEngine(network, data, local, choose, address=cluster.address)
        both = engine.train(start, clients, plan)
        assert len(engine.actors) == 2
        opened = ray_engine._Round._open

        def kill_behind_the_first(self, *given):
            if other in cluster.worker_nodes:
                cluster.remove_node(other, allow_graceful=False)
            return opened(self, *given)

        monkeypatch.setattr(ray_engine, "LEAST", 1.0)
        monkeypatch.setattr(ray_engine._Round, "_open", kill_behind_the_first)
        one = engine.train(start, clients, plan)
        assert other not in cluster.worker_nodes
        engine.close()
    finally:
        cluster.shutdown()
    for found in (both, one):
        assert found.updates.delta.tobytes() == expected.updates.delta.tobytes()
        assert found.reasons == expected.reasons == {1: "owns no samples"}
        np.testing.assert_array_equal(found.updates.steps, expected.updates.steps)
        np.testing.assert_array_equal(found.updates.extras["full_gradient"], expected.updates.extras["full_gradient"])
        for name, values in expected.signals.items():
            np.testing.assert_array_equal(found.signals[name], values)
