"""Small bodies of client data and a bare world, made by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedcohort.engines.interface import ClientData
from fedcohort.types import Part


def part(sizes, rows, labels, clean=None):
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    labels = np.asarray(labels, np.int64)
    return Part(start, np.asarray(rows, np.int64), labels, labels if clean is None else np.asarray(clean, np.int64))


def client_data(sizes, shape=(12,), classes=4, held=0, seed=0):
    """Clients of these sizes with Gaussian inputs, and `held` validation samples each."""
    rng = np.random.default_rng(seed)
    n, v = int(np.sum(sizes)), held * len(sizes)
    x = rng.standard_normal((n + v, *shape)).astype(np.float32)
    y = rng.integers(classes, size=n + v)
    return ClientData(
        x,
        part(sizes, rng.permutation(n), y[:n]),
        part([held] * len(sizes), np.arange(n, n + v), y[n:]),
        classes,
    )


@dataclass
class BareWorld:
    """What binding needs of a world, and nothing else."""

    train: Part
    validation: Part
    classes: int
    name: str = "bare"

    @property
    def population(self):
        return self.train.sizes.size


def bare_world(labels, clients, classes, *, alpha=None, noise=0.0, held=0, seed=0):
    """Split a pool at random, or by a Dirichlet over clients for every class; flip a share of the labels."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(clients, size=labels.size)
    if alpha is not None:
        for c in range(classes):
            at = np.flatnonzero(labels == c)
            owner[at] = rng.choice(clients, at.size, p=rng.dirichlet(np.full(clients, alpha)))
    rows = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=clients)
    seen = labels[rows].copy()
    flip = rng.random(seen.size) < noise
    seen[flip] = (seen[flip] + rng.integers(1, classes, size=flip.sum())) % classes
    empty = part([0] * clients, [], [])
    validation = (
        empty if not held else part([held] * clients, rng.choice(labels.size, held * clients), np.zeros(held * clients))
    )
    if held:
        validation = part([held] * clients, validation.index, labels[validation.index])
    return BareWorld(part(sizes, rows, seen, labels[rows]), validation, classes)


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Tiny models gain nothing from threads, and wait for each other on a busy machine."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_data():
    return client_data


@pytest.fixture
def make_world():
    return bare_world
