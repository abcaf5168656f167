"""Digits split among the clients, and a softmax classifier with one hidden layer, in NumPy."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

Model = dict[str, np.ndarray]
Samples = tuple[np.ndarray, np.ndarray]  # inputs and labels
HIDDEN, CLASSES, BATCH = 32, 10, 16


@lru_cache
def digits() -> Samples:
    """All samples. They are read here because not every process that Flower starts needs data."""
    from fedcohort.data import load

    data = load("digits")
    x, y = np.concatenate([data.x, data.x_test]), np.concatenate([data.y, data.y_test])
    return (x.reshape(len(y), -1) / 16.0).astype(np.float32), y


@lru_cache
def load(partition: int, partitions: int) -> tuple[Samples, Samples]:
    """Training and validation data of one client: every partitions-th sample."""
    x, y = digits()
    mine = np.arange(partition, len(y) - 297, partitions)
    cut = max(len(mine) * 4 // 5, 1)
    return (x[mine[:cut]], y[mine[:cut]]), (x[mine[cut:]], y[mine[cut:]])


def load_test() -> Samples:
    """The last 297 samples, which no client has."""
    x, y = digits()
    return x[-297:], y[-297:]


def initial(seed: int = 0) -> Model:
    """A fresh model."""
    rng = np.random.default_rng(seed)
    return {
        "hidden.weight": rng.normal(0, 0.2, (HIDDEN, 64)).astype(np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": rng.normal(0, 0.2, (CLASSES, HIDDEN)).astype(np.float32),
        "output.bias": np.zeros(CLASSES, np.float32),
    }


def forward(model: Model, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hidden activations and logits."""
    h = np.maximum(x @ model["hidden.weight"].T + model["hidden.bias"], 0.0)
    return h, h @ model["output.weight"].T + model["output.bias"]


def gradient(model: Model, x: np.ndarray, y: np.ndarray) -> tuple[float, Model]:
    """Mean cross-entropy and its gradient."""
    h, z = forward(model, x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean())
    p[np.arange(len(y)), y] -= 1.0
    p /= len(y)
    back = (p @ model["output.weight"]) * (h > 0)
    grad = {
        "hidden.weight": back.T @ x,
        "hidden.bias": back.sum(axis=0),
        "output.weight": p.T @ h,
        "output.bias": p.sum(axis=0),
    }
    return loss, {k: v.astype(np.float32) for k, v in grad.items()}


def train(
    model: Model, data: Samples, epochs: int, lr: float, seed: int, adjust: Callable[[Model, Model], Model]
) -> tuple[float, int]:
    """Train by SGD, in place. Returns the mean loss of the first epoch and the number of steps."""
    x, y = data
    rng, losses, steps = np.random.default_rng(seed), [], 0
    for epoch in range(epochs):
        order = rng.permutation(len(y))
        for at in range(0, len(order), BATCH):
            rows = order[at : at + BATCH]
            loss, grad = gradient(model, x[rows], y[rows])
            grad = adjust(grad, model)
            for key in model:
                model[key] = model[key] - lr * grad[key]
            losses += [loss] if epoch == 0 else []
            steps += 1
    return float(np.mean(losses)), steps
