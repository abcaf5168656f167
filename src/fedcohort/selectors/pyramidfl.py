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
    * From the authors' code; the paper's text was not available. Importance sampling within a client's data is disabled
      in the code and left out here.
    * ||delta|| is the norm of the update. The code subtracts the last global weights from the message, which already is
      the update, and so measures mostly ||w||.
    * Tensors left out are compensated for: what is sent is scaled so that the weighted mean is the mean over those that
      sent the tensor. The code averages the zeros in.
    * The server measures one duration; `compute_share` splits it into C and U. It is divided by what the directives
      made of it, so that a client which was told to train longer does not look slow. Never-tried clients get no extra
      work.
    * ||delta|| is that of the whole update in a simulation, and of the tensors that were sent in Flower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, Factor, Interval, NotNegative, Positive, Share
from fedcohort.core.table import Table, column
from fedcohort.errors import check, checked
from fedcohort.selectors.base import StatefulSelector
from fedcohort.selectors.oort import PRESETS, Oort
from fedcohort.types import Array, Cohort, Index, Real, Round, RoundResult

MAX_EXTRA = 10.0
BelowOne = Annotated[float, Interval(0, 1, ends="[)")]


@dataclass
class PyramidState(Table):
    """What PyramidFL remembers beside Oort's state."""

    gradient: Real = column(-1.0)  # G(i), eq. 1; -1: never reported


class PyramidFL(StatefulSelector[PyramidState]):
    """Oort's choice; the chosen train longer the faster they are, and upload less the less their update matters.

    Args:
        directives: False keeps the selection only, without extra work and dropped tensors.
        low: share of tensors dropped by the client whose update matters most.
        high: share of tensors dropped by the one whose update matters least (not reached).
        extra: weight of the extra work [beta].
        epochs: local epochs of the task's plan [E].
        max_passes: passes over the local data at most.
        compute_share: share of a duration that is computing; the rest is upload.
        preset: of Oort.
        explore: of Oort.
        percentile: of Oort.

    >>> PyramidFL(directives=False).oort.preset
    'code'
    """

    nested = ("oort",)

    @checked
    def __init__(
        self,
        *,
        directives: bool = True,
        low: BelowOne = 0.1,
        high: BelowOne = 0.6,
        extra: NotNegative = 1.0,
        epochs: Count = 1,
        max_passes: Positive = 5.0,
        compute_share: Factor = 0.5,
        preset: Annotated[str, Choice(*PRESETS)] = "code",
        explore: Share = 0.9,
        percentile: Positive = 10.0,
    ) -> None:
        super().__init__()
        check(low <= high, f"low = {low}, high = {high}", "low must not exceed high", "use e.g. 0.1 and 0.6")
        self.directives, self.low, self.high, self.extra = directives, low, high, extra
        self.epochs, self.max_passes, self.compute_share = epochs, max_passes, compute_share
        self.oort = Oort(preset=preset, explore=explore, percentile=percentile)
        self.needs = self.oort.needs | {"samples", "loss_count", "delta_norm"}
        self._ordered: dict[int, float] = {}  # who is out, and how much longer its directives make it take

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Oort's draw, then eq. 2 and 3 for those chosen."""
        self.state.grow(rnd.population)
        chosen = self.oort.select(rnd, rng)
        if not self.directives or chosen.clients.size == 0:
            return chosen
        value = self._gradient_utility(chosen.clients, rnd)
        drop = self._drop(value, rng)
        work = self._work(chosen.clients, drop)
        share = self.compute_share
        slower = share * work + (1 - share) * (1 - drop)  # times as long as an ordinary round
        self._ordered.update(zip(chosen.clients.tolist(), slower.tolist(), strict=True))
        directives: dict[str, Array] = {"drop": drop, "work": work}
        return Cohort(chosen.clients, directives, why={**chosen.why, "gradient": value})

    def observe(self, result: RoundResult) -> None:
        """Oort learns; eq. 1 for those that reported."""
        factor = np.array([self._ordered.pop(int(c), 1.0) for c in result.clients])
        self.oort.observe(replace(result, duration=result.duration / factor))
        told, value = result.clients, result.signals["delta_norm"] * result.signals["loss_count"] / 100.0
        self.state.grow(self.oort.state.rows)
        good = result.replied & np.isfinite(value)
        self.state.gradient[told[good]] = value[good]

    def _gradient_utility(self, clients: Index, rnd: Round) -> Real:
        """Eq. 1 as last reported; the number of samples before the first report."""
        known = self.state.gradient[clients]
        return np.where(known >= 0, known, np.asarray(rnd.profiles["samples"], np.float32)[clients])

    def _drop(self, value: Real, rng: np.random.Generator) -> NDArray[np.float64]:
        """Eq. 2; equal utilities are ranked in random order."""
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
