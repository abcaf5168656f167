"""The state of FLASH-RL and FAVOR: a short block per client made of its weights, now and in the past.

    b_i = [ E (w_i - ref), further measured numbers, 1 ],     0 for a client that never reported             (1)
    E   = the first k principal axes of the clients' weights after one epoch, or a random projection         (2)
    z_i = clip((b_i - mean) / sd, -5, 5),     mean and sd over all blocks that came in so far                (3)

The axes are fitted once, through the n x n matrix of inner products (of at most 512 clients, drawn at random). In (1),
ref is the global model that the weights went into, or the mean of the fit as in the papers ("fit"): relative to that
fixed point all clients drift together during training, and the differences between them are hidden.

Only clients that train get a new block, so the past is a list of changes: state t is `base`, overwritten by what was
written before t. A thousand states of 100 clients take the memory of a few dozen, and a batch of them is one search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.core.table import Table, ragged
from fedcohort.types import Index, Real

Single = NDArray[np.float32]
Double = NDArray[np.float64]
FIT_ROWS = 512  # clients behind the principal axes
LIMIT = 5.0  # standard deviations, eq. 3
HUGE = 1e30  # what a block may hold
OUTLIER = 10.0  # median deviations from the median of its round at which a number is cut


@dataclass
class WeightState(Table):
    """Axes, blocks, and the changes that led to them."""

    basis: Single = ragged(np.float32, ndim=2)  # [E] (k, p)
    centre: Single = ragged(np.float32)  # (p,) mean of the fit
    now: Single = ragged(np.float32, ndim=2)  # [b_i] (N, f)
    base: Single = ragged(np.float32, ndim=2)  # (N, f) blocks before the oldest change
    log_client: Index = ragged(np.int64)  # changes, oldest first
    log_step: Index = ragged(np.int64)
    log_block: Single = ragged(np.float32, ndim=2)
    common_step: Index = ragged(np.int64)  # one row a step that belongs to no client, e.g. the global model's
    common_block: Single = ragged(np.float32, ndim=2)
    mean: Double = ragged()  # eq. 3
    square: Double = ragged()  # sum of squared deviations
    blocks: int = 0  # behind mean and square


def principal_axes(weights: Real, k: int, rng: np.random.Generator) -> tuple[Single, Single]:
    """(E, centre): k axes (rows of zeros where there are fewer) and the mean. Gross outliers are left out."""
    x = np.asarray(weights, np.float64)
    if x.shape[0] > FIT_ROWS:
        x = x[np.sort(rng.choice(x.shape[0], FIT_ROWS, replace=False))]
    far = np.linalg.norm(x - x.mean(axis=0), axis=1)
    x = x[far <= OUTLIER * max(float(np.median(far)), 1e-300)] if far.any() else x
    centre = x.mean(axis=0)
    x = x - centre
    value, vector = np.linalg.eigh(x @ x.T)
    basis = np.zeros((k, x.shape[1]), np.float32)
    value, vector = value[::-1][:k], vector[:, ::-1][:, :k]
    keep = value > 1e-10 * max(float(value[0]), 1e-300)
    axes = vector[:, keep].T @ x / np.sqrt(value[keep])[:, None]
    axes *= np.sign(axes[np.arange(axes.shape[0]), np.abs(axes).argmax(axis=1)])[:, None]  # fix the sign
    basis[: axes.shape[0]] = axes
    return basis, centre.astype(np.float32)


def random_axes(p: int, k: int, rng: np.random.Generator) -> tuple[Single, Single]:
    """(E, centre): a Gaussian projection that keeps distances on average, around zero."""
    return rng.standard_normal((k, p), np.float32) / np.float32(np.sqrt(k)), np.zeros(p, np.float32)


def fit(s: WeightState, weights: Real, k: int, how: str, seed: int) -> None:
    """Choose the axes of eq. 2, once."""
    k = min(k, weights.shape[1])
    rng = generator(seed, "weight-axes")
    p = weights.shape[1]
    s.basis, s.centre = principal_axes(weights, k, rng) if how == "probe" else random_axes(p, k, rng)


def block(s: WeightState, weights: Real, ref: Real, *more: Real) -> Single:
    """Eq. 1 for these rows."""
    parts = [
        (np.asarray(weights, np.float64) - ref) @ s.basis.T,
        *(np.reshape(m, (-1, 1)) for m in more),
        np.ones((weights.shape[0], 1)),
    ]
    return np.clip(np.concatenate(parts, axis=1), -HUGE, HUGE).astype(np.float32)


def write(s: WeightState, clients: Index, blocks: Single, step: int, rows: int, *, count: bool = True) -> None:
    """These clients have these blocks after this step. `rows`: number of clients; `count`: into the moments."""
    if count:
        blocks = _moments(s, blocks)
    if s.now.shape[0] < rows or s.now.shape[1] != blocks.shape[1]:
        s.now, s.base = (_room(a, rows, blocks.shape[1]) for a in (s.now, s.base))
    s.now[clients] = blocks
    s.log_client = np.concatenate([s.log_client, clients])
    s.log_step = np.concatenate([s.log_step, np.full(clients.size, step)])
    s.log_block = np.concatenate([s.log_block.reshape(-1, blocks.shape[1]), blocks])


def write_common(s: WeightState, row: Single, step: int) -> None:
    """The row that belongs to no client, as it is after this step."""
    s.common_step = np.append(s.common_step, step)
    s.common_block = np.concatenate([s.common_block.reshape(-1, row.size), row.reshape(1, -1)])


def forget(s: WeightState, oldest: int) -> None:
    """Merge into `base` what was written before step `oldest`: only later states will be needed."""
    cut = int(np.searchsorted(s.log_step, oldest))
    if cut:
        client = s.log_client[:cut]
        last, at = np.unique(client[::-1], return_index=True)  # the newest change of each
        s.base[last] = s.log_block[cut - 1 - at]
        s.log_client, s.log_step, s.log_block = s.log_client[cut:], s.log_step[cut:], s.log_block[cut:]
    drop = max(int(np.searchsorted(s.common_step, oldest)) - 1, 0)
    s.common_step, s.common_block = s.common_step[drop:], s.common_block[drop:]


def past(s: WeightState, steps: Index, clients: Index) -> Single:
    """Standardised blocks as they were at the start of these steps. `clients` (C,) or (B, C); returns (B, C, f)."""
    order = np.lexsort((s.log_step, s.log_client))
    reach = int(max(s.log_step.max(initial=0), steps.max(initial=0))) + 2
    key = s.log_client[order] * reach + s.log_step[order] + 1
    who = np.broadcast_to(clients, (steps.size, clients.shape[-1]))
    at = np.searchsorted(key, who * reach + steps[:, None] + 1) - 1
    out: Single = s.base[who]
    if order.size:
        found = (at >= 0) & (s.log_client[order[at]] == who)
        out[found] = s.log_block[order[at[found]]]
    return standard(s, out)


def past_common(s: WeightState, steps: Index) -> Single:
    """The common rows at the start of these steps, standardised; the oldest one before there was any."""
    at = np.maximum(np.searchsorted(s.common_step, steps) - 1, 0)
    return standard(s, s.common_block[at])


def standard(s: WeightState, blocks: Single) -> Single:
    """Eq. 3; rows of clients that never reported stay zero."""
    sd = np.sqrt(s.square / max(s.blocks, 1))
    sd[sd <= 1e-9 * np.maximum(np.abs(s.mean), 1e-3)] = np.inf  # a column that does not vary carries no information
    z: Single = blocks - s.mean.astype(np.float32)
    z *= (1.0 / sd).astype(np.float32)
    np.clip(z, -LIMIT, LIMIT, out=z)
    z *= blocks[..., -1:]
    z[..., -1] = blocks[..., -1]
    return z


def _moments(s: WeightState, blocks: Single) -> Single:
    """Add these blocks to the moments; returns them with gross outliers cut."""
    if s.mean.size == 0:
        s.mean, s.square = np.zeros(blocks.shape[1]), np.zeros(blocks.shape[1])
    if s.blocks >= 20:
        blocks = _cut(blocks, s.mean, LIMIT * np.sqrt(s.square / s.blocks))
    if blocks.shape[0] >= 5:
        middle = np.median(blocks, axis=0)
        blocks = _cut(blocks, middle, OUTLIER * np.median(np.abs(blocks - middle), axis=0))
    if blocks.shape[0]:
        n, x = blocks.shape[0], blocks.astype(np.float64)
        gap, total = x.mean(axis=0) - s.mean, s.blocks + n
        s.square = s.square + ((x - x.mean(axis=0)) ** 2).sum(axis=0) + gap**2 * (s.blocks * n / total)
        s.mean, s.blocks = s.mean + gap * (n / total), total
    return blocks


def _cut(blocks: Single, middle: Real, reach: Real) -> Single:
    """The blocks cut to this distance from the middle; a column with distance 0 is left as it is."""
    wide = np.where(reach > 0, reach, np.inf)
    return np.clip(blocks, middle - wide, middle + wide).astype(np.float32)


def _room(array: Single, rows: int, width: int) -> Single:
    """The array with more rows of zeros."""
    out = np.zeros((max(rows, array.shape[0]), width), np.float32)
    if array.size:
        out[: array.shape[0]] = array
    return out
