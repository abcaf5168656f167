"""What the tables of the FedCM paper have in common: 20 clients of CIFAR-10, 8 asked per round, E = 5, VGG-11.

FedAvg and FedProx in that paper keep the global model for those that were not asked (its eq. 3); FedPdp is
`fedpdp(form='delta')`, see docs/methods/fedpdp.md for why not the printed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcohort.experiment.papers.study import of_scale

CLIENT, CLASS = "client heterogeneity", "class heterogeneity"
WORLDS = {CLIENT: "fedcm-client-0.1-v1", CLASS: "fedcm-class-0.1-v1"}
SCORES = {"accuracy": "Dirac delta", "log_likelihood": "classification loss"}
SEEDS = {"smoke": 1, "laptop": 4, "paper": 2}
DEPARTURES = {
    "smoke": ("8 x 8 digits, a small perceptron, 4 rounds: it shows that everything runs, and nothing else",),
    "laptop": (
        "the PyTorch-tutorial CNN (62,006 parameters) in the place of VGG-11",
        "an eighth of the training data (281 samples per client on average), no augmentation",
        "batch 50, lr 0.05, momentum 0.5, weight decay 5e-4 (the paper states none)",
        "40 rounds in the place of 100, 4 seeds in the place of 2",
        "terminal accuracy (mean of the last fifth of the rounds); the paper does not say which round it prints",
    ),
    "paper": ("group in the place of batch normalisation, no augmentation", "lr 0.01, momentum 0.9: not stated"),
}


def run(scale: str, world: str, method: str, selector: str = "uniform", size: int = 8) -> Mapping[str, Any]:
    """The keys of one run."""
    return {
        "selector": selector,
        "method": method,
        "world": world,
        "task": of_scale(
            scale,
            smoke="digits-mlp(epochs=2)",
            laptop="cifar10-cnn(epochs=5, batch_size=50, lr=0.05, unused=0.875)",
            paper="cifar10-vgg11(epochs=5)",
        ),
        "rounds": of_scale(scale, smoke=4, laptop=40, paper=100),
        "size": size,
        "evaluate_every": of_scale(scale, smoke=1, laptop=2, paper=1),
    }
