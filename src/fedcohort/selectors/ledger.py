"""Ledger: everybody has an account of places owed; a cohort pays large debts and is fast and balanced together.

    A selector of our own (fedcohort, 2026); docs/ledger.md has the idea, the related work and the experiments.

Every round credits each client with the share of the K places that it is owed, and debits one from those asked:

    Q_i <- min(Q_i + pi_i, 6) - [i asked],     pi = q K / sum q, capped at 1                                        (1)
    q_i = max(0.05, exp(-kappa (p_i - 0.05)+) clip(1/2 + 2 beta_i, 0, 1) clip(2 m_i, 0, 1)^2 (h_i + 2) / (a_i + 2))  (2)

where client i was asked a_i times and sent h_i usable replies. What the replies say, r = 1 .. h_i:

    p_i = h_i / (h_i + 1) EMA[ sqrt(loss_before loss_after) - median of the round ] / L0       wrong labels          (3)
    beta_i = (sum_r w_r c_ir + 0.1) / (sum_r w_r^2 + 0.1),  w_r = max(median_j c_jr, 0)        agreement             (4)
    m_i = (h_i mean_r[ min(l, 1 / l) ] + 1) / (h_i + 1),  l = |delta_ir| / median_j |delta_jr|  plausible length     (5)
    ln s_i = (sum_r ln seconds_ir + ln prior_i) / (h_i + 1)                                    seconds               (6)
    x_i = EMA[ sketch(last_layer_delta - mean of the round) ]                                  what it adds          (7)

L0 is the median loss_before of the first round; c_ir the cosine of the update with the sum of the others', lengths cut
to the median: beta is the slope of a client on the consensus, so that without consensus there is no verdict. The prior
is the profile `expected_seconds` times one factor learnt from all durations. With n_i samples, the cohort S minimises

    V K max_S s_i / T0  +  rho D(S) / D0  +  v K mean(n) / sum_S n_i  -  sum_S Q_i                                   (8)
    D(S) = |sum_S n_i x_i|^2 / (sum_S n_i)^2

T0 is the (1 - 1/K) quantile of s, D0 the mean of D over random cohorts. Debts fix how often everybody is asked in the
long run, so that the cohort may be chosen for time and balance without starving anybody (drift plus penalty).

Choices
    * The search for (8): 24 bounds on the seconds; below each of the best eight, three passes of swaps among the 4 K
      largest debts; the best of the eight (fewer if K is above 25).
    * Credits are given when clients are told, as many as rows are told: debts sum to zero also when rounds are
      asynchronous, over-selected or short of clients. Nobody is owed, or owes, more
      than `limit` places.
    * A reply with any NaN or infinite signal counts as asked, not as a reply, and teaches nothing else. Fewer than
      three usable replies in a result have no meaningful median: then only durations are learnt.
    * The moving means of (3) and (7) have weights of at least 1/2, that of (5) of at least 1/5.
    * `secure` reads no update and no loss of a single client: (3), (4), (5), (7) and rho are left out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Moderate, Positive
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.selectors._parts import ledger_quality, ledger_search
from fedcohort.selectors._parts.last_reports import sample_counts
from fedcohort.selectors._parts.ledger_pace import log_seconds
from fedcohort.selectors._parts.ledger_sketch import deviation
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Cohort, Index, Real, Round, RoundResult, Signals

WIDTH = 32  # of the sketch
FEWEST = 3  # usable replies without which medians say nothing
PARTS = {  # what is read, and the part of the rule that does without it
    "samples": "sizes (all count the same)",
    "expected_seconds": "the prior of durations (their mean stands in)",
    "loss_before": "wrong labels",
    "loss_after": "wrong labels",
    "delta": "agreement and length of updates",
    "last_layer_delta": "balance",
}
UPDATES = frozenset({"loss_before", "loss_after", "delta", "last_layer_delta"})
_log = logging.getLogger("fedcohort.selectors")


@dataclass
class LedgerState(Table):
    """Everything Ledger remembers: 36 bytes a client, and 128 for the sketch."""

    owed: Real = column(0.0)  # Q_i
    asked: Real = column(0.0)  # a_i
    heard: Real = column(0.0)  # h_i, usable replies
    log_seconds: Real = column(0.0)  # sum of ln seconds over them
    excess: Real = column(0.0)  # EMA in eq. 3, in units of L0
    agreed: Real = column(0.0)  # sum of w c, eq. 4
    consensus: Real = column(0.0)  # sum of w^2, eq. 4
    plausible: Real = column(1.0)  # moving mean in eq. 5
    quality: Real = column(1.0)  # q_i
    sketch: NDArray[np.float32] = column(0.0, width=WIDTH)  # x_i
    first_loss: float = 0.0  # L0; 0: not known yet


class Ledger(StatefulSelector[LedgerState]):
    """Ask those who are owed most, in cohorts that are fast together, balanced together and rich enough in data.

    Args:
        pace: weight of the time that the slowest takes [V].
        balance: weight of the imbalance of the updates [rho].
        data: weight of having few samples [v].
        losses: how strictly high losses are taken for wrong labels [kappa].
        limit: places that anybody may be owed, or owe.
        without: signals that are not to be read; the parts that need them are left out.
        secure: read no update and no loss of a single client, as secure aggregation demands.

    >>> sorted(Ledger(secure=True).needs)
    ['expected_seconds', 'samples']
    """

    @checked
    def __init__(
        self,
        *,
        pace: Moderate = 3.0,
        balance: Moderate = 4.0,
        data: Moderate = 12.0,
        losses: Moderate = 4.0,
        limit: Positive = 6.0,
        without: tuple[Annotated[str, Choice(*PARTS)], ...] = (),
        secure: bool = False,
    ) -> None:
        unread = {*without, *(UPDATES if secure else ())}
        if losses == 0 or unread & {"loss_before", "loss_after"}:
            unread |= {"loss_before", "loss_after"}
        if balance == 0:
            unread.add("last_layer_delta")
        self.needs = frozenset(PARTS) - unread
        self.losses = losses
        self.limit = limit
        self.terms = ledger_search.Terms(pace, balance if "last_layer_delta" in self.needs else 0.0, data)
        width = WIDTH if self.terms.balance else 0
        self.state = LedgerState(sketch=np.empty((0, width), np.float32))
        self._missed: set[str] = set()  # signals whose absence was logged

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 8, over debts that include this round's credit."""
        s, k = self.state, min(rnd.size, rnd.available.size)
        s.grow(rnd.population)
        if k <= 0:
            return Cohort(np.empty(0, np.int64))
        here: Any = slice(rnd.population) if rnd.available.size == rnd.population else rnd.available
        debts = np.minimum(s.owed + ledger_quality.inclusion(s.quality, min(rnd.size, s.rows)), self.limit)[here]
        found = ledger_search.search(
            ledger_search.without_ties(debts, rng),
            self._log_seconds(rnd)[here],
            self._samples(rnd),
            lambda rows: s.sketch[rnd.available[rows]].astype(np.float64),
            k,
            self.terms,
            rng,
        )
        order = np.argsort(found.at)
        at = found.at[order]
        why = {"owed": debts[at], "pace": found.pace[order], "balance": found.balance[order], "data": found.data[order]}
        clients = rnd.available[at]
        return Cohort(clients, why={**why, "quality": s.quality[clients]})

    def observe(self, result: RoundResult) -> None:
        """Settle the accounts (1), then learn from the usable replies."""
        s, told = self.state, result.clients
        s.grow_for(told)
        if told.size == 0:
            return
        s.owed = np.minimum(s.owed + ledger_quality.inclusion(s.quality, min(told.size, s.rows)), self.limit)
        s.owed[told] = np.maximum(s.owed[told] - 1.0, -self.limit)
        s.asked[told] += 1
        reports = {name: np.asarray(result.signals[name]) for name in self._reported(result.signals)}
        good = result.replied & np.isfinite(result.duration)
        for report in reports.values():
            good &= ledger_quality.usable(report)
        at = np.flatnonzero(good)
        if at.size:
            self._learn(told[at], np.asarray(result.duration)[at], {name: r[at] for name, r in reports.items()})
        s.quality[told] = self._quality(told)

    def _learn(self, who: Index, seconds: Real, report: dict[str, NDArray[Any]]) -> None:
        """Eq. 3 to 7 for these clients."""
        s = self.state
        s.heard[who] += 1
        s.log_seconds[who] += np.log(np.maximum(seconds, 1e-9))
        if who.size < FEWEST:
            return
        step = np.maximum(1.0 / s.heard[who], 0.5)
        if "loss_before" in report:
            s.first_loss = s.first_loss or max(float(np.median(report["loss_before"])), 1e-6)
            excess = ledger_quality.excess_loss(report["loss_before"], report["loss_after"]) / s.first_loss
            s.excess[who] += step * (np.clip(excess, -ledger_quality.LARGEST, ledger_quality.LARGEST) - s.excess[who])
        if "delta" in report:
            plausible, cosine, w = ledger_quality.agreement(report["delta"])
            s.agreed[who] += w * cosine
            s.consensus[who] += w * w
            s.plausible[who] += np.maximum(1.0 / s.heard[who], 0.2) * (plausible - s.plausible[who])
        if "last_layer_delta" in report:
            s.sketch[who] += step[:, None] * (deviation(report["last_layer_delta"], WIDTH) - s.sketch[who])

    def _quality(self, who: Index) -> Real:
        """Eq. 2."""
        s = self.state
        heard, ridge = s.heard[who], ledger_quality.RIDGE
        wrong = heard / (heard + 1) * s.excess[who]
        slope = (s.agreed[who] + ridge) / (s.consensus[who] + ridge)
        plausible = (heard * s.plausible[who] + 1) / (heard + 1)
        reliable = (heard + 2) / (s.asked[who] + 2)
        return ledger_quality.quality(wrong, slope, plausible, reliable, self.losses)

    def _log_seconds(self, rnd: Round) -> Real:
        """Eq. 6 for everybody."""
        s, n = self.state, rnd.population
        known = self._known(rnd.profiles, "expected_seconds")
        profile = np.asarray(rnd.profiles["expected_seconds"])[:n] if known else None
        return log_seconds(s.log_seconds[:n], s.heard[:n], profile)

    def _samples(self, rnd: Round) -> Real:
        """n_i of the available."""
        return sample_counts(rnd) if self._known(rnd.profiles, "samples") else np.ones(rnd.available.size)

    def _reported(self, signals: Signals) -> list[str]:
        """The declared reports that are there; the two losses only together."""
        names = [name for name in sorted(self.needs & UPDATES) if self._known(signals, name)]
        losses = [name for name in names if name.startswith("loss")]
        return names if len(losses) != 1 else [name for name in names if name not in losses]

    def _known(self, signals: Signals, name: str) -> bool:
        """Whether a signal can be read; says once what is left out if a declared one cannot."""
        if name in self.needs and name not in signals and name not in self._missed:
            self._missed.add(name)
            _log.warning("ledger: signal %r is missing; running without %s", name, PARTS[name])
        return name in self.needs and name in signals
