"""Classification scores from logits: accuracy, loss, macro F1, F1 of the positive class, recall of each class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.losses import cross_entropy, log_softmax
from fedcohort.types import Index


def scores(logits: NDArray[np.floating[Any]], labels: Index, *, per_class: bool = False) -> dict[str, float]:
    """Scores of (n, K) logits; NaN throughout where there are no samples.

    `macro_f1` averages over the classes that occur among labels or predictions; a class without any hit counts 0.
    `f1`, for two classes, is that of class 1. `per_class` adds the recall of each class as recall_0, recall_1, ...
    """
    classes = logits.shape[-1]
    if not len(labels):
        return {"accuracy": float("nan"), "loss": float("nan"), "macro_f1": float("nan")}
    log_p = log_softmax(np.asarray(logits, np.float64))
    table = np.bincount(labels * classes + log_p.argmax(axis=-1), minlength=classes * classes)
    table = table.reshape(classes, classes).astype(np.float64)
    hit, truth, said = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    f1 = 2.0 * hit / np.maximum(truth + said, 1.0)
    out = {
        "accuracy": float(hit.sum() / len(labels)),
        "loss": float(cross_entropy(log_p, labels).mean()),
        "macro_f1": float(f1[truth + said > 0].mean()),
    }
    if classes == 2:
        out["f1"] = float(f1[1])
    if per_class:
        recall = hit / np.where(truth > 0, truth, np.nan)
        out |= {f"recall_{k}": float(recall[k]) for k in range(classes)}
    return out
