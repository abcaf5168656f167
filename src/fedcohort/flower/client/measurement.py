"""What is measured on the client: every signal follows from two functions that the app may provide.

`outputs(arrays, context, part)` returns logits and labels of the model on the client's "train" or "validation" data
(None if there is none): all losses, accuracies, sample counts and label shares follow from it.
`gradient(arrays, context)` returns the full-batch gradient, named like the arrays: norms and FedACS's insight follow
from it.

Departure: `train_loss_sq`, `utility` and a `train_loss` that the app does not report itself are measured at the
broadcast model on all local training data, not during the first local epoch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray

from fedcohort import signals as catalogue
from fedcohort.engines.losses import cross_entropy, flash_robust, log_softmax, losses
from fedcohort.flower.model_layout import ModelLayout

INSIGHT_LR = 0.1  # FedACS: one plain full-batch step with a fixed rate
BATCH = 32  # samples of `probe_batch_loss`
_TRAIN = frozenset({"train_loss", "train_loss_sq", "loss_count", "utility", "loss_before", "robust_loss"})
_PROBES = frozenset({"probe_loss", "probe_batch_loss", "probe_val_loss", "probe_robust_loss", "probe_accuracy"})
_FROM_OUTPUTS = _TRAIN | _PROBES | {"loss_after", "val_loss", "samples", "label_histogram"}
_FROM_GRADIENT = frozenset({"grad_norm", "insight", "network_insight", "probe_grad_norm"})
_FROM_CONFIG = frozenset({"frequency", "bandwidth"})  # profiles that only the node config knows


@dataclass(frozen=True)
class Outputs:
    """Logits (n, classes) of a model and the labels (n,) of the same samples."""

    logits: NDArray[Any]
    labels: NDArray[Any]


OutputsFn = Callable[[ArrayRecord, Context, str], Outputs | None]
GradientFn = Callable[[ArrayRecord, Context], Mapping[str, NDArray[Any]]]


class Meter:
    """Measures what was requested, nothing else."""

    def __init__(self, outputs: OutputsFn | None, gradient: GradientFn | None) -> None:
        self.outputs, self.gradient = outputs, gradient

    def provides(self, context: Context, trains: bool) -> frozenset[str]:
        """Signals that this client can send."""
        names = {"cores", *(n for n in _FROM_CONFIG if n in context.node_config)}
        if self.outputs is not None:
            names |= _FROM_OUTPUTS
        if self.gradient is not None:
            names |= _FROM_GRADIENT
        if "num-samples" in context.node_config:
            names.add("samples")
        return frozenset(names | ({"probe_weights"} if trains else set()))

    def profile(self, names: frozenset[str], arrays: ArrayRecord | None, context: Context) -> dict[str, Any]:
        """Profile signals, requested once; the initial model is sent along where labels are needed."""
        out: dict[str, Any] = {}
        if "cores" in names:
            out["cores"] = float(os.cpu_count() or 1)
        for name in sorted(names & _FROM_CONFIG):
            out[name] = float(cast(float, context.node_config[name]))
        if "samples" in names and "num-samples" in context.node_config:
            out["samples"] = int(cast(int, context.node_config["num-samples"]))
        if self.outputs is not None and arrays is not None and names & {"samples", "label_histogram"} - set(out):
            found = self.outputs(arrays, context, "train")
            labels = np.zeros(0, np.int64) if found is None else np.asarray(found.labels, np.int64)
            known: dict[str, Any] = {"samples": int(labels.size)}
            if found is not None:
                counts = np.bincount(labels, minlength=np.shape(found.logits)[-1])
                known["label_histogram"] = (counts / max(labels.size, 1)).tolist()
            out.update({n: v for n, v in known.items() if n in names and n not in out})
        return out

    def before(self, names: frozenset[str], arrays: ArrayRecord, context: Context) -> dict[str, Any]:
        """Signals of the broadcast model, for a probe or before training."""
        out: dict[str, Any] = {}
        plain = {n.removeprefix("probe_") for n in names} | names
        if self.outputs is not None:
            out.update(self._losses(plain, arrays, context))
        if self.gradient is not None and plain & _FROM_GRADIENT:
            out.update(_gradient(self.gradient(arrays, context), ModelLayout.of(arrays)))
        return _named(out, names)

    def after(self, names: frozenset[str], arrays: ArrayRecord, context: Context) -> dict[str, Any]:
        """Signals of the trained model."""
        if self.outputs is None or "loss_after" not in names:
            return {}
        found = self.outputs(arrays, context, "train")
        return {} if found is None else {"loss_after": float(_ce(found).mean())}

    def _losses(self, plain: set[str], arrays: ArrayRecord, context: Context) -> dict[str, Any]:
        assert self.outputs is not None
        out: dict[str, Any] = {}
        train = (
            self.outputs(arrays, context, "train") if plain & (_TRAIN | {"loss", "batch_loss", "accuracy"}) else None
        )
        if train is not None and np.size(train.labels):
            each = _ce(train)
            mean, square, n = float(each.mean()), float(np.square(each).mean()), int(each.size)
            out.update(train_loss=mean, loss_before=mean, loss=mean, train_loss_sq=square, loss_count=float(n))
            out["utility"] = n * math.sqrt(square)
            out["batch_loss"] = float(each[:BATCH].mean())
            out["accuracy"] = float((np.argmax(train.logits, axis=-1) == train.labels).mean())
            robust = losses(flash_robust(), log_softmax(_float(train.logits)), np.asarray(train.labels, np.int64))
            out["robust_loss"] = float(robust.mean())
        held = self.outputs(arrays, context, "validation") if "val_loss" in plain else None
        if held is not None and np.size(held.labels):
            out["val_loss"] = float(_ce(held).mean())
        return out


def _float(logits: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(logits, np.float64)


def _ce(found: Outputs) -> NDArray[Any]:
    return cross_entropy(log_softmax(_float(found.logits)), np.asarray(found.labels, np.int64))


def _gradient(gradient: Mapping[str, NDArray[Any]], layout: ModelLayout) -> dict[str, Any]:
    blank = {k: np.zeros(layout.shapes[k]) for k in layout.constants}  # masks, which have no gradient
    found = layout.without_constants({**blank, **gradient})
    flat = np.concatenate([np.asarray(found[k], np.float64).reshape(-1) for k in layout.params])
    step = (-INSIGHT_LR * flat).astype(np.float32)
    return {"grad_norm": float(np.linalg.norm(flat)), "insight": step[layout.last_layer], "network_insight": step}


def _named(found: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The values under the requested names; optional ones that could not be measured are NaN."""
    out: dict[str, Any] = {}
    for name in names:
        plain = name.removeprefix("probe_")
        if name in found or plain in found:
            out[name] = found.get(name, found.get(plain))
        elif name in catalogue.SIGNALS and catalogue.get(name).optional:
            out[name] = math.nan
    return out
