"""The Dirichlet family: four different partitions whose parameter is called alpha (or beta) in the papers.

client-dirichlet   (Yurochkin et al.)  per class c: p_c ~ Dir_N(alpha); client i gets p_ci of the class.
                   Sizes vary, with CV sqrt((N - 1) / (K (N alpha + 1))) for classes of equal size.
class-dirichlet    (Hsu et al.)  per client: q_i ~ Dir; n_i labels are drawn from q_i. Sizes are equal and the
                   counts Dirichlet-multinomial. `alpha_convention`: "per-class" is Dir(alpha 1), as in FedACS,
                   FedCM and flwr; "prior" is Dir(alpha p) with p the mix of the pool, as Hsu writes it, which
                   for ten classes of equal size is a tenth of the concentration.
layered-dirichlet  (FedACS)  Dir(beta_i 1): beta_i ~ U(0, 0.2] for even clients, U(0.2, 3] for odd ones.
self-balancing     (FedLab, NIID-Bench)  client-dirichlet in which a client that has its fair share of samples
                   gets none of the later classes. The moments above do not hold for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, CountOrZero, Positive
from fedcohort.core.rng import uniform_at
from fedcohort.errors import check
from fedcohort.types import Index
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.allocate import Pool, deal, largest_remainder
from fedcohort.worlds.partition import ByCounts, Counts, Float, Owned, Partition, retried

_LARGEST = float(np.finfo(np.float32).max)  # the skewness that is kept is a float32


@dataclass(frozen=True)
class ClientDirichlet(Partition):
    """Every class is divided over the clients by its own Dirichlet draw; every sample is handed out once.

    `alpha` is the concentration over clients (small: very unequal). Draws that leave a client with fewer than
    `min_size` samples are repeated, at most `retries` times.

    >>> ClientDirichlet(alpha=0.1).to_dict()
    {'kind': 'client-dirichlet', 'alpha': 0.1, 'min_size': 1, 'retries': 100}
    """

    kind: ClassVar[str] = "client-dirichlet"

    alpha: Positive = 0.5  # [alpha]
    min_size: CountOrZero = 1
    retries: Count = 100

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Draw until everybody has `min_size`; exact class totals by largest remainder."""
        counts = np.empty((clients, pool.present.size), np.int32)

        def attempted(attempt: int) -> Index:
            self._fill(counts, pool, seed, attempt)
            sizes: Index = counts.sum(axis=1, dtype=np.int64)
            return sizes

        retried(self.min_size, self.retries, pool, clients, attempted)
        start, index = deal(counts, pool, seed)
        return Owned(start, index, np.full(clients, min(self.alpha, _LARGEST), np.float32))

    def _fill(self, counts: Counts, pool: Pool, seed: int, attempt: int) -> None:
        for c, label in enumerate(pool.present):
            p = keyed_draws.dirichlet_over(seed, f"client-dirichlet/{attempt}", int(label), counts.shape[0], self.alpha)
            counts[:, c] = largest_remainder(p[None, :], pool.stock[c : c + 1])[0]


@dataclass(frozen=True)
class SelfBalancing(ClientDirichlet):
    """Client-Dirichlet in which clients that have their fair share get none of the later classes.

    Its arguments are those of :class:`ClientDirichlet`.

    >>> SelfBalancing(alpha=0.8).kind
    'self-balancing-dirichlet'
    """

    kind: ClassVar[str] = "self-balancing-dirichlet"

    def _fill(self, counts: Counts, pool: Pool, seed: int, attempt: int) -> None:
        n = counts.shape[0]
        held = np.zeros(n, np.int64)
        for c, label in enumerate(pool.present):
            p = keyed_draws.dirichlet_over(seed, f"client-dirichlet/{attempt}", int(label), n, self.alpha)
            below = held * n < pool.size
            p = np.where(below, p, 0.0)
            if not p.sum() > 0:  # everybody with weight is full: whoever is below shares evenly
                p = below.astype(np.float64)
            counts[:, c] = largest_remainder(p[None, :], pool.stock[c : c + 1])[0]
            held += counts[:, c]


@dataclass(frozen=True)
class ClassDirichlet(ByCounts):
    """Every client has its own mix of classes from a Dirichlet draw; equal sizes.

    `alpha` is the concentration (small: few classes per client), in the `alpha_convention` "per-class", Dir(alpha 1),
    or "prior", Dir(alpha p). `rounding` is "multinomial" (labels drawn one by one) or "largest-remainder" (the mix
    itself); `samples`, `reuse` and `spread` as for :class:`~fedcohort.worlds.partition.Dominance`.

    >>> from fedcohort.worlds.world_spec import WorldSpec
    >>> WorldSpec("mine", clients=20, partition=ClassDirichlet(alpha=0.1), allocation="redistribute").partition.alpha
    0.1
    """

    kind: ClassVar[str] = "class-dirichlet"

    alpha: Positive = 0.5  # [alpha]
    alpha_convention: Annotated[str, Choice("per-class", "prior")] = "per-class"
    rounding: Annotated[str, Choice("multinomial", "largest-remainder")] = "multinomial"

    def counts(self, pool: Pool, sizes: Index, ids: Index, seed: int, shared: Index) -> tuple[Counts, Float]:
        """Dirichlet rows, then labels."""
        base = np.ones(pool.present.size)
        if self.alpha_convention == "prior":
            base = pool.stock / pool.size
        q = keyed_draws.rounded(keyed_draws.dirichlet_rows(seed, "class-dirichlet", ids, self.alpha * base))
        if self.rounding == "multinomial":
            out = _multinomial(q, sizes[ids], ids, seed)
        else:
            out = largest_remainder(q, sizes[ids]).astype(np.int32)
        return out, np.full(ids.size, min(self.alpha, _LARGEST), np.float32)


@dataclass(frozen=True)
class LayeredDirichlet(ByCounts):
    """Even clients are strongly skewed, odd ones mildly (FedACS).

    The concentration is uniform on (0, middle] for even clients and on (middle, high] for odd ones; `samples`, `reuse`
    and `spread` as for :class:`~fedcohort.worlds.partition.Dominance`.

    >>> LayeredDirichlet(middle=0.2, high=3.0).kind
    'layered-dirichlet'
    """

    kind: ClassVar[str] = "layered-dirichlet"

    middle: Positive = 0.2
    high: Positive = 3.0

    def check(self) -> None:
        """0 < middle <= high."""
        rule = f"it must be at least middle = {self.middle:g}"
        check(self.high >= self.middle, f"high = {self.high:g}", rule, "raise high or lower middle")

    def counts(self, pool: Pool, sizes: Index, ids: Index, seed: int, shared: Index) -> tuple[Counts, Float]:
        """Dir(beta_i 1) by largest remainder."""
        u = uniform_at(seed, "layered", 0, ids)
        odd = ids % 2 == 1
        beta = np.where(odd, self.middle + (self.high - self.middle) * u, np.maximum(self.middle * u, 1e-5))
        rows = np.repeat(beta[:, None], pool.present.size, axis=1)
        q = keyed_draws.dirichlet_rows(seed, "layered-dirichlet", ids, rows)
        return largest_remainder(q, sizes[ids]).astype(np.int32), beta.astype(np.float32)


def _multinomial(q: NDArray[np.float64], sizes: Index, ids: Index, seed: int) -> Counts:
    """n_i labels from each row, one keyed uniform per (client, sample)."""
    k = q.shape[1]
    edge = np.cumsum(q, axis=1)
    edge /= edge[:, -1:]
    out = np.zeros((q.shape[0], k), np.int32)
    step = max(1, (keyed_draws.CHUNK * 4) // max(int(sizes.max(initial=1)), 1))
    for at in range(0, q.shape[0], step):
        rows = np.arange(at, min(at + step, q.shape[0]))
        row = np.repeat(rows, sizes[rows])
        first = np.repeat(np.cumsum(sizes[rows]) - sizes[rows], sizes[rows])
        draw = np.arange(row.size) - first
        u = uniform_at(seed, "multinomial", 0, ids[row] * (1 << 31) + draw)
        label = np.zeros(row.size, np.int64)
        for c in range(k - 1):
            label += u > edge[row, c]
        out[rows] = np.bincount((row - at) * k + label, minlength=rows.size * k).reshape(rows.size, k)
    return out
