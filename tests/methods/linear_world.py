"""A linear softmax model in numpy as server evaluator and as clients' evaluator,
and small makers of updates and contexts."""

from __future__ import annotations

import numpy as np

from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Plan, Updates


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class LinearEvaluator:
    """params = W (classes, features) flat; logits = x W^T. Splits are given by name."""

    def __init__(self, features, classes, **splits):
        self.features, self.classes, self.splits = features, classes, splits

    def size(self, split):
        return len(self.splits[split][0]) if split in self.splits else 0

    def labels(self, split):
        return self.splits[split][1]

    def logits(self, params, split, buffers=None):
        w = params.reshape(len(params), self.classes, self.features)
        return np.einsum("nf,kcf->knc", self.splits[split][0], w).astype(np.float32)

    def gradient(self, params, split, rows, target, buffers=None):
        x = self.splits[split][0][rows]
        p = softmax(x @ params.astype(np.float64).reshape(self.classes, self.features).T)
        loss = float(-(target * np.log(p)).sum(axis=1).mean())
        return loss, ((p - target).T @ x / len(rows)).reshape(-1).astype(np.float32)


class MLPEvaluator(LinearEvaluator):
    """One hidden tanh layer, so that averaging models is not averaging logits. Same splits."""

    hidden = 6

    def _split(self, params):
        cut = self.hidden * self.features
        a = params[:cut].reshape(self.hidden, self.features)
        return a, params[cut:].reshape(self.classes, self.hidden)

    @property
    def n_params(self):
        return self.hidden * (self.features + self.classes)

    def logits(self, params, split, buffers=None):
        x = self.splits[split][0]
        out = []
        for one in params:
            a, b = self._split(one.astype(np.float64))
            out.append(np.tanh(x @ a.T) @ b.T)
        return np.array(out, np.float32)

    def gradient(self, params, split, rows, target, buffers=None):
        x = self.splits[split][0][rows]
        a, b = self._split(params.astype(np.float64))
        h = np.tanh(x @ a.T)
        p = softmax(h @ b.T)
        dz = (p - target) / len(rows)
        dh = dz @ b * (1 - h * h)
        loss = float(-(target * np.log(p)).sum(axis=1).mean())
        return loss, np.concatenate([(dh.T @ x).reshape(-1), (dz.T @ h).reshape(-1)]).astype(np.float32)


def planted(rng, n, features, classes, spread=2.0):
    """Inputs and labels from a planted linear rule."""
    rule = rng.normal(0, spread, (classes, features))
    x = rng.normal(0, 1, (n, features))
    return x, (x @ rule.T).argmax(axis=1), rule


def updates_of(delta, clients=None, weight=None, **extras):
    delta = np.asarray(delta, np.float32)
    m = len(delta)
    return Updates(
        clients=np.arange(m, dtype=np.int64) if clients is None else np.asarray(clients, np.int64),
        delta=delta,
        weight=np.full(m, 10.0) if weight is None else np.asarray(weight, np.float64),
        steps=np.full(m, 3, np.int64),
        extras={k: np.asarray(v) for k, v in extras.items()},
    )


def context_of(
    server_evaluator=None, *, index=0, population=20, samples=None, client_evaluator=None, seed=0, dispatched=None
):
    return Aggregation(
        index=index,
        plan=Plan(),
        population=population,
        samples=np.full(population, 10, np.int64) if samples is None else np.asarray(samples, np.int64),
        dispatched=np.arange(population) if dispatched is None else dispatched,
        server_evaluator=server_evaluator,
        rng=np.random.default_rng(seed),
        client_evaluator=client_evaluator,
    )


def model_of(params):
    return Model(np.asarray(params, np.float32))


def check_invariants(make, evaluator, params, *, client_evaluator=None, idle=True, extras=None):
    """Empty cohort, NaN rows, permutation (bitwise), single client, idle. `make` builds a fresh method."""
    rng = np.random.default_rng(5)
    model, m = model_of(params), 5
    delta = rng.normal(0, 0.3, (m, model.params.size)).astype(np.float32)
    clients, weight = np.array([2, 3, 7, 11, 12]), np.array([5.0, 20, 10, 10, 1])
    more = {} if extras is None else {k: np.asarray(v) for k, v in extras.items()}

    def run(rows, given=delta, method=None):
        method = method or make()
        method.prepare(Plan(), model, clients[rows])
        u = updates_of(given[rows], clients[rows], weight[rows], **{k: v[rows] for k, v in more.items()})
        return method.aggregate(model, u, context_of(evaluator, client_evaluator=client_evaluator))

    empty = run(np.arange(0))
    np.testing.assert_array_equal(empty.model.params, model.params)
    assert empty.accepted.shape == (0,)

    straight, shuffled = run(np.arange(m)), run(np.array([3, 0, 4, 2, 1]))
    np.testing.assert_array_equal(straight.model.params, shuffled.model.params)
    np.testing.assert_array_equal(straight.accepted[[3, 0, 4, 2, 1]], shuffled.accepted)
    assert straight.accepted.any()
    assert np.isfinite(straight.model.params).all()

    broken = delta.copy()
    broken[1, 0] = np.nan
    without = run(np.array([0, 2, 3, 4]))
    with_nan = run(np.arange(m), broken)
    assert not with_nan.accepted[1]
    np.testing.assert_array_equal(with_nan.model.params, without.model.params)

    alone = run(np.array([2]))
    np.testing.assert_allclose(alone.model.params, model.params + delta[2], rtol=0, atol=1e-6)
    assert alone.accepted.tolist() == [True]

    nobody = run(np.array([1]), broken)
    np.testing.assert_array_equal(nobody.model.params, model.params)
    assert not nobody.accepted.any()
    if idle:
        still = run(np.arange(m), np.zeros_like(delta))
        np.testing.assert_array_equal(still.model.params, model.params)


def check_resume(make, evaluator, params, *, client_evaluator=None, rounds=3, extras=None):
    """Saved and loaded in the middle, the future is the same."""
    rng = np.random.default_rng(9)
    model = model_of(params)
    clients = np.array([1, 4, 6, 9])
    deltas = rng.normal(0, 0.3, (rounds, 4, model.params.size)).astype(np.float32)

    def play(method, start, at):
        for t in at:
            more = {k: v[t] for k, v in (extras or {}).items()}
            u = updates_of(deltas[t], clients, **more)
            start = method.aggregate(
                start, u, context_of(evaluator, index=t, client_evaluator=client_evaluator, seed=t)
            ).model
        return start

    first = make()
    middle = play(first, model, range(rounds - 1))
    saved = {k: v.copy() for k, v in first.state_dict().items()}
    expected = play(first, middle, [rounds - 1])
    second = make()
    second.load_state_dict(saved)
    np.testing.assert_array_equal(play(second, middle, [rounds - 1]).params, expected.params)
    return saved
