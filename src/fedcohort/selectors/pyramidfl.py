"""PyramidFL: fine-grained selection, with local work and upload dropping by rank.

    Chenning Li, Xiao Zeng, Mi Zhang, Zhichao Cao.
    PyramidFL: A Fine-grained Client Selection Framework for Efficient Federated Learning. MobiCom 2022.

Clients are ranked and drawn as by Oort (eq. 1 to 4 there). Those chosen get directives. With the gradient utility of
the last report (before the first: the number of samples)

    G(i) = ||delta_i||_2 |B_i| / 100                                                                            (1)

and rank(i) = 0 for the largest G among the m chosen, the share of tensors that client i leaves out of its upload is

    drop(i) = low + rank(i) (high - low) / m                                                                    (2)

and with compute time C(i), upload time U(i) and D = max_i C(i) + (1 - drop(i)) U(i), the faster ones train longer:

    work(i) = 1 + min(10, beta floor( (D - T(i)) / (C(i) / E) ) / E),    E work(i) <= 5 passes                   (3)

where T(i) = C(i) + (1 - drop(i)) U(i). `directives=False` keeps the selection only, as in FLASH's comparison.

Departures from the paper
    * From the authors' code; the paper's text was not at hand. Importance sampling within a client's data is disabled
      in the code and left out here.
    * ||delta|| is the norm of the update. The code subtracts the last global weights from the message, which already is
      the update, and so measures mostly ||w||.
    * Tensors left out are made up for: what is sent is scaled so that the weighted mean is the mean over those that
      sent the tensor. The code averages the zeros in.
    * The server measures one duration; `compute_share` splits it into C and U. Never-tried clients get no extra work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import Table, column
from fedcohort.errors import check
from fedcohort.selectors.oort import Oort
from fedcohort.types import Array, Arrays, Cohort, Index, Real, Round, RoundResult

MAX_EXTRA = 10.0
_OORT = "oort."


@dataclass
class PyramidState(Table):
    """What PyramidFL remembers beside Oort's state."""

    gradient: Real = column(-1.0)  # G(i), eq. 1; -1: never reported


class PyramidFL:
    """Oort's choice; the chosen train longer the faster they are, and upload less the less their update matters.

    The paper's symbol for each parameter is given in brackets. Oort's own parameters go by their names there.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"utility", "samples", "loss_count", "delta_norm"})

    def __init__(
        self,
        *,
        directives: bool = True,
        low: float = 0.1,
        high: float = 0.6,
        extra: float = 1.0,  # [beta]
        epochs: int = 1,  # [E] local epochs of the task's plan
        max_passes: float = 5.0,
        compute_share: float = 0.5,
        preset: str = "code",  # of Oort
        explore: float = 0.9,
        percentile: float = 10.0,
    ) -> None:
        check(0 <= low <= high < 1, f"low = {low}, high = {high}", "0 <= low <= high < 1 is needed", "use 0.1 and 0.6")
        check(epochs >= 1, f"epochs = {epochs}", "there is at least one local epoch", "use the task's number")
        check(0 < compute_share <= 1, f"compute_share = {compute_share}", "a share lies in (0, 1]", "use e.g. 0.5")
        self.directives, self.low, self.high, self.extra = directives, low, high, extra
        self.epochs, self.max_passes, self.compute_share = epochs, max_passes, compute_share
        self.oort = Oort(preset=preset, explore=explore, percentile=percentile)
        self.state = PyramidState()

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Oort's draw, then eq. 2 and 3 for those chosen."""
        self.state.grow(rnd.population)
        chosen = self.oort.select(rnd, rng)
        if not self.directives or chosen.clients.size == 0:
            return chosen
        value = self._gradient_utility(chosen.clients, rnd)
        drop = self._drop(value, rng)
        orders: dict[str, Array] = {"drop": drop, "work": self._work(chosen.clients, drop)}
        return Cohort(chosen.clients, orders, why={**chosen.why, "gradient": value})

    def observe(self, result: RoundResult) -> None:
        """Oort learns; eq. 1 for those that reported."""
        self.oort.observe(result)
        told, value = result.clients, result.signals["delta_norm"] * result.signals["loss_count"] / 100.0
        self.state.grow(self.oort.state.rows)
        good = result.replied & np.isfinite(value)
        self.state.gradient[told[good]] = value[good]

    def state_dict(self) -> Arrays:
        """Oort's state under its prefix, and our own."""
        return {**self.state.to_arrays(), **{_OORT + k: v for k, v in self.oort.state_dict().items()}}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        own = {k: v for k, v in arrays.items() if not k.startswith(_OORT)}
        self.state.load_arrays(own)
        self.oort.load_state_dict({k.removeprefix(_OORT): v for k, v in arrays.items() if k.startswith(_OORT)})

    def _gradient_utility(self, clients: Index, rnd: Round) -> Real:
        """Eq. 1 as last reported; the number of samples before the first report."""
        known = self.state.gradient[clients]
        return np.where(known >= 0, known, np.asarray(rnd.profiles["samples"], np.float32)[clients])

    def _drop(self, value: Real, rng: np.random.Generator) -> NDArray[np.float64]:
        """Eq. 2; equal utilities are ranked by lot."""
        rank = np.empty(value.size)
        rank[np.lexsort((rng.random(value.size), -value))] = np.arange(value.size)
        return self.low + rank * (self.high - self.low) / value.size

    def _work(self, clients: Index, drop: NDArray[np.float64]) -> NDArray[np.float64]:
        """Eq. 3; 1 for those never timed."""
        seconds = self.oort.state.seconds[clients].astype(np.float64)
        compute = self.compute_share * seconds
        total = compute + (1 - drop) * (seconds - compute)
        timed = (seconds > 0) & self.oort.state.explored[clients]
        slack = total.max(initial=0.0, where=timed) - total
        passes = np.floor(np.divide(slack, compute / self.epochs, out=np.zeros_like(slack), where=timed))
        more = 1.0 + np.minimum(MAX_EXTRA, self.extra * passes / self.epochs)
        return np.where(timed, np.minimum(more, max(self.max_passes / self.epochs, 1.0)), 1.0)
