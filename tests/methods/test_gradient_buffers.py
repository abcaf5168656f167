"""Models with buffers: which ones a method names when it asks for gradients and losses."""

from dataclasses import replace

import numpy as np
import pytest
from linear_world import LinearEvaluator, context_of, planted, updates_of

from fedcohort.methods.fedbio import FedBiO
from fedcohort.methods.feddf import FedDF
from fedcohort.methods.rhfl import RHFL
from fedcohort.types import Model

X, Y, _ = planted(np.random.default_rng(0), 60, 4, 3)
DELTA = np.random.default_rng(1).normal(0, 0.5, (2, 12))
BUFFERS = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)


class Told(LinearEvaluator):
    """Remembers the buffers of every gradient."""

    def __init__(self):
        super().__init__(4, 3, validation=(X[:30], Y[:30]), unlabelled=(X[30:], None))
        self.told = []

    def gradient(self, params, split, rows, target, *buffers):
        self.told.append(buffers)
        return super().gradient(params, split, rows, target)


class ToldClients:
    """Clients with the same samples; remembers the buffers of every call."""

    def __init__(self):
        self.world, self.told = LinearEvaluator(4, 3, train=(X, Y)), []

    def size(self, client, part):
        return len(Y)

    def losses(self, params, client, part, *buffers):
        self.told.append(buffers)
        z = self.world.logits(params[None], "train")[0].astype(float)
        return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(Y)), Y]

    def gradient(self, params, client, part, weight=None, *buffers):
        self.told.append(buffers)
        weight = np.ones(len(Y)) if weight is None else weight
        p = np.exp(self.world.logits(params[None], "train")[0])
        p = p / p.sum(axis=1, keepdims=True)
        return (((p - np.eye(3)[Y]) * weight[:, None]).T @ X / len(Y)).reshape(-1)


def told(method, buffers):
    """What server and clients were told, and the buffers of the new model."""
    server, clients = Told(), ToldClients()
    updates = replace(updates_of(DELTA, weight=[10.0, 30.0]), buffers=buffers)
    model = Model(np.zeros(12, np.float32), np.zeros(0 if buffers is None else 2, np.float32))
    made = method.aggregate(model, updates, context_of(server, client_evaluator=clients))
    return server.told, clients.told, made.model.buffers


METHODS = {
    "feddf": lambda: FedDF(steps=4),
    "rhfl": lambda: RHFL(batch_size=30),
    "fedbio": FedBiO,
    "fedbio-kept": lambda: FedBiO(buffers="server_keep"),
    "fedbio-clients": lambda: FedBiO(clean_validation=False),
    "fedbio-samples": lambda: FedBiO(variant="samples", linear_steps=2),
}


@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_asked_for_at_the_buffers_of_their_model(name):
    server, clients, new = told(METHODS[name](), BUFFERS)
    assert bool(clients) == (name in ("fedbio-clients", "fedbio-samples"))
    assert server or name == "fedbio-clients"
    if name == "rhfl":
        assert np.array_equal(np.concatenate(server), BUFFERS)
    else:
        assert new.tolist() == ([0.0, 0.0] if name == "fedbio-kept" else [2.5, 5.0])
        assert all(len(b) == 1 and np.array_equal(b[0], new) for b in server + clients)


@pytest.mark.parametrize("name", METHODS)
def test_evaluators_of_models_without_buffers_need_not_take_any(name):
    server, clients, _ = told(METHODS[name](), None)
    assert set(server + clients) == {()}
