"""What augmentation costs: the CIFAR-10 CNN on 4 clients of 500 images with and without it, one worker.

    python benchmarks/augmentation.py

Prints thousand client-samples per second of CPU time, children included.
"""

from __future__ import annotations

import resource

import numpy as np

from fedcohort.engines.factory import choose
from fedcohort.engines.interface import ClientData
from fedcohort.engines.recipe import network_of
from fedcohort.tasks import catalogue
from fedcohort.types import Model, Part, Plan

CLIENTS, EACH, EPOCHS = 4, 500, 2
WAYS = (("none", "fused"), ("crop-flip", "fused"), ("crop-flip", "torch_reference"))


def cpu_seconds():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def speed(norm, augment, kind):
    """Thousand client-samples per second: the best of three rounds, after one that compiles."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CLIENTS * EACH, 3, 32, 32), np.float32), rng.integers(10, size=CLIENTS * EACH)
    part = Part(np.arange(CLIENTS + 1) * EACH, np.arange(len(y)), y, y)
    task = catalogue.get("cifar10-cnn", norm=norm, augment=augment)
    engine = choose(task.model, ClientData(x, part, part, 10), kind, 1)
    model, plan = Model(network_of(task.model).initial(rng)), Plan(epochs=EPOCHS, batch_size=32, lr=0.05)
    best = 0.0
    for _ in range(4):
        before = cpu_seconds()
        engine.train(model, np.arange(CLIENTS), plan)
        best = max(best, EPOCHS * len(y) / (cpu_seconds() - before) / 1e3)
    engine.close()
    return best


if __name__ == "__main__":
    for norm in (None, "group"):
        for augment, kind in WAYS:
            print(
                f"norm {norm!s:6} augmentation {augment:10} {kind:16} {speed(norm, augment, kind):6.1f} k/s", flush=True
            )
