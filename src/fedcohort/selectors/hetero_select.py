"""HeteRo-Select: six views of a client in one score, and a softmax over the scores.

    Stabilizing Federated Learning under Extreme Heterogeneity with HeteRo-Select. https://arxiv.org/abs/2508.06692

Client k was chosen h_k times, last in round l_k (-1: never), and reported the loss L_k and an update of norm n_k.
mm scales to [0, 1] over the candidates (a constant becomes 1/2); t counts rounds from 0.

    V  = mm(L_k), never reported: 1                                         loss                                  (1)
    D  = JS(P_k, mean P) of label shares, in bits  |  clip(1 - cos(update_k, moving mean of updates), 0, 1)       (2)
    M  = mm(m_k),  m_k <- (m_k + g_k) / 2,  g_k = (L_prev - L_k) / L_prev   momentum                              (3)
    F  = (1 + clip(1 - h_k / mean h, -1, 1)) / 2                            fairness                              (4)
    St = gamma ln(1 + t - l_k) / max_j ln(1 + t - l_j)                      staleness, in [0, gamma]              (5)
    N  = 1 - mm(n_k)                                                        norm                                  (6)
    additive         S = w_v V + w_d D + w_m M + w_f F + w_st St + w_n N                                          (7)
    multiplicative   S = (w_v V + w_d D + w_m M) F* St* N*, over its largest value                                (8)
                     F* = 1 / (1 + eta h_k / max(mean h, 1)),  St* = 1 + gamma ln(1 + t - l_k),
                     N* = 1 / (1 + n_k / median n)
    p  = softmax(S / tau),  tau = tau0 (1 - 0.5 min(t / 100, 1)),  K without replacement                          (9)

adaptive=True answers the paper's open question with two rules of ours, in which both numbers follow the run:

    tau -> tau theta,   theta <- 0.9 theta after a round of the best validation score so far, theta / 0.9 after any
                        other, within [0.1, 2]: choose more sharply while it goes well, explore when it stalls    (10)
    gamma -> gamma (1 + std h / mean h):  the less evenly clients were asked, the more staleness counts          (11)

What is not known of a client (no second loss, no norm, no direction, no label shares) counts 1/2 in D, M, N and N*.

Departures from the paper
    * Only a summary of version 1 was available: (1)-(6) and (8) are our definitions after its words and after the
      public code of version 2, which differs. (7) and (9) are the summary's. tau0 of the main runs is not stated.
    * gamma would be cancelled by scaling St to [0, 1], as version 2 does: St is divided by its maximum instead.
    * Losses and norms are clipped at the quantile `clip` of the candidates before scaling, momentum at both ends and
      g_k to [-1, 1], so that one liar does not flatten the others. Above 65,536 candidates the quantiles come from a
      fixed sample of that size. clip=1 is plain min-max.
    * Losses are the last reported ones (version 2 evaluates every client in every round). L_k is the mean over the
      first local epoch, while the model moves: of a client with many samples it is lower.
    * JS needs label shares (privacy P3): only diversity="js" reads them. The default compares updates, which the
      server has anyway, with the moving mean before this round, in which updates longer than the median are shortened.
    * The summary assumes parts of comparable range. JS is within [0, 1] but not stretched to it: with alpha = 0.1 on
      CIFAR-10 its deviation over clients is 0.1, that of loss, momentum and norm 0.3: diversity counts a third of each.
    * (10) and (11) are not in the paper, which asks for them; its mu belongs to the method: `fedprox(adapt=0.1)`.
    * Local FedProx (mu = 0.1) and the plain mean are left to the method: combine with `fedprox`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice, Count, Finite, Interval, NotNegative, Positive
from fedcohort.core.table import Table, column, ragged
from fedcohort.errors import check, checked
from fedcohort.selectors._parts.feature_scaling import min_max, quantile_range
from fedcohort.selectors._parts.label_divergence import divergence, mean_shares
from fedcohort.selectors._parts.scoring import best, chunks, rows_of, sample
from fedcohort.selectors.base import StatefulSelector
from fedcohort.types import Array, Cohort, Index, Mask, Real, Round, RoundResult

PARTS = ("loss", "diversity", "momentum", "fairness", "staleness", "norm")
DIVERSITY = {"cosine": "delta", "cosine-last": "last_layer_delta", "js": "label_histogram", "none": ""}
HALF = np.float32(0.5)
COOLING, COOLEST, HOTTEST = 0.9, 0.1, 2.0  # of eq. 10
LARGEST = 1e30  # losses and norms are cut here


@dataclass(frozen=True, slots=True)
class CandidateStatistics:
    """Statistics over all candidates of a round."""

    loss: tuple[float, float]  # low and width of mm
    momentum: tuple[float, float]
    norm: tuple[float, float]
    norm_median: float
    times: float  # mean h
    rest: float  # max ln(1 + t - l_j)
    gamma: float  # of eq. 5, or eq. 11
    apart: Real  # D of every slot; negative: not known


@dataclass
class HeteroSelectState(Table):
    """What HeteRo-Select remembers of every client, and the direction of the federation."""

    times: Real = column(0.0)  # h_k
    last: NDArray[np.int32] = column(-1, np.int32)  # l_k
    loss: Real = column(-1.0)  # L_k; negative: never reported
    momentum: Real = column(0.0)  # m_k
    paced: Mask = column(False, np.bool_)  # two losses or more: m_k is known
    norm: Real = column(-1.0)  # |update_k|; negative: not known
    apart: Real = column(-1.0)  # 1 - cos of eq. 2, not yet clipped; negative: not known
    way: Real = ragged(np.float32)  # moving mean of updates
    heat: float = 1.0  # theta of eq. 10
    top: float = -np.inf  # best validation score so far


class HeteroSelect(StatefulSelector[HeteroSelectState]):
    """Weigh six properties of a client against each other: loss, diversity, momentum, fairness, staleness, norm.

    Args:
        variant: "additive" (eq. 7) or "multiplicative" (eq. 8).
        diversity: "cosine" of the update, "cosine-last" (last layer only), "js" of label shares (P3) or "none".
        w_v: weight of the loss [w_v].
        w_d: weight of the diversity [w_d]; negative prefers typical clients.
        w_m: weight of the momentum [w_m].
        w_f: weight of the fairness [w_f].
        w_st: weight of the staleness [w_st].
        w_n: weight of the norm [w_n].
        gamma: size of the staleness [gamma].
        eta: strength of the fairness in the multiplicative variant [eta].
        tau0: temperature of the softmax at first [tau_0].
        horizon: rounds over which the temperature falls to half.
        clip: quantile at which losses and norms are cut; 1: not at all.
        memory: weight of the past in the moving mean of updates.
        adaptive: whether temperature and staleness follow the run (eqs. 10 and 11).

    >>> sorted(HeteroSelect(diversity="none").needs)
    ['delta_norm', 'train_loss']
    """

    exempt: Mapping[str, str] = {
        "learns": "by design: good clients here have high losses (a plus) but large and typical updates (two minuses)"
    }

    @checked
    def __init__(
        self,
        *,
        variant: Annotated[str, Choice("additive", "multiplicative")] = "additive",
        diversity: Annotated[str, Choice(*DIVERSITY)] = "cosine",
        w_v: Finite = 1.0,
        w_d: Finite = 1.0,
        w_m: Finite = 1.0,
        w_f: Finite = 1.0,
        w_st: Finite = 1.0,
        w_n: Finite = 1.0,
        gamma: NotNegative = 0.7,
        eta: NotNegative = 1.0,
        tau0: Positive = 1.0,
        horizon: Count = 100,
        clip: Annotated[float, Interval(0.5, 1)] = 0.95,
        memory: Annotated[float, Interval(0, 1, ends="[)")] = 0.9,
        adaptive: bool = False,
    ) -> None:
        weights = (w_v, w_d, w_m, w_f, w_st, w_n)
        fits = variant == "additive" or min(weights[:3]) >= 0
        rule = "variant='multiplicative' needs weights of at least 0"
        check(fits, f"w_v, w_d, w_m = {weights[:3]}", rule, "use variant='additive'")
        self.variant, self.diversity, self.weights = variant, diversity, np.asarray(weights, np.float32)
        self.gamma, self.eta, self.tau0, self.horizon, self.clip, self.memory = gamma, eta, tau0, horizon, clip, memory
        self.adaptive = self.reads_score = adaptive
        self.needs = frozenset({"train_loss", "delta_norm", DIVERSITY[diversity]} - {""})
        self.state = HeteroSelectState()
        self._diverging: tuple[Array, Real] | None = None  # label shares and what was computed from them

    def select(self, rnd: Round, rng: np.random.Generator) -> Cohort:
        """Eq. 9: Gumbel noise on the scores, and the K largest."""
        self.state.grow(rnd.population)
        if rnd.available.size == 0 or rnd.size <= 0:
            return Cohort(np.empty(0, np.int64))
        seen = self._statistics(rnd)
        peak = self._peak(rnd, seen)
        heat = np.float32(self._temperature(rnd.index) * peak)

        def race(rows: Index | slice) -> Real:
            score = self._parts(rows, rnd.index, seen)["score"]
            noise = rng.standard_exponential(score.size, np.float32)
            out: Real = score / heat - np.log(np.maximum(noise, np.float32(1e-30)))
            return out

        chosen = best(rnd.available, rnd.size, race, rng)
        parts = self._parts(chosen, rnd.index, seen)
        parts["score"] = parts["score"] / np.float32(peak)
        return Cohort(chosen, why=parts)

    def observe(self, result: RoundResult) -> None:
        """Count who was asked; keep losses, norms and directions of those that replied."""
        s, told = self.state, result.clients
        s.grow_for(told)
        s.times[told] += 1
        s.last[told] = result.index
        if self.adaptive and np.isfinite(result.score):  # eq. 10
            factor = COOLING if result.score > s.top else 1 / COOLING
            s.heat, s.top = min(max(s.heat * factor, COOLEST), HOTTEST), max(s.top, float(result.score))
        self._losses(told, result.signals["train_loss"], result.replied)
        norm = result.signals["delta_norm"]
        known = result.replied & np.isfinite(norm) & (norm >= 0)
        s.norm[told[known]] = np.minimum(norm[known], LARGEST)
        if self.diversity.startswith("cosine"):
            update = np.asarray(result.signals[DIVERSITY[self.diversity]], np.float32)
            sound = np.flatnonzero(result.replied & np.isfinite(update).all(axis=1))
            self._directions(told[sound], update[sound])

    def _temperature(self, index: int) -> float:
        """tau of eq. 9."""
        return self.tau0 * (1 - 0.5 * min(index / self.horizon, 1.0)) * self.state.heat

    def _statistics(self, rnd: Round) -> CandidateStatistics:
        """What must be known of all candidates before any of them can be scored."""
        s, rows = self.state, rows_of(rnd)
        norm = s.norm[rows]
        known = sample(np.flatnonzero(norm >= 0))
        return CandidateStatistics(
            loss=quantile_range(s.loss[rows], s.loss[rows] >= 0, 0.0, self.clip),
            momentum=quantile_range(s.momentum[rows], s.paced[rows], 1 - self.clip, self.clip),
            norm=quantile_range(norm, norm >= 0, 0.0, self.clip),
            norm_median=max(float(np.median(norm[known])), 1e-30) if known.size else 1.0,
            times=float(s.times[rows].mean(dtype=np.float64)),
            rest=float(_rest(s.last[rows].min(keepdims=True), rnd.index)[0]),
            gamma=self._gamma(s.times[rows]),
            apart=self._label_divergence(rnd.profiles["label_histogram"]) if self.diversity == "js" else s.apart,
        )

    def _gamma(self, times: Real) -> float:
        """gamma, or eq. 11."""
        mean = float(times.mean(dtype=np.float64))
        if not self.adaptive or mean <= 0:
            return self.gamma
        return self.gamma * (1 + float(times.std(dtype=np.float64)) / mean)

    def _peak(self, rnd: Round, seen: CandidateStatistics) -> float:
        """What scores are divided by: the largest in eq. 8, nothing in eq. 7."""
        if self.variant == "additive":
            return 1.0
        tops = [float(self._parts(rows, rnd.index, seen)["score"].max()) for _, rows in chunks(rnd.available)]
        return max(*tops, 1e-30)

    def _parts(self, rows: Index | slice, index: int, seen: CandidateStatistics) -> dict[str, Real]:
        """Eq. 7: six weighted parts and their sum. Eq. 8: three weighted parts, three factors and the product."""
        s, w = self.state, self.weights
        times, norm, rest = s.times[rows], s.norm[rows], _rest(s.last[rows], index)
        base = (
            w[0] * min_max(s.loss[rows], s.loss[rows] >= 0, seen.loss, unknown=1.0),  # eq. 1
            w[1] * np.where(seen.apart[rows] >= 0, np.minimum(seen.apart[rows], 1), HALF),  # eq. 2
            w[2] * min_max(s.momentum[rows], s.paced[rows], seen.momentum),  # eq. 3
        )
        if self.variant == "additive":
            fair = w[3] * HALF * (1 + np.clip(1 - times / np.float32(max(seen.times, 1e-9)), -1, 1))  # eq. 4
            stale = w[4] * np.float32(seen.gamma / seen.rest) * rest  # eq. 5
            light = w[5] * (1 - min_max(norm, norm >= 0, seen.norm))  # eq. 6
            score = base[0] + base[1] + base[2] + fair + stale + light
        else:
            fair = 1 / (1 + np.float32(self.eta / max(seen.times, 1.0)) * times)
            stale = 1 + np.float32(seen.gamma) * rest
            light = np.where(norm >= 0, 1 / (1 + np.maximum(norm, 0) / np.float32(seen.norm_median)), HALF)
            score = (base[0] + base[1] + base[2]) * fair * stale * light
        return {"score": score, **dict(zip(PARTS, (*base, fair, stale, light), strict=True))}

    def _label_divergence(self, shares: Array) -> Real:
        """JS of every slot, computed once as long as the same array is registered."""
        if self._diverging is None or self._diverging[0] is not shares:
            self._diverging = shares, divergence(np.asarray(shares), mean_shares(np.asarray(shares)))
        return self._diverging[1]

    def _losses(self, told: Index, loss: Array, replied: Mask) -> None:
        """L_k and eq. 3."""
        s, good = self.state, replied & np.isfinite(loss) & (loss >= 0)
        who, new = told[good], np.minimum(loss[good], LARGEST).astype(np.float32)
        before = s.loss[who]
        again = before >= 0
        old = np.maximum(before[again], 1e-8)
        gain = np.clip((old - new[again]) / old, -1, 1)
        s.momentum[who[again]] = HALF * (s.momentum[who[again]] + gain)
        s.paced[who[again]] = True
        s.loss[who] = new

    def _directions(self, who: Index, update: Real) -> None:
        """The cosine of eq. 2, then the moving mean."""
        s = self.state
        if who.size == 0:
            return
        length = np.linalg.norm(update.astype(np.float64), axis=1)
        if s.way.size == update.shape[1]:
            reach = length * np.linalg.norm(s.way.astype(np.float64))
            cosine = np.divide(update.astype(np.float64) @ s.way, reach, out=np.ones(who.size), where=reach > 0)
            s.apart[who[reach > 0]] = np.clip(1 - cosine, 0, 2)[reach > 0]
        scale = np.minimum(1, np.median(length) / np.maximum(length, 1e-300))
        mean = (scale @ update / who.size).astype(np.float32)
        kept = self.memory if s.way.size == mean.size else 0.0
        s.way = (kept * s.way + (1 - kept) * mean if kept else mean).astype(np.float32)


def _rest(last: NDArray[np.int32], index: int) -> Real:
    """ln(1 + t - l_k)."""
    out: Real = np.log((1 + np.maximum(index - last, 1)).astype(np.float32))
    return out
