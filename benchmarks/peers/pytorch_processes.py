"""PyTorch by tensor slicing, one single-threaded process per core; "last" as third argument: channels-last."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np
import torch
import torch.multiprocessing as mp
import workloads


def work(name, last, orders, answers):
    torch.set_num_threads(1)
    w = workloads.WORKLOADS[name]
    x, y = (torch.from_numpy(a) for a in workloads.pool(w))
    form = torch.channels_last if last and x.ndim == 4 else torch.contiguous_format
    model, x = workloads.module(w).to(memory_format=form), x.contiguous(memory_format=form)
    while True:
        order = orders.get()
        if order is None:
            return
        clients, flat = order
        flat = torch.from_numpy(flat)
        total = torch.zeros_like(flat)
        for client in clients:
            at = torch.from_numpy(workloads.rows(w, client))
            with torch.no_grad():
                start = 0
                for p in model.parameters():
                    p.copy_(flat[start : start + p.numel()].view(p.shape))
                    start += p.numel()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            own_x, own_y = x[at], y[at]
            for _ in range(w.epochs):
                for b in torch.randperm(w.samples).split(w.batch):
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(model(own_x[b]), own_y[b]).backward()
                    optimiser.step()
            total += torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        answers.put(total.numpy())


def main():
    name, rounds, last = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["last"]
    w, cores = workloads.WORKLOADS[name], os.cpu_count()
    context = mp.get_context("spawn")
    orders, answers = [context.SimpleQueue() for _ in range(cores)], context.SimpleQueue()
    team = [context.Process(target=work, args=(name, last, q, answers), daemon=True) for q in orders]
    for process in team:
        process.start()
    flat = np.concatenate([p.detach().numpy().reshape(-1) for p in workloads.module(w).parameters()])
    seconds = []
    for index in range(rounds):
        start = workloads.now()
        cohort = workloads.cohort(w, index).tolist()
        for i, q in enumerate(orders):
            q.put((cohort[i::cores], flat))
        flat = sum(answers.get() for _ in orders) / w.cohort
        seconds.append(workloads.now() - start)
    for q in orders:
        q.put(None)
    workloads.report(seconds)


if __name__ == "__main__":
    main()
