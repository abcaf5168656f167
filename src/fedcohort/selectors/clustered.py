"""Clustered sampling: one client from each of m clusters, unbiased.

    Yann Fraboni, Richard Vidal, Laetitia Kameni, Marco Lorenzi. Clustered Sampling: Low-Variance and Improved
    Representativity for Clients Selection in Federated Learning. ICML 2021. https://arxiv.org/abs/2105.05883

With data shares p_i = n_i / n, m distributions W_1 .. W_m over the clients, r_ki the probability of i in W_k:

    sum_i r_ki = 1 for every k,       sum_k r_ki = m p_i for every i                                               (1)

One client is drawn from each. Every client is drawn m p_i times on average, as in sampling with replacement by data
share, but the variance is never larger and similar clients compete with each other. Think of client i as m n_i units
of weight to be poured into m vessels of n units each:

    by size        clients from the largest to the smallest fill one vessel after the other           (Algorithm 1)
    by similarity  clients are clustered by their newest updates into groups of at most one vessel; the m largest groups
                   start a vessel each, the other clients fill them up                                (Algorithm 2)

A client that is drawn twice trains once, with the directive "multiplicity" 2.

    pi_i = 1 - prod_k (1 - r_ki)          probability of being in the cohort, known exactly                        (2)

Departures from the paper
    * Written from memory of the paper. Shares are taken among the available clients.
    * Clustering is Ward's, on updates scaled to length 1 (the paper uses Ward on angles), merging only what fits in one
      vessel, until m groups are left or nothing fits. A client of more than one vessel fills whole vessels first.
    * Clients without an update fill up in random order (the paper gives them all the same zero vector, so that they
      form groups of their own); the newest `memory` clients are clustered, at a cost of O(memory^3).
    * By default the last layer stands for the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count
from fedcohort.errors import checked
from fedcohort.selectors._parts.last_reports import sample_counts
from fedcohort.selectors._parts.update_memory import UpdateMemory, UpdateSignal, remember, squared_distances
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Round, RoundResult

Double = NDArray[np.float64]


class Clustered(StatefulSelector[UpdateMemory]):
    """Draw one client from each of m clusters, so that everybody is chosen in proportion to its data.

    Args:
        algorithm: clusters by "similarity" of the updates (Algorithm 2) or by "size" (Algorithm 1).
        signal: what is compared, "last_layer_delta" or "delta".
        memory: clients whose updates are clustered.

    >>> Clustered(algorithm="size").needs
    frozenset({'samples'})
    """

    exempt: Mapping[str, str] = {"exact_size": "a client that is drawn twice trains once, with multiplicity 2"}

    @checked
    def __init__(
        self,
        *,
        algorithm: Annotated[str, Choice("similarity", "size")] = "similarity",
        signal: UpdateSignal = "last_layer_delta",
        memory: Count = 300,
    ) -> None:
        super().__init__()
        self.algorithm, self.signal, self.memory = algorithm, signal, memory
        self.needs = frozenset({"samples", signal} if algorithm == "similarity" else {"samples"})

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Pour, then draw one from each vessel."""
        here, m = rnd.available, min(rnd.size, rnd.available.size)
        if m <= 0:
            return Cohort(np.empty(0, np.int64))
        count = sample_counts(rnd)
        share = count / count.sum()  # p_i
        order = rng.permutation(here.size)  # ties, and those without an update, come in random order
        if self.algorithm == "size":
            pieces = pour([], order[np.argsort(-share[order], kind="stable")], m * share, m)
        else:
            pieces = pour(self._groups(here, m * share, m, rng), order, m * share, m)
        client, vessel, amount = pieces
        drawn = draw_from(client, vessel, amount, m, rng)
        at, times = np.unique(drawn, return_counts=True)
        inclusion = included(client, amount, at)
        why = {"share": share[at], "inclusion": inclusion}
        return Cohort(here[at], {"multiplicity": times.astype(np.int64)}, inclusion, why)

    def observe(self, result: RoundResult) -> None:
        """Keep the newest updates."""
        if self.algorithm == "similarity":
            remember(self.state, result, self.signal, self.memory)

    def _groups(self, here: Index, units: Double, m: int, rng: np.random.Generator) -> list[Index]:
        """Positions (in `here`) of clients with similar updates, in random order so that ties are random."""
        known = rng.permutation(np.flatnonzero(np.isin(self.state.who, here)))
        if known.size == 0:
            return []
        at = np.searchsorted(here, self.state.who[known])
        rows = self.state.row[known].astype(np.float64)
        length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        rows = rows / np.maximum(length, 1e-300)
        return [at[g] for g in ward(rows, np.minimum(units[at], 1.0), m)]


def ward(rows: Double, weight: Double, m: int) -> list[Index]:
    """Agglomerate rows by Ward's criterion until m groups are left, merging only groups of total weight at most 1."""
    n = rows.shape[0]
    groups: list[list[int]] = [[i] for i in range(n)]
    size, weight, alive = np.ones(n), weight.copy(), n
    cost = squared_distances(rows, rows)
    np.fill_diagonal(cost, np.inf)
    cost[weight[:, None] + weight[None, :] > 1.0 + 1e-9] = np.inf
    while alive > m:
        i, j = divmod(int(np.argmin(cost)), n)
        if not np.isfinite(cost[i, j]):
            break
        total = size + size[i] + size[j]  # Lance and Williams
        merged = ((size + size[i]) * cost[i] + (size + size[j]) * cost[j] - size * cost[i, j]) / total
        groups[i] += groups[j]
        groups[j] = []
        size[i] += size[j]
        weight[i] += weight[j]
        merged[(weight + weight[i] > 1.0 + 1e-9) | ~np.isfinite(merged)] = np.inf
        merged[i] = np.inf
        cost[i], cost[:, i] = merged, merged
        cost[j], cost[:, j] = np.inf, np.inf
        alive -= 1
    return [np.array(g, np.int64) for g in groups if g]


def pour(groups: list[Index], order: Index, units: Double, m: int) -> tuple[Index, Index, Double]:
    """Eq. 1 as pieces (client, vessel, amount): amounts of a vessel sum to 1, those of a client to its units.

    Clients of more than one unit fill whole vessels first. Then the largest groups start a vessel each, and all others
    are poured in this order into the room that is left.
    """
    whole = np.floor(units + 1e-12).astype(np.int64)
    rest = np.maximum(units - whole, 0.0)
    client = [np.repeat(np.arange(units.size), whole)]
    vessel, amount = [np.arange(client[0].size)], [np.ones(client[0].size)]
    first = client[0].size
    room = np.ones(m - first)
    placed = np.zeros(units.size, np.bool_)
    by_weight = sorted(groups, key=lambda g: -float(rest[g].sum()))[: m - first]
    for k, group in enumerate(by_weight):
        client.append(group)
        vessel.append(np.full(group.size, first + k))
        amount.append(rest[group])
        room[k] = max(room[k] - float(rest[group].sum()), 0.0)
        placed[group] = True
    later = np.concatenate([*groups, order]) if groups else order  # groups that start no vessel stay together
    _, unique = np.unique(later, return_index=True)
    later = later[np.sort(unique)]
    later = later[~placed[later] & (rest[later] > 0)]
    cut = np.unique(np.concatenate([[0.0], np.cumsum(rest[later]), np.cumsum(room)]))
    middle, width = (cut[1:] + cut[:-1]) / 2, np.diff(cut)
    solid = width > 1e-12
    if later.size and room.size:
        owner = np.minimum(np.searchsorted(np.cumsum(rest[later]), middle[solid]), later.size - 1)
        client.append(later[owner])
        vessel.append(first + np.minimum(np.searchsorted(np.cumsum(room), middle[solid]), room.size - 1))
        amount.append(width[solid])
    return np.concatenate(client), np.concatenate(vessel), np.concatenate(amount)


def draw_from(client: Index, vessel: Index, amount: Double, m: int, rng: np.random.Generator) -> Index:
    """One client from each vessel, with odds given by the amounts."""
    order = np.argsort(vessel, kind="stable")
    filled = np.cumsum(amount[order])
    end = filled[np.searchsorted(vessel[order], np.arange(m), side="right") - 1]
    start = np.concatenate([[0.0], end[:-1]])
    mark = start + rng.random(m) * (end - start)
    out: Index = client[order][np.minimum(np.searchsorted(filled, mark, side="right"), order.size - 1)]
    return out


def included(client: Index, amount: Double, at: Index) -> Double:
    """Eq. 2 for these clients."""
    miss = np.ones(int(client.max(initial=-1)) + 1)
    np.multiply.at(miss, client, 1.0 - np.minimum(amount, 1.0))
    return np.clip(1.0 - miss[at], 1e-12, 1.0)
