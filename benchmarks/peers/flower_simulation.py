"""Flower's simulation (Ray), one single-threaded actor per core; a client trains by tensor slicing."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
import torch
import workloads
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

NAME, ROUNDS = sys.argv[1], int(sys.argv[2])
W = workloads.WORKLOADS[NAME]
client_app, server_app = ClientApp(), ServerApp()
_kept = {}


@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    if not _kept:  # once per actor
        _kept["data"] = [torch.from_numpy(a) for a in workloads.pool(W)]
        _kept["model"] = workloads.module(W)
    (x, y), model = _kept["data"], _kept["model"]
    at = torch.from_numpy(workloads.rows(W, int(context.node_config["partition-id"])))
    own_x, own_y = x[at], y[at]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(W.epochs):
        for b in torch.randperm(W.samples).split(W.batch):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(own_x[b]), own_y[b]).backward()
            optimiser.step()
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": W.samples})}
    )
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when a round's training is ordered and when it is aggregated."""

    def __init__(self, **given):
        super().__init__(**given)
        self.seconds = []

    def configure_train(self, *given, **named):
        self.start = workloads.now()
        return super().configure_train(*given, **named)

    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        self.seconds.append(workloads.now() - self.start)
        return out


@server_app.main()
def serve(grid, context):
    share = W.cohort / W.clients
    strategy = Timed(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=W.clients)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(workloads.module(W).state_dict()), num_rounds=ROUNDS)
    workloads.report(strategy.seconds)


if __name__ == "__main__":
    cores = os.cpu_count()
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app,
        client_app,
        W.clients,
        backend_config={"client_resources": resources, "init_args": {"num_cpus": cores}},
    )
