"""The three workloads, and what every contender shares: data, models, how a result is printed. No fedcohort here."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

POOL = 6000  # distinct samples; clients own runs of them, so that memory does not decide


@dataclass(frozen=True)
class Workload:
    shape: tuple[int, int, int]
    channels: tuple[int, int]
    hidden: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    cohort: int
    epochs: int
    batch: int

    @property
    def passes(self) -> int:
        """Client-samples trained in a round."""
        return self.cohort * self.samples * self.epochs


WORKLOADS = {
    "W1": Workload((3, 32, 32), (6, 16), (120, 84), 10, 200, 250, 10, 5, 50),
    "W2": Workload((3, 32, 32), (32, 64), (512,), 10, 200, 250, 10, 5, 50),
    "W3": Workload((1, 28, 28), (16, 32), (128,), 62, 3550, 60, 355, 1, 20),
}


def pool(w):
    rng = np.random.default_rng(0)
    return rng.standard_normal((POOL, *w.shape), np.float32), rng.integers(w.classes, size=POOL)


def rows(w, client):
    return (client * w.samples + np.arange(w.samples)) % POOL


def cohort(w, index):
    return np.sort(np.random.default_rng([7, index]).choice(w.clients, w.cohort, replace=False))


def module(w):
    from torch import nn

    side, before, layers = w.shape[1], w.shape[0], []
    for out in w.channels:
        layers += [nn.Conv2d(before, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
        before, side = out, (side - 4) // 2
    layers.append(nn.Flatten())
    before *= side * side
    for out in w.hidden:
        layers += [nn.Linear(before, out), nn.ReLU()]
        before = out
    return nn.Sequential(*layers, nn.Linear(before, w.classes))


def report(seconds):
    """One line for the driver: seconds of every round but the first, which warms up."""
    print("ROUNDS " + json.dumps(list(seconds)[1:]), flush=True)
