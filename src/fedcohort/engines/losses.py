"""Local losses on logits: cross-entropy, its smoothed, symmetric and FLASH-robust forms, with their gradients.

For logits z, p = softmax(z), label y, smoothing s, K classes and frozen predictions q of the broadcast model

    CE   = -sum_k t_k log p_k,   t = (1 - s) e_y + s / K        d/dz = p - t
    PL   = -sum_k q_k log p_k                                   d/dz = p - q
    RCE  = -A (1 - p_y)          (log 0 := A < 0)               d/dz = A p_y (e_y - p)
    loss = ce * CE + pseudo * PL + rce * RCE

q never follows the moving weights: soft pseudo-labels of the *current* model would have exactly zero gradient. Where
the loss is only evaluated at the broadcast model, q = p and PL is the entropy of the prediction.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Interval, NotNegative
from fedcohort.core.stats import cross_entropy as cross_entropy
from fedcohort.core.stats import log_softmax as log_softmax
from fedcohort.errors import UnknownName, check, checked
from fedcohort.types import Index, Objective

Floats = NDArray[np.floating[Any]]
LogZero = Annotated[float, Interval(high=0, ends="()")]

CROSS_ENTROPY = Objective()
RHFL_FLOOR = math.log(1e-4)  # RHFL clamps one-hot labels at 1e-4: A = -9.21


def ce() -> Objective:
    """Plain cross-entropy."""
    return CROSS_ENTROPY


@checked
def label_smoothing(eps: Annotated[float, Interval(0, 1, ends="[)")] = 0.1) -> Objective:
    """Cross-entropy with the mass `eps` moved from the label to the uniform distribution."""
    return Objective(smoothing=eps)


@checked
def symmetric_ce(alpha: NotNegative = 0.1, beta: NotNegative = 1.0, floor: LogZero = -4.0) -> Objective:
    """alpha * CE + beta * RCE. `floor` is A: -4 by default, `RHFL_FLOOR` (ln 1e-4) in RHFL's code."""
    return Objective(ce=alpha, rce=beta, floor=floor)


@checked
def flash_robust(
    alpha: NotNegative = 0.1,
    beta: NotNegative = 4.0,
    alpha_on: Annotated[str, Choice("pseudo", "ce")] = "pseudo",
    floor: LogZero = -4.0,
) -> Objective:
    """FLASH's robust loss CE + alpha * PL + beta * RCE (eq. 3).

    The paper's text speaks of alpha as the weight of CE in a symmetric loss: `alpha_on="ce"` is that reading,
    alpha * CE + PL + beta * RCE. (alpha, beta) = (0.1, 4) for CIFAR-10, (1, 8) for FEMNIST.
    """
    first, second = (1.0, alpha) if alpha_on == "pseudo" else (alpha, 1.0)
    return Objective(ce=first, pseudo=second, rce=beta, floor=floor)


PRESETS = {
    "ce": ce,
    "flash-robust": flash_robust,
    "symmetric-ce": symmetric_ce,
    "label-smoothing": label_smoothing,
}


def get(name: str, **arguments: Any) -> Objective:
    """The objective of this name: ce, flash-robust, symmetric-ce or label-smoothing.

    >>> get("symmetric-ce", alpha=0.5).rce
    1.0
    """
    if name not in PRESETS:
        raise UnknownName.among("objective", name, PRESETS)
    try:
        return PRESETS[name](**arguments)
    except TypeError:
        bad = ", ".join(sorted(arguments))
        check(False, f"{name}({bad})", "the objective does not take these arguments", "see fedcohort.engines.losses")
        raise


def robust_of(objective: Objective) -> Objective:
    """What the signal `robust_loss` measures: the plan's own objective if it is robust, else FLASH's (0.1, 4)."""
    return objective if objective.pseudo > 0.0 or objective.rce > 0.0 else flash_robust()


def losses(objective: Objective, log_p: Floats, labels: Index, frozen: Floats | None = None) -> Floats:
    """Loss of every sample, from log-probabilities. `frozen` is q; None stands for p itself."""
    o = objective
    hard = cross_entropy(log_p, labels)
    total: Floats = np.asarray(o.ce * (1.0 - o.smoothing), log_p.dtype) * hard
    if o.ce and o.smoothing:
        total = total - o.ce * o.smoothing * log_p.mean(axis=-1)
    if o.pseudo:
        q = np.exp(log_p) if frozen is None else frozen
        total = total - o.pseudo * (q * log_p).sum(axis=-1)
    if o.rce:
        total = total - o.rce * o.floor * (1.0 - np.exp(-hard))
    return total


def gradient(objective: Objective, log_p: Floats, labels: Index, frozen: Floats | None = None) -> Floats:
    """d loss / d logits of every sample, from log-probabilities. Without `frozen` the pseudo term has none."""
    o = objective
    p = np.exp(log_p)
    at = labels[..., None]
    p_y = np.take_along_axis(p, at, axis=-1)
    scale = np.asarray(o.ce, p.dtype)
    grad: Floats = scale * p
    if o.smoothing:
        grad -= o.ce * o.smoothing / p.shape[-1]
    hit = np.full(p_y.shape, -o.ce * (1.0 - o.smoothing), p.dtype)
    if o.rce:
        pull = (o.rce * o.floor) * p_y
        grad -= pull * p
        hit += pull
    np.put_along_axis(grad, at, np.take_along_axis(grad, at, axis=-1) + hit, axis=-1)
    if o.pseudo and frozen is not None:
        grad += o.pseudo * (p - frozen)
    return grad
