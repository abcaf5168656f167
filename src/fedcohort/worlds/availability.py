"""Who can be asked now: a function of (seed, round, clock, client), never of what was asked before.

    always
    bernoulli   each round on its own, with the client's own rate
    markov      on and off for geometric times around `on` and `off` ticks. A chain with P(on -> off) = 1 / on and
                P(off -> on) = 1 / off forgets its past with probability 1 / on + 1 / off per tick and is then on with
                its stationary share; so the present state is the one drawn when it last forgot, found by looking back.
                The diurnal rhythm moves that share: share (1 + depth cos(2 pi (tick / period - phase_i))), at most 1.
    trace       intervals from a file (see `trace`)
Outages take whole groups of clients away at once, whatever the kind.

A tick is a round, or `tick` seconds of the clock where that is set.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Count, CountOrZero, Interval, NotNegative, Share
from fedcohort.core.rng import uniform_at
from fedcohort.errors import check
from fedcohort.types import Arrays, Index, Mask
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.section import Section, table
from fedcohort.worlds.trace import Trace, load_trace, rows_by_name

Ticks = Annotated[float, Interval(1, ends="[)")]


@dataclass(frozen=True)
class Availability(Section):
    """Base of all kinds, with the outages they share.

    A tick lasts `tick` seconds (0: a tick is a round). Clients are in one of `groups` regions (0: no outages); an
    outage of a region begins with probability `outage` per tick and lasts `outage_ticks`.
    """

    tick: NotNegative = 0.0
    groups: CountOrZero = 0
    outage: Share = 0.0
    outage_ticks: Count = 1

    def check(self) -> None:
        """Outages need regions."""
        rule = "there are no groups that could fail"
        check(self.groups > 0 or self.outage == 0.0, f"outage = {self.outage:g}", rule, "set groups as well")

    def bind(self, clients: int, seed: int, names: Sequence[str] = ()) -> Arrays:
        """What stays with each client; `names` are those of the clients, where they have some."""
        if self.groups == 0:
            return {}
        region = keyed_draws.order(seed, "region", clients) % self.groups
        return {"region": region.astype(np.int32)}

    def mask(self, seed: int, index: int, clock: float, clients: int, fixed: Arrays) -> Mask:
        """Who is there."""
        tick = index if self.tick == 0.0 else int(max(clock, 0.0) // self.tick)
        there = self.base(seed, tick, clock, np.arange(clients), fixed)
        if self.groups == 0 or self.outage == 0.0:
            return there
        regions = np.arange(self.groups)
        dark = np.zeros(self.groups, np.bool_)
        for back in range(min(self.outage_ticks, tick + 1)):
            dark |= uniform_at(seed, "outage", tick - back, regions) < self.outage
        return there & ~dark[fixed["region"]]

    @abstractmethod
    def base(self, seed: int, tick: int, clock: float, ids: Index, fixed: Arrays) -> Mask:
        """Who is there if nothing is out."""


@dataclass(frozen=True)
class Always(Availability):
    """Everybody, always (except for outages). Its arguments are those of :class:`Availability`.

    >>> Always().mask(seed=0, index=0, clock=0.0, clients=3, fixed={})
    array([ True,  True,  True])
    """

    kind: ClassVar[str] = "always"

    def base(self, seed: int, tick: int, clock: float, ids: Index, fixed: Arrays) -> Mask:
        """All."""
        return np.ones(ids.size, np.bool_)


@dataclass(frozen=True)
class Bernoulli(Availability):
    """Each round on its own, with probability `rate`.

    With `spread`, the clients' rates are uniform on rate +- spread, cut to [0, 1]. `tick`, `groups`, `outage` and
    `outage_ticks` are those of :class:`Availability`.

    >>> Bernoulli(rate=0.5).mask(seed=0, index=0, clock=0.0, clients=1000, fixed={}).sum() in range(450, 550)
    True
    """

    kind: ClassVar[str] = "bernoulli"

    rate: Share = 0.8
    spread: Share = 0.0

    def rates(self, seed: int, ids: Index) -> NDArray[np.float64]:
        """The rate of each client."""
        if self.spread == 0.0:
            return np.full(ids.size, self.rate)
        own = self.rate + self.spread * (2.0 * uniform_at(seed, "availability-rate", 0, ids) - 1.0)
        return np.clip(own, 0.0, 1.0)

    def base(self, seed: int, tick: int, clock: float, ids: Index, fixed: Arrays) -> Mask:
        """One keyed draw per client and tick."""
        there: Mask = uniform_at(seed, "availability", tick, ids) < self.rates(seed, ids)
        return there


@dataclass(frozen=True)
class Markov(Availability):
    """On and off with memory, and day and night.

    A client stays `on` and `off` for so many ticks on average. The daily rhythm has `depth` (0: none, 1: nobody at the
    client's midnight) and `period` ticks; the clients' clocks are spread over the part `zones` of a day. `tick`,
    `groups`, `outage` and `outage_ticks` are those of :class:`Availability`.

    >>> import numpy as np
    >>> Markov(on=12.0, off=4.0).stationary(seed=0, tick=0, ids=np.arange(2))
    array([0.75, 0.75])
    """

    kind: ClassVar[str] = "markov"

    on: Ticks = 10.0
    off: Ticks = 5.0
    depth: Share = 0.0
    period: Ticks = 24.0
    zones: Share = 1.0

    def check(self) -> None:
        """A chain that forgets with a probability of at most one."""
        super().check()
        check(
            1.0 / self.on + 1.0 / self.off <= 1.0,
            f"on = {self.on:g}, off = {self.off:g}",
            "1 / on + 1 / off must be at most 1",
            "raise on or off (2 and 2 is the shortest even chain), or use bernoulli",
        )

    def stationary(self, seed: int, tick: int, ids: Index) -> NDArray[np.float64]:
        """The share of time on, at this time of the client's day."""
        level = self.on / (self.on + self.off)
        if self.depth == 0.0:
            return np.full(ids.size, level)
        phase = self.zones * uniform_at(seed, "zone", 0, ids)
        wave: NDArray[np.float64] = level * (1.0 + self.depth * np.cos(2.0 * np.pi * (tick / self.period - phase)))
        return np.minimum(wave, 1.0)

    def base(self, seed: int, tick: int, clock: float, ids: Index, fixed: Arrays) -> Mask:
        """Look back, tick by tick, for those whose last fresh draw is not yet found."""
        forget = 1.0 / self.on + 1.0 / self.off
        there = np.zeros(ids.size, np.bool_)
        todo = ids
        for then in range(tick, -1, -1):
            if todo.size == 0:
                break
            fresh = (uniform_at(seed, "forget", then, todo) < forget) | (then == 0)
            new = todo[fresh]
            there[new] = uniform_at(seed, "fresh", then, new) < self.stationary(seed, then, new)
            todo = todo[~fresh]
        return there


@dataclass(frozen=True)
class FromTrace(Availability):
    """Recorded intervals from the file `path`, whose three forms are described in docs/worlds.md.

    Where the file names the clients of the world, each follows its own record; else clients follow the recorded devices
    in turns. `groups`, `outage` and `outage_ticks` are those of :class:`Availability`; the clock is in seconds.

    >>> FromTrace(path="devices.csv").kind
    'trace'
    """

    kind: ClassVar[str] = "trace"

    path: str = ""

    def check(self) -> None:
        """The file must be named; it is read when the world is built."""
        super().check()
        check(
            self.path != "",
            "path = ''",
            "a trace needs a file",
            "set path to a FedScale json, a csv or a json of intervals",
        )

    def bind(self, clients: int, seed: int, names: Sequence[str] = ()) -> Arrays:
        """The intervals, and which recorded device each client follows: its own, or in turns, in random order."""
        trace = load_trace(self.path)
        follows = rows_by_name(self.path, trace.names, names)
        if follows is None:
            follows = keyed_draws.order(seed, "trace", clients) % trace.devices
        return {
            **super().bind(clients, seed),
            "trace_device": follows.astype(np.int32),
            "trace_first": trace.first,
            "trace_begin": trace.begin,
            "trace_end": trace.end,
            "trace_period": trace.period,
        }

    def base(self, seed: int, tick: int, clock: float, ids: Index, fixed: Arrays) -> Mask:
        """Bisection in the intervals of each client's device."""
        trace = Trace(fixed["trace_first"], fixed["trace_begin"], fixed["trace_end"], fixed["trace_period"])
        return trace.active(max(clock, 0.0))[fixed["trace_device"][ids]]


AVAILABILITIES: dict[str, type[Availability]] = table(Always, Bernoulli, Markov, FromTrace)
