"""FedCS: as many clients as fit before the deadline.

    Takayuki Nishio, Ryo Yonetani.
    Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge. ICC 2019.
    https://arxiv.org/abs/1804.08333

A random share C of the clients reports its resources: t_k^UD seconds to update the model, t_k^UL = D_m / theta_k to
upload it. The model goes out by multicast, Td(S) = D_m / min_{k in S} theta_k; uploads come in one after the other
while others still train. With Theta the time at which the last upload of S is in, adding k costs

    c_k = Td(S + k) - Td(S) + t_k^UL + max(0, t_k^UD - Theta)                                                      (1)

Greedily, the cheapest k is added while

    T_cs + Td(S + k) + Theta' + T_agg < T_round,     Theta' = Theta + t_k^UL + max(0, t_k^UD - Theta)              (2)

If the cheapest does not fit, nobody does. With uplink="parallel" uploads do not wait for each other: the fastest are
taken whose own t_k = D_m / theta_k + t_k^UD + t_k^UL satisfies T_cs + t_k + T_agg < T_round.                      (3)

Departures from the paper
    * Its text was not available: the rule follows two public re-implementations, the set-up is from memory.
    * The round's size is an upper bound; in the paper the deadline alone limits |S|.
    * At least twice the size are asked for their resources, without replacement: ceil(C N) may be fewer than the size.
    * Resources are what the server knows: the profile `expected_seconds` times the median ratio of durations to
      profiles (a profile is of one pass; the deadline is of the real work), or the durations it measured itself
      (resources="measured"; unknown ones count as the median). `upload` is the share of it that is upload. With the
      size of the model in Mbit given, the profile `bandwidth` gives Td and t^UL, and the rest of the duration is t^UD.
    * If nobody fits, the single fastest is asked: otherwise training stalls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.constraints import Choice, Factor, Interval, NotNegative, Share
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.selectors._parts.profile_pace import profile_factor
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult

Double = NDArray[np.float64]


@dataclass
class FedCSState(Table):
    """What profiles are held against, and what resources="measured" reads."""

    seconds: Real = column(-1.0)  # duration last measured; negative: never


class FedCS(StatefulSelector[FedCSState]):
    """Ask the fastest clients that together finish before the deadline.

    Args:
        deadline: seconds of a round [T_round].
        candidates: share of the available clients that report their resources [C].
        uplink: uploads are "sequential" or "parallel".
        resources: durations from the "profile" (`expected_seconds`) or as "measured" by the server.
        upload: share of a duration that is upload, if no bandwidth is known.
        model_mbit: size of the model [D_m]; above 0, the profile `bandwidth` is read.
        overhead: seconds for selection and aggregation [T_cs + T_agg].

    >>> FedCS(deadline=60.0).needs
    frozenset({'expected_seconds'})
    """

    exempt: Mapping[str, str] = {"exact_size": "the deadline limits the cohort; the size is an upper bound"}

    @checked
    def __init__(
        self,
        *,
        deadline: Annotated[float, Interval(0, ends="(]")] = 180.0,
        candidates: Factor = 0.1,
        uplink: Annotated[str, Choice("sequential", "parallel")] = "sequential",
        resources: Annotated[str, Choice("profile", "measured")] = "profile",
        upload: Share = 0.1,
        model_mbit: NotNegative = 0.0,
        overhead: NotNegative = 0.0,
    ) -> None:
        super().__init__()
        self.deadline, self.candidates, self.uplink, self.resources = deadline, candidates, uplink, resources
        self.upload, self.model_mbit, self.overhead = upload, model_mbit, overhead
        bandwidth = {"bandwidth"} if model_mbit else set()
        self.needs = frozenset(({"expected_seconds"} if resources == "profile" else set()) | bandwidth)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 1 and 2, or eq. 3."""
        self.state.grow(rnd.population)
        k = min(rnd.size, rnd.available.size)
        if k <= 0:
            return Cohort(np.empty(0, np.int64))
        asked = max(math.ceil(self.candidates * rnd.available.size), 2 * k)
        pool = rng.permutation(draw.uniform(rnd.available, asked, rng))  # in random order: argmin breaks ties by it
        down, update, up = self._resources(pool, rnd)
        pick = greedy if self.uplink == "sequential" else fitting
        chosen, done = pick(down, update, up, self.deadline - self.overhead, k)
        if chosen.size == 0:
            chosen = np.array([np.argmin(down + update + up)])
            done = (down + update + up)[chosen]
        why = {"download": down[chosen], "update": update[chosen], "upload": up[chosen], "done": done}
        return Cohort(pool[chosen], why=why)

    def observe(self, result: RoundResult) -> None:
        """Store the durations."""
        self.state.grow_for(result.clients)
        self.state.seconds[result.clients] = result.duration

    def _resources(self, pool: Index, rnd: Round) -> tuple[Double, Double, Double]:
        """(D_m / theta_k, t_k^UD, t_k^UL) of these clients."""
        if self.resources == "profile" and "expected_seconds" in rnd.profiles:
            profile = np.asarray(rnd.profiles["expected_seconds"], np.float64)
            total = profile[pool] * profile_factor(self.state.seconds, profile)
        else:
            total = self.state.seconds[pool].astype(np.float64)
        total = known_or_median(total)
        if not self.model_mbit or "bandwidth" not in rnd.profiles:
            return np.zeros(pool.size), (1.0 - self.upload) * total, self.upload * total
        mbit = known_or_median(np.asarray(rnd.profiles["bandwidth"], np.float64)[pool])
        transfer = self.model_mbit / np.maximum(mbit, 1e-9)
        return transfer, np.maximum(total - 2.0 * transfer, 0.0), transfer


def greedy(down: Double, update: Double, up: Double, deadline: float, k: int) -> tuple[Index, Double]:
    """Sequential uplink: positions in the order of adding, and the time of the round after each (eq. 1, 2)."""
    chosen: list[int] = []
    times: list[float] = []
    open_ = np.ones(up.size, np.bool_)
    theta, slowest = 0.0, 0.0  # Theta and Td(S)
    while len(chosen) < min(k, up.size):
        cost = np.maximum(down - slowest, 0.0) + up + np.maximum(update - theta, 0.0)
        cost[~open_] = np.inf
        best = int(np.argmin(cost))
        new_theta, new_slowest = theta + up[best] + max(update[best] - theta, 0.0), max(slowest, down[best])
        if not new_slowest + new_theta < deadline:
            break
        theta, slowest, open_[best] = new_theta, new_slowest, False
        chosen.append(best)
        times.append(slowest + theta)
    return np.array(chosen, np.int64), np.array(times, np.float64)


def fitting(down: Double, update: Double, up: Double, deadline: float, k: int) -> tuple[Index, Double]:
    """Parallel uplink: the k fastest of those that make it on their own (eq. 3), fastest first."""
    total = down + update + up
    order = np.argsort(total, kind="stable")[:k]
    order = order[total[order] < deadline]
    return order, total[order]


def known_or_median(value: Double) -> Double:
    """Negative or non-finite entries are unknown: they become the median of the others (1 if nothing is known)."""
    known = np.isfinite(value) & (value >= 0)
    return value if known.all() else np.where(known, value, float(np.median(value[known])) if known.any() else 1.0)
