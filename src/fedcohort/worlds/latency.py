"""How long a client takes, drawn per (client, round) from a keyed stream: who else is asked changes nothing.

    constant    T = seconds + per_sample n e
    flash       T = e (a n + Exp(mean lambda n)): FLASH's shifted exponential. E[max of m alike] = n (a + lambda H_m)
    flash-fixed the same law, drawn once per client: T_i of the FLASH paper has no round index
    lognormal   T = e a n exp(sigma z - sigma^2 / 2): mean e a n
    pareto      T = e a n X (shape - 1) / shape, X ~ Pareto(shape) from 1: mean e a n
    flash-rl    T = e 64 40 20 B / (cores f) + 64 P / b, B = ceil(n / 50) mini-batches, as released; f and b are
                normal around the device's clock and the link's bandwidth. The transfer is 64 P bits, whatever is sent.
    physical    T = e 3 F n / (eff peak) + 8 (down + up) / b, F operations per sample forward
n samples owned, e passes over them (a probe is a third of a pass), P parameters.

Speed classes multiply the whole time of flash, lognormal and pareto by a factor that stays with the client, so that
speed can be learnt. `tied_to` and `rho` make slow clients also the noisy, skewed or large ones: the classes go by the
rank of rho x (rank score of the truth) + sqrt(1 - rho^2) x (own normal draw).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, Factor, Interval, NotNegative, Positive, Share
from fedcohort.core.rng import exponential_at, normal_at, uniform_at
from fedcohort.errors import check
from fedcohort.types import Arrays, Index, Work
from fedcohort.worlds import devices, keyed_draws
from fedcohort.worlds.allocate import largest_remainder
from fedcohort.worlds.section import Section

Double = NDArray[np.float64]


@dataclass(frozen=True)
class Latency(Section):
    """Base of all laws."""

    @abstractmethod
    def bind(self, clients: int, seed: int, truth: Mapping[str, NDArray[Any]]) -> Arrays:
        """What stays with each client: one column per property. `truth` has noise, size, skew, and name where known."""

    @abstractmethod
    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """One keyed draw per client."""

    @abstractmethod
    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """The mean of the draws (to first order where it has no closed form)."""


@dataclass(frozen=True)
class Constant(Latency):
    """Everybody takes `seconds_each`, plus `per_sample` seconds for every sample and pass.

    >>> Constant(seconds_each=2.0).to_dict()
    {'kind': 'constant', 'seconds_each': 2.0, 'per_sample': 0.0}
    """

    kind: ClassVar[str] = "constant"

    seconds_each: NotNegative = 1.0
    per_sample: NotNegative = 0.0

    def bind(self, clients: int, seed: int, truth: Mapping[str, NDArray[Any]]) -> Arrays:
        """Nothing to remember."""
        return {}

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Nothing is drawn."""
        return self.expected(clients, work, fixed)

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """The constant itself, for whatever is asked: a probe takes as long as a round of training."""
        passes = np.asarray(work.passes, np.float64)
        return np.asarray(self.seconds_each + self.per_sample * work.samples * passes, np.float64)


@dataclass(frozen=True)
class Scaled(Latency):
    """Laws of the form (seconds for the work) x (the client's speed class) x (a random factor).

    `a` seconds per sample and pass. Speed classes multiply the time by `factors`, and `shares` says how many clients
    are in each. `tied_to` ("none", "noise", "skew", "size") and `rho` make the slow clients the noisy, skewed or large
    ones.
    """

    a: NotNegative = 1.0  # [a_T]
    factors: tuple[Positive, ...] = (1.0,)
    shares: tuple[Share, ...] = (1.0,)
    tied_to: Annotated[str, Choice("none", "noise", "skew", "size")] = "none"
    rho: Annotated[float, Interval(-1, 1)] = 0.0

    def check(self) -> None:
        """One share per speed class, and the shares add up to one."""
        check(
            len(self.factors) == len(self.shares) > 0,
            f"factors = {list(self.factors)}",
            f"it must have as many entries as shares, {len(self.shares)}",
            "give one share per factor",
        )
        total = sum(self.shares)
        check(abs(total - 1.0) < 1e-6, f"shares = {list(self.shares)}", "they must add up to 1", "change the shares")

    def bind(self, clients: int, seed: int, truth: Mapping[str, NDArray[Any]]) -> Arrays:
        """The factor of each client; class sizes are exact."""
        many = largest_remainder(np.array([self.shares]), np.array([clients]))[0]
        score = keyed_draws.normal(seed, "speed", 0, np.arange(clients))
        if self.tied_to != "none" and clients > 1:
            score = np.sqrt(1.0 - self.rho**2) * score + self.rho * _rank_score(truth[self.tied_to])
        factor = np.empty(clients, np.float32)
        slow = np.argsort(np.array(self.factors), kind="stable")
        ranked = np.argsort(keyed_draws.rounded(score), kind="stable")
        factor[ranked] = np.repeat(np.array(self.factors)[slow], many[slow])
        return {"slowness": factor}

    def base(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Seconds per unit of a, without the random factor."""
        return np.asarray(work.samples * np.asarray(work.passes, np.float64) * fixed["slowness"][clients], np.float64)


@dataclass(frozen=True)
class ShiftedExponential(Scaled):
    """FLASH's shifted exponential: `a` seconds per sample and pass for certain, and `lam` on average on top.

    `factors`, `shares`, `tied_to` and `rho` are those of :class:`Scaled`.

    >>> ShiftedExponential(a=1.0, lam=10.0, factors=(1, 4), shares=(0.8, 0.2)).factors
    (1.0, 4.0)
    """

    kind: ClassVar[str] = "flash"

    lam: NotNegative = 1.0  # [lambda_T] mean of the exponential part, seconds per sample and pass

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """a n + Exp(lambda n)."""
        return self.base(clients, work, fixed) * (self.a + self.lam * exponential_at(seed, "latency", index, clients))

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """n (a + lambda)."""
        return self.base(clients, work, fixed) * (self.a + self.lam)


@dataclass(frozen=True)
class FixedExponential(ShiftedExponential):
    """FLASH's shifted exponential with persistent speeds: each client draws its own once and keeps it.

    `a`, `lam`, `factors`, `shares`, `tied_to` and `rho` are those of :class:`ShiftedExponential`. Over the clients the
    seconds have the same law as there; over the rounds they stay, so that speed can be learnt.

    >>> FixedExponential(a=1.0, lam=10.0).kind
    'flash-fixed'
    """

    kind: ClassVar[str] = "flash-fixed"

    def bind(self, clients: int, seed: int, truth: Mapping[str, NDArray[Any]]) -> Arrays:
        """The speed class of each client and its own exponential draw."""
        drawn = exponential_at(seed, "latency-fixed", 0, np.arange(clients))
        return {**super().bind(clients, seed, truth), "pace": drawn.astype(np.float32)}

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Nothing is drawn any more."""
        return self.expected(clients, work, fixed)

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """n (a + lambda E_i), E_i the client's own draw."""
        return self.base(clients, work, fixed) * (self.a + self.lam * fixed["pace"][clients].astype(np.float64))


@dataclass(frozen=True)
class Lognormal(Scaled):
    """A heavy tail with finite moments: `a` seconds per sample and pass on average, with width `sigma`.

    `factors`, `shares`, `tied_to` and `rho` are those of :class:`Scaled`.

    >>> Lognormal(a=0.1, sigma=0.5).kind
    'lognormal'
    """

    kind: ClassVar[str] = "lognormal"

    sigma: NotNegative = 1.0

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Mean one, width sigma."""
        z = normal_at(seed, "latency", index, clients)
        return self.expected(clients, work, fixed) * np.exp(self.sigma * z - 0.5 * self.sigma**2)

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """a n."""
        return self.a * self.base(clients, work, fixed)


@dataclass(frozen=True)
class Pareto(Scaled):
    """A tail that decays by a power, so that the slowest of a cohort dominates its round.

    `a` seconds per sample and pass on average; the smaller `shape`, the heavier the tail, and at 1 the mean would be
    infinite. `factors`, `shares`, `tied_to` and `rho` are those of :class:`Scaled`.

    >>> Pareto(a=0.1, shape=2.5).kind
    'pareto'
    """

    kind: ClassVar[str] = "pareto"

    shape: Annotated[float, Interval(1, ends="()", example=2.0)] = 2.0

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Inverse of the survival function, mean one."""
        x = uniform_at(seed, "latency", index, clients) ** (-1.0 / self.shape)
        return self.expected(clients, work, fixed) * x * (self.shape - 1.0) / self.shape

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """a n."""
        return self.a * self.base(clients, work, fixed)


@dataclass(frozen=True)
class FlashRLLatency(Latency):
    """FLASH-RL's devices and links, with the formula of its release.

    The release counts mini-batches of size `batch` as samples; 1 counts samples.

    >>> FlashRLLatency().batch
    50
    """

    kind: ClassVar[str] = "flash-rl"
    trainable: ClassVar[bool] = False

    batch: Count = 50

    def bind(self, clients: int, seed: int, truth: Mapping[str, NDArray[Any]]) -> Arrays:
        """Device and link of each client."""
        device, link = devices.assign(clients, seed, self.trainable)
        return {"device": device, "link": link}

    def seconds(self, seed: int, index: int, clients: Index, work: Work, fixed: Arrays) -> Double:
        """Clock and bandwidth of this round, never below a twentieth of their means."""
        mhz, mhz_sd, mbit, mbit_sd = _rates(clients, fixed)
        f = mhz + mhz_sd * normal_at(seed, "clock", index, clients)
        b = mbit + mbit_sd * normal_at(seed, "bandwidth", index, clients)
        return self.time(clients, work, fixed, np.maximum(f, 0.05 * mhz), np.maximum(b, 0.05 * mbit))

    def expected(self, clients: Index, work: Work, fixed: Arrays) -> Double:
        """At mean clock; E[1 / b] to second order."""
        mhz, _, mbit, sd = _rates(clients, fixed)
        return self.time(clients, work, fixed, mhz, mbit / (1.0 + (sd / mbit) ** 2))

    def time(self, clients: Index, work: Work, fixed: Arrays, mhz: Double, mbit: Double) -> Double:
        """Compute plus transfer."""
        cores = _column("cores")[fixed["device"][clients]]
        size = np.ceil(np.asarray(work.samples, np.float64) / self.batch)
        compute = size * work.passes * (64.0 * 40.0 * 20.0) / (cores * mhz * 1e6)
        out: Double = compute + 64.0 * work.params / (mbit * 1e6)
        return out


@dataclass(frozen=True)
class Physical(FlashRLLatency):
    """The same links and the devices that can train, with operations, peak speeds and bytes.

    Training reaches the share `efficiency` of a device's peak; `flops` are the operations of a forward pass per sample
    (None: two per parameter).

    >>> Physical(efficiency=0.1).kind
    'physical'
    """

    kind: ClassVar[str] = "physical"
    trainable: ClassVar[bool] = True

    efficiency: Factor = 0.2
    flops: Positive | None = None

    def time(self, clients: Index, work: Work, fixed: Arrays, mhz: Double, mbit: Double) -> Double:
        """Three forward passes' worth of operations per sample and pass; both directions on the link."""
        device = fixed["device"][clients]
        peak = _column("gflops")[device] * 1e9 * mhz / _column("mhz")[device]
        flops = 2.0 * work.params if self.flops is None else self.flops
        compute = 3.0 * flops * work.samples * work.passes / (self.efficiency * peak)
        out: Double = compute + 8.0 * (np.asarray(work.down, np.float64) + work.up) / (mbit * 1e6)
        return out


def _column(name: str) -> Double:
    return np.array([getattr(d, name) for d in devices.DEVICES], np.float64)


def _rates(clients: Index, fixed: Arrays) -> tuple[Double, Double, Double, Double]:
    device, link = fixed["device"][clients], fixed["link"][clients]
    mbit = np.array([x.mbit for x in devices.LINKS])[link]
    return _column("mhz")[device], _column("sd")[device], mbit, np.array([x.sd for x in devices.LINKS])[link]


def _rank_score(x: NDArray[np.floating[Any]]) -> Double:
    """Ranks spread evenly over mean 0 and variance 1; NaN counts as the smallest."""
    values = np.nan_to_num(np.asarray(x, np.float64), nan=-np.inf, neginf=-1e300)
    rank = np.empty(values.size)
    rank[np.argsort(values, kind="stable")] = np.arange(values.size)
    spread = rank.std()
    out: Double = (rank - rank.mean()) / spread
    return out
