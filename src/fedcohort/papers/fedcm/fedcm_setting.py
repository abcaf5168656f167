"""What the tables of the FedCM paper have in common: 20 clients of CIFAR-10, 8 asked per round, E = 5, VGG-11.

Its Table 1 says who is asked and how models are averaged:

    FedAvg     uniform             those that were not asked count with the old model (its eq. 3)
    FedProx    p_k, repeatedly     plain mean, proximal term 0.1
    FedPdp     uniform             p_k N / |S|
    + CA       as without          the same over S_opt, which ensembles best on validation data
    FedCM      UCB or TS           FedPdp + CA

Of p_k the paper says only that it is the weight of client k. It is read as the share of all samples, and p_k N / |S|,
which then sums to one on average only and rescales the model in every round, as p_k / sum p_k, with and without CA:
later code of the same group (FedCSB-ER, which has no CA) weighs so. The other reading, p_k = 1 / N, makes the printed
sums exact and FedPdp the plain mean that eq. 4 chooses subsets for; it is rows of Table 4. In class heterogeneity all
clients own as much, and the readings are one (see docs/methods/fedpdp.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcohort.papers.study import PERFECT_ROW, of_scale, perfect

CLIENT, CLASS = "client heterogeneity", "class heterogeneity"
EVEN = "client heterogeneity, equal weights"  # the other reading of p_k
CLIENTS = 20
WORLDS = {CLIENT: "fedcm-client-0.1-v1(held_out=0.0)", CLASS: "fedcm-class-0.1-v1(held_out=0.0)"}
SCORES = {"accuracy": "Dirac delta", "log_likelihood": "classification loss"}
AVG, PROX, PDP, UCB, TS = "FedAvg", "FedProx", "FedPdp", "FedCM-UCB", "FedCM-TS"
METHODS = {
    AVG: "fedavg(form='original')",
    PROX: "fedprox(mu=0.1, form='uniform')",
    PDP: "fedpdp(form='normalised')",
}
EQUAL = {AVG: "fedavg(form='uniform', server_lr={share})", PDP: "fedavg(form='uniform')"}
SELECTORS = {PROX: "proportional(replacement=True)", UCB: "fedcm-ucb", TS: "fedcm-ts", PERFECT_ROW: perfect("complete")}
BANDITS = (UCB, TS)
EXHAUSTIVE = 8  # clients up to which all subsets are tried at laptop scale
_CUTS = "unused=0.964, validation=0.01, recut=True, test=0.05"
_TERMINAL = "terminal accuracy (mean of the last fifth of the rounds); the paper does not say which round it prints"
_WEIGHTS = "weights p_k / sum p_k instead of p_k N / |S|, with and without CA"
_LAPTOP = (
    "the PyTorch-tutorial CNN (62,006 parameters) instead of VGG-11",
    "100 training samples per client on average, none twice, and no augmentation",
    "batch 16, lr 0.05, momentum 0.5, weight decay 5e-4 (the paper states none), fixed by a look at uniform + FedAvg",
    "validation set of 57 per class instead of 500; test set of 3,000",
    "30 rounds instead of 100",
    _TERMINAL,
    _WEIGHTS,
)
DEPARTURES = {
    "smoke": ("8 x 8 digits, a small perceptron, 4 rounds: it shows that everything runs, and nothing else",),
    "laptop": _LAPTOP,
    "desk": (
        "the PyTorch-tutorial CNN with group normalisation instead of VGG-11; no augmentation",
        "a third of the data: some 790 training samples per client, none twice; batch 32, momentum 0.5, weight decay "
        "5e-4 (the paper states none), lr 0.05: the best of 0.01 to 0.1 on validation accuracy with random choice "
        "(benchmarks/paper_lr.py, another seed, equal weights: FedAvg 42.5, 43.4, 44.2, 43.8 %, FedPdp 39.6, 41.0, "
        "42.2, 40.3 %), the same in every round",
        "100 rounds as in the paper; 500 validation images per class, the whole test set, every second round",
        _TERMINAL,
        _WEIGHTS,
    ),
    "paper": (
        "VGG-11 with batch normalisation (not stated), random crops and flips as standard augmentation",
        "lr 0.01, momentum 0.9 anew in every round: not stated",
        _TERMINAL,
        _WEIGHTS,
    ),
}


def run(
    scale: str,
    world: str,
    algorithm: str,
    score: str | None = None,
    size: int = 8,
    search: int | None = None,
    equal: bool = False,
) -> Mapping[str, Any]:
    """The keys of one run: an algorithm of Table 1, with CA where a score is named; `equal`: with p_k = 1 / N."""
    return {
        "selector": SELECTORS.get(algorithm, "uniform"),
        "method": method(algorithm, score, search, size / CLIENTS if equal else None),
        "world": world,
        "task": of_scale(
            scale,
            smoke="digits-mlp(epochs=2)",
            laptop=f"cifar10-cnn(epochs=5, batch_size=16, lr=0.05, {_CUTS})",
            desk="cifar10-cnn(epochs=5, batch_size=32, lr=0.05, norm='group', unused=0.65, validation=0.1)",
            paper="cifar10-vgg11(epochs=5, norm='batch', augment='crop-flip')",
        ),
        "rounds": of_scale(scale, smoke=4, laptop=30, desk=100, paper=100),
        "cohort_size": size,
        "evaluate_every": of_scale(scale, smoke=1, laptop=2, desk=2, paper=1),
    }


def method(algorithm: str, score: str | None, search: int | None = None, share: float | None = None) -> str:
    """How models are averaged, with the share of the clients that is asked where all weigh the same.

    FedCM is FedPdp with CA, and what is special about it is who is asked.
    """
    known = METHODS if share is None else {**METHODS, **EQUAL}
    inner = known.get(algorithm, known[PDP]).format(share=share)
    if score is None:
        return inner
    limit = "" if search is None else f", exhaustive_up_to={search}"
    return f"fedca(inner={inner!r}, score={score!r}{limit})"


def filtered(score: str | None) -> str:
    """How the published tables name the filter."""
    return "without CA" if score is None else SCORES[score]


def row(world: str, score: str | None) -> str:
    """The heading of a row in Tables 3, 4 and 5."""
    return f"{world}, {'' if score is None else 'CA, '}{filtered(score)}"
