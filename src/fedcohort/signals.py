"""The catalogue of signals: every number a selector may read, with its unit, side, size and privacy level.

Sides
    profile   known at registration, one row per client, `Round.profiles`
    probe     measured on request at the broadcast model, without training, `Round.probed`
    client    measured during local training and sent with the update, `RoundResult.signals`
    server    computed by the server from what it has anyway, `RoundResult.signals` or `RoundResult.model`

`PRIVACY` has the privacy levels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedcohort.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Signal:
    """One declared number (or vector) per client.

    >>> SIGNALS["train_loss"].side, SIGNALS["train_loss"].privacy
    ('client', 1)
    """

    name: str
    unit: str
    side: str  # profile, probe, client, server
    bytes: int  # sent per client and report; -1: four bytes per model (or last-layer) parameter
    privacy: int  # 0 .. 3
    about: str
    optional: bool = False  # NaN means "could not be measured here" (no local validation data), not a broken reply
    model_sized: bool = False  # as large as the model or its last layer: a journal keeps only a digest of it


_ALL = (
    # profiles
    Signal("samples", "samples", "profile", 8, 1, "number of local training samples n_i"),
    Signal("label_histogram", "share", "profile", 4, 3, "share of each class among the local labels"),
    Signal("cores", "cores", "profile", 4, 1, "processor cores of the device"),
    Signal("frequency", "MHz", "profile", 4, 1, "clock of the device, mean"),
    Signal("bandwidth", "Mbit/s", "profile", 4, 1, "bandwidth of the link, mean"),
    Signal(
        "expected_seconds",
        "s",
        "profile",
        8,
        0,
        "expected duration of a standard round, by the server's estimate",
    ),
    # sent with an update
    Signal("train_loss", "nats", "client", 4, 1, "mean un-regularised cross-entropy over the first local epoch"),
    Signal(
        "train_loss_sq",
        "nats^2",
        "client",
        4,
        1,
        "mean of squared per-sample losses over the first local epoch",
    ),
    Signal("loss_count", "samples", "client", 4, 1, "samples behind train_loss and train_loss_sq"),
    Signal("utility", "nats", "client", 4, 1, "Oort's |B| sqrt(mean squared loss)"),
    Signal("loss_before", "nats", "client", 4, 1, "cross-entropy of the broadcast model on local training data"),
    Signal(
        "loss_after",
        "nats",
        "client",
        4,
        1,
        "cross-entropy of the locally trained model on local training data",
    ),
    Signal("val_loss", "nats", "client", 4, 1, "cross-entropy of the broadcast model on local validation data", True),
    Signal(
        "robust_loss",
        "nats",
        "client",
        4,
        1,
        "FLASH's robust loss of the broadcast model on local training data",
    ),
    Signal("grad_norm", "1", "client", 4, 1, "norm of the full-batch gradient at the broadcast model"),
    Signal(
        "insight",
        "1",
        "client",
        -1,
        2,
        "last-layer full-batch gradient step from the broadcast model (FedACS)",
    ),
    Signal(
        "network_insight",
        "1",
        "client",
        -1,
        2,
        "full-batch gradient step of the whole network from the broadcast model",
        model_sized=True,
    ),
    # computed by the server
    Signal("delta_norm", "1", "server", 0, 1, "norm of the update"),
    Signal("delta", "1", "server", 0, 2, "the update itself, already uploaded", model_sized=True),
    Signal("last_layer_delta", "1", "server", 0, 2, "the last layer's part of the update", model_sized=True),
    Signal("weights", "1", "server", 0, 2, "the locally trained parameters, already uploaded", model_sized=True),
    Signal(
        "model_gain",
        "nats",
        "server",
        0,
        2,
        "fall of the loss on the server's validation data from the broadcast model to the client's own",
        True,
    ),
    Signal("model", "1", "server", 0, 0, "the new global parameters (RoundResult.model)", model_sized=True),
    # probes
    Signal("probe_loss", "nats", "probe", 4, 1, "cross-entropy of the broadcast model on local training data"),
    Signal("probe_batch_loss", "nats", "probe", 4, 1, "the same on one mini-batch"),
    Signal(
        "probe_val_loss",
        "nats",
        "probe",
        4,
        1,
        "cross-entropy of the broadcast model on local validation data",
        True,
    ),
    Signal(
        "probe_robust_loss",
        "nats",
        "probe",
        4,
        1,
        "FLASH's robust loss of the broadcast model on training data",
    ),
    Signal("probe_grad_norm", "1", "probe", 4, 1, "norm of the full-batch gradient at the broadcast model"),
    Signal(
        "probe_weights",
        "1",
        "probe",
        -1,
        2,
        "parameters after one local epoch from the broadcast model, without a method's terms",
        model_sized=True,
    ),
    Signal("probe_accuracy", "share", "probe", 4, 1, "accuracy of the broadcast model on local training data"),
)

SIGNALS: dict[str, Signal] = {s.name: s for s in _ALL}
MODEL_SIZED = frozenset(s.name for s in _ALL if s.model_sized)
PRIVACY = {  # level -> what the server learns of a client
    "P0": "what the server sees anyway: who is there, how long replies take, what became of them, the global model",
    "P1": "single numbers: one a round, or a property of the device or of the data's size",
    "P2": "vectors as large as the model or its last layer, such as the update itself, and what a client's own model "
    "is worth: only sums of them should be revealed",
    "P3": "raw statistics of the data, such as label histograms: only where `max_privacy` says so",
}
PRIVACY_LEVELS = tuple(PRIVACY)


def get(name: str) -> Signal:
    """The signal of this name.

    >>> get("grad_norm").about
    'norm of the full-batch gradient at the broadcast model'
    """
    try:
        return SIGNALS[name]
    except KeyError:
        raise UnknownName.among("signal", name, SIGNALS) from None


def of_side(names: Iterable[str], side: str) -> frozenset[str]:
    """Those of the names that belong to this side.

    >>> sorted(of_side({"samples", "train_loss", "probe_loss"}, "probe"))
    ['probe_loss']
    """
    return frozenset(n for n in names if get(n).side == side)


def privacy(names: Iterable[str]) -> int:
    """The highest privacy level among the names (0 if there are none).

    >>> privacy({"train_loss", "label_histogram"})
    3
    """
    return max((get(n).privacy for n in names), default=0)
