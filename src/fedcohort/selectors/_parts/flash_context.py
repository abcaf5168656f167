"""FLASH's context vector and reward, shared by the bandits that run on them.

    Xiangyu Chang et al. FLASH: Federated Learning Across Simultaneous Heterogeneities. Section II-C.

Context of client i before round t, and the reward for its work in round t:

    x_t(i) = [ L_rob^t / L_rob^1 , CE^t(V_i) / CE^1(V_i) , T_i , r_{t-1}(i) ]                 (C1)
    r_t(i) = | L_rob^{t+1}(i) - L_rob^t(i) | / T_i                                            (C2)
    r_t    = | mean_i L_rob^{t+1}(i) - mean_i L_rob^t(i) | / max_i T_i      (scope="global")  (C3)
    r_t(i) = g / T_i,  g = CE(V; w_t) - CE(V; w_t(i));  where g < 0:  g T_i / (median T)^2    (reward="model")  (C4)

(C4) reads Alg. 1, line 20, as a vector: V is the server's validation data, w_t(i) the model that client i uploads. Most
single models are worse than the common one, and a loss over a long duration would be a small one: so it is multiplied.
The median is that of the cohort; of all known clients where fewer than four are paid, whose rewards are set against
those of other rounds, and in (C3).

L^{t+1} is only known when round t + 1 asks for it. So the rewards of a cohort are settled one round later, from
the probe answers, by a function without side effects: `select` uses its result, `observe` commits the same one.

Departures from the paper
    * Features and rewards are scaled (the paper does not say how): see `feature_scaling.py`.
    * Statistics are taken over all clients known so far, available or not, so that `observe` can recompute the context.
      Above 65,536 known clients they come from a fixed random sample of that size.
    * What is not known of a client is taken as the mean of the known ones; the paper measures everybody.
    * T_i is the client's own last duration: the round's maximum would be the same for all.
    * Of rewards and features the share `trim` is cut at each end, rounded so that the largest is always cut (it counts
      as the second largest) and the smallest only among 21 or more. Rewards count as at most ten deviations of past
      rounds from their mean, also with trim=0.
    * In asynchronous rounds a report is of the model that the client was sent, and counts as of the round in which it
      lands: rewards of the client's own loss (C2) then also pay what everybody gained while it was away, and (C4) does
      not. Contexts are those at the landing, not those at the choice. Use reward="model" there.
    * If the first loss of a client lies above the trimmed range, the changes of its loss count as if its losses had
      started at the upper end of that range: a client that reports all its losses a thousand times too high gains
      next to nothing. With trim=0 the reward is as printed.
    * An answer to a probe is preferred to a report of the same round.
    * A reward needs the loss before and after. A client that cannot be probed in the next round gets none. (C4) needs
      no probe; where the server has no validation data, reward="model" pays as "improvement" does, which needs them:
      with refresh="none" nobody is paid then and nothing is learned. The first round warns of either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw, stats
from fedcohort.core.constraints import Choice, counted
from fedcohort.core.table import column, ragged
from fedcohort.errors import check
from fedcohort.selectors._parts.feature_scaling import FEW, MovingReward, Scale, Trim, standardise
from fedcohort.selectors._parts.scoring import best, sample
from fedcohort.types import Index, Mask, Probed, Real, Round, RoundResult, Signals

Double = NDArray[np.float64]
Scaling = Annotated[str, Choice("zscore", "l2", "raw")]
RewardForm = Annotated[str, Choice("improvement", "abs", "model")]
Scope = Annotated[str, Choice("client", "global")]
Refresh = Annotated[str, Choice("all", "selected", "none", counted="sample")]
Initial = Annotated[str, Choice("all", counted="random")]

ELEMENTS = ("loss", "val", "duration", "reward")
NEEDS = frozenset({"probe_robust_loss", "probe_val_loss", "robust_loss", "val_loss"})
LOSS_MAX = 1e6  # losses are clipped here before they enter the state


@dataclass
class ContextState(MovingReward):
    """What the context remembers of each client, and the cohort whose rewards are not settled yet."""

    robust: Real = column(0.0)  # L_rob, newest
    robust_first: Real = column(0.0)  # L_rob^1; 0: never measured
    val: Real = column(0.0)  # CE(V_i), newest
    val_first: Real = column(0.0)  # CE^1(V_i); 0: never measured
    seconds: Real = column(0.0)  # T_i, newest; 0: never asked
    reward: Real = column(0.0)  # r_{t-1}(i), raw
    paid: Mask = column(False, np.bool_)  # got a reward before
    measured: NDArray[np.int32] = column(-1, np.int32)  # round of the newest loss
    asked: Index = ragged(np.int64)  # S_{t-1}, those whose update was used
    asked_x: Double = ragged(np.float64, ndim=2)  # their x_{t-1}(i)
    asked_round: int = -1  # t - 1
    tau: float = 0.0  # max T_i of S_{t-1}
    peak: float = 0.0  # largest global reward so far
    judged: Index = ragged(np.int64)  # places in S_{t-1} whose models the server has evaluated
    gain: Double = ragged(np.float64)  # their CE(V; w) - CE(V; w(i))


S = TypeVar("S", bound=ContextState)


@dataclass(frozen=True, slots=True)
class Context:
    """Which elements, how scaled, how rewarded, and who is probed."""

    elements: tuple[str, ...] = ELEMENTS
    scaling: Scaling = "zscore"
    standardise: bool = True  # rewards within the round
    trim: Trim = 0.05  # share trimmed at each end before scaling
    reward: RewardForm = "improvement"
    scope: Scope = "client"
    refresh: Refresh = "selected"
    staleness: int = 20  # rounds after which "selected" probes anybody again; 0: never
    per_second: bool = True  # rewards are divided by the duration

    def __post_init__(self) -> None:
        given = f"refresh = 'none' with reward = {self.reward!r}"
        rule = "this reward is the change between two probes, and nobody is probed"
        check(self.refresh != "none" or self.reward == "model", given, rule, "use reward='model' or another refresh")

    @staticmethod
    def split(elements: str) -> tuple[str, ...]:
        """The elements of a comma-separated list."""
        names = tuple(part.strip() for part in elements.split(",") if part.strip())
        known = 0 < len(names) == len(set(names)) and set(names) <= set(ELEMENTS)
        rule = f"it must be a comma-separated list, without repetition, of {', '.join(ELEMENTS)}"
        check(known, f"context = {elements!r}", rule, f"use e.g. {','.join(ELEMENTS)}")
        return names

    @property
    def needs(self) -> frozenset[str]:
        """The signals behind these elements; the robust loss is also the reward."""
        needs = frozenset(n for n in NEEDS if "val" in self.elements or "val" not in n)
        needs -= {n for n in needs if self.refresh == "none" and n.startswith("probe_")}
        return needs | frozenset({"model_gain"} if self.reward == "model" else ())

    @property
    def learns_from(self) -> dict[str, str]:
        """What is paid where the server measures nothing, and the remedy: only probes tell of a client's own loss."""
        if self.reward != "model":
            return {}
        own = "learns from the fall of clients' own losses instead: give the server validation data, or say so with"
        none = "learns from nothing else: give the server validation data, or probe clients with refresh='selected'"
        return {"model_gain": none if self.refresh == "none" else f"{own} reward='improvement'"}

    @property
    def does_without(self) -> dict[str, str]:
        """The arguments with which uploaded models are not looked at."""
        probed = ", refresh='selected'" if self.refresh == "none" else ""
        return {"model_gain": f"reward='improvement'{probed}"} if self.reward == "model" else {}

    # -- who is probed --------------------------------------------------------------------------------------------

    def probe(self, s: ContextState, rnd: Round, rng: np.random.Generator) -> Index:
        """Everybody, or the last cohort (to settle its rewards) and the stale or a sample."""
        if self.refresh in ("all", "none"):
            return rnd.available if self.refresh == "all" else rnd.available[:0]
        wanted = np.zeros(rnd.population, np.bool_)
        wanted[s.asked[s.asked < rnd.population]] = True
        if self.refresh != "selected":
            wanted[draw.uniform(rnd.available, counted(self.refresh, "sample"), rng)] = True
        elif self.staleness > 0:
            wanted[: s.rows] |= rnd.index - s.measured[: rnd.population] >= self.staleness
            wanted[s.rows :] |= rnd.index + 1 >= self.staleness
        return rnd.available[wanted[rnd.available]]

    # -- learning -------------------------------------------------------------------------------------------------

    def settle(self, s: ContextState, index: int, probed: Probed | None) -> tuple[Double, Double]:
        """Take in the answers of round `index`; returns contexts and rewards (x, y) of the last cohort. Changes `s`."""
        nothing = np.empty((0, len(self.elements))), np.empty(0)
        who = np.empty(0, np.int64) if probed is None else probed.clients
        s.grow(int(who.max(initial=-1)) + 1)
        before, since = s.robust[who], s.measured[who]
        if probed is not None and who.size:
            self._losses(s, index, who, probed.signals, "probe_")
        if not 0 <= s.asked_round < index:
            return nothing
        if self.reward == "model" and s.judged.size:
            return self._pay(s, s.judged, s.gain, s.gain)
        if who.size == 0:
            return nothing
        both = (since == s.asked_round) & (s.measured[who] == index)  # known before and after
        who, drop = who[both], before[both] - s.robust[who[both]]
        drop = drop * self._credit(s, who)
        drop = np.maximum(drop, 0.0) if self.reward == "model" else drop  # no validation data
        mine = np.isin(who, s.asked)
        order = np.argsort(s.asked)
        at = order[np.searchsorted(s.asked[order], who[mine])]
        return self._pay(s, at, drop, drop[mine].astype(np.float64))

    def _pay(self, s: ContextState, at: Index, drop: Real, mine: Double) -> tuple[Double, Double]:
        """Contexts and rewards of these places of the last cohort; `drop` are all changes that were measured."""
        clients = s.asked[at]
        if self.scope == "global" and drop.size:
            change = self._size(stats.winsorise(drop, 1 - self.trim, self.trim).mean(keepdims=True))
            change = per_second(change, np.array([s.tau]), _usual(s)) if self.per_second else change  # C3
            r = np.repeat(change, at.size)
        else:
            r, unit = self._size(mine), 0.0 if at.size >= FEW else _usual(s)
            r = per_second(r, s.seconds[clients], unit) if self.per_second else r  # C2, C4
        s.reward[clients], s.paid[clients] = r, True
        return s.asked_x[at], self._scaled(s, np.asarray(r, np.float64))

    def _credit(self, s: ContextState, who: Index) -> Real:
        """1, or less for a client whose first loss is above the trimmed range."""
        if self.trim == 0 or who.size == 0:
            return np.ones(who.size, np.float32)
        first = s.robust_first[sample(np.flatnonzero(s.robust_first > 0))]
        high = stats.winsorise(first, 1 - self.trim).max()
        out: Real = np.minimum(1, high / np.maximum(s.robust_first[who], 1e-6))
        return out

    def _scaled(self, s: ContextState, r: Double) -> Double:
        """Rewards as the model learns them: raw, over the largest size so far (global), or standardised."""
        if not self.standardise or r.size == 0:
            return r
        if self.scope == "global":
            s.peak = max(s.peak, abs(float(r[0])))
            return r / max(s.peak, 1e-300)
        return standardise(s, r, self.trim)

    def record(self, s: ContextState, result: RoundResult) -> None:
        """Store durations and losses of the cohort, whose rewards are settled next round. Changes `s`."""
        s.grow_for(result.clients)
        used = result.clients[result.ok]
        s.asked_x = self.matrix(s, used, self.scale(s)).astype(np.float64)
        s.asked, s.asked_round = used.copy(), result.index
        if self.reward == "model":
            told = "model_gain" in result.signals
            gain = np.asarray(result.signals["model_gain"], np.float64)[result.ok] if told else np.empty(0)
            s.judged = np.flatnonzero(np.isfinite(gain))
            s.gain = gain[s.judged]
        timed = np.isfinite(result.duration) & (result.duration > 0)
        s.seconds[result.clients[timed]] = result.duration[timed]
        s.tau = float(result.duration[timed].max(initial=0.0))
        fresh = result.replied & (s.measured[result.clients] < result.index)  # a probe of this round is preferred
        self._losses(s, result.index, result.clients[fresh], result.signals.rows(fresh), "")

    def _losses(self, s: ContextState, index: int, clients: Index, signals: Signals, side: str) -> None:
        """Store losses measured at the model of round `index`; what is not a number changes nothing."""
        for name in ("robust", "val") if "val" in self.elements else ("robust",):
            value = signals[f"{side}{name}_loss"]
            good = np.isfinite(value) & (value >= 0)
            who, loss = clients[good], np.minimum(value[good], LOSS_MAX)
            getattr(s, name)[who] = loss
            first = getattr(s, f"{name}_first")
            fresh = first[who] <= 0
            first[who[fresh]] = np.maximum(loss[fresh], 1e-6)
            if name == "robust":
                s.measured[who] = index

    def _size(self, drop: Real) -> Real:
        """|L^t - L^{t+1}|, only what was gained, or (of the server's own measurement) with its sign."""
        return np.abs(drop) if self.reward == "abs" else drop if self.reward == "model" else np.maximum(drop, 0.0)

    # -- features (C1) --------------------------------------------------------------------------------------------

    def scale(self, s: ContextState) -> Scale:
        """The statistics of every column over the clients known so far."""
        known = sample(np.flatnonzero((s.measured >= 0) | (s.seconds > 0)))
        return Scale.fit(*self._raw(s, known), self.scaling, self.trim)

    def matrix(self, s: ContextState, rows: Index | slice, scale: Scale) -> Real:
        """x of these clients, one row each."""
        return scale.apply(*self._raw(s, rows))

    def _raw(self, s: ContextState, rows: Index | slice) -> tuple[Real, Mask]:
        """The unscaled columns and which entries are known."""
        n = s.seconds[rows].size
        raw = np.empty((len(self.elements), n), np.float32).T  # column after column in memory
        have = np.empty(raw.shape[::-1], np.bool_).T
        for j, name in enumerate(self.elements):
            if name in ("loss", "val"):
                new, first = (s.robust, s.robust_first) if name == "loss" else (s.val, s.val_first)
                start = first[rows]
                have[:, j] = start > 0
                np.divide(new[rows], np.maximum(start, 1e-6), out=raw[:, j])
            elif name == "duration":
                raw[:, j] = s.seconds[rows]
                have[:, j] = raw[:, j] > 0
                if self.scaling == "zscore":
                    raw[:, j] = np.log(np.maximum(raw[:, j], 1e-9))
            else:
                raw[:, j], have[:, j] = s.reward[rows], s.paid[rows]
        return raw, have

    def best(
        self, s: ContextState, rnd: Round, score: Callable[[Real], Real], rng: np.random.Generator
    ) -> tuple[Index, Real]:
        """The clients of largest score, and their contexts."""
        scale = self.scale(s)
        chosen = best(rnd.available, rnd.size, lambda rows: score(self.matrix(s, rows, scale)), rng)
        return chosen, self.matrix(s, chosen, scale)


def fork(state: S, population: int) -> S:
    """A copy that can take in answers while the original stays as it is, with room for this many clients."""
    s = dataclasses.replace(state)
    s.grow(population)
    for name in ("robust", "robust_first", "val", "val_first", "reward", "paid", "measured"):
        if getattr(s, name) is getattr(state, name):
            setattr(s, name, getattr(s, name).copy())
    return s


def opening(initial: str, rnd: Round, rng: np.random.Generator) -> Index:
    """S_0: as many as the round's size allows, or at most k, drawn at random."""
    k = counted(initial, "random") or rnd.size
    return draw.uniform(rnd.available, min(k, rnd.size), rng)


def _usual(s: ContextState) -> float:
    """The median duration of all clients known so far."""
    known = sample(np.flatnonzero(s.seconds > 0))
    return float(np.median(s.seconds[known])) if known.size else 1.0


def per_second(change: Real, seconds: Real, unit: float = 0.0) -> Real:
    """Changes over durations, so that of two equal ones the faster is better, also where both are for the worse.

    A negative change over a long duration would be a small one: it is multiplied by the duration instead, in units of
    the median one, or of `unit` where the changes are compared with others than these.

    >>> per_second(np.array([3.0, 3.0, -3.0, -3.0]), np.array([1.0, 3.0, 1.0, 3.0])).tolist()
    [3.0, 1.0, -0.75, -2.25]
    """
    t = np.maximum(seconds, 1e-9)
    if t.size == 0:
        return change
    with np.errstate(over="ignore"):
        return np.asarray(np.where(change < 0, change * (t / (unit or np.median(t)) ** 2), change / t))
