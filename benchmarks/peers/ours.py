"""fedcohort's engines: the cohort trained from one model, FedAvg of the updates.

Arguments: workload, rounds, engine, and a device for the engines that take one. torch_workers trains for some seconds
before anything is timed, because it starts its processes only when a run is long enough.
"""

import sys
import time
from functools import partial

import numpy as np
import workloads

from fedcohort.engines.factory import choose
from fedcohort.engines.interface import ClientData
from fedcohort.engines.networks import lenet, resnet
from fedcohort.engines.torch_modules import initial
from fedcohort.types import Part, Plan

WARM = 6.0  # seconds


def setting(w):
    x, y = workloads.pool(w)
    index = np.concatenate([workloads.rows(w, k) for k in range(w.clients)])
    start = np.arange(w.clients + 1) * w.samples
    part = Part(start, index, y[index], y[index])
    none = Part(np.zeros(w.clients + 1, np.int64), *(np.empty(0, np.int64),) * 3)
    return network(w), ClientData(x, part, none, w.classes)


def network(w):
    if w.kind == "resnet":
        return resnet(w.shape, w.channels, classes=w.classes)
    if w.kind == "gru":
        return partial(workloads.module, w)
    return lenet(w.shape, w.channels, 5, w.hidden, w.classes)


def main():
    w, rounds, kind = workloads.WORKLOADS[sys.argv[1]], int(sys.argv[2]), sys.argv[3]
    made, data = setting(w)
    engine = choose(made, data, kind, device=(sys.argv[4:] or ["auto"])[0])
    model = initial(made, np.random.default_rng(0))
    plan = Plan(epochs=w.epochs, batch_size=w.batch, lr=0.01, measure=frozenset({"train_loss"}))
    begun, seconds = time.perf_counter(), []
    while kind == "torch_workers" and time.perf_counter() - begun < WARM:
        engine.train(model, workloads.cohort(w, 0), plan)
    for index in range(rounds):
        start = workloads.now()
        out = engine.train(model, workloads.cohort(w, index), plan)
        model = model.with_params(model.params + out.updates.delta.mean(axis=0))
        seconds.append(workloads.now() - start)
    engine.close()
    workloads.report(seconds)


if __name__ == "__main__":
    main()
