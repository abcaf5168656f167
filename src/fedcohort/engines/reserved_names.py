"""Columns that a run writes for every round: a metric of one's own has another name, or it would overwrite one."""

from __future__ import annotations

from fedcohort.types import STALENESS, Outcome

PREFIX = "method."  # of the numbers that a method reports
RESERVED = frozenset(
    (
        *("round", "clock", "seconds", "score", "loss", "asked", "probed", "cohort", "abandoned"),
        *(outcome.name.lower() for outcome in Outcome),
        *("bytes_down", "bytes_up", "bytes_probes", "bytes_signals"),
        *("in_flight", "version", STALENESS),  # asynchronous rounds
        *("names", "close_lag", "late_replies"),  # deployments
    )
)


def reserved(name: str) -> bool:
    """Whether a run has a column of this name itself.

    >>> reserved("score"), reserved("method.moves"), reserved("my_score")
    (True, True, False)
    """
    return name in RESERVED or name.startswith(PREFIX)
