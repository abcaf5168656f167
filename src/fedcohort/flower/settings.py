"""What a selecting strategy is told once, checked on the spot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedcohort import signals as catalogue
from fedcohort.errors import check
from fedcohort.flower.clients import IDENTITIES
from fedcohort.overselect import OverSelection
from fedcohort.validate import Limits


@dataclass(frozen=True)
class Settings:
    """All but the selector and what is wrapped."""

    size: int
    deadline: float = 600.0  # seconds after which nobody is waited for
    state_dir: Path | None = None
    max_privacy: str = "P2"
    min_available: int = 1
    wait: float = 300.0  # seconds to wait for min_available clients at the start
    over_select: str | float = "adaptive"
    quorum: int = 0  # believed replies at which a round closes; 0: size
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    app_version: str | None = None
    identity: str = "client-id"
    metrics: tuple[str, ...] | None = None
    metric_signals: Mapping[str, str] = field(default_factory=dict)
    check_shapes: bool = True
    score: str = "accuracy"
    keep_updates: bool = False  # store what a selector of whole updates reads, so that its run can be replayed
    poll: float = 0.25
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        check(self.size >= 1, f"size = {self.size}", "a cohort needs at least one client", "use size=1 or more")
        good = 0 < self.deadline < math.inf
        check(good, f"deadline = {self.deadline}", "it must be positive and finite", "use seconds, e.g. 120")
        check(
            0 <= self.quorum <= self.size,
            f"quorum = {self.quorum}",
            f"it must be between 1 and size = {self.size}",
            "leave it out for the size itself",
        )
        check(self.seed >= 0, f"seed = {self.seed}", "a seed must not be negative", "use 0 or more")
        check(self.min_available >= 1, f"min_available = {self.min_available}", "at least one", "use 1 or more")
        check(self.wait > 0, f"wait = {self.wait}", "it must be positive", "use seconds, e.g. 120")
        check(self.poll > 0, f"poll = {self.poll}", "it must be positive", "use seconds, e.g. 0.25")
        known = self.identity in IDENTITIES
        check(known, f"identity = {self.identity!r}", "clients are known by one of two ids", f"use {IDENTITIES}")
        for name in self.metric_signals:
            catalogue.get(name)
        OverSelection(self.over_select)
        if self.quorum == 0:
            object.__setattr__(self, "quorum", self.size)

    @property
    def ttl(self) -> float:
        """Seconds that a message and its reply are valid: long enough to hear of a straggler, not for ever."""
        return 2.0 * self.deadline + 10.0
