"""pfl-research, simulated backend; start it with torchrun for one single-threaded process per core."""

import sys

import numpy as np
import torch
import workloads
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

torch.set_num_threads(1)
W, ROUNDS = workloads.WORKLOADS[sys.argv[1]], int(sys.argv[2])
POOL = [torch.from_numpy(a) for a in workloads.pool(W)]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = workloads.module(W)

    def forward(self, x):
        return self.body(x)

    def loss(self, x, y, eval=False):
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=True):
        return {"loss": Weighted(float(torch.nn.functional.cross_entropy(self(x), y, reduction="sum")), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.seconds, self.last = [], None

    def on_train_begin(self, *, model):
        self.last = workloads.now()
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now = workloads.now()
        self.seconds.append(now - self.last)
        self.last = now
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


def owned(client):
    at = torch.from_numpy(workloads.rows(W, client))
    return PyTorchTensorDataset((POOL[0][at], POOL[1][at]), user_id=str(client))


def main():
    rng = np.random.default_rng(0)
    data = FederatedDataset(owned, lambda: int(rng.integers(W.clients)))
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(training_data=data, val_data=data)
    clock = Clock()
    train = NNTrainHyperParams(local_batch_size=W.batch, local_num_epochs=W.epochs, local_learning_rate=0.01)
    algorithm = NNAlgorithmParams(ROUNDS, ROUNDS + 1, W.cohort, 0)
    FederatedAveraging().run(algorithm, backend, model, train, callbacks=[clock], send_metrics_to_platform=False)
    import os

    if os.environ.get("RANK", "0") == "0":
        workloads.report(clock.seconds)


if __name__ == "__main__":
    main()
