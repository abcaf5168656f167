"""How the clients of a run differ: its world built again from configuration and seed. Oracle knowledge, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import FedcohortError
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.metrics.stored_metrics import RunRecord, correct_labels
from fedcohort.rounds.history import History

Traits = dict[str, NDArray[np.float64]]
ABOUT = {
    "skew": "Jensen-Shannon divergence of the client's true label mix to everybody's, in bits",
    "noise": "share of its training labels that are wrong",
    "speed": "expected seconds of one pass with a model of 100,000 parameters",
    "samples": "training samples",
}


def traits_of(config: Mapping[str, Any], population: int) -> tuple[Traits, str]:
    """Columns over clients named as in ABOUT, and a note where the world cannot be built (then there are none)."""
    if not {"world", "task", "seed"} <= set(config):
        return {}, "skew, noise and speed are known of simulated runs only"
    found, note = _traits(str(config["world"]), str(config["task"]), int(config["seed"]))
    if found and found["skew"].size != population:
        return {}, "the world built now has another number of clients than the run had"
    return found, note


def order(values: ArrayLike) -> NDArray[np.int64]:
    """Positions from the lowest to the highest; equal ones by position, those without a number last."""
    return np.argsort(np.asarray(values, np.float64), kind="stable")


def tells_apart(values: ArrayLike) -> bool:
    """Whether clients differ in this trait: an order by anything else would only look like one.

    >>> tells_apart([0.1, 0.2]), tells_apart([0.3, 0.3]), tells_apart([np.nan])
    (True, False, False)
    """
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    return bool(known.size) and float(np.ptp(known)) > 1e-9 * float(np.abs(known).max())


def same_words(names: Sequence[str]) -> str:
    """A note about traits in which clients do not differ."""
    words = {"asked": "how often it was asked"}
    return f"the same for every client: {', '.join(words.get(n, n) for n in names)}" if names else ""


@lru_cache(maxsize=64)
def _traits(world: str, task: str, seed: int) -> tuple[Traits, str]:
    try:
        built = RunRecord(RunConfig(world=world, task=task, seed=seed), History(0)).world
        return {
            "skew": built.divergence(),
            "noise": 1.0 - np.where(built.train.sizes > 0, correct_labels(built), 1.0),
            "speed": np.asarray(built.profiles()["expected_seconds"], np.float64),
            "samples": built.train.sizes.astype(np.float64),
        }, ""
    except (FedcohortError, OSError) as error:
        return {}, f"the world cannot be built again: {error}"
