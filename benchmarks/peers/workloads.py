"""The workloads, and what every contender shares: data, models, how a result is printed. No fedcohort here."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

POOL = 6000  # distinct samples; clients own runs of them, so that memory does not decide


@dataclass(frozen=True)
class Workload:
    shape: tuple[int, ...]
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    cohort: int
    epochs: int
    batch: int
    kind: str = "cnn"  # or "resnet" (with GroupNorm), or "gru" (two layers of channels[0] units)

    @property
    def passes(self) -> int:
        """Client-samples trained in a round."""
        return self.cohort * self.samples * self.epochs


WORKLOADS = {
    "W1": Workload((3, 32, 32), (6, 16), (120, 84), 10, 200, 250, 10, 5, 50),
    "W2": Workload((3, 32, 32), (32, 64), (512,), 10, 200, 250, 10, 5, 50),
    "W3": Workload((1, 28, 28), (16, 32), (128,), 62, 3550, 60, 355, 1, 20),
    "W4": Workload((3, 32, 32), (16, 32, 64), (), 10, 200, 250, 10, 5, 50, "resnet"),
    "GRU": Workload((128, 6), (32,), (), 6, 30, 250, 10, 1, 50, "gru"),
}


def pool(w):
    rng = np.random.default_rng(0)
    return rng.standard_normal((POOL, *w.shape), np.float32), rng.integers(w.classes, size=POOL)


def rows(w, client):
    return (client * w.samples + np.arange(w.samples)) % POOL


def cohort(w, index):
    return np.sort(np.random.default_rng([7, index]).choice(w.clients, w.cohort, replace=False))


def residual(before, out, stride):
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(before, out, 3, stride, 1, bias=False), nn.GroupNorm(8, out), nn.ReLU(),
                nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(8, out),
            )  # fmt: skip
            plain = stride == 1 and before == out
            short = nn.Sequential(nn.Conv2d(before, out, 1, stride, bias=False), nn.GroupNorm(8, out))
            self.short = nn.Identity() if plain else short

        def forward(self, x):
            return (self.body(x) + self.short(x)).relu()

    return Block()


def resnet(w):
    """ResNet-8 where there are three widths; the same parameters as fedcohort's `cifar10-resnet8`."""
    from torch import nn

    before = w.channels[0]
    layers = [nn.Conv2d(w.shape[0], before, 3, 1, 1, bias=False), nn.GroupNorm(8, before), nn.ReLU()]
    for at, out in enumerate(w.channels):
        layers.append(residual(before, out, 2 if at else 1))
        before = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, w.classes))


def recurrent(w):
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(w.shape[1], w.channels[0], 2, batch_first=True)
            self.head = nn.Linear(w.channels[0], w.classes)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    return Net()


def module(w):
    from torch import nn

    if w.kind != "cnn":
        return resnet(w) if w.kind == "resnet" else recurrent(w)
    side, before, layers = w.shape[1], w.shape[0], []
    for out in w.channels:
        layers += [nn.Conv2d(before, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
        before, side = out, (side - 4) // 2
    layers.append(nn.Flatten())
    before *= side * side
    for out in w.hidden:
        layers += [nn.Linear(before, out), nn.ReLU()]
        before = out
    return nn.Sequential(*layers, nn.Linear(before, w.classes))


def now():
    """Seconds: of the wall, or (FEDCOHORT_ROOT set) of CPU of that process and all below it, divided by the cores.

    The latter is for machines that are busy with other things: it is the wall's time on quiet cores for contenders that
    keep all cores at work, and less than that for those that do not.
    """
    root = os.environ.get("FEDCOHORT_ROOT")
    if not root:
        return time.perf_counter()
    spent, parent = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found = file.read_text().rpartition(")")[2].split()
            parent[file.parent.name], spent[file.parent.name] = found[1], sum(map(int, found[11:15]))
    ours = {root}
    while more := {pid for pid, above in parent.items() if above in ours} - ours:
        ours |= more
    return sum(spent.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK") / os.cpu_count()


def report(seconds):
    """One line for the driver: seconds of every round but the first, which warms up."""
    print("ROUNDS " + json.dumps(list(seconds)[1:]), flush=True)
