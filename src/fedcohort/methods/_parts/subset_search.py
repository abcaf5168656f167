"""Which models make the best ensemble? The search behind FedCA (eq. 4), on cached logits.

A subset U of n models is scored by its mean logits on V labelled samples. With margins

    D_kcv = g_kcv - g_k,y(v),v    for every class c other than the true class y(v)                       (1)

only sums over U are needed: a sample is right when max_c sum_U D < 0, and

    log p_y = -log( 1 + sum_c exp( sum_U D / |U| ) ).                                                    (2)

Up to `exhaustive_up_to` models every one of the 2^n - 1 subsets is scored: the sums of all subsets of the first six
models stand in a table, the other models are switched in and out in the order of a Gray code, one at a time, and each
step scores a whole table row block in float32. Those that screen best are scored again in double precision and
the ties are settled there. Beyond that: backward elimination, then one pass of single swaps.

Ties: accuracy, then larger, then log-likelihood, then lowest positions; log-likelihood, then larger, then lowest.
A sample on which the true class only draws level with another counts as wrong, so that class order cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.types import Index, Mask, Real

Double = NDArray[np.float64]
Single = NDArray[np.float32]
Key = tuple[float, ...]
SCORES = ("accuracy", "log_likelihood")
TABLE_MODELS = 6  # models whose subsets are tabulated: 64 rows
CHUNK = 256  # samples at a time, so that a block stays in the cache
SAFE_EXPONENT = 80.0  # exp(80) is finite in float32, also ten thousand times
SHORTLIST = 64  # of those that float32 cannot tell apart: this many of the largest and of the best are kept
NOISE = 2e-6  # relative error that a float32 log-likelihood may have
BLOCK = 200_000  # doubles per block of the exact evaluation, for the cache


@dataclass(frozen=True, slots=True)
class BestSubset:
    """The best subset and its score."""

    members: Mask  # (n,)
    accuracy: float
    log_likelihood: float  # mean over samples
    evaluated: int  # subsets scored
    exhaustive: bool


def best_subset(
    logits: Real,
    labels: Index,
    *,
    score: str = "accuracy",
    exhaustive_up_to: int = 12,
) -> BestSubset:
    """The subset of n models, given by their logits (n, V, classes), whose mean logits score best on the labels."""
    margin = margins(logits, labels)
    n = margin.shape[0]
    if n <= exhaustive_up_to:
        masks = _shortlist(margin, score)
        chosen, evaluated, exhaustive = masks[_best(*exact(margin, masks), masks, score)], 2**n - 1, True
    else:
        chosen, evaluated = _eliminate(margin, score)
        exhaustive = False
    right, fit = exact(margin, chosen[None])
    samples = margin.shape[2]
    return BestSubset(chosen, float(right[0]) / samples, float(fit[0]), evaluated, exhaustive)


def margins(logits: Real, labels: Index) -> Double:
    """Eq. 1: (n, classes - 1, V), samples innermost."""
    classes = logits.shape[2]
    rival = np.arange(classes - 1)[None, :] + (np.arange(classes - 1)[None, :] >= labels[:, None])
    values = logits.astype(np.float64)
    truth = values[:, np.arange(labels.size), labels]
    out = np.take_along_axis(values, rival[None], axis=2) - truth[:, :, None]
    return np.ascontiguousarray(out.transpose(0, 2, 1))


def exact(margin: Double, masks: Mask) -> tuple[Double, Double]:
    """Right samples and mean log-likelihood of each subset, in double precision.

    Summed model by model rather than by a matrix product: the last bit must not depend on a library's threads.
    """

    def sums(part: Double) -> Double:
        total = np.zeros((len(masks), *part.shape[1:]))
        for k, row in enumerate(part):
            np.add(total, row, out=total, where=masks[:, k, None, None])
        return total

    return _evaluate(margin, masks.sum(axis=1).astype(np.float64), sums)


def _evaluate(margin: Double, size: Double, sums: Callable[[Double], Double]) -> tuple[Double, Double]:
    """Score subsets of these sizes; `sums` gives their summed margins (rows, classes - 1, samples) on a chunk."""
    _, rivals, samples = margin.shape
    right, fit = np.zeros(size.size), np.zeros(size.size)
    width = max(1, BLOCK // max(1, rivals * size.size))
    for at in range(0, samples, width):
        total = sums(np.ascontiguousarray(margin[:, :, at : at + width]))
        highest = total.max(axis=1, initial=-np.inf)
        right += (highest < 0).sum(axis=1)
        total /= size[:, None, None]
        peak = np.maximum(highest / size[:, None], 0.0)
        total -= peak[:, None]
        np.exp(total, out=total)
        fit -= (peak + np.log(np.exp(-peak) + total.sum(axis=1))).sum(axis=1)
    return right, fit / samples


def _best(right: Double, fit: Double, masks: Mask, score: str) -> int:
    """Position of the best subset under the tie rules."""
    size, fit = masks.sum(axis=1), np.round(fit, 12)
    first = (fit, size, right) if score == "accuracy" else (size, fit)
    return int(np.lexsort((*masks.T[::-1], *first))[-1])


# --- every subset -----------------------------------------------------------------------------------------------------


def _shortlist(margin: Double, score: str) -> Mask:
    """The subsets among which the best must be, from one float32 pass over all of them."""
    n = margin.shape[0]
    values = _screen(margin.astype(np.float32), _scorer(margin, score))
    size = _sizes(n)
    best = float(values.max())
    if score == "accuracy":
        level = values == best
        codes = np.flatnonzero(level & (size == size[level].max()))
    else:
        close = np.flatnonzero(values >= best - NOISE * max(margin.shape[2], abs(best)))
        large = close[np.argsort(-size[close], kind="stable")][:SHORTLIST]
        codes = np.union1d(large, close[np.argsort(-values[close], kind="stable")][:SHORTLIST])
    masks: Mask = (codes[:, None] >> np.arange(n)) & 1 == 1
    return masks


Scorer = Callable[[Single, Single], Double]


def _scorer(margin: Double, score: str) -> Scorer:
    """Score of a block of summed margins (rows, classes - 1, samples); the block may be overwritten."""
    if score == "accuracy":
        return lambda block, size: (block.max(axis=1) < 0).sum(axis=1).astype(np.float64)
    return _fit_plain if float(margin.max(initial=0.0)) < SAFE_EXPONENT else _fit_stable


def _fit_plain(block: Single, size: Single) -> Double:
    """Eq. 2 where no exponent can overflow."""
    block *= (1.0 / size)[:, None, None]
    np.exp(block, out=block)
    fit: Double = -np.log1p(block.sum(axis=1)).sum(axis=1, dtype=np.float64)
    return fit


def _fit_stable(block: Single, size: Single) -> Double:
    """Eq. 2 with the largest exponent taken out."""
    block *= (1.0 / size)[:, None, None]
    peak = np.maximum(block.max(axis=1), 0.0)
    block -= peak[:, None]
    np.exp(block, out=block)
    fit: Double = -(peak + np.log(np.exp(-peak) + block.sum(axis=1))).sum(axis=1, dtype=np.float64)
    return fit


def _screen(margin: Single, scorer: Scorer) -> Double:
    """Summed score of every subset; subset `code` holds model k where bit k is set. The empty one is -inf."""
    n, _, samples = margin.shape
    low = min(n, TABLE_MODELS)
    rows = 1 << low
    size = np.maximum(_sizes(n), 1).astype(np.float32)
    total = np.zeros(2**n)
    for at in range(0, samples, CHUNK):
        part = np.ascontiguousarray(margin[:, :, at : at + CHUNK])
        table = _subset_sums(part[:low])
        block = np.empty_like(table)
        for code, running in _gray_sums(part[low:]):
            where = slice(code * rows, (code + 1) * rows)
            np.add(table, running, out=block)
            total[where] += scorer(block, size[where])
    total[0] = -np.inf
    return total


def _sizes(n: int) -> Index:
    """Number of models in each of the 2^n subsets, in the order of their codes."""
    size = np.zeros(1, np.int64)
    for _ in range(n):
        size = np.concatenate([size, size + 1])
    return size


def _subset_sums(part: Single) -> Single:
    """Sums of all subsets of a few models: (2^k, classes - 1, samples), by doubling."""
    table = np.zeros((1 << len(part), *part.shape[1:]), np.float32)
    for k, row in enumerate(part):
        np.add(table[: 1 << k], row, out=table[1 << k : 2 << k])
    return table


def _gray_sums(part: Single) -> Iterator[tuple[int, Single]]:
    """Every subset of these models once, one change at a time: (code, sum). Summed in double, so nothing drifts."""
    running = np.zeros(part.shape[1:], np.float64)
    code = 0
    yield code, running.astype(np.float32)
    for step in range(1, 1 << len(part)):
        k = (step & -step).bit_length() - 1
        code ^= 1 << k
        running += part[k] if code >> k & 1 else -part[k]
        yield code, running.astype(np.float32)


# --- too many for that ------------------------------------------------------------------------------------------------


def _eliminate(margin: Double, score: str) -> tuple[Mask, int]:
    """Drop the model whose removal helps most until none helps; then one pass of single swaps."""
    members = np.ones(margin.shape[0], np.bool_)
    key, evaluated = _key(*exact(margin, members[None]), members[None], score), 1
    while members.sum() > 1:
        inside = np.flatnonzero(members)
        better, candidate = _best_move(margin, members, inside, None, score)
        evaluated += inside.size
        if better <= key:
            break
        members, key = candidate, better
    for leaving in np.flatnonzero(members):
        outside = np.flatnonzero(~members)
        if outside.size == 0:
            break
        better, candidate = _best_move(margin, members, np.full(outside.size, leaving), outside, score)
        evaluated += outside.size
        if better > key:
            members, key = candidate, better
    return members, evaluated


def _best_move(margin: Double, members: Mask, leaving: Index, joining: Index | None, score: str) -> tuple[Key, Mask]:
    """The best subset that one model leaves, and perhaps another joins: one candidate per entry of `leaving`."""
    rows = np.arange(leaving.size)
    trial = np.repeat(members[None], leaving.size, axis=0)
    trial[rows, leaving] = False
    if joining is not None:
        trial[rows, joining] = True

    def sums(part: Double) -> Double:
        total: Double = part[members].sum(axis=0) - part[leaving]
        if joining is not None:
            total += part[joining]
        return total

    right, fit = _evaluate(margin, trial.sum(axis=1).astype(np.float64), sums)
    at = _best(right, fit, trial, score)
    return _key(right[at : at + 1], fit[at : at + 1], trial[at : at + 1], score), trial[at]


def _key(right: Double, fit: Double, mask: Mask, score: str) -> Key:
    """What one subset is compared by, without the last tie rule."""
    size, rounded = float(mask.sum()), float(np.round(fit[0], 12))
    return (float(right[0]), size, rounded) if score == "accuracy" else (rounded, size)
