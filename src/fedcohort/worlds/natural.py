"""Partitions that name the samples themselves: shards, a few labels per client, and clients that come with the data.

shards      the pool in stable label order is cut into N s equal shards; each client gets s of them at random.
            What is left over at the end is not used.
n-labels    client i holds class i mod K and others at random, `labels` in all; a class is divided evenly
            among its holders. A class that nobody holds is not used (possible when N labels < K).
natural     one client per owner (writer, volunteer).
label-skew  one client per volunteer, who keeps all windows of `labels` activities and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, Count
from fedcohort.core.rng import bits_at, uniform_at
from fedcohort.errors import BadParameter, check
from fedcohort.types import Index
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.allocate import Pool, deal, largest_remainder
from fedcohort.worlds.partition import Owned, Partition


@dataclass(frozen=True)
class Shards(Partition):
    """The pool is sorted by label and cut into shards, of which every client gets a few (McMahan et al.).

    `shards` per client; with `remainder` "spread" shards differ by one sample at most, with "drop" all are equal and
    the last classes may lose samples.

    >>> Shards(shards=2).to_dict()
    {'kind': 'shards', 'shards': 2, 'remainder': 'spread'}
    """

    kind: ClassVar[str] = "shards"

    shards: Count = 2  # [s]
    remainder: Annotated[str, Choice("spread", "drop")] = "spread"

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Cut the label order into N s pieces and give s to each client."""
        pieces = clients * self.shards
        check(
            pool.size >= pieces,
            f"shards = {self.shards}",
            f"{pool.size} samples do not make {pieces} shards",
            "lower shards or clients",
        )
        edge = np.arange(pieces + 1) * pool.size // pieces
        if self.remainder == "drop":
            edge = np.arange(pieces + 1) * (pool.size // pieces)
        piece = keyed_draws.order(seed, "shards", pieces)
        size = np.diff(edge)[piece]
        inside = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        index = np.argsort(pool.labels, kind="stable")[np.repeat(edge[piece], size) + inside]
        start = np.zeros(clients + 1, np.int64)
        np.cumsum(size.reshape(clients, self.shards).sum(axis=1), out=start[1:])
        return Owned(start, index, np.full(clients, np.nan, np.float32))


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """A fixed number of classes per client (NIID-Bench's #label): `labels` of them.

    >>> LabelsPerClient(labels=2).kind
    'n-labels'
    """

    kind: ClassVar[str] = "n-labels"

    labels: Count = 2  # [k]

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Each class divided evenly among its holders."""
        k = pool.present.size
        check(self.labels <= k, f"labels = {self.labels}", f"only {k} classes have samples", f"use {k} or less")
        ids = np.arange(clients)
        keys = np.stack([uniform_at(seed, "n-labels", c, ids) for c in range(k)], axis=1)
        keys[ids, ids % k] = -1.0
        place = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1, kind="stable")
        holds = place < self.labels
        counts = np.zeros((clients, k), np.int32)
        for c in np.flatnonzero(holds.any(axis=0)):
            counts[:, c] = largest_remainder(holds[None, :, c].astype(np.float64), pool.stock[c : c + 1])[0]
        poor = int(counts.sum(axis=1).min())
        check(
            poor > 0,
            f"clients = {clients}",
            "some client would get no sample, because its classes have more holders than samples",
            "lower clients or raise labels",
        )
        start, index = deal(counts, pool, seed)
        return Owned(start, index, np.full(clients, np.nan, np.float32))


@dataclass(frozen=True)
class Natural(Partition):
    """One client per owner that the data name; with fewer clients than owners, a random choice of them.

    Owners with fewer than `min_size` samples are left out.

    >>> from fedcohort.worlds.world_spec import WorldSpec
    >>> WorldSpec("writers", clients=0, partition=Natural(min_size=20)).clients  # 0: everybody
    0
    """

    kind: ClassVar[str] = "natural"

    min_size: Count = 1

    def own(self, pool: Pool, clients: int, seed: int, policy: str) -> Owned:
        """Owners in ascending order; `clients` = 0 takes them all."""
        owner, owners = self._owners(pool)
        keep = self._kept(pool, owner, owners, seed)
        sizes = np.bincount(owner[keep], minlength=owners)
        chosen = np.flatnonzero(sizes >= self.min_size)
        check(
            0 < clients <= chosen.size or (clients == 0 and chosen.size > 0),
            f"clients = {clients}",
            f"the data have {chosen.size} owners with at least {self.min_size} samples",
            f"set clients to {chosen.size} or less (0: all of them)",
        )
        if clients:
            chosen = np.sort(chosen[keyed_draws.order(seed, "natural", chosen.size)[:clients]])
        slot = np.full(owners, -1, np.int64)
        slot[chosen] = np.arange(chosen.size)
        mine = np.where(keep, slot[owner], -1)
        index = np.argsort(mine, kind="stable")[np.count_nonzero(mine < 0) :]
        start = np.zeros(chosen.size + 1, np.int64)
        np.cumsum(sizes[chosen], out=start[1:])
        return Owned(start, index, np.full(chosen.size, np.nan, np.float32), chosen)

    def _owners(self, pool: Pool) -> tuple[Index, int]:
        if pool.owners is None:
            raise BadParameter(
                f"partition {self.kind!r}",
                "needs data that name the owner of each sample",
                "use a task such as femnist-cnn, har-gru or mobifall-gru, or another world",
            )
        names, owner = np.unique(pool.owners, return_inverse=True)
        return owner.reshape(-1).astype(np.int64), int(names.size)

    def _kept(self, pool: Pool, owner: Index, owners: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.ones(pool.size, np.bool_)


@dataclass(frozen=True)
class LabelSkew(Natural):
    """Every volunteer keeps a few activities, with all their windows (FLASH-RL on MobiAct).

    `labels` activities per volunteer, chosen at random; one with fewer keeps them all. `min_size` as for
    :class:`Natural`.

    >>> LabelSkew(labels=4).kind
    'label-skew'
    """

    kind: ClassVar[str] = "label-skew"

    labels: Count = 8  # [k]

    def _kept(self, pool: Pool, owner: Index, owners: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The activities of each volunteer in random order, cut after `labels`. Without activities: classes."""
        check(
            pool.activities is not None or self.labels < pool.present.size,
            f"labels = {self.labels}",
            f"the data name no activities and have {pool.present.size} classes, so nothing would be left out",
            "give activities, lower labels, or use the natural partition",
        )
        activity = pool.labels if pool.activities is None else pool.activities
        width = int(activity.max()) + 1
        pairs, of = np.unique(owner * width + activity, return_inverse=True)
        volunteer = pairs // width
        first = np.lexsort((bits_at(seed, "label-skew", 0, pairs), volunteer))
        rank = np.empty(pairs.size, np.int64)
        head = np.searchsorted(volunteer[first], volunteer[first], side="left")
        rank[first] = np.arange(pairs.size) - head
        kept: np.ndarray[tuple[int], np.dtype[np.bool_]] = (rank < self.labels)[of.reshape(-1)]
        return kept
