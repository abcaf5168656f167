"""How long label histograms are, by vote: one client that registers first must not decide it for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

HISTOGRAM = "label_histogram"  # the profile that is a list
CLASSES = "classes"  # its length, in roster records of the journal


class HistogramLength:
    """The length that most clients have, one vote each, also of those refused for it; ties stay with what held."""

    def __init__(self) -> None:
        self.votes: dict[str, int] = {}
        self.holds = 0  # 0: not known

    def vote(self, profiles: Mapping[str, Mapping[str, Any]]) -> bool:
        """Count what these clients say, the first word of each; whether another length holds now."""
        for name, profile in profiles.items():
            if profile.get(HISTOGRAM):
                self.votes.setdefault(name, len(profile[HISTOGRAM]))
        counts, before = Counter(self.votes.values()), self.holds
        self.holds = max(counts, key=lambda length: (counts[length], length == before), default=before)
        return self.holds != before

    def fits(self, profile: Mapping[str, Any]) -> bool:
        """Whether a profile has no histogram, or one of the length that holds."""
        return HISTOGRAM not in profile or len(profile[HISTOGRAM]) == self.holds


def histograms(profiles: Iterable[Mapping[str, Any]], length: int) -> list[list[float]]:
    """Label histograms of this length; zeros for those who have another one, and are not asked."""
    found = (profile.get(HISTOGRAM, ()) for profile in profiles)
    return [list(row) if len(row) == length else [0.0] * length for row in found]
