"""What the tables of HeteRo-Select have in common: 12 clients of CIFAR-10, alpha 0.1, 6 asked, FedProx, plain mean.

Only a summary of the paper was available; see `fedcohort show hetero-select` for what had to be defined. Diversity is
the Jensen-Shannon divergence of label shares, as there, so label histograms (privacy P3) are allowed in these runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcohort.experiment.metrics import run_metrics as metrics
from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.study import Lookup, Quantity, Value, of_scale, perfect

LAST = 10  # rounds behind "stable"
_SAMPLES = "45,000 images of CIFAR-10, 3,750 per client on average; a tenth is validation data at the server"
_NO_BLACKLIST = "Oort without its blacklist, which is made for many clients: of twelve, all would come onto it"
_PERFECT = (
    "a perfect choice asks the same few cohorts in turn, so that every second round would show one of them only: it is "
    "evaluated in every round, which raises its peak a little"
)
_DIVISION = (
    "the division is by client: the shares of each class over the clients are Dirichlet(0.1), so that clients hold "
    "very different numbers of images, and the plain mean weighs all the same; the summary does not say which Dirichlet"
)
DEPARTURES = {
    "smoke": ("8 x 8 digits, a small perceptron, 6 rounds: it shows that everything runs, and nothing else",),
    "laptop": (
        "the PyTorch-tutorial CNN (62,006 parameters); the summary names no network",
        _DIVISION,
        "15 % of each client's samples are held out as its own validation data",
        "4 % of the training data (150 samples per client on average), batch 32, momentum 0.9; E = 5, lr 0.01 as told",
        "50 rounds instead of 100, and a temperature that falls over these",
        "Oort with its blacklist: who was asked more than 10 times may be left out, at most 3 at a time",
        "5,000 test images, every second round; stable is the mean of the last 10 rounds (not defined in the summary)",
        _PERFECT,
        "gamma = 0.7, tau0 = 1, all weights 1: tau0 of the main runs is not stated",
    ),
    "desk": (
        "the PyTorch-tutorial CNN with group normalisation; the summary names no network",
        _DIVISION,
        _SAMPLES,
        "100 rounds, E = 5, lr 0.01 as told; batch 64, momentum 0.9: not stated",
        _NO_BLACKLIST,
        "test accuracy in every second round; stable is the mean of the last 10 rounds (not defined in the summary)",
        _PERFECT,
        "gamma = 0.7, tau0 = 1, all weights 1: tau0 of the main runs is not stated",
    ),
    "paper": (
        "ResNet-18 with group normalisation, batch 64, momentum 0.9, no augmentation: not stated",
        _DIVISION,
        _SAMPLES,
        _NO_BLACKLIST,
        "gamma = 0.7, tau0 = 1, all weights 1: tau0 of the main runs is not stated",
    ),
}


def rounds(scale: str) -> int:
    """How many."""
    return int(of_scale(scale, smoke=6, laptop=50, desk=100, paper=100))


def hetero(scale: str, variant: str = "additive", tau0: float = 1.0) -> str:
    """The selector's text; its temperature falls over the whole run, as over the paper's 100 rounds."""
    return f"hetero-select(variant={variant!r}, diversity='js', tau0={tau0}, horizon={rounds(scale)})"


def oort(scale: str) -> str:
    """Oort; without its blacklist, which is made for many clients: of twelve, all would come onto it."""
    return "oort" if scale in ("smoke", "laptop") else "oort(blacklist=0)"


def run(scale: str, selector: str, size: int = 6, mu: float = 0.1, adapt: float = 0.0) -> Mapping[str, Any]:
    """The keys of one run."""
    follows = f", adapt={adapt}" if adapt else ""
    return {
        "selector": selector,
        "method": f"fedprox(mu={mu}{follows}, form='uniform')",
        "world": "hetero-0.1-v1" if scale in ("smoke", "laptop") else "hetero-0.1-v1(held_out=0.0)",
        "task": of_scale(
            scale,
            smoke="digits-mlp(epochs=2)",
            laptop="cifar10-cnn(epochs=5, batch_size=32, lr=0.01, momentum=0.9, weight_decay=0.0, unused=0.96, "
            "validation=0.02, recut=True, test=0.08333)",
            desk="cifar10-cnn(epochs=5, batch_size=64, lr=0.01, momentum=0.9, weight_decay=0.0, norm='group')",
            paper="cifar10-resnet18(epochs=5, batch_size=64, lr=0.01, momentum=0.9, optimiser='sgd')",
        ),
        "rounds": rounds(scale),
        "cohort_size": size,
        "evaluate_every": 1 if selector == perfect("complete") else of_scale(scale, smoke=1, laptop=2, desk=2, paper=1),
        "max_privacy": "P3",
    }


def _stable(record: RunRecord, _: Lookup) -> Value:
    return metrics.terminal(record.history.accuracy, LAST)


STABLE = Quantity("stable", _stable, factor=100.0, digits=2, alone=True)
