"""What tiles gain: convolutions of the fused engine with and without them, interleaved in one run.

    python benchmarks/tiles.py            prints a table; its last rows are all steps of a network

One thread, blocks of 16 samples, forward and backward; the best of five.
"""

from __future__ import annotations

import time

import numpy as np
from numba import njit

from fedcohort.engines import networks
from fedcohort.engines.fused import graph_rows as at
from fedcohort.engines.fused import graph_tiles
from fedcohort.engines.fused.graph_program import program_of
from fedcohort.engines.fused.graph_rows import call_step
from fedcohort.engines.fused.graph_runner import _USERS, BLOCK

CASES = (  # channels in and out, kernel, side, padding
    (3, 6, 5, 32, 0),
    (6, 16, 5, 14, 0),
    (2, 8, 5, 32, 0),
    (16, 32, 5, 14, 2),
    (16, 32, 5, 7, 2),
    (64, 64, 5, 14, 2),
    (8, 8, 3, 32, 1),
    (16, 16, 3, 32, 1),
    (32, 32, 3, 16, 1),
    (64, 64, 3, 8, 1),
)
NETWORKS = {
    "LeNet with group normalisation": networks.lenet((3, 32, 32), (6, 16), 5, (120, 84), 10, 0, "group"),
    "ResNet-8": networks.resnet((3, 32, 32), (16, 32, 64), classes=10),
}
pays = graph_tiles.pays


@njit
def repeat(address, row, ws, w, g, stats, s, count):
    for _ in range(count):
        call_step(address, (row, ws, w, g, stats, s, 1, 0, 0))


def steps_of(network, tiled, only=None):
    """A function that returns microseconds per sample of forward and backward passes, through all steps or one."""
    graph_tiles.pays = pays if tiled else lambda *_: False
    program = program_of(network, BLOCK)
    program.prepare(True, _USERS)
    ws, _ = program.workspace()
    rng = np.random.default_rng(0)
    ws[:] = rng.normal(0, 0.1, ws.size)
    for place, number in program.constants:
        ws[place] = number
    w = rng.normal(0, 0.1, network.n_params + 512).astype(np.float32)
    g, stats = np.zeros_like(w), np.zeros(0, np.float32)
    steps = program.steps if only is None else program.steps[only : only + 1]

    def measure():
        spent = 0.0
        for row in steps:
            for way in (at.FORWARD, at.BACKWARD):
                start = time.perf_counter()
                repeat(int(row[way]), row, ws, w, g, stats, BLOCK, 50)
                spent += (time.perf_counter() - start) / 50 / BLOCK * 1e6
        return spent

    return measure


def compare(network, only=None):
    ways = [steps_of(network, tiled, only) for tiled in (False, True)]
    plain, tiles = np.array([[way() for way in ways] for _ in range(6)])[1:].min(axis=0)
    return f"| {plain:.1f} | {tiles:.1f} | {plain / tiles:.2f} |"


def main():
    print("| | plain (us per sample) | tiles | ratio |\n|---|---|---|---|")
    for ci, co, k, side, padding in CASES:
        layers = (networks.Conv(ci, 1), networks.Conv(co, k, padding), networks.GlobalAvgPool(), networks.Flatten())
        network = networks.Network((ci, side, side), (*layers, networks.Linear(10)))
        print(f"| {k} x {k}, {ci} to {co} channels, {side} x {side}, padding {padding} {compare(network, 1)}")
    for name, network in NETWORKS.items():
        print(f"| {name}, all steps {compare(network)}")


if __name__ == "__main__":
    main()
