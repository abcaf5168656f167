"""Wrong labels: how often each client is wrong, and what its labels become.

    beta       r_i ~ Beta(a, c - a) with c = 100: mean a / 100 (FLASH's "15 % noise" is a = 15)
    given      r_i from a list, or one rate for all

Flips
    symmetric     to another class, each with odds r / (K - 1): a share r of the labels is wrong
    pair          to the next class, y + 1 mod K
    include-self  to any class, the true one too: a share r (K - 1) / K is wrong
Counts
    exact         round(r n) samples of the client, half up
    bernoulli     each sample on its own
The flips of the validation part have a stream of their own, so the training labels are the same whether the
validation part is flipped or not.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Positive, Share
from fedcohort.core.rng import uniform_at
from fedcohort.errors import BadParameter, check
from fedcohort.types import Index, Mask
from fedcohort.worlds import keyed_draws
from fedcohort.worlds.section import Section, table


@dataclass(frozen=True)
class Noise(Section):
    """How labels are flipped; the kind decides where the rates come from.

    `flip` is "symmetric", "pair" or "include-self" and `count` "exact" or "bernoulli" (see the module); `noisy` is the
    share of clients that have wrong labels at all, exactly round(noisy * N) of them.
    """

    flip: Annotated[str, Choice("symmetric", "pair", "include-self")] = "symmetric"
    count: Annotated[str, Choice("exact", "bernoulli")] = "exact"
    noisy: Share = 1.0

    def rates(self, clients: int, seed: int) -> NDArray[np.float64]:
        """The rate of each client."""
        rate = self.draw(np.arange(clients), seed)
        clean = keyed_draws.order(seed, "noisy", clients)[int(np.floor(self.noisy * clients + 0.5)) :]
        rate[clean] = 0.0
        return rate

    @abstractmethod
    def draw(self, ids: Index, seed: int) -> NDArray[np.float64]:
        """Rates before some clients are set to zero."""

    def flipped(
        self, label: Index, start: Index, rate: NDArray[np.float64], classes: int, seed: int, part: str
    ) -> Index:
        """The labels with noise; the same array where nothing is flipped."""
        if label.size == 0 or not rate.any():
            return label
        check(classes > 1, f"classes = {classes}", "labels cannot be flipped within one class", "set noise to none")
        out = label.copy()
        for first, past, owner in keyed_draws.blocks(start):
            at = int(start[first])
            hit = at + np.flatnonzero(self._hit(at, owner, rate[first:past], seed, part))
            out[hit] = self._instead(label[hit], hit, classes, seed, part)
        return out

    def _hit(self, at: int, owner: Index, rate: NDArray[np.float64], seed: int, part: str) -> Mask:
        """Which samples of a block of clients are flipped; `at` is the position of the first."""
        ids = at + np.arange(owner.size)
        if self.count == "bernoulli":
            hit: Mask = uniform_at(seed, f"noise/{part}", 0, ids) < rate[owner]
            return hit
        sizes = np.bincount(owner, minlength=rate.size)
        many = np.floor(rate * sizes + 0.5 + 1e-9).astype(np.int64)
        order = keyed_draws.order_within(seed, f"noise/{part}", owner, ids)
        place = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        hit = np.zeros(owner.size, np.bool_)
        hit[order[place < np.repeat(many, sizes)]] = True
        return hit

    def _instead(self, label: Index, ids: Index, classes: int, seed: int, part: str) -> Index:
        """What these labels become."""
        if self.flip == "pair":
            return (label + 1) % classes
        u = uniform_at(seed, f"noise-to/{part}", 0, ids)
        if self.flip == "include-self":
            return (u * classes).astype(np.int64)
        return (label + 1 + (u * (classes - 1)).astype(np.int64)) % classes


@dataclass(frozen=True)
class NoNoise(Noise):
    """Every label is right.

    >>> NoNoise().rates(3, seed=0)
    array([0., 0., 0.])
    """

    kind: ClassVar[str] = "none"

    def draw(self, ids: Index, seed: int) -> NDArray[np.float64]:
        """Zero."""
        return np.zeros(ids.size)


@dataclass(frozen=True)
class BetaNoise(Noise):
    """Rates from Beta(a, concentration - a): the mean is a / concentration, and a small concentration spreads them.

    `flip`, `count` and `noisy` are those of :class:`Noise`.

    >>> rates = BetaNoise(a=15.0).rates(1000, seed=0)
    >>> float(rates.mean().round(2))
    0.15
    """

    kind: ClassVar[str] = "beta"

    a: Positive = 15.0  # [a]
    concentration: Positive = 100.0

    def check(self) -> None:
        """0 < a < concentration."""
        check(
            self.a < self.concentration,
            f"a = {self.a:g}",
            f"it must be less than concentration = {self.concentration:g}",
            "lower a, whose ratio to concentration is the mean rate",
        )

    def draw(self, ids: Index, seed: int) -> NDArray[np.float64]:
        """One Beta draw per client."""
        chunks = [ids[at : at + keyed_draws.CHUNK] for at in range(0, ids.size, keyed_draws.CHUNK)]
        return np.concatenate(
            [keyed_draws.beta(seed, "noise-rate", c, self.a, self.concentration - self.a) for c in chunks]
        )


@dataclass(frozen=True)
class GivenNoise(Noise):
    """Rates as given: `rate` is one number per client, or a single one for all.

    `flip`, `count` and `noisy` are those of :class:`Noise`.

    >>> GivenNoise(rate=(0.0, 0.2, 0.4)).rates(3, seed=0)
    array([0. , 0.2, 0.4])
    """

    kind: ClassVar[str] = "given"

    rate: tuple[Share, ...] = (0.1,)

    def check(self) -> None:
        """At least one."""
        check(len(self.rate) > 0, "rate = ()", "it must have at least one entry", "give one rate, or one per client")

    def draw(self, ids: Index, seed: int) -> NDArray[np.float64]:
        """The list itself."""
        if len(self.rate) not in (1, ids.size):
            raise BadParameter(
                f"rate with {len(self.rate)} entries",
                f"there are {ids.size} clients",
                "give one rate, or one per client",
            )
        return np.broadcast_to(np.array(self.rate), ids.shape).copy()


NOISES: dict[str, type[Noise]] = table(NoNoise, BetaNoise, GivenNoise)
