"""A small hand-made world, and ways to break it."""

from __future__ import annotations

import numpy as np

from fedcohort.core.rng import exponential_at, generator, uniform_at
from fedcohort.types import Part


class ToyWorld:
    name, classes = "toy", 3

    def __init__(self, seed, clients=8, each=12):
        r = generator(seed, "toy")
        self.seed, self.population, self.digest = seed, clients, f"toy-{seed}"
        rows = r.permutation(clients * each)
        clean = rows % self.classes
        label = np.where(r.random(rows.size) < 0.2, (clean + 1) % self.classes, clean)
        cut = np.tile(np.arange(each) < each - 2, clients)
        self.train = self._part(rows, label, clean, cut, each - 2)
        self.validation = self._part(rows, label, clean, ~cut, 2)

    def _part(self, rows, label, clean, keep, each):
        start = np.arange(self.population + 1, dtype=np.int64) * each
        return Part(start, *(a[keep].astype(np.int64) for a in (rows, label, clean)))

    def available(self, index, clock):
        return np.flatnonzero(uniform_at(self.seed, "there", index, np.arange(self.population)) < 0.8)

    def seconds(self, index, clients, work):
        return work.samples * work.passes * (1 + exponential_at(self.seed, "time", index, clients))

    def dropped(self, index, clients):
        return uniform_at(self.seed, "drop", index, clients) < 0.2

    def tamper(self, index, updates, signals):
        return updates, signals

    def profiles(self):
        return {"samples": self.train.sizes}


class LinearEvaluator:
    """Softmax regression on 4 features and 3 classes: 12 parameters, gradients by hand."""

    classes = 3

    def __init__(self):
        r = generator(0, "bench")
        self.x = {"validation": r.normal(size=(30, 4)), "unlabelled": r.normal(size=(20, 4))}
        self.y = np.argmax(self.x["validation"] @ r.normal(size=(4, 3)), axis=1)

    def size(self, split):
        return len(self.x.get(split, ()))

    def labels(self, split):
        return self.y

    def logits(self, params, split, buffers=None):
        weight = np.asarray(params, np.float64).reshape(-1, 3, 4)
        return np.einsum("kcf,nf->knc", weight, self.x[split])

    def gradient(self, params, split, rows, target, buffers=None):
        z = self.logits(params[None], split)[0][rows]
        z = z - z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        loss = -float((target * np.log(p)).sum(axis=1).mean())
        return loss, ((p - target).T @ self.x[split][rows] / len(rows)).reshape(-1)
