"""What several selectors read or keep of each client: its newest training loss, its samples, its answer to a probe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table, column
from fedcohort.types import Index, Mask, Probed, Real, Round, RoundResult

LARGEST = 1e30


@dataclass
class NewestLoss(Table):
    """The training loss that each client reported last (AFL, rpow-d)."""

    loss: Real = column(-1.0)  # negative: never reported
    asked: Mask = column(False, np.bool_)

    def keep(self, result: RoundResult) -> None:
        """Take in the finite losses of a round."""
        told = result.clients
        self.grow_for(told)
        self.asked[told] = True
        loss = result.signals["train_loss"]
        good = result.replied & np.isfinite(loss) & (loss >= 0)
        self.loss[told[good]] = np.minimum(loss[good], LARGEST)


@dataclass
class Samples(Table):
    """How many samples each client registered with (FedACS, Rexp3)."""

    samples: Real = column(0.0)  # M_i; 0: not known

    def register(self, rnd: Round) -> None:
        """Room for new clients, with their M_i."""
        self.grow(rnd.population)
        if "samples" in rnd.profiles:
            new = np.flatnonzero(self.samples[: rnd.population] <= 0)
            given = np.asarray(rnd.profiles["samples"])[new]
            self.samples[new] = np.where(np.isfinite(given) & (given > 0), given, 0)


def sample_counts(rnd: Round) -> NDArray[np.float64]:
    """n_i of the available clients, at least 1; 1 for everybody where nothing is registered."""
    if "samples" not in rnd.profiles:
        return np.ones(rnd.available.size)
    given = np.asarray(rnd.profiles["samples"], np.float64)[rnd.available]
    return np.where(np.isfinite(given), np.maximum(given, 1.0), 1.0)


def usable(answers: Probed, name: str, replied: Mask | None = None) -> tuple[Index, Real]:
    """Who sent a usable (finite, not negative) number, and the number."""
    value = np.asarray(answers.signals[name]) if name in answers.signals else np.full(answers.clients.size, np.nan)
    good = np.isfinite(value) & (value >= 0)
    good = np.flatnonzero(good if replied is None else good & replied)
    return answers.clients[good], value[good]
