"""How many clients are asked and when a round ends: one set of names, meanings and defaults for every place.

Configuration files, the command line, `simulate` and `CohortStrategy` take these keys, and the round engine obeys them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Annotated, Any

from fedcohort.core.constraints import Choice, Count, CountOrZero, Either, Interval, NotNegative, Share
from fedcohort.errors import check, check_fields
from fedcohort.rounds.schedules import Sizes, in_force, sizes, written
from fedcohort.signals import PRIVACY_LEVELS

ADAPTIVE = "adaptive"
OverSelect = Annotated[float | str, Either(Interval(1, ends="[)", example=1.3), Choice(ADAPTIVE))]
Privacy = Annotated[str, Choice(*PRIVACY_LEVELS)]
Seconds = Annotated[float, Interval(0, ends="(]", example=300.0)]


def setting(default: Any, about: str) -> Any:
    """A field with its default and what it means, which is what the documentation and the TOML files show."""
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class RoundPolicy:
    """When a round ends and how many are asked.

    >>> RoundPolicy(cohort_size=10, over_select=1.3, deadline=300.0).closes_at
    10
    """

    cohort_size: Count = setting(10, "replies wanted per round [K]")
    deadline: Seconds = setting(math.inf, "seconds a round lasts at most; later replies are ignored")
    close_after: CountOrZero = setting(0, "accepted replies at which a round closes early (0: cohort_size)")
    min_replies: Count = setting(1, "with fewer accepted replies the round is abandoned and the model stays")
    over_select: OverSelect = setting(1.0, "ask this many times cohort_size, or 'adaptive' to follow the drop-out")
    back_off: NotNegative = setting(
        0.0, "seconds of pause after an abandoned round, doubled for each further one in a row"
    )
    buffer_size: CountOrZero = setting(
        0,
        "asynchronous: cohort_size clients are always out, the model is updated whenever this many updates have "
        "arrived (0: rounds)",
    )
    wait_for_slow: Share = setting(0.0, "share of those asked beyond close_after that a round still waits for")
    use_floor: Share = setting(
        0.0, "a round waits for clients used in less than this share of the rounds that asked them"
    )
    weight_by_use: Share = setting(0.0, "weights are divided by the probability of being used to this power")
    size_schedule: Sizes = setting("", "cohort sizes from given rounds on [M_t], e.g. '0:all, 1:10' ('': cohort_size)")

    def __post_init__(self) -> None:
        check_fields(self)
        as_floats(self)
        for name in ("close_after", "buffer_size", *(() if self.size_schedule else ("min_replies",))):
            value = getattr(self, name)
            rule = f"it must be at most cohort_size = {self.cohort_size}"
            check(value <= self.cohort_size, f"{name} = {value}", rule, "use a smaller number or a larger cohort")
        if self.buffer_size:
            self._check_asynchronous()
        object.__setattr__(self, "size_schedule", written(sizes(self.size_schedule)))
        if self.size_schedule:
            rule = "with a schedule a round closes at the size it has"
            remedy = "leave one of the two out"
            check(self.close_after == 0, f"close_after = {self.close_after} with size_schedule", rule, remedy)
        self._check_min_replies()

    @property
    def closes_at(self) -> int:
        """Accepted replies at which a round closes."""
        return self.close_after or self.cohort_size

    @property
    def closes_early(self) -> bool:
        """Whether a round may end while some of those asked are still at work."""
        more = isinstance(self.over_select, str) or self.over_select > 1.0 or self.closes_at < self.cohort_size
        return more and not self.buffer_size and self.wait_for_slow < 1.0

    def wanted(self, index: int, population: int) -> int:
        """Replies wanted in round `index` of so many clients: the schedule's, where there is one."""
        scheduled = sizes(self.size_schedule)
        if not scheduled or index < scheduled[0][0]:
            return self.cohort_size
        size = in_force(scheduled, index, None)
        return population if size is None else min(size, population)

    def waits_for(self, asked: int, wanted: int | None = None) -> int:
        """Accepted replies at which a round closes that has asked so many, where `wanted` is its size."""
        least = self.close_after or (self.cohort_size if wanted is None else wanted)
        return least + math.ceil(self.wait_for_slow * max(asked - least, 0))

    def _check_min_replies(self) -> None:
        """Refuse rounds that close before there can be enough replies."""
        entries = sizes(self.size_schedule)
        scheduled = [size for _, size in entries if size is not None]
        if not entries or entries[0][0] > 0:  # before a schedule begins
            scheduled.append(self.cohort_size)
        if not scheduled:  # everybody, in every round
            return
        asked = [n if isinstance(self.over_select, str) else math.ceil(n * self.over_select) for n in scheduled]
        most = min(map(self.waits_for, asked, scheduled))
        name = f"close_after = {self.close_after}" if self.close_after else f"size_schedule = {self.size_schedule!r}"
        rule = f"with {name} a round closes at {most} accepted replies, and would always be abandoned"
        remedy = f"use at most {most}"
        check(self.min_replies <= most, f"min_replies = {self.min_replies}", rule, remedy)

    def _check_asynchronous(self) -> None:
        """What has no meaning where there are no rounds."""
        for known in fields(RoundPolicy):
            value = getattr(self, known.name)
            if known.name not in ("cohort_size", "deadline", "buffer_size"):
                same = value == known.default
                rule = "asynchronous runs have no rounds to which it could apply"
                check(same, f"{known.name} = {value} with buffer_size", rule, "leave one of them out")


def as_floats(made: Any) -> None:
    """Numbers of a frozen dataclass that are declared as float become float: 300 and 300.0 are the same setting."""
    for known in fields(made):
        value = getattr(made, known.name)
        if isinstance(known.default, float) and isinstance(value, int):
            object.__setattr__(made, known.name, float(value))


def about(kind: type[Any]) -> Mapping[str, Field[Any]]:
    """The fields of a settings class by name."""
    return {known.name: known for known in fields(kind)}
