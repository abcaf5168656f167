"""fedcohort's engines: the cohort trained from one model, FedAvg of the updates. Third argument: fused or torch_workers."""

import sys
import time

import numpy as np
import workloads

from fedcohort.engines.factory import choose
from fedcohort.engines.interface import ClientData
from fedcohort.engines.networks import lenet
from fedcohort.types import Model, Part, Plan


def setting(w):
    x, y = workloads.pool(w)
    index = np.concatenate([workloads.rows(w, k) for k in range(w.clients)])
    start = np.arange(w.clients + 1) * w.samples
    part = Part(start, index, y[index], y[index])
    none = Part(np.zeros(w.clients + 1, np.int64), *(np.empty(0, np.int64),) * 3)
    return lenet(w.shape, w.channels, 5, w.hidden, w.classes), ClientData(x, part, none, w.classes)


def main():
    w, rounds, kind = workloads.WORKLOADS[sys.argv[1]], int(sys.argv[2]), sys.argv[3]
    network, data = setting(w)
    engine = choose(network, data, kind)
    model = Model(network.initial(np.random.default_rng(0)))
    plan = Plan(epochs=w.epochs, batch_size=w.batch, lr=0.01, measure=frozenset({"train_loss"}))
    seconds = []
    for index in range(rounds):
        start = time.perf_counter()
        out = engine.train(model, workloads.cohort(w, index), plan)
        model = model.with_params(model.params + out.updates.delta.mean(axis=0))
        seconds.append(time.perf_counter() - start)
    engine.close()
    workloads.report(seconds)


if __name__ == "__main__":
    main()
