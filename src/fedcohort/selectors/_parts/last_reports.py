"""What several selectors keep of each client: its newest training loss (AFL, rpow-d), its samples (FedACS, Rexp3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcohort.core.table import Table, column
from fedcohort.types import Mask, Real, Round, RoundResult

LARGEST = 1e30


@dataclass
class NewestLoss(Table):
    """The training loss that each client reported last."""

    loss: Real = column(-1.0)  # negative: never reported
    asked: Mask = column(False, np.bool_)

    def keep(self, result: RoundResult) -> None:
        """Take in the finite losses of a round."""
        told = result.clients
        self.grow(int(told.max(initial=-1)) + 1)
        self.asked[told] = True
        loss = result.signals["train_loss"]
        good = result.replied & np.isfinite(loss) & (loss >= 0)
        self.loss[told[good]] = np.minimum(loss[good], LARGEST)


@dataclass
class Samples(Table):
    """How many samples each client registered with."""

    samples: Real = column(0.0)  # M_i; 0: not known

    def register(self, rnd: Round) -> None:
        """Room for new clients, with their M_i."""
        self.grow(rnd.population)
        if "samples" in rnd.profiles:
            new = np.flatnonzero(self.samples[: rnd.population] <= 0)
            given = np.asarray(rnd.profiles["samples"])[new]
            self.samples[new] = np.where(np.isfinite(given) & (given > 0), given, 0)
