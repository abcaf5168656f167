"""The best of very many clients: scores are computed a chunk at a time, and a million of them are never sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedcohort.core import draw
from fedcohort.core.rng import generator
from fedcohort.types import Index, Real, Round

SAMPLE = 65_536  # rows behind a statistic
CHUNK = 16_384  # rows scored at once: a chunk stays in the cache


def rows_of(rnd: Round) -> Index | slice:
    """The available clients as rows of a column: a slice (a view, not a copy) where everybody is available."""
    return slice(0, rnd.available.size) if rnd.available.size == rnd.population else rnd.available


def unchosen(n: int, chosen: Index) -> Index:
    """Those of the positions 0 .. n - 1 that were not chosen."""
    rest = np.ones(n, np.bool_)
    rest[chosen] = False
    return np.flatnonzero(rest)


def sample(known: Index) -> Index:
    """These clients, or a fixed random sample of them if they are very many."""
    if known.size <= SAMPLE:
        return known
    return known[generator(0, "context", known.size).integers(0, known.size, SAMPLE)]


def chunks(clients: Index) -> Iterator[tuple[Index, Index | slice]]:
    """These sorted clients, a chunk at a time: (clients, rows to read). A chunk without gaps is read as a slice."""
    for lo in range(0, clients.size, CHUNK):
        part = clients[lo : lo + CHUNK]
        first, last = int(part[0]), int(part[-1])
        yield part, slice(first, last + 1) if last - first + 1 == part.size else part


def best(clients: Index, k: int, score: Callable[[Index | slice], Real], rng: np.random.Generator) -> Index:
    """The k of these sorted clients with the largest score; ties are broken by the generator.

    On the way, `border` is the k-th best so far; those above it (fewer than k) and those at it are all that is kept.
    """
    who, value, ties, border = clients[:0], np.empty(0, np.float32), [clients[:0]], np.float32(-np.inf)
    for part, rows in chunks(clients[: clients.size if k > 0 else 0]):
        fresh = np.fmax(np.asarray(score(rows), np.float32), np.float32(-np.inf))  # NaN is the lowest score
        ties.append(part[fresh == border])
        above = np.flatnonzero(fresh > border)
        who, value = np.concatenate([who, part[above]]), np.concatenate([value, fresh[above]])
        if value.size >= k:
            border = np.partition(value, value.size - k)[value.size - k]
            ties = [who[value == border]]
            who, value = who[value > border], value[value > border]
    return np.concatenate([who, draw.uniform(np.concatenate(ties), k - who.size, rng)])
