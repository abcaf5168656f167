"""What the tables and figures of the FLASH-RL paper have in common: 10 of 100 clients on twelve devices and four links.

Rows are selectors, always with FedAvg. FLASH-RL is the preset with its authors' exploration and learning rate, and an
agent that was repaired where theirs hardly learns (AGENT); FAVOR is its authors' comparison version. Latency is the sum
over rounds of the slowest client that was asked, as in the paper; the one warm-up epoch of everybody, which both agents
need for their principal axes, is left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.study import PERFECT_ROW, Lookup, Quantity, Value, of_scale, perfect

FEDAVG, FAVOR, FLASHRL = "FedAvg", "FAVOR", "FLASH-RL"
ROWS = (FEDAVG, FAVOR, FLASHRL, PERFECT_ROW)
CIFAR, MNIST = "CIFAR-10", "MNIST"
DIR8, DIR5, SHARDS, LABELS = "Dirichlet 0.8", "Dirichlet 0.5", "shards", "non-iid label"
WORLDS = {
    DIR8: "flashrl-dirichlet0.8-v1",
    DIR5: "flashrl-dirichlet0.5-v1",
    SHARDS: "flashrl-shards-v1",
    LABELS: "flashrl-noniid-label-v1",
}
PARAMETERS = {CIFAR: 108_098, MNIST: 582_026}  # of the paper's networks
SMALL = {CIFAR: 108_098, MNIST: 20_522}  # of those at scale laptop
DIGITS = 2_410  # of the one at scale smoke
TARGETS = {CIFAR: 0.55, MNIST: 0.99}  # FAVOR's Omega
EXPLORE_ROUNDS = 500  # of the authors' code, over runs of 300 rounds
_SAMPLES = (
    "405 training samples per client on average, of 500: a tenth of the images is validation data at the server, a "
    "tenth of a client's is its own"
)
AGENT = (
    "the agent sees standardised components, and latencies between the 5 and 95 % points of those seen instead of "
    "fixed ends; its outputs begin at zero, and every place of the cohort is learned from; the authors' code takes a "
    "signed mean for the divergence of eq. 5 (`divergence='repo'`)"
)
OF_TABLES = (  # beside AGENT: not true of Fig. 3
    "14 principal components instead of 100",
    "FAVOR is the authors' comparison version: it learns from one client a round, and has of these repairs only those "
    "of the network and inputs that it shares",
)
MOMENTUM = "momentum begins anew in every round; in the authors' code it stays with a client"
DEPARTURES = {
    "smoke": ("8 x 8 digits, a small perceptron, 20 clients, 6 rounds: it shows that everything runs, and no more",),
    "laptop": (
        "about 50 training samples per client instead of 500, batch 16 instead of 50; E = 5, lr 0.01, "
        "momentum 0.9 as in the authors' code",
        "a third of the rounds on CIFAR-10 (100) and half on MNIST (50, 50, 75), and exploration that falls as many "
        "times faster; latency is the mean of a round times the paper's number of rounds",
        "on MNIST a CNN of 8 and 16 channels (20,522 parameters); its latency is multiplied by 582,026 / 20,522, the "
        "ratio of the models' sizes (transfer is more than 99 % of it)",
        "best accuracy on 5,000 test images, measured every third round; the paper does not say which round it prints "
        "(its code plots the best so far)",
        "rewards from 1,000 validation images at the server; the authors' code takes the test set",
        "with a third or half of the rounds the agent learns a third or half as often",
        AGENT,
        *OF_TABLES,
        MOMENTUM,
        "several seeds instead of 1",
    ),
    "desk": (
        _SAMPLES,
        "on MNIST the CNN of 20,522 parameters",
        "best accuracy over an evaluation every fifth round; rewards from validation data, not from the test set",
        AGENT,
        *OF_TABLES,
        MOMENTUM,
        "several seeds instead of 1",
    ),
    "paper": (
        _SAMPLES,
        "rewards from validation data; the authors' code takes the test set",
        AGENT,
        *OF_TABLES,
        MOMENTUM,
        "several seeds instead of 1",
    ),
}


_TOLD = "epochs=5, batch_size=50, lr=0.01, momentum=0.9"  # local training of the authors' code; the paper states none


def rounds(scale: str, published: int) -> int:
    """How many are run where the paper ran so many."""
    fewer = published // (3 if published == 300 else 2)
    return int(of_scale(scale, smoke=6, laptop=fewer, desk=published, paper=published))


def selector(row: str, data: str, scale: str, published: int) -> str:
    """The text of a row's selector; FLASH-RL's exploration falls over the same share of a run at every scale."""
    if row == PERFECT_ROW:
        return perfect("complete")
    if row == FEDAVG:
        return "uniform"
    if row == FAVOR:
        return f"favor(preset='flash-rl', target={TARGETS[data]})"
    many = rounds(scale, published)
    return f"flash-rl(preset='paper', device=True, explore_rounds={EXPLORE_ROUNDS * many // published}, horizon={many})"


def run(scale: str, data: str, division: str, row: str, published: int) -> Mapping[str, Any]:
    """The keys of one run."""
    small = "epochs=5, batch_size=16, lr=0.01, momentum=0.9, unused=0.9, validation=0.02, recut=True, test=0.08333"
    laptop = {CIFAR: f"cifar10-cnn-flashrl({small})", MNIST: f"mnist-cnn({small})"}
    return {
        "selector": selector(row, data, scale, published),
        "method": "fedavg",
        "world": WORLDS[division] + of_scale(scale, smoke="(clients=20)", laptop="", desk="", paper=""),
        "task": of_scale(
            scale,
            smoke="digits-mlp(epochs=2)",
            laptop=laptop[data],
            desk={CIFAR: "cifar10-cnn-flashrl", MNIST: f"mnist-cnn({_TOLD})"}[data],
            paper={CIFAR: "cifar10-cnn-flashrl", MNIST: "mnist-cnn-flashrl"}[data],
        ),
        "rounds": rounds(scale, published),
        "cohort_size": of_scale(scale, smoke=4, laptop=10, desk=10, paper=10),
        "evaluate_every": of_scale(scale, smoke=1, laptop=3, desk=5, paper=1),
    }


def mean_seconds(record: RunRecord, _: Lookup) -> Value:
    """Of a round, without the warm-up."""
    plain = record.history.column("seconds")[record.history.column("probed") == 0]
    return float(np.mean(plain)) if plain.size else None


def latency(scale: str, data: str, published: int) -> Quantity:
    """Seconds of the published number of rounds with the published network, without the warm-up."""
    size = of_scale(scale, smoke=DIGITS, laptop=SMALL[data], desk=SMALL[data], paper=PARAMETERS[data])
    factor = PARAMETERS[data] / size * published
    return Quantity("latency", mean_seconds, better=-1, factor=factor, digits=1)
