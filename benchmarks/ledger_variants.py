"""Changes to ledger's rule that its failure modes ask for, each as small as it can be said.

`benchmarks/ledger_tuning.py` runs them by name on tuning seeds. None was kept: docs/ledger.md has the figures. What they
remember beyond ledger's own state is not saved: they are for measuring only.
"""

import numpy as np

from fedcohort.selectors import Ledger
from fedcohort.selectors._parts import ledger_pace
from fedcohort.selectors._parts.ledger_search import Terms

SIGNIFICANT = 1.64  # standard errors of the logarithm of a ratio of variances: one-sided 95 %


class Tally:
    """Number, sum and sum of squares of one report per client; variances within and between clients."""

    def __init__(self):
        self.sums = np.zeros((3, 0))

    def add(self, who, values):
        lacking = int(who.max(initial=-1)) + 1 - self.sums.shape[1]
        if lacking > 0:
            self.sums = np.pad(self.sums, ((0, 0), (0, lacking)))
        np.add.at(self.sums, (slice(None), who), np.stack([np.ones(who.size), values, values**2]))

    def variances(self):
        """Within and between clients, and their degrees of freedom; None while too little is known."""
        n, total, squares = self.sums[:, self.sums[0] > 0]
        inner, outer = float((n - 1).sum()), n.size - 1
        if inner < 3 or outer < 3:
            return None
        mean = total / n
        within = float((squares - total * mean).sum()) / inner
        between = float((n * (mean - total.sum() / n.sum()) ** 2).sum()) / outer
        return max(within, 1e-12), between, inner, outer, float(n.mean())


class CorrelatedPace(Ledger):
    """V times 1 - r+, r the correlation of log-seconds and log-samples: where slow means large, time counts less."""

    def select(self, rnd, rng):
        """As ledger, with a pace that depends on r."""
        self.state.grow(rnd.population)
        seconds, samples = self._log_seconds(rnd)[rnd.available], np.log(np.maximum(self._samples(rnd), 1.0))
        spread = float(np.std(seconds)) * float(np.std(samples))
        r = float(np.mean((seconds - seconds.mean()) * (samples - samples.mean()))) / spread if spread > 1e-9 else 0.0
        usual = self.terms
        self.terms = Terms(usual.pace * (1.0 - max(r, 0.0)), usual.balance, usual.data)
        try:
            return super().select(rnd, rng)
        finally:
            self.terms = usual


class ShrunkDurations(Ledger):
    """The prior of eq. 6 counts as many observations as the ratio of variances within and between clients says."""

    def __init__(self):
        super().__init__()
        self.tally = Tally()

    def _learn(self, who, seconds, report):
        self.tally.add(who, np.log(np.maximum(seconds, 1e-9)))
        super()._learn(who, seconds, report)

    def _log_seconds(self, rnd):
        usual, found = ledger_pace.PRIOR, self.tally.variances()
        if found is not None:
            within, between, _, _, n = found
            ledger_pace.PRIOR = float(np.clip(within / max((between - within) / n, 1e-9), 0.1, 20.0))
        try:
            return super()._log_seconds(rnd)
        finally:
            ledger_pace.PRIOR = usual


class SignificantLosses(Ledger):
    """Losses count (eq. 3) only once they differ between clients by more than they differ within them."""

    def __init__(self):
        super().__init__()
        self.tally, self.strictness = Tally(), self.losses

    def _learn(self, who, seconds, report):
        super()._learn(who, seconds, report)
        if "loss_before" in report:
            level = np.sqrt(np.maximum(report["loss_before"] * report["loss_after"], 0.0))
            self.tally.add(who, level - np.median(level))
        found = self.tally.variances()
        sure = False
        if found is not None:
            within, between, inner, outer, _ = found
            sure = np.log(max(between, 1e-12) / within) > SIGNIFICANT * (2 / inner + 2 / outer) ** 0.5
        self.losses = self.strictness if sure else 0.0


class PopulationPrior(Ledger):
    """Clients that were never heard have the mean quality of those that were, instead of the best one."""

    def observe(self, result):
        """As ledger, then the prior."""
        super().observe(result)
        s = self.state
        heard = s.heard > 0
        if heard.any() and not heard.all():
            s.quality[~heard & (s.asked == 0)] = s.quality[heard].mean()


VARIANTS = {
    "V by the correlation of time and size": CorrelatedPace,
    "durations shrunk by the ratio of variances": ShrunkDurations,
    "losses only where their spread is significant": SignificantLosses,
    "unheard clients have the mean quality": PopulationPrior,
}
