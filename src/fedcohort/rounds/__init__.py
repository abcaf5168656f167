"""The round: session, roster, engine, policy, validation, replay, history. No transport, no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.rounds.backend import Backend as Backend
    from fedcohort.rounds.engine import RoundEngine as RoundEngine
    from fedcohort.rounds.history import History as History
    from fedcohort.rounds.policy import RoundPolicy as RoundPolicy
    from fedcohort.rounds.roster import Roster as Roster
    from fedcohort.rounds.session import Session as Session
else:
    __getattr__, __dir__, __all__ = exports(__name__)
