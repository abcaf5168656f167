"""Who owns which samples: what all partitions share, the even ones, and the dominance family of FedACS and FLASH.

A partition either states how many samples of each class every client gets (`ByCounts`), leaving the distribution and
the policy to `allocate`, or it names the samples itself (`shards`, `natural`, ... in the sibling modules).

    Sizes     n_i = samples, or reuse * pool / clients; with spread s, n_i is proportional to exp(s z_i)
    dominance (FedACS, Definition 1)  floor(n (1 - a) / K) of every class, the rest of the n to the dominant one
    flash     exactly round(p N) clients: 80 % one class, 20 % over the others; everybody else even
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, CountOrZero, NotNegative, Positive, Share
from fedcohort.core.rng import uniform_at
from fedcohort.errors import BadParameter, check
from fedcohort.types import Index
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.allocate import Pool, deal, fit, largest_remainder
from fedcohort.worlds.section import Section

Counts = NDArray[np.int32]
Float = NDArray[np.float32]
MAX_SAMPLES = 1 << 28  # samples handed out altogether: 2 GB of positions


@dataclass(frozen=True)
class Owned:
    """Who owns which samples of the pool, in CSR form, and what the generator knows about each client."""

    start: Index
    index: Index
    skew: Float  # the client's own parameter (dominance or Dirichlet alpha); NaN where there is none
    owner: Index | None = None  # the owner that each client is, where the partition goes by owners


@dataclass(frozen=True)
class Partition(Section):
    """Base of all partitions."""

    @abstractmethod
    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Give samples of the pool to clients 0 .. clients - 1."""


@dataclass(frozen=True)
class ByCounts(Partition):
    """A partition that says how many of each class; equal sizes unless `spread` says otherwise."""

    samples: Count | None = None  # [M] per client; None: reuse * pool / clients
    reuse: Positive = 1.0  # how often the pool is handed out altogether; above 1 needs `recycle`
    spread: NotNegative = 0.0  # sigma of lognormal client sizes

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Counts, fitted to the pool by the policy, then dealt."""
        sizes = self.sizes(pool, clients, seed)
        counts = np.empty((clients, pool.present.size), np.int32)
        skew = np.full(clients, np.nan, np.float32)
        shared = self.shared(pool, clients, seed)
        for at in range(0, clients, keyed_draws.CHUNK):
            ids = np.arange(at, min(at + keyed_draws.CHUNK, clients))
            counts[ids], skew[ids] = self.counts(pool, sizes, ids, seed, shared)
        counts = fit(counts, pool, policy, seed)
        start, index = deal(counts, pool, seed)
        return Owned(start, index, skew)

    def sizes(self, pool: Pool, clients: int, seed: int) -> Index:
        """Samples per client."""
        total = self.samples * clients if self.samples is not None else int(self.reuse * pool.size)
        check(
            total >= clients,
            f"clients = {clients}",
            f"{total} samples cannot give every client one",
            "lower clients, or set samples (or reuse) together with allocation='recycle'",
        )
        check(
            total <= MAX_SAMPLES,
            f"samples = {self.samples}" if self.samples is not None else f"reuse = {self.reuse:g}",
            f"{total:,} samples would be handed out, more than {MAX_SAMPLES:,}",
            "lower samples, reuse or clients",
        )
        if self.spread == 0.0:
            return np.full(clients, total // clients, np.int64)
        weight = np.exp(self.spread * keyed_draws.normal(seed, "sizes", 0, np.arange(clients)))
        rest: Index = largest_remainder(weight[None, :], np.array([total - clients]))[0]
        return 1 + rest

    def shared(self, pool: Pool, clients: int, seed: int) -> Index:
        """What is drawn once for all clients together; nothing, unless a partition says otherwise."""
        return np.empty(0, np.int64)

    @abstractmethod
    def counts(self, pool: Pool, sizes: Index, ids: Index, seed: int, shared: Index) -> tuple[Counts, Float]:
        """(len(ids), classes present) counts and the skewness of these clients."""


@dataclass(frozen=True)
class Iid(Partition):
    """Everybody draws from the same mix of classes.

    The shuffled pool is cut into equal pieces; with `balanced` every client gets the same number of each class.

    >>> from fedcohort.worlds.world_spec import WorldSpec
    >>> WorldSpec("even", clients=10, partition=Iid(balanced=True)).to_dict()["partition"]
    {'kind': 'iid', 'balanced': True}
    """

    kind: ClassVar[str] = "iid"

    balanced: bool = False  # every client gets every class in the proportions of the pool, to the sample

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """All samples are handed out; sizes differ by one at most (balanced: by a few)."""
        check(
            pool.size >= clients,
            f"clients = {clients}",
            f"{pool.size} samples cannot give every client one",
            "lower clients",
        )
        index = keyed_draws.order(seed, "iid", pool.size)
        if self.balanced:
            index = index[np.argsort(pool.labels[index], kind="stable")]
            client = np.arange(pool.size) % clients
            index = index[np.argsort(client, kind="stable")]
        start = np.zeros(clients + 1, np.int64)
        np.cumsum(np.full(clients, pool.size // clients) + (np.arange(clients) < pool.size % clients), out=start[1:])
        return Owned(start, index, np.zeros(clients, np.float32))


@dataclass(frozen=True)
class Dominance(ByCounts):
    """A share alpha of each client's samples comes from one class, the rest from all classes alike (FedACS).

    `law` is "fixed" (everybody has `alpha`), "uniform" (alpha ~ U[0, 1]) or "pareto" (2 - x with x from a Pareto law of
    this `shape`, cut to [1, 2]). `samples` per client, or `reuse` times the pool altogether; `spread` makes sizes
    differ. Dominant classes are assigned so that all clients together have every class equally often.

    >>> import numpy as np
    >>> Dominance(alpha=0.5).alphas(np.arange(3), seed=0)
    array([0.5, 0.5, 0.5])
    """

    kind: ClassVar[str] = "dominance"

    law: Annotated[str, Choice("fixed", "uniform", "pareto")] = "fixed"
    alpha: Share = 0.5  # [alpha] for law "fixed"
    shape: Positive = 2.0  # [s] for law "pareto"

    def alphas(self, ids: Index, seed: int) -> NDArray[np.float64]:
        """Skewness of each client, rounded to 1e-9."""
        if self.law == "fixed":
            return np.full(ids.size, self.alpha)
        u = uniform_at(seed, "dominance", 0, ids)
        if self.law == "pareto":
            u = 2.0 - (1.0 - u * (1.0 - 2.0**-self.shape)) ** (-1.0 / self.shape)
        return keyed_draws.rounded(np.clip(u, 0.0, 1.0))

    def counts(self, pool: Pool, sizes: Index, ids: Index, seed: int, shared: Index) -> tuple[Counts, Float]:
        """Definition 1; dominant classes go in turns to the clients, ordered by how much they add to their class."""
        alpha = self.alphas(ids, seed)
        k = pool.present.size
        out = np.empty((ids.size, k), np.int32)
        out[:] = _floor(sizes[ids] * (1.0 - alpha) / k)[:, None]
        extra = sizes[ids] - out.sum(axis=1)
        out[np.arange(ids.size), _turns(extra, k, seed, int(ids[0]))] += extra.astype(np.int32)
        return out, alpha.astype(np.float32)


@dataclass(frozen=True)
class FewClass(ByCounts):
    """Each client holds x ~ U{1 .. most} classes, with alpha-dominance among them (FedACS).

    `most` is the largest x (None: all classes); `samples`, `reuse` and `spread` as for :class:`Dominance`.

    >>> FewClass(most=3).to_dict()["most"]
    3
    """

    kind: ClassVar[str] = "few-class"

    most: Count | None = None

    def counts(self, pool: Pool, sizes: Index, ids: Index, seed: int, shared: Index) -> tuple[Counts, Float]:
        """The classes come in random order; the first x are held and the first of all dominates."""
        k = pool.present.size
        most = min(self.most or k, k)
        keys = np.stack([uniform_at(seed, "few-class", c, ids) for c in range(k)], axis=1)
        place = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable")
        held = 1 + (uniform_at(seed, "few-class-x", 0, ids) * most).astype(np.int64)
        alpha = keyed_draws.rounded(uniform_at(seed, "dominance", 0, ids))
        base = _floor(sizes[ids] * (1.0 - alpha) / held)
        out = np.where(place < held[:, None], base[:, None], 0).astype(np.int32)
        out[np.arange(ids.size), np.argmin(place, axis=1)] += (sizes[ids] - out.sum(axis=1)).astype(np.int32)
        return out, alpha.astype(np.float32)


@dataclass(frozen=True)
class FlashPartition(ByCounts):
    """A share of the clients, exactly, has most of its samples from one class; the others are even (FLASH).

    `share` of the clients are skewed, with `major` of their samples from the dominant class and the rest evenly over
    the others; `samples`, `reuse` and `spread` as for :class:`Dominance`.

    >>> FlashPartition(share=0.3, major=0.8).kind
    'flash'
    """

    kind: ClassVar[str] = "flash"

    share: Share = 0.3  # [p]
    major: Share = 0.8

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """As counts, once the skewed clients and their classes are drawn."""
        check(
            pool.present.size >= 2 or self.major == 1.0,
            f"classes = {pool.present.size}",
            "the flash partition needs at least two classes with samples",
            "use the iid partition",
        )
        return super().own(pool, clients, seed, policy)

    def shared(self, pool: Pool, clients: int, seed: int) -> Index:
        """The dominant class of each skewed client (the least used so far, so in turns), -1 for the others."""
        k = pool.present.size
        chosen = keyed_draws.order(seed, "flash-skewed", clients)[: math.floor(self.share * clients + 0.5)]
        dominant = np.full(clients, -1, np.int64)
        dominant[chosen] = keyed_draws.order(seed, "flash-classes", k)[np.arange(chosen.size) % k]
        return dominant

    def counts(self, pool: Pool, sizes: Index, ids: Index, seed: int, shared: Index) -> tuple[Counts, Float]:
        """80 / 20 where `shared` names a dominant class, even elsewhere."""
        k, d = pool.present.size, shared[ids]
        skewed = np.flatnonzero(d >= 0)
        out = largest_remainder(np.ones((ids.size, k)), sizes[ids]).astype(np.int32)
        major = _floor(sizes[ids][skewed] * self.major + 0.5)
        others = np.ones((skewed.size, k))
        others[np.arange(skewed.size), d[skewed]] = 0.0
        out[skewed] = largest_remainder(others, sizes[ids][skewed] - major)
        out[skewed, d[skewed]] = major
        alpha = np.where(d >= 0, (self.major * k - 1.0) / (k - 1.0), 0.0) if k > 1 else np.ones(ids.size)
        return out, alpha.astype(np.float32)


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Everybody has the same mix of classes but not the same amount.

    `law` is "dirichlet" (sizes from one Dirichlet with `beta` over all clients) or "lognormal" (with `sigma`). Draws
    that leave a client with fewer than `min_size` samples are repeated, at most `retries` times.

    >>> QuantitySkew(law="lognormal", sigma=1.5).sigma
    1.5
    """

    kind: ClassVar[str] = "quantity"

    law: Annotated[str, Choice("dirichlet", "lognormal")] = "dirichlet"
    beta: Positive = 0.5  # [beta] of the Dirichlet
    sigma: NotNegative = 1.0  # of the lognormal
    min_size: CountOrZero = 10
    retries: Count = 100

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Cut the shuffled pool into pieces of these sizes."""
        sizes = retried(
            self.min_size, self.retries, pool, clients, lambda attempt: self._sizes(pool, clients, seed, attempt)
        )
        start = np.zeros(clients + 1, np.int64)
        np.cumsum(sizes, out=start[1:])
        return Owned(start, keyed_draws.order(seed, "iid", pool.size), np.zeros(clients, np.float32))

    def _sizes(self, pool: Pool, clients: int, seed: int, attempt: int) -> Index:
        if self.law == "dirichlet":
            weight = keyed_draws.dirichlet_over(seed, "quantity", attempt, clients, self.beta)
        else:
            weight = np.exp(self.sigma * keyed_draws.normal(seed, "quantity", attempt, np.arange(clients)))
        sizes: Index = largest_remainder(weight[None, :], np.array([pool.size]))[0]
        return sizes


def retried(least: int, retries: int, pool: Pool, clients: int, draw: Callable[[int], Index]) -> Index:
    """Draw sizes until nobody has fewer than `least`, at most `retries` times."""
    check(
        least * clients <= pool.size,
        f"min_size = {least}",
        f"{pool.size} samples cannot give {clients} clients that many each",
        "lower min_size or clients",
    )
    for attempt in range(retries):
        sizes = draw(attempt)
        if int(sizes.min()) >= least:
            return sizes
    raise BadParameter(
        f"min_size = {least}",
        f"some client had fewer samples in each of {retries} attempts",
        "lower min_size or clients, or raise alpha, beta or retries",
    )


def _floor(x: NDArray[np.floating[Any]]) -> Index:
    """Floor of numbers that may lie a rounding error below a whole one."""
    return np.floor(np.asarray(x, np.float64) + 1e-6).astype(np.int64)


def _turns(extra: Index, k: int, seed: int, key: int) -> Index:
    """A class for each client: the largest extras first, classes there and back again, in a random class order."""
    rank = np.empty(extra.size, np.int64)
    rank[np.argsort(-extra, kind="stable")] = np.arange(extra.size)
    lap, place = rank // k, rank % k
    return keyed_draws.order(seed, "dominant", k, key)[np.where(lap % 2 == 0, place, k - 1 - place)]
