"""How many to ask so that enough come back, from the drop-out that was measured.

With drop-out q the number of clients to ask until K of them come back is negative binomial, so the optimum is

    m*(K, q) = min { m : P[Binomial(m, 1 - q) >= K] >= target }                                                    (1)

(K = 100 and 99.9 %: 124 at q = 0.1, 170 at 0.3, 248 at 0.5). The drop-out is not known but measured, with forgetting:

    lost <- w lost + lost_t,    seen <- w seen + seen_t,    q = l + 2 sqrt(l (1 - l) / seen),   l = lost / seen     (2)

Two standard errors on top pay for not knowing q: without them, half of the time too few are asked. A round whose losses
are four standard errors off shows that the drop-out has changed: then w = 0.1, and a jump from 10 to 50 % is made good
within a few rounds. Before anything was seen, four of ten are taken for lost: a first round that asks too many costs
less than one that fails.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fedcohort.errors import check

ADAPTIVE = "adaptive"
TARGET = 0.999  # share of rounds that should reach their size
MEMORY = 0.995  # [w] weight of the past after each round
SURPRISE = 4.0  # standard errors: so far off, and the drop-out is another one than before
DOUBT = 0.1  # [w] then
STANDARD_ERRORS = 2.0  # added to the measured drop-out
PRIOR = (4.0, 10.0)  # lost and seen before anything was measured
MAX_DROPOUT = 0.9  # beyond this, asking more does not help


@lru_cache(maxsize=65536)
def enough_for(size: int, lost: float, target: float = TARGET) -> int:
    """Eq. 1: the smallest cohort of which at least `size` come back with probability `target`."""
    if lost <= 0.0 or size <= 0:
        return size
    come, gone = math.log1p(-min(lost, MAX_DROPOUT)), math.log(min(lost, MAX_DROPOUT))
    log_mass = size * come  # of needing exactly m clients, here m = size
    reached, asked = math.exp(log_mass), size
    while reached < target:
        log_mass += gone + math.log(asked) - math.log(asked + 1 - size)
        asked += 1
        reached += math.exp(log_mass)
    return asked


class OverSelection:
    """Keeps the measured drop-out and says how many to ask: a fixed factor, or "adaptive"."""

    def __init__(self, rule: str | float = ADAPTIVE, target: float = TARGET) -> None:
        good = rule == ADAPTIVE if isinstance(rule, str) else rule >= 1.0
        check(good, f"over_select = {rule!r}", "it must be 'adaptive' or a factor of at least 1", "use e.g. 1.3")
        check(0.0 < target < 1.0, f"target = {target}", "a probability between 0 and 1", "use e.g. 0.999")
        self.rule, self.target = rule, target
        self.lost, self.seen = PRIOR

    @property
    def adaptive(self) -> bool:
        """Whether the number follows the measured drop-out."""
        return self.rule == ADAPTIVE

    @property
    def rate(self) -> float:
        """The drop-out believed in now (eq. 2)."""
        mean = self.lost / self.seen
        return mean + STANDARD_ERRORS * math.sqrt(max(mean * (1.0 - mean), 0.0) / self.seen)

    def ask_for(self, size: int) -> int:
        """How many to ask when `size` are wanted."""
        if isinstance(self.rule, str):
            return enough_for(size, round(self.rate, 4), self.target)
        return math.ceil(size * self.rule)

    def learn(self, came: int, lost: int) -> None:
        """The fate of so many dispatched clients is known: these came back, those did not."""
        fates, mean = came + lost, self.lost / self.seen
        if fates > 0:
            spread = math.sqrt(max(fates * mean * (1.0 - mean) * (1.0 + fates / self.seen), 1.0))
            keep = DOUBT if abs(lost - fates * mean) > SURPRISE * spread else MEMORY
            self.lost = self.lost * keep + lost
            self.seen = self.seen * keep + fates


class BackOff:
    """A pause after each abandoned round, doubled as long as they follow each other."""

    def __init__(self, first: float, most: float = 3600.0) -> None:
        check(0.0 <= first <= most, f"back_off = {first}", f"it must be between 0 and {most}", "use seconds, e.g. 60")
        self.first, self.most, self.count = first, most, 0

    def pause(self, abandoned: bool) -> float:
        """Seconds to wait after a round that was abandoned, or was not."""
        self.count = self.count + 1 if abandoned else 0
        return min(self.first * 2.0 ** min(self.count - 1, 60), self.most) if self.count else 0.0
