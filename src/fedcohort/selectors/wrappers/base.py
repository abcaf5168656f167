"""What every wrapper of a selector shares: forward what it does not change, and give the inner one a consistent view.

* `needs`, `probe`, state (under the prefix "inner.") and exemptions are the inner selector's.
* The inner selector is asked with a narrowed round: fewer available clients, or fewer seats. `probe` and `select`
  narrow it in the same way, so that whoever is probed can be chosen.
* `observe` shows the inner selector every dispatched client, whoever chose it: it is told the whole truth.
* Seats that a wrapper fills itself carry neutral directives (full work, nothing dropped, drawn once) and NaN in the
  parts of the inner score. Inclusion probabilities are then unknown, unless the wrapper filled every seat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.core.table import Table
from fedcohort.errors import check
from fedcohort.protocols import Prober, Selector
from fedcohort.selectors.uniform import Uniform
from fedcohort.types import Array, Arrays, Cohort, Index, Round, RoundResult

NEVER = -(2**31)  # a round long before the first
INNER = "inner."  # prefix of the inner selector's state
NEUTRAL: Mapping[str, float] = {"work": 1.0, "drop": 0.0, "multiplicity": 1.0}  # directives of an ordinary client


@dataclass
class NoState(Table):
    """For wrappers that remember nothing themselves."""


class Wrapper:
    """Delegates everything to `inner` (uniform by default). Subclasses override `narrow`, `select` or `learn`."""

    state: Table

    def __init__(self, inner: Selector | None = None) -> None:
        self.inner: Selector = Uniform() if inner is None else inner
        check(
            isinstance(self.inner, Selector),
            f"inner = {inner!r}",
            "a wrapper needs a selector object",
            "pass e.g. inner=Oort(), or make the whole from text: make_selector(\"warm-up(inner='oort')\")",
        )
        self.needs: frozenset[str] = self.inner.needs
        self.exempt: Mapping[str, str] = {**getattr(self.inner, "exempt", {})}  # what cannot hold inside cannot here
        self.state = NoState()

    def narrow(self, rnd: Round) -> Round:
        """The round as the inner selector sees it; a function of state and round alone. The whole round here."""
        return rnd

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Whom the inner selector wants to ask, if it asks at all."""
        if not isinstance(self.inner, Prober):
            return np.empty(0, np.int64)
        return self.inner.probe(self.narrow(rnd), rng)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner selector's choice in the narrowed round."""
        self.state.grow(rnd.population)
        return self.inner.select(self.narrow(rnd), rng)

    def observe(self, result: RoundResult) -> None:
        """Learn, then show the inner selector everybody that was asked."""
        self.state.grow(int(result.clients.max(initial=-1)) + 1)
        self.learn(result)
        self.inner.observe(result)

    def learn(self, result: RoundResult) -> None:
        """What the wrapper itself remembers of a round. Nothing here."""

    def state_dict(self) -> Arrays:
        """The wrapper's own columns, and the inner selector's under a prefix."""
        inner = {INNER + name: value for name, value in self.inner.state_dict().items()}
        return {**self.state.to_arrays(), **inner}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`; a refusal by either part changes neither."""
        fresh = replace(self.state)
        fresh.load_arrays({name: value for name, value in arrays.items() if not name.startswith(INNER)})
        inner = {name.removeprefix(INNER): value for name, value in arrays.items() if name.startswith(INNER)}
        self.inner.load_state_dict(inner)
        self.state = fresh


def join(chosen: Cohort, extra: Index, mark: str) -> Cohort:
    """The inner cohort and clients that the wrapper added; `why[mark]` is 1 for these and 0 for the others."""
    flag = np.concatenate([np.zeros(chosen.clients.size, np.float32), np.ones(extra.size, np.float32)])
    if extra.size == 0:
        return replace(chosen, why={**chosen.why, mark: flag})
    directives = {
        name: _extend(value, extra.size, NEUTRAL.get(name, np.nan)) for name, value in chosen.directives.items()
    }
    why = {name: _extend(value, extra.size, np.nan) for name, value in chosen.why.items()}
    return Cohort(np.concatenate([chosen.clients, extra]), directives, None, {**why, mark: flag})


def draw_uniform(rnd: Round, rng: np.random.Generator, mark: str) -> Cohort:
    """A whole cohort drawn uniformly, whose inclusion probabilities are known."""
    clients = draw.uniform(rnd.available, rnd.size, rng)
    inclusion = np.full(clients.size, clients.size / max(rnd.available.size, 1))
    return Cohort(clients, inclusion=inclusion, why={mark: np.ones(clients.size, np.float32)})


def others(available: Index, chosen: Index) -> Index:
    """Those of the available (sorted) that were not chosen."""
    return np.delete(available, np.searchsorted(available, chosen))


def fill_up(rnd: Round, chosen: Cohort, urgency: Array, rng: np.random.Generator, mark: str) -> Cohort:
    """Give empty seats to available clients that the inner selector was not offered, the most urgent first.

    `urgency` is a column over all slots that depends on nothing a client reports; ties are drawn by lot.
    """
    rest = others(rnd.available, chosen.clients)
    seats = min(rnd.size, rnd.available.size) - chosen.clients.size
    return join(chosen, rest[draw.top(urgency[rest], seats, rng)], mark)


def _extend(column: Array, rows: int, value: float) -> Array:
    """The column with this many more rows; integers have no NaN and get 0 for it."""
    number = 0.0 if np.isnan(value) and column.dtype.kind in "iub" else value
    return np.concatenate([column, np.full((rows, *column.shape[1:]), number, column.dtype)])
