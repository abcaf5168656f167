"""FLASH's context vector and reward, shared by the bandits that run on them.

    Xiangyu Chang et al. FLASH: Federated Learning Across Simultaneous Heterogeneities. Section II-C.

Context of client i before round t, and the reward that its work in round t earned:

    x_t(i) = [ L_rob^t / L_rob^1 , CE^t(V_i) / CE^1(V_i) , T_i , r_{t-1}(i) ]                 (C1)
    r_t(i) = | L_rob^{t+1}(i) - L_rob^t(i) | / T_i                                            (C2)
    r_t    = | mean_i L_rob^{t+1}(i) - mean_i L_rob^t(i) | / max_i T_i      (scope="global")  (C3)

L^{t+1} is only known when round t + 1 asks for it. So the rewards of a cohort are settled one round later, from
the probe answers, by a function without side effects: `select` uses its result, `observe` commits the same one.

Departures from the paper
    * Features and rewards are scaled (the paper is silent): see `scaling` and `standardise`. Both are trimmed to
      their quantiles first, so that one liar cannot squeeze the honest clients into one point.
    * Statistics run over all clients known so far, available or not: then `observe` can recompute the context.
      Above 65,536 known clients they come from a fixed random sample of that size.
    * What is not known of a client is the mean of those who are known; the paper measures everybody.
    * T_i is the client's own last duration: the round's maximum would be the same for all.
    * A client whose first loss lies above the trimmed range has the changes of its loss counted as if its losses began
      at the border. Ratios do not know the scale on which a client reports; so a client that reports all its losses
      a thousand times too high gains next to nothing. With trim=0 the reward is as printed.
    * An answer to a probe is preferred to a report of the same round.
    * A reward needs the loss before and after. Who cannot be probed in the next round earns none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw, stats
from fedcohort.core.rng import generator
from fedcohort.core.table import Table, column, ragged
from fedcohort.errors import check
from fedcohort.types import Index, Mask, Probed, Real, Round, RoundResult, Signals

Double = NDArray[np.float64]

ELEMENTS = ("loss", "val", "duration", "reward")
NEEDS = frozenset({"probe_robust_loss", "probe_val_loss", "robust_loss", "val_loss"})
SAMPLE = 65_536  # rows behind the statistics of a feature
CHUNK = 16_384  # rows scored at once: a chunk stays in the cache
LOSS_MAX = 1e6  # losses are clipped here before they enter the state
CLIP = 3.0  # standard deviations kept
FEW = 4  # fewer rewards than this have no standard deviation worth the name


@dataclass
class Moving(Table):
    """Moving figures of the rewards, for cohorts of fewer than four."""

    level: float = 0.0  # moving mean of rewards
    spread: float = 0.0  # moving deviation around it; 0: none yet


@dataclass
class ContextState(Moving):
    """What the context remembers of each client, and the cohort whose rewards are still open."""

    robust: Real = column(0.0)  # L_rob, newest
    robust_first: Real = column(0.0)  # L_rob^1; 0: never measured
    val: Real = column(0.0)  # CE(V_i), newest
    val_first: Real = column(0.0)  # CE^1(V_i); 0: never measured
    seconds: Real = column(0.0)  # T_i, newest; 0: never asked
    reward: Real = column(0.0)  # r_{t-1}(i), raw
    paid: Mask = column(False, np.bool_)  # earned a reward before
    measured: NDArray[np.int32] = column(-1, np.int32)  # round of the newest loss
    asked: Index = ragged(np.int64)  # S_{t-1}, those whose update was used
    asked_x: Double = ragged(np.float64, ndim=2)  # their x_{t-1}(i)
    asked_round: int = -1  # t - 1
    tau: float = 0.0  # max T_i of S_{t-1}
    peak: float = 0.0  # largest global reward so far


S = TypeVar("S", bound=ContextState)


@dataclass(frozen=True, slots=True)
class Scale:
    """How columns are scaled: x = clip((clip(f, low, high) - centre) * factor). Unknown entries become `fill`."""

    low: Real
    high: Real
    centre: Real
    factor: Real
    fill: Real  # stands for what is not known of a client
    clip: float = np.inf

    @classmethod
    def fit(cls, raw: Real, have: Mask, scaling: str, trim: float) -> Scale:
        """From the known entries of every column, trimmed. A constant column becomes 0 under "zscore"."""
        d = raw.shape[1]
        low, high, centre, factor, fill = (np.zeros(d, np.float32) for _ in range(5))
        for j in range(d):
            f = raw[have[:, j], j].astype(np.float64)
            if f.size == 0:
                continue
            f = np.asarray(stats.winsorise(f, 1 - trim, trim), np.float64)
            low[j], high[j], fill[j] = (f.min(), f.max(), f.mean()) if trim > 0 else (-np.inf, np.inf, f.mean())
            centre[j] = fill[j] if scaling == "zscore" else 0.0
            size = {"raw": 1.0, "l2": float(np.sqrt(np.sum(f * f))), "zscore": float(f.std())}[scaling]
            factor[j] = 1.0 / size if size > 1e-6 * abs(float(centre[j])) and size > 0 else 0.0
        if scaling == "zscore":
            factor /= np.float32(np.sqrt(d))  # keeps |x| near 1, as the bound on theta assumes
        return cls(low, high, centre, factor, fill, CLIP / float(np.sqrt(d)) if scaling == "zscore" else np.inf)

    def apply(self, raw: Real, have: Mask) -> Real:
        """The scaled columns, in place."""
        np.clip(raw, self.low, self.high, out=raw)
        np.copyto(raw, self.fill, where=~have)
        raw -= self.centre
        raw *= self.factor
        if self.clip < np.inf:
            np.clip(raw, -self.clip, self.clip, out=raw)
        return raw


@dataclass(frozen=True, slots=True)
class Context:
    """Which elements, how scaled, how rewarded, and who is probed."""

    elements: tuple[str, ...] = ELEMENTS
    scaling: str = "zscore"  # "zscore", "l2" or "raw"
    standardise: bool = True  # rewards within the round
    trim: float = 0.05  # share trimmed at each end before scaling
    reward: str = "improvement"  # or "abs"
    scope: str = "client"  # or "global"
    refresh: str = "selected"  # "all", "selected" or "sample:k"
    staleness: int = 20  # rounds after which "selected" probes anybody again; 0: never

    @classmethod
    def of(cls, elements: str, **settings: object) -> Context:
        """From a comma-separated list of elements, everything checked."""
        names = tuple(part.strip() for part in elements.split(",") if part.strip())
        made = cls(elements=names, **settings)  # type: ignore[arg-type]
        known = 0 < len(names) == len(set(names)) and set(names) <= set(ELEMENTS)
        check(known, f"context {elements!r}", f"a list out of {','.join(ELEMENTS)}", "name each element once")
        for name, allowed in (
            ("scaling", ("zscore", "l2", "raw")),
            ("reward", ("abs", "improvement")),
            ("scope", ("client", "global")),
        ):
            value = getattr(made, name)
            check(value in allowed, f"{name} {value!r}", f"one of {', '.join(allowed)}", "choose one of them")
        check(0 <= made.trim < 0.5, f"trim {made.trim}", "a share in [0, 0.5)", "0.05 is the default")
        check(made.staleness >= 0, f"staleness {made.staleness}", "rounds, or 0 for never", "20 is the default")
        sampled(made.refresh, "refresh", ("all", "selected"), "sample")
        return made

    @property
    def needs(self) -> frozenset[str]:
        """The signals behind these elements; the robust loss is also the reward."""
        return NEEDS if "val" in self.elements else frozenset(n for n in NEEDS if "val" not in n)

    # -- who is probed --------------------------------------------------------------------------------------------

    def probe(self, s: ContextState, rnd: Round, rng: np.random.Generator) -> Index:
        """Everybody, or the last cohort (its rewards are open) and the stale or a sample."""
        k = sampled(self.refresh, "refresh", ("all", "selected"), "sample")
        if self.refresh == "all":
            return rnd.available
        wanted = np.zeros(rnd.population, np.bool_)
        wanted[s.asked] = True
        if self.refresh != "selected":
            wanted[draw.uniform(rnd.available, k, rng)] = True
        elif self.staleness > 0:
            wanted[: s.rows] |= rnd.index - s.measured[: rnd.population] >= self.staleness
            wanted[s.rows :] |= rnd.index + 1 >= self.staleness
        return rnd.available[wanted[rnd.available]]

    # -- learning -------------------------------------------------------------------------------------------------

    def settle(self, s: ContextState, index: int, probed: Probed | None) -> tuple[Double, Double]:
        """Take in the answers of round `index`; returns the (x, y) that the last cohort earned. Changes `s`."""
        nothing = np.empty((0, len(self.elements))), np.empty(0)
        if probed is None or probed.clients.size == 0:
            return nothing
        who = probed.clients
        s.grow(int(who.max()) + 1)
        before, since = s.robust[who], s.measured[who]
        self._losses(s, index, who, probed.signals, "probe_")
        if not 0 <= s.asked_round < index:
            return nothing
        both = (since == s.asked_round) & (s.measured[who] == index)  # known before and after
        who, drop = who[both], before[both] - s.robust[who[both]]
        drop = drop * self._credit(s, who)
        mine = np.isin(who, s.asked)
        order = np.argsort(s.asked)
        at = order[np.searchsorted(s.asked[order], who[mine])]
        clients = s.asked[at]
        if self.scope == "global" and who.size:
            change = stats.winsorise(drop, 1 - self.trim, self.trim).mean(keepdims=True)
            r = np.repeat(self._size(change), at.size) / max(s.tau, 1e-9)  # C3
        else:
            r = self._size(drop[mine].astype(np.float64)) / np.maximum(s.seconds[clients], 1e-9)  # C2
        s.reward[clients], s.paid[clients] = r, True
        return s.asked_x[at], self._scaled(s, np.asarray(r, np.float64))

    def _credit(self, s: ContextState, who: Index) -> Real:
        """1, or less for a client whose first loss is above the trimmed range: it claims a scale of its own."""
        if self.trim == 0 or who.size == 0:
            return np.ones(who.size, np.float32)
        first = s.robust_first[sample(np.flatnonzero(s.robust_first > 0))]
        high = stats.winsorise(first, 1 - self.trim).max()
        out: Real = np.minimum(1, high / np.maximum(s.robust_first[who], 1e-6))
        return out

    def _scaled(self, s: ContextState, r: Double) -> Double:
        """Rewards as the model learns them: raw, over the largest so far (global), or standardised."""
        if not self.standardise or r.size == 0:
            return r
        if self.scope == "global":
            s.peak = max(s.peak, float(r[0]))
            return r / max(s.peak, 1e-300)
        return standardise(s, r, self.trim)

    def record(self, s: ContextState, result: RoundResult) -> None:
        """Note durations and losses of the cohort, and open its rewards. Changes `s`."""
        s.grow(int(result.clients.max(initial=-1)) + 1)
        used = result.clients[result.ok]
        s.asked_x = self.matrix(s, used, self.scale(s)).astype(np.float64)
        s.asked, s.asked_round = used.copy(), result.index
        timed = np.isfinite(result.duration) & (result.duration > 0)
        s.seconds[result.clients[timed]] = result.duration[timed]
        s.tau = float(result.duration[timed].max(initial=0.0))
        heard = result.replied & (s.measured[result.clients] < result.index)  # a probe of this round is preferred
        self._losses(s, result.index, result.clients[heard], result.signals.rows(heard), "")

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
        """|L^t - L^{t+1}|, or only what was gained."""
        return np.abs(drop) if self.reward == "abs" else np.maximum(drop, 0.0)

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


def sample(known: Index) -> Index:
    """These clients, or a fixed random sample of them where they are very many."""
    if known.size <= SAMPLE:
        return known
    return known[generator(0, "context", known.size).integers(0, known.size, SAMPLE)]


def chunks(clients: Index) -> Iterator[tuple[Index, Index | slice]]:
    """These sorted clients, a chunk at a time: (clients, rows to read). A chunk without gaps is read as a slice."""
    for lo in range(0, clients.size, CHUNK):
        part = clients[lo : lo + CHUNK]
        first, last = int(part[0]), int(part[-1])
        yield part, slice(first, last + 1) if last - first + 1 == part.size else part


def best(clients: Index, k: int, score: Callable[[Index | slice], Real], rng: np.random.Generator) -> Index:
    """The k of these sorted clients with the largest score; ties are drawn by the generator.

    On the way, `border` is the k-th best so far; those above it (fewer than k) and those at it are all that is kept,
    so that a million scores are never sorted.
    """
    who, value, ties, border = clients[:0], np.empty(0, np.float32), [clients[:0]], np.float32(-np.inf)
    for part, rows in chunks(clients[: clients.size if k > 0 else 0]):
        fresh = np.asarray(score(rows), np.float32)
        ties.append(part[fresh == border])
        above = np.flatnonzero(fresh > border)
        who, value = np.concatenate([who, part[above]]), np.concatenate([value, fresh[above]])
        if value.size >= k:
            border = np.partition(value, value.size - k)[value.size - k]
            ties = [who[value == border]]
            who, value = who[value > border], value[value > border]
    return np.concatenate([who, draw.uniform(np.concatenate(ties), k - who.size, rng)])


def standardise(s: Moving, r: Double, trim: float) -> Double:
    """The rewards of one round, trimmed, at mean 0 and deviation 1; fewer than four are set against past rounds."""
    if r.size == 0:
        return r
    first = s.spread == 0
    if not first:
        r = np.clip(r, s.level - 10 * s.spread, s.level + 10 * s.spread)
    if r.size >= FEW:
        r = np.asarray(stats.winsorise(r, 1 - trim, trim), np.float64)
        y = stats.zscore(r / max(float(np.abs(r).max()), 1e-300), CLIP)
    else:
        y = np.zeros(r.size) if first else np.clip((r - s.level) / s.spread, -CLIP, CLIP)
    mean = float(r.mean())
    s.level = mean if first else 0.9 * s.level + 0.1 * mean
    deviation = max(float(r.std()), abs(mean - s.level))
    s.spread = max(deviation, 0.1 * abs(s.level)) if first else 0.9 * s.spread + 0.1 * deviation
    return np.asarray(y, np.float64)


def sampled(value: str, name: str, words: tuple[str, ...], prefix: str) -> int:
    """k of "prefix:k", or 0 for one of the words; anything else is refused."""
    head, _, tail = value.partition(":")
    k = int(tail) if head == prefix and tail.isascii() and tail.isdigit() else 0
    rule = f"one of {', '.join(words)} or {prefix}:k with k > 0"
    check(value in words or k > 0, f"{name} {value!r}", rule, f"for instance {prefix}:100")
    return k


def opening(initial: str, rnd: Round, rng: np.random.Generator) -> Index:
    """S_0: everybody the loop has room for, or k at random. The loop's size is never exceeded."""
    k = sampled(initial, "initial", ("all",), "random") or rnd.size
    return draw.uniform(rnd.available, min(k, rnd.size), rng)
