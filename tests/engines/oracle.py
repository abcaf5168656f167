"""An oracle of its own: local training and evaluation in a dozen lines of float64 PyTorch, sharing no code."""

from __future__ import annotations

import numpy as np
import torch

from fedcohort.engines.interface import ClientData, batch_order
from fedcohort.engines.networks import Conv, Flatten, Linear, MaxPool, ReLU
from fedcohort.types import Part

torch.set_num_threads(1)


def module_of(network):
    made = []
    for layer, shape in zip(network.layers, network.shapes, strict=False):
        if isinstance(layer, Conv):
            made.append(torch.nn.Conv2d(shape[0], layer.out, layer.kernel, padding=layer.padding))
        elif isinstance(layer, Linear):
            made.append(torch.nn.Linear(shape[0], layer.out))
        elif isinstance(layer, MaxPool):
            made.append(torch.nn.MaxPool2d(layer.size))
        else:
            made.append({ReLU: torch.nn.ReLU, Flatten: torch.nn.Flatten}[type(layer)]())
    return torch.nn.Sequential(*made).double()


def loaded(network, params):
    module = module_of(network)
    torch.nn.utils.vector_to_parameters(torch.tensor(np.asarray(params, np.float64)), module.parameters())
    return module


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy()


def objective(o, z, y, q):
    log_p = torch.log_softmax(z, 1)
    hot = torch.nn.functional.one_hot(y, z.shape[1]).double()
    smooth = (1 - o.smoothing) * hot + o.smoothing / z.shape[1]
    p_y = (log_p.exp() * hot).sum(1)
    return -o.ce * (smooth * log_p).sum(1) - o.pseudo * (q * log_p).sum(1) - o.rce * o.floor * (1 - p_y)


def samples(data, client, part="train"):
    own = getattr(data, part)
    at = own.of(client)
    return torch.tensor(data.x[own.index[at]]).double(), torch.tensor(own.label[at])


def train(network, data, params, client, plan, *, epochs, lr, correction=None, weight=None):
    """Local weights minus broadcast weights, steps, and the first epoch's cross-entropies."""
    module = loaded(network, params)
    x, y = samples(data, client)
    with torch.no_grad():
        q = torch.softmax(module(x), 1)
    start = [p.detach().clone() for p in module.parameters()]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[plan.optimiser]
    extra = {"momentum": plan.momentum} if plan.optimiser == "sgd" else {}
    optimiser = kind(module.parameters(), lr=lr, weight_decay=plan.weight_decay, **extra)
    seen, steps = [], 0
    for epoch in range(epochs):
        order = torch.tensor(batch_order(len(y), plan, client, epoch))
        for at in order.split(plan.batch_size):
            optimiser.zero_grad()
            z = module(x[at])
            each = objective(plan.objective, z, y[at], q[at])
            (each if weight is None else each * torch.tensor(weight).double()[at]).mean().backward()
            place = 0
            for p, w in zip(module.parameters(), start, strict=True):
                p.grad += plan.prox * (p.detach() - w)
                if correction is not None:
                    p.grad += torch.tensor(correction[place : place + p.numel()]).double().view_as(p)
                place += p.numel()
            if epoch == 0:
                seen.append(torch.nn.functional.cross_entropy(z.detach(), y[at], reduction="none"))
            optimiser.step()
            steps += 1
    return flat(module.parameters()) - np.asarray(params, np.float64), steps, torch.cat(seen).numpy()


def look(network, data, params, client, o, part="train"):
    """Per-sample objective with the model's own pseudo-labels, and correctness."""
    module = loaded(network, params)
    x, y = samples(data, client, part)
    with torch.no_grad():
        z = module(x)
        return objective(o, z, y, torch.softmax(z, 1)).numpy(), (z.argmax(1) == y).numpy()


def gradient(network, data, params, client):
    module = loaded(network, params)
    x, y = samples(data, client)
    torch.nn.functional.cross_entropy(module(x), y).backward()
    return flat([p.grad for p in module.parameters()])


def body(network, sizes, held=3, seed=0):
    """Clients of these sizes with Gaussian inputs and `held` validation samples each, rows shuffled."""
    rng = np.random.default_rng(seed)
    n, m = int(sum(sizes)), len(sizes)
    total = n + held * m
    x = rng.standard_normal((total, *network.input_shape)).astype(np.float32)
    rows, y = rng.permutation(total), rng.integers(network.classes, size=total)

    def part(counts, at):
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Part(start, rows[at], y[at], y[at])

    return ClientData(x, part(sizes, slice(0, n)), part([held] * m, slice(n, total)), network.classes)
