"""Cutting a dataset: test, server validation and unlabelled server data, before a world sees the rest.

Three ways to cut: "class" takes a share of every class, "owner" takes whole owners (volunteers: their windows overlap
and would leak), "within" takes a share of every owner's samples (writers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.data.dataset import Dataset
from fedcohort.errors import DataError, UnknownName
from fedcohort.types import Index, Mask

WAYS = ("class", "owner", "within")


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of the training data: what a world may hand out, and what the server keeps."""

    pool: Index
    validation: Index
    unlabelled: Index


def with_test(data: Dataset, share: float, by: str, seed: int, anew: bool = False) -> Dataset:
    """The dataset itself if it has a test set; else, or `anew`, the same with a share of it cut away as one."""
    if len(data.y_test) and not anew:
        return data
    data = _merged(data)
    test = cut(data.y, data.client, share, by, generator(seed, "split-test"))
    keep = ~test
    return replace(
        data,
        x=data.x[keep],
        y=data.y[keep],
        x_test=data.x[test],
        y_test=data.y[test],
        client=None if data.client is None else data.client[keep],
        client_test=None if data.client is None else data.client[test],
        activity=None if data.activity is None else data.activity[keep],
    )


def _merged(data: Dataset) -> Dataset:
    """Training and test samples together; what is known of the training samples only is dropped."""
    if not len(data.y_test):
        return data
    owner = None
    if data.client is not None and data.client_test is not None:
        owner = np.concatenate([data.client, data.client_test])
    x, y = np.concatenate([data.x, data.x_test]), np.concatenate([data.y, data.y_test])
    return replace(data, x=x, y=y, x_test=x[:0], y_test=y[:0], client=owner, client_test=None, activity=None)


def server_split(data: Dataset, validation: float, unlabelled: float, by: str, seed: int, unused: float = 0.0) -> Split:
    """Cut the server's shares out of the training data; a share `unused` of what is left is put away."""
    rows = np.arange(len(data.y))
    taken = cut(data.y, data.client, validation, by, generator(seed, "split-validation"))
    left = rows[~taken]
    share = min(unlabelled / max(1.0 - validation, 1e-9), 1.0)
    owner = None if data.client is None else data.client[left]
    bare = cut(data.y[left], owner, share, by, generator(seed, "split-unlabelled"))
    pool = left[~bare]
    owner = None if data.client is None else data.client[pool]
    idle = cut(data.y[pool], owner, unused, by, generator(seed, "split-unused"))
    return Split(pool[~idle], rows[taken], left[bare])


def cut(labels: Index, owner: Index | None, share: float, by: str, rng: np.random.Generator) -> Mask:
    """Which samples are cut away: about this share, in this way; an owner keeps a sample where that is possible."""
    if by not in WAYS:
        raise UnknownName.among("split", by, WAYS)
    if share <= 0.0:
        return np.zeros(len(labels), np.bool_)
    if by != "class" and owner is None:
        raise DataError(f"split {by!r}", "the dataset names no owners", "split by class")
    if by == "owner" and owner is not None:
        return _whole_owners(labels, owner, share, rng)
    if by == "within" and owner is not None:
        return _share_of_each(owner, share, rng, keep=1)
    taken = _share_of_each(labels, share, rng)
    return taken if owner is None else _spared(taken, labels, owner, rng)


def _whole_owners(labels: Index, owner: Index, share: float, rng: np.random.Generator) -> Mask:
    """All samples of some owners, evenly from owners of every kind, where a kind is the set of classes they have."""
    _, who = np.unique(owner, return_inverse=True)
    has = np.zeros((int(who.max()) + 1, int(labels.max()) + 1), np.bool_)
    has[who, labels] = True
    shuffled = rng.permutation(len(has))
    by_kind = shuffled[np.lexsort(has[shuffled].T)]
    many = min(max(round(share * len(has)), 1), len(has) - 1)
    places = ((np.arange(many) + 0.5) * len(has) / max(many, 1)).astype(np.int64)
    return np.isin(who, by_kind[places])


def _spared(taken: Mask, labels: Index, owner: Index, rng: np.random.Generator) -> Mask:
    """An owner whose samples are all taken gets one back, for one of the same class of somebody who has more."""
    _, who = np.unique(owner, return_inverse=True)
    left = np.bincount(who[~taken], minlength=int(who.max(initial=-1)) + 1)
    last = np.flatnonzero(left[who] == 0)
    if not last.size:
        return taken
    instead = rng.permutation(np.flatnonzero(~taken))
    waiting = {label: instead[labels[instead] == label].tolist() for label in np.unique(labels[last]).tolist()}
    out = taken.copy()
    for row in last.tolist():
        others = waiting[int(labels[row])]
        while others and left[who[row]] == 0:
            other = others.pop()
            if left[who[other]] > 1:
                out[row], out[other] = False, True
                left[who[other]] -= 1
                left[who[row]] += 1
    return out


def _share_of_each(group: Index, share: float, rng: np.random.Generator, keep: int = 0) -> Mask:
    """The same share of every group, chosen at random, rounded to the nearest sample; at least `keep` are left."""
    shuffled = rng.permutation(group.size)
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    _, start, size = np.unique(group[order], return_index=True, return_counts=True)
    rank = np.arange(group.size) - np.repeat(start, size)
    out = np.zeros(group.size, np.bool_)
    out[order] = rank < np.repeat(np.minimum(np.rint(share * size), size - keep), size)
    return out
