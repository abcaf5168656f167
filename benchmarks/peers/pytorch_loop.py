"""Plain PyTorch, one process, all threads: a DataLoader per client, as tutorials write it. Third argument: a device."""

import sys

import torch
import workloads
from torch.utils.data import DataLoader, TensorDataset

w, rounds = workloads.WORKLOADS[sys.argv[1]], int(sys.argv[2])
device = (sys.argv[3:] or ["cpu"])[0]
x, y = (torch.from_numpy(a) for a in workloads.pool(w))
model, loss = workloads.module(w).to(device), torch.nn.CrossEntropyLoss()
shared = {k: v.clone() for k, v in model.state_dict().items()}
seconds = []
for index in range(rounds):
    start = workloads.now()
    total = {k: torch.zeros_like(v) for k, v in shared.items()}
    for client in workloads.cohort(w, index).tolist():
        at = workloads.rows(w, client)
        model.load_state_dict(shared)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(w.epochs):
            for a, b in DataLoader(TensorDataset(x[at], y[at]), w.batch, shuffle=True):
                optimiser.zero_grad()
                loss(model(a.to(device)), b.to(device)).backward()
                optimiser.step()
        for k, v in model.state_dict().items():
            total[k] += v / w.cohort
    shared = total
    seconds.append(workloads.now() - start)
workloads.report(seconds)
