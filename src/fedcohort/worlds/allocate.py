"""From shares to whole samples: largest remainder, the four policies for classes that run out, and who gets which.

Shares are turned into integers before they are compared, so ties are ties on every machine. Ties go to the class
after the last one that profited, client by client, so that all clients together have every class equally often.

Policies, when the clients ask for more of a class than the pool holds:
    strict        refuse
    recycle       hand the class out again in a new order; a client that spans two passes may hold a sample twice
    redistribute  what is missing is taken from the classes that are left, in the client's own proportions
    scale         everybody's requests shrink by the same factor until the scarcest class suffices
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import bits_at
from fedcohort.errors import BadParameter, check
from fedcohort.types import Index
from fedcohort.worlds.keyed_draws import CHUNK, order

POLICIES = ("strict", "recycle", "redistribute", "scale")
_RESOLUTION = 1 << 30


@dataclass(frozen=True)
class Pool:
    """The labelled samples that may be handed out."""

    labels: Index
    classes: int
    owners: Index | None = None
    activities: Index | None = None

    @cached_property
    def present(self) -> Index:
        """The classes that have samples, ascending. Columns of every count matrix."""
        return np.flatnonzero(np.bincount(self.labels, minlength=self.classes))

    @cached_property
    def stock(self) -> Index:
        """Samples of each present class."""
        return np.bincount(self.labels, minlength=self.classes)[self.present]

    @property
    def size(self) -> int:
        """All samples."""
        return int(self.labels.size)


def largest_remainder(shares: NDArray[np.float64], totals: Index) -> NDArray[np.int64]:
    """Whole numbers in proportion to each row of shares that add up to that row's total.

    A row without any share is treated as uniform; no share of zero ever gets a sample otherwise.
    """
    rows, k = shares.shape
    resolution = _RESOLUTION if rows > 1 else min(1 << 44, (1 << 62) // max(int(totals.max(initial=1)), 1))
    sums = shares.sum(axis=1, keepdims=True)
    even = ~(sums > 0)
    q = np.rint(np.where(even, 1.0 / k, shares / np.where(even, 1.0, sums)) * resolution).astype(np.int64)
    lost = q.sum(axis=1) == 0  # so many small shares that each rounds to nothing
    q[lost] = 1
    whole = q.sum(axis=1)
    product = q * totals[:, None]
    counts: NDArray[np.int64] = product // whole[:, None]
    left = totals - counts.sum(axis=1)
    remainder = product - counts * whole[:, None]
    turn = (np.arange(k)[None, :] - (np.cumsum(left) - left)[:, None]) % k
    best = np.lexsort((turn, -remainder), axis=-1)
    take = np.arange(k)[None, :] < left[:, None]
    row = np.broadcast_to(np.arange(rows)[:, None], (rows, k))
    counts[row[take], best[take]] += 1
    return counts


def fit(counts: NDArray[np.int32], pool: Pool, policy: str, seed: int) -> NDArray[np.int32]:
    """Counts that the pool can serve under this policy (recycle can serve everything)."""
    need = counts.sum(axis=0, dtype=np.int64)
    short = np.flatnonzero(need > pool.stock)
    if short.size == 0 or policy == "recycle":
        return counts
    if policy == "scale":
        return _scaled(counts, need, pool.stock)
    if policy == "redistribute":
        check(
            int(need.sum()) <= pool.size,
            f"samples: the clients ask for {int(need.sum())}",
            f"the pool holds {pool.size}",
            "lower samples, reuse or clients, or set allocation to recycle or scale",
        )
        return _redistributed(counts, pool.stock, seed)
    worst = short[np.argmax(need[short] - pool.stock[short])]
    raise BadParameter(
        f"allocation = 'strict': class {int(pool.present[worst])} would be handed out {int(need[worst])} times",
        f"the pool holds {int(pool.stock[worst])} of it",
        "lower samples or clients, or set allocation to scale, redistribute or recycle",
    )


def _scaled(counts: NDArray[np.int32], need: Index, stock: Index) -> NDArray[np.int32]:
    tight = int(np.argmin(np.where(need > 0, stock / np.maximum(need, 1), np.inf)))
    total = need * stock[tight] // need[tight]
    for c in range(counts.shape[1]):
        if need[c]:
            counts[:, c] = largest_remainder(counts[:, c].astype(np.float64)[None, :], total[c : c + 1])[0]
    return counts


def _redistributed(counts: NDArray[np.int32], stock: Index, seed: int) -> NDArray[np.int32]:
    """Serve in random order, in place; each turn serves everybody or empties a class, so it ends.

    A class that is not yet empty has given everybody what was asked for, so what was served of it is the request.
    """
    left = stock.astype(np.int64)
    rows = order(seed, "redistribute", counts.shape[0])
    missing = np.zeros(rows.size, np.int64)
    for c in range(stock.size):
        asked = counts[rows, c]
        got = _served(asked, left, c)
        counts[rows, c] = got
        missing += asked - got
    while missing.any():
        rows, missing = rows[missing > 0], missing[missing > 0]
        weight = counts[rows].astype(np.float64) * (left > 0)[None, :]
        weight[~weight.any(axis=1)] = left
        want = largest_remainder(weight, missing).astype(np.int32)
        missing = np.zeros(rows.size, np.int64)
        for c in range(stock.size):
            got = _served(want[:, c], left, c)
            counts[rows, c] += got
            missing += want[:, c] - got
    return counts


def _served(asked: NDArray[np.int32], left: Index, c: int) -> NDArray[np.int32]:
    """First come, first served; takes from what is left of class c."""
    before = np.cumsum(asked, dtype=np.int64) - asked
    got: NDArray[np.int32] = np.clip(left[c] - before, 0, asked).astype(np.int32)
    left[c] -= int(got.sum(dtype=np.int64))
    return got


def deal(counts: NDArray[np.int32], pool: Pool, seed: int) -> tuple[Index, Index]:
    """Hand out samples: (start, index) in CSR form. Each class is shuffled, and again when it is used up."""
    start = np.zeros(counts.shape[0] + 1, np.int64)
    np.cumsum(counts.sum(axis=1, dtype=np.int64), out=start[1:])
    index = np.empty(int(start[-1]), np.int64)
    at = start[:-1].copy()
    for c, label in enumerate(pool.present):
        n = counts[:, c].astype(np.int64)
        stream = _dealt(np.flatnonzero(pool.labels == label), int(n.sum()), seed, int(label))
        offset = np.cumsum(n) - n
        index[np.repeat(at - offset, n) + np.arange(stream.size)] = stream
        at += n
    return start, index


def _dealt(members: Index, total: int, seed: int, label: int) -> Index:
    """The first `total` samples of these members, in one shuffled order after the other."""
    deals = -(-total // members.size) if total else 0
    per_step = max(1, (CHUNK * 4) // members.size)
    out = np.empty(deals * members.size, np.int64)
    for first in range(0, deals, per_step):
        n = min(per_step, deals - first)
        ids = np.arange(first * members.size, (first + n) * members.size)
        keys = bits_at(seed, "deal", label, ids).reshape(n, members.size)
        out[ids[0] : ids[-1] + 1] = members[np.argsort(keys, axis=1)].reshape(-1)
    return out[:total]
