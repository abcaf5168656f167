"""From a specification, labels and a seed to a world: who owns what, and the keyed random draws of every round."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.constraints import CountOrZero
from fedcohort.core.stats import js_divergence
from fedcohort.errors import BadParameter, check, checked
from fedcohort.types import Arrays, Index, Mask, Part, Updates, Work
from fedcohort.worlds import devices, keyed_draws
from fedcohort.worlds.allocate import Pool
from fedcohort.worlds.world_spec import Validation, WorldSpec

NOMINAL_PARAMS = 100_000  # model size behind the profile `expected_seconds`, which is known before any task is


@dataclass(frozen=True)
class BuiltWorld:
    """A world that a federation can run on; make it with :func:`build_world`.

    Every draw is a function of (seed, round, client), and nothing is remembered. What selectors must not see is here
    too, for oracles and reports: `noise_rate`, `skew`, `fixed`.
    """

    spec: WorldSpec
    seed: int
    population: int
    classes: int
    train: Part
    validation: Part
    digest: str
    noise_rate: NDArray[np.float32]  # true share of labels that were to be flipped, per client
    skew: NDArray[np.float32]  # the generator's own parameter per client; NaN where there is none
    fixed: Arrays  # what stays with a client: slowness, device, link, region, lie, dropout
    names: tuple[str, ...] = ()  # of the clients, where they are the owners that the data name

    @property
    def name(self) -> str:
        """The name of the specification."""
        return self.spec.name

    def available(self, index: int, clock: float) -> Index:
        """Sorted slots that can be asked in this round."""
        return np.flatnonzero(self.spec.availability.mask(self.seed, index, clock, self.population, self.fixed))

    def seconds(self, index: int, clients: Index, work: Work) -> NDArray[np.float64]:
        """How long each of these would take, drawn per (client, round)."""
        took = self.spec.latency.seconds(self.seed, index, clients, work, self.fixed)
        return took * self.spec.faults.slowed(self.seed, index, clients)

    def expected_seconds(self, clients: Index, work: Work) -> NDArray[np.float64]:
        """The mean of :meth:`seconds` over rounds, stragglers included."""
        often, long = self.spec.faults.stragglers, self.spec.faults.straggle
        return self.spec.latency.expected(clients, work, self.fixed) * (1.0 + often * (long - 1.0))

    def dropped(self, index: int, clients: Index, *, probe: bool = False) -> Mask:
        """Who starts and never comes back. A probe is drawn for itself: who answers it may still fail to train."""
        return self.spec.faults.dropped(self.seed, index, clients, self.fixed, probe=probe)

    def boasted(self, clients: Index, answers: Arrays) -> Arrays:
        """What broken or malicious clients make of their answers to a probe."""
        return self.spec.faults.boasted(clients, answers, self.fixed)

    def tamper(self, index: int, updates: Updates, signals: Arrays) -> tuple[Updates, Arrays]:
        """What broken or malicious clients make of their replies. Rows of the signals are those of the updates."""
        return self.spec.faults.tamper(self.seed, index, updates, signals, self.fixed)

    def profiles(self) -> Arrays:
        """Profile columns, one row per client. Histograms are of the labels as the client sees them."""
        samples = self.train.sizes
        ids = np.arange(self.population)
        sent = np.full(self.population, 4.0 * NOMINAL_PARAMS)
        work = Work(samples, np.ones(self.population), sent, sent, NOMINAL_PARAMS)
        out: Arrays = {
            "samples": samples,
            "label_histogram": self.histogram(),
            "expected_seconds": self.expected_seconds(ids, work),
        }
        if "device" in self.fixed:
            device = [devices.DEVICES[d] for d in range(len(devices.DEVICES))]
            out["cores"] = np.array([d.cores for d in device], np.float32)[self.fixed["device"]]
            out["frequency"] = np.array([d.mhz for d in device], np.float32)[self.fixed["device"]]
            out["bandwidth"] = np.array([x.mbit for x in devices.LINKS], np.float32)[self.fixed["link"]]
        return out

    def histogram(self, *, clean: bool = False) -> NDArray[np.float32]:
        """Share of each class among a client's training labels: as it sees them, or the true ones (an oracle)."""
        label = self.train.clean if clean else self.train.label
        out = np.zeros((self.population, self.classes), np.float32)
        for first in range(0, self.population, keyed_draws.CHUNK):
            stop = min(first + keyed_draws.CHUNK, self.population)
            sizes = self.train.sizes[first:stop]
            at = slice(int(self.train.start[first]), int(self.train.start[stop]))
            flat = np.repeat(np.arange(stop - first), sizes) * self.classes + label[at]
            counts = np.bincount(flat, minlength=(stop - first) * self.classes).reshape(-1, self.classes)
            out[first:stop] = counts / np.maximum(sizes, 1)[:, None]
        return out

    def divergence(self) -> NDArray[np.float64]:
        """Jensen-Shannon divergence in bits of each client's true mix to the mix of all clients (an oracle)."""
        whole = np.bincount(self.train.clean, minlength=self.classes) / max(self.train.clean.size, 1)
        return js_divergence(self.histogram(clean=True), whole)

    def wrong_labels(self) -> NDArray[np.float64]:
        """The share of each client's training labels that are wrong (an oracle); 0 where it owns nothing."""
        wrong = np.concatenate([[0], np.cumsum(self.train.label != self.train.clean)])
        share: NDArray[np.float64] = np.diff(wrong[self.train.start]) / np.maximum(self.train.sizes, 1)
        return share


@checked
def build_world(
    spec: WorldSpec,
    labels: ArrayLike,
    *,
    seed: CountOrZero,
    owners: ArrayLike | None = None,
    classes: int | None = None,
    activities: ArrayLike | None = None,
) -> BuiltWorld:
    """The world of this specification: give the samples behind `labels` to clients and draw what stays with each.

    The same `seed` makes the same world. `classes` is how many there are (None: the largest label plus one); `owners`
    (numbers or names) and `activities`, one per sample, are needed by natural partitions only.

    >>> from fedcohort.worlds.partition import Iid
    >>> world = build_world(WorldSpec("even", clients=4, partition=Iid()), np.arange(100) % 10, seed=0)
    >>> world.population, world.train.sizes.tolist(), world.validation.sizes.tolist()
    (4, [21, 21, 21, 21], [4, 4, 4, 4])
    """
    pool, known = _pool(labels, owners, activities, classes)
    owned = spec.partition.own(pool, spec.clients, int(seed), spec.allocation)
    population = owned.start.size - 1
    skew, start = owned.skew, owned.start
    names = () if owned.owner is None else tuple(str(name) for name in known[owned.owner])
    size = np.diff(start).astype(np.float64)
    rate = spec.noise.rates(population, int(seed))
    train, validation = _split(start, owned.index, pool.labels, spec.validation, int(seed))
    del owned
    fixed = {**spec.faults.bind(population, int(seed)), **spec.availability.bind(population, int(seed), names)}
    train = _relabelled(spec, train, rate, pool.classes, int(seed), fixed, "train")
    validation = _relabelled(spec, validation, rate, pool.classes, int(seed), fixed, "validation")
    truth: dict[str, NDArray[Any]] = {"noise": rate, "size": size, "skew": skew, "name": np.array(names, str)}
    fixed |= spec.latency.bind(population, int(seed), truth)
    return BuiltWorld(
        spec=spec,
        seed=int(seed),
        population=population,
        classes=pool.classes,
        train=train,
        validation=validation,
        digest=_digest(spec, int(seed), pool.classes, train, validation, rate, fixed),
        noise_rate=rate.astype(np.float32),
        skew=skew,
        fixed=fixed,
        names=names,
    )


def _pool(
    labels: ArrayLike, owners: ArrayLike | None, activities: ArrayLike | None, classes: int | None
) -> tuple[Pool, NDArray[Any]]:
    """The samples to hand out, and the owners in sorted order, as the partition numbers them."""
    y = np.asarray(labels)
    whole = y.ndim == 1 and y.size > 0 and y.dtype.kind in "iu"
    check(
        whole,
        f"labels of shape {y.shape} and type {y.dtype}",
        "they must be a non-empty row of whole numbers",
        "check the data",
    )
    y = y.astype(np.int64, copy=False)
    low, high = int(y.min()), int(y.max())
    check(low >= 0, f"label {low}", "it must not be negative", "number the classes from 0")
    classes = high + 1 if classes is None else int(classes)
    check(high < classes, f"label {high}", f"there are {classes} classes", "raise classes")
    known = np.empty(0) if owners is None else np.unique(np.asarray(owners))
    return Pool(y, classes, _beside(y, owners, "owners"), _beside(y, activities, "activities")), known


def _beside(labels: Index, column: ArrayLike | None, name: str) -> Index | None:
    if column is None:
        return None
    values = np.asarray(column)
    if values.shape != labels.shape:
        raise BadParameter(f"{name} of shape {values.shape}", f"there are {labels.size} labels", "give one per sample")
    if values.dtype.kind in "iu":
        return values.astype(np.int64, copy=False)
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _split(start: Index, index: Index, labels: Index, rule: Validation, seed: int) -> tuple[Part, Part]:
    """Shuffle each client's samples and cut. Copies of one sample stay together, on one side of the cut."""
    sizes = np.diff(start)
    held = np.minimum(np.floor(sizes * rule.held_out + 0.5 + 1e-9).astype(np.int64), np.maximum(sizes - 1, 0))
    kept, aside = 0, []  # training samples are moved to the front of the same array: no second copy of the index
    for first, past, owner in keyed_draws.blocks(start):
        mine = slice(int(start[first]), int(start[past]))
        ids = (owner + first) * labels.size + index[mine]
        index[mine] = index[mine][keyed_draws.order_within(seed, "split", owner, ids)]
        _whole(start[first : past + 1], index, held[first:past])
        place = np.arange(owner.size) - (start[first:past] - start[first])[owner]
        out = place < held[first:past][owner]
        aside.append(index[mine][out])
        index[kept : kept + owner.size - aside[-1].size] = index[mine][~out]
        kept += owner.size - aside[-1].size
    return _part(sizes - held, index[:kept], labels), _part(held, np.concatenate(aside), labels)


def _whole(start: Index, index: Index, held: Index) -> None:
    """Move cuts that would separate copies of a sample, in place."""
    while True:
        at = start[:-1] + held
        torn = np.flatnonzero((held > 0) & (at < start[1:]))
        torn = torn[index[at[torn]] == index[at[torn] - 1]]
        if torn.size == 0:
            return
        held[torn] -= 1


def _part(sizes: Index, index: Index, labels: Index) -> Part:
    start = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=start[1:])
    clean = labels[index]
    return Part(start, index, clean, clean)


def _relabelled(
    spec: WorldSpec, part: Part, rate: NDArray[np.float64], classes: int, seed: int, fixed: Arrays, name: str
) -> Part:
    """The part with the labels as its clients see them. Without noise both columns are one array."""
    label = part.clean
    if name == "train" or spec.validation.flipped:
        label = spec.noise.flipped(label, part.start, rate, classes, seed, name)
    label = spec.faults.labels(label, part.sizes, classes, fixed)
    return Part(part.start, part.index, label, part.clean)


def _digest(
    spec: WorldSpec, seed: int, classes: int, train: Part, validation: Part, rate: NDArray[np.float64], fixed: Arrays
) -> str:
    """sha256 over the specification (but its name and prose), the seed and every array (reals in units of 1e-6)."""
    plain = {key: value for key, value in spec.to_dict().items() if key not in ("name", "about")}
    h = hashlib.sha256(json.dumps([plain, seed, classes], sort_keys=True, separators=(",", ":")).encode())
    columns: dict[str, NDArray[Any]] = {"noise": np.rint(rate * 1e6).astype(np.int64)}
    for name, part in (("train", train), ("validation", validation)):
        columns |= {f"{name}.{c}": getattr(part, c) for c in ("start", "index", "label", "clean")}
    columns |= {
        f"fixed.{k}": v if v.dtype.kind in "iu" else np.rint(v * 1e6).astype(np.int64) for k, v in fixed.items()
    }
    for name in sorted(columns):
        h.update(name.encode())
        value = columns[name]
        h.update(value.astype(value.dtype.newbyteorder("<"), copy=False).data.cast("B"))
    return h.hexdigest()
