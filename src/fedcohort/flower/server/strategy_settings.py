"""What a selecting strategy is told once, checked on the spot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fedcohort import signals as catalogue
from fedcohort.core.constraints import Choice, Count, CountOrZero, Interval, Positive
from fedcohort.errors import check
from fedcohort.flower.server.clients import IDENTITIES
from fedcohort.rounds.policy import Privacy, RoundPolicy
from fedcohort.rounds.validation import Limits

LONGEST = 600.0  # seconds that a round lasts where no deadline is given: on a real clock every round must end


@dataclass(frozen=True)
class StrategySettings(RoundPolicy):
    """All but the selector and what is wrapped."""

    state_dir: Path | None = None
    max_privacy: Privacy = "P2"
    min_available: Count = 1
    wait: Positive = 300.0  # seconds to wait for min_available clients at the start
    max_silence: Positive = 900.0  # seconds without an answer from anybody after which the run ends
    seed: CountOrZero = 0
    limits: Limits = field(default_factory=Limits)
    app_version: str | None = None
    identity: Annotated[str, Choice(*IDENTITIES)] = "client-id"
    metrics: tuple[str, ...] | None = None
    metric_signals: Mapping[str, str] = field(default_factory=dict)
    check_shapes: bool = True
    score: str = "accuracy"
    keep_updates: bool = False  # store what a selector of whole updates reads, so that its run can be replayed
    poll: Positive = 0.25
    log_format: Annotated[str, Choice("text", "json")] = "text"
    prometheus_port: Annotated[int, Interval(0, 65535, example=9464)] = 0  # 0: no page for Prometheus
    prometheus_host: str = "127.0.0.1"
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            isinstance(self.limits, Limits),
            f"limits = {self.limits!r}",
            "it must be Limits",
            "write Limits(max_norm=1)",
        )
        check(
            isinstance(self.metric_signals, Mapping),
            f"metric_signals = {self.metric_signals!r}",
            "it must map signals to metrics of the app",
            "write e.g. {'train_loss': 'loss'}",
        )
        if math.isinf(self.deadline):
            object.__setattr__(self, "deadline", LONGEST)
        for name in self.metric_signals:
            catalogue.get(name)

    @property
    def ttl(self) -> float:
        """Seconds that a message and its reply are valid: long enough to hear of a straggler, not for ever."""
        return 2.0 * self.deadline + 10.0
