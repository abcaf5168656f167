"""How many to ask so that enough come back: the binomial optimum for the drop-out that was measured.

The smallest m with P[Binomial(m, 1 - q) >= K] >= 0.999, where q is the share of dispatched clients that did not end
OK, as a posterior mean with a weak prior and forgetting. Clients cut off by an early close say nothing about q.
"""

from __future__ import annotations

import math

from fedcohort.errors import check

TARGET = 0.999  # share of rounds that should reach their size
MEMORY = 0.98  # weight of the past after each round
PRIOR_LOST, PRIOR_SEEN = 0.1, 2.0
MOST_LOST = 0.9  # beyond this, asking more is no remedy


def enough_for(size: int, lost: float, target: float = TARGET) -> int:
    """The smallest cohort of which at least `size` come back with probability `target`."""
    come = 1.0 - min(max(lost, 0.0), MOST_LOST)
    if come >= 1.0:
        return size
    asked = size
    while _at_least(size, asked, come) < target:
        asked += 1
    return asked


def _at_least(size: int, asked: int, come: float) -> float:
    """P[Binomial(asked, come) >= size], by the shorter tail in logarithms."""
    fewer = 0.0
    for k in range(size):
        ways = math.lgamma(asked + 1) - math.lgamma(k + 1) - math.lgamma(asked - k + 1)
        fewer += math.exp(ways + k * math.log(come) + (asked - k) * math.log1p(-come))
    return 1.0 - fewer


class OverSelection:
    """Keeps the measured drop-out and says how many to ask."""

    def __init__(self, rule: str | float) -> None:
        good = rule == "adaptive" if isinstance(rule, str) else rule >= 1.0
        check(good, f"over_select = {rule!r}", "it must be 'adaptive' or a factor of at least 1", "use e.g. 1.3")
        self.rule = rule
        self.lost, self.seen = PRIOR_LOST, PRIOR_SEEN

    @property
    def rate(self) -> float:
        """The drop-out believed in now."""
        return self.lost / self.seen

    def ask_for(self, size: int) -> int:
        """How many to ask when `size` are wanted."""
        if isinstance(self.rule, str):
            return enough_for(size, self.rate)
        return math.ceil(size * self.rule)

    def learn(self, lost: int, seen: int) -> None:
        """A round in which the fate of `seen` clients was watched to the end, `lost` of them in vain."""
        self.lost = self.lost * MEMORY + lost
        self.seen = self.seen * MEMORY + seen
