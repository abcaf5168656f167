"""What every wrapper of a selector shares: forward what it does not change, and show the inner one a consistent view.

* `needs`, `probe`, state (under the prefix "inner.") and exemptions are the inner selector's.
* The inner selector is asked with a narrowed round: fewer available clients, or a smaller size. `probe` and `select`
  narrow it in the same way, so that whoever is probed can be chosen.
* `observe` shows the inner selector every dispatched client, whoever chose it.
* Clients that a wrapper adds itself carry neutral directives (full work, nothing dropped, drawn once) and NaN in the
  parts of the inner score. Inclusion probabilities are then unknown, unless the wrapper chose the whole cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcohort.core import draw
from fedcohort.errors import check
from fedcohort.protocols import Exempting, Frugal, Prober, ScoreReader, Selector, SignalLearner
from fedcohort.selectors.base import S, StatefulSelector
from fedcohort.selectors.uniform import Uniform
from fedcohort.types import Array, Cohort, Index, Round, RoundResult

NEVER = -(2**31)  # a round long before the first
NEUTRAL: Mapping[str, float] = {"work": 1.0, "drop": 0.0, "multiplicity": 1.0}  # directives of an ordinary client


class Wrapper(StatefulSelector[S]):
    """Delegates everything to `inner` (uniform by default). Subclasses override `narrow`, `select` or `learn`.

    Args:
        inner: the selector that is wrapped.
        inexact: why the cohort may be smaller than the inner selector's, if it may.

    >>> from fedcohort.selectors.base import NoState
    >>> class Plain(Wrapper[NoState]):
    ...     pass
    >>> Plain(Uniform()).needs
    frozenset()
    """

    nested = ("inner",)

    def __init__(self, inner: Selector | None = None, *, inexact: str = "") -> None:
        super().__init__()
        self.inner: Selector = Uniform() if inner is None else inner
        check(
            isinstance(self.inner, Selector),
            f"inner = {inner!r}",
            "a wrapper needs a selector object",
            "pass e.g. inner=Oort(), or use a text: make_selector(\"warm-up(inner='oort')\")",
        )
        self.reads_score = isinstance(self.inner, ScoreReader) and self.inner.reads_score
        self.learns_from = self._of_inner(self.inner.learns_from if isinstance(self.inner, SignalLearner) else {})
        self.does_without = self._of_inner(self.inner.does_without if isinstance(self.inner, Frugal) else {})
        exempt = self.inner.exempt if isinstance(self.inner, Exempting) else {}  # what cannot hold inside cannot here
        self.exempt = {**exempt, "exact_size": inexact} if inexact else {**exempt}

    def _of_inner(self, remedies: Mapping[str, str]) -> dict[str, str]:
        """Remedies name arguments of the inner selector, which the wrapper has not."""
        whose = "" if isinstance(self.inner, Wrapper) else f" of the inner {type(self.inner).__name__}"
        return {signal: f"{text}{whose}" for signal, text in remedies.items()}

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the inner selector reads now: FedACS stops asking."""
        return self.inner.needs

    def narrow(self, rnd: Round) -> Round:
        """The round as the inner selector sees it: a function of state and round. By default the whole round."""
        return rnd

    def probe(self, rnd: Round, rng: np.random.Generator) -> Index:
        """Whom the inner selector wants to probe, if it probes at all."""
        if not isinstance(self.inner, Prober):
            return np.empty(0, np.int64)
        return self.inner.probe(self.narrow(rnd), rng)

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """The inner selector's choice in the narrowed round."""
        self.state.grow(rnd.population)
        return self.inner.select(self.narrow(rnd), rng)

    def observe(self, result: RoundResult) -> None:
        """Learn, then show the inner selector everybody that was asked."""
        self.state.grow_for(result.clients)
        self.learn(result)
        self.inner.observe(result)

    def learn(self, result: RoundResult) -> None:
        """What the wrapper itself remembers of a round; by default nothing."""


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
    """Fill the cohort with available clients that the inner selector was not offered, the most urgent first.

    `urgency` is a column over all slots that depends on nothing a client reports; ties are broken at random.
    """
    rest = others(rnd.available, chosen.clients)
    places = min(rnd.size, rnd.available.size) - chosen.clients.size
    return join(chosen, rest[draw.top(urgency[rest], places, rng)], mark)


def _extend(column: Array, rows: int, value: float) -> Array:
    """The column with this many more rows; integers have no NaN and get 0 for it."""
    number = 0.0 if np.isnan(value) and column.dtype.kind in "iub" else value
    return np.concatenate([column, np.full((rows, *column.shape[1:]), number, column.dtype)])
