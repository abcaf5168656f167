"""Buffers of a client that was drawn more than once."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.methods.fedavg import FedAvg
from fedcohort.methods.fedbuff import FedBuff
from fedcohort.methods.median import Median
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates

MODEL = Model(np.zeros(1, np.float32), np.zeros(1, np.float32), np.zeros(1, np.int64))
SENT = np.array([[8.0], [2.0]], np.float32)  # of clients 0 and 1


def merged(method, clients, times):
    """Buffers and counters of the new model, where each client of the row sends what is its own."""
    at = np.array(clients)
    ones = np.ones(at.size)
    counters = np.array([[7], [5]])[at]
    updates = Updates(at, SENT[at], ones, ones.astype(np.int64), SENT[at], counters)
    context = Aggregation(0, Plan(), 2, np.ones(2, np.int64), np.unique(at), multiplicity=times)
    made = method.aggregate(MODEL, updates, context).model
    return float(made.buffers[0]), int(made.counters[0])


METHODS = {"fedavg": (FedAvg, 4.0), "fedbuff": (lambda: FedBuff(size=2), 4.0), "median": (Median, 2.0)}


@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_was_drawn_twice_counts_twice(name):
    """(8 + 2 + 2) / 3 = 4, and the median of (8, 2, 2) is 2: as if its reply had come twice."""
    make, mean = METHODS[name]
    assert merged(make(), [0, 1], {})[0] == 5.0
    twice = merged(make(), [0, 1], {0: 1, 1: 2})
    assert twice[0] == mean
    assert twice == merged(make(), [0, 1, 1], {})
