"""What the tables and figures of the FLASH paper share: 50 clients, a fifth asked per round, skew, noise and time.

FLASH is a choice and a loss: its clients train on the robust loss (its eq. 3), those of its rivals on cross-entropy. So
there are two rows that the paper has not: FLASH's choice on cross-entropy, and uniform choice on FLASH's loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcohort.papers.study import of_scale

FLASH, RANDOM, FEDCOR = "FLASH", "Random", "FedCor"
CHOICE, LOSS = "FLASH, choice only", "Random, FLASH's loss"
CIFAR, FEMNIST = "CIFAR-10", "FEMNIST"
RIVALS = (RANDOM, "Oort", "PyramidFL", "Restless bandit", "Neural bandit", FEDCOR, "FEEL")
SEEDS = {"smoke": 1, "laptop": 2, "paper": 3}
ROBUST = {CIFAR: (0.1, 4.0), FEMNIST: (1.0, 8.0)}  # (alpha, beta) of the robust loss
DEPARTURES = {
    "smoke": ("8 x 8 digits, a small perceptron, 20 clients, 4 rounds: it shows that everything runs, nothing else",),
    "laptop": (
        "the PyTorch-tutorial CNN (62,006 parameters) instead of ResNet-18",
        "175 samples per client of CIFAR-10, a tenth of them its validation part; 4,800 test images",
        "30 rounds instead of at most 1,500, E = 2 instead of 5, batch 32",
        "Adam with lr 0.004, the best of 0.001, 0.002 and 0.004 with random choice and FedAvg (the paper states no lr)",
        "best test accuracy over an evaluation every third round (the paper: early-stop, in its figures best)",
        "2 seeds (the paper prints deviations but no count)",
        "FLASH, restless and neural bandit measure the last cohort and who was not measured for 20 rounds, not all "
        "clients; FEEL asks 15 clients a round for their gradient norm, not all; the warm-up of FedCor is 8 rounds",
        "FLASH is our default: standardised rewards, scaled contexts (as printed it chooses uniformly at random)",
    ),
    "paper": (
        "group instead of batch normalisation, Adam with lr 1e-3 and batch 64 (not stated)",
        "FLASH is our default: standardised rewards, scaled contexts (as printed it chooses uniformly at random)",
    ),
}
FEMNIST_DEPARTURES = {
    "smoke": (),
    "laptop": (
        "FEMNIST: samples of 391 writers dealt to 50 clients of 200 (3,550 in the paper), rare classes dealt more than "
        "once, 10 asked per round, 5 x 5 convolutions of 8 and 16 channels, lr as for CIFAR-10",
    ),
    "paper": ("FEMNIST: the two-layer CNN of 86,910 parameters, 391 clients of 200 samples",),
}


def selectors(scale: str) -> Mapping[str, str]:
    """The rows of the paper."""
    probes = of_scale(scale, smoke="sample:5", laptop="sample:15", paper="all")
    measured = "" if scale != "paper" else "(refresh='all')"
    warm_up = of_scale(scale, smoke="warm_up=1, interval=2", laptop="warm_up=8, interval=10", paper="preset='cifar10'")
    texts = (
        "uniform",
        "oort",
        "pyramidfl(directives=False)",
        f"restless-bandit{measured}",
        f"neural-bandit{measured}",
        f"fedcor({warm_up})",
        f"feel(probe={probes!r})",
    )
    return {**dict(zip(RIVALS, texts, strict=True)), FLASH: f"flash{measured}"}


def objective(data: str, alpha: float | None = None, beta: float | None = None) -> str:
    """FLASH's robust loss, with the values for these data where none are given."""
    a, b = ROBUST[data]
    return f"flash-robust(alpha={a if alpha is None else alpha}, beta={b if beta is None else beta})"


def who(scale: str, row: str) -> tuple[str, bool]:
    """Selector of a row, and whether its clients train on FLASH's loss."""
    name = {CHOICE: FLASH, LOSS: RANDOM}.get(row, row)
    return selectors(scale)[name], row in (FLASH, LOSS)


def world(skewed: int, noise: int, data: str = CIFAR) -> str:
    """The world with this percentage of 80/20 clients and this mean percentage of wrong labels.

    The classes of FEMNIST are of very different size: samples of the rare ones are dealt more than once.
    """
    if data == FEMNIST:
        wrong = f"noise__a={float(noise)}" if noise else "noise=0"
        return f"flash-noniid30-noise15-v1(share={skewed / 100}, samples=200, allocation='recycle', {wrong})"
    if skewed and noise:
        return f"flash-noniid30-noise15-v1(share={skewed / 100}, noise__a={float(noise)})"
    if skewed:
        return f"flash-noniid30-v1(share={skewed / 100})"
    return f"flash-noise15-v1(noise__a={float(noise)})" if noise else "flash-noise15-v1(noise=0)"


def run(
    scale: str, selector: str, where: str, *, loss: str = "ce", method: str = "fedavg", data: str = CIFAR
) -> Mapping[str, Any]:
    """The keys of one run."""
    clients = of_scale(scale, smoke=20, laptop=50, paper=50 if data == CIFAR else 391)
    return {
        "selector": selector,
        "method": method,
        "world": _with(where, f"clients={clients}"),
        "task": task(scale, data, loss),
        "rounds": of_scale(scale, smoke=4, laptop=30, paper=1500),
        "cohort_size": clients // 5,
        "evaluate_every": of_scale(scale, smoke=1, laptop=3, paper=5),
    }


def task(scale: str, data: str, loss: str) -> str:
    """The task: the server keeps the same labelled and unlabelled shares whatever the method."""
    small = "batch_size=32, epochs=2, momentum=0.0, optimiser='adam', weight_decay=0.0"
    cifar = of_scale(
        scale,
        smoke="digits-mlp(epochs=1, lr=0.01, optimiser='adam', unlabelled=0.05)",
        laptop=f"cifar10-cnn({small}, lr=0.004, recut=True, test=0.08, unlabelled=0.004, unused=0.84, "
        "validation=0.005)",
        paper="cifar10-resnet18(epochs=5, unlabelled=0.05)",
    )
    femnist = of_scale(
        scale,
        smoke="digits-mlp(epochs=1, lr=0.01, optimiser='adam', unlabelled=0.05)",
        laptop=f"femnist-cnn({small}, lr=0.004, channels=(8, 16), hidden=(64,), test=0.08, unlabelled=0.005, "
        "unused=0.4, validation=0.02)",
        paper="femnist-cnn(epochs=5, batch_size=64, lr=0.001, optimiser='adam', unlabelled=0.05)",
    )
    return _with(cifar if data == CIFAR else femnist, "" if loss == "ce" else f"objective={loss!r}")


def _with(text: str, more: str) -> str:
    """ "name(a=1)" with one more argument."""
    if not more:
        return text
    return f"{text[:-1]}, {more})" if text.endswith(")") else f"{text}({more})"
