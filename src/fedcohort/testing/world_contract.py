"""The contract of a world as tests. Subclass and override `make`::

    class TestMyWorld(WorldContract):
        def make(self, seed):
            return build_my_world(seed)

What does not apply is named in `exempt` with the reason, e.g. ``exempt = {"one_owner": "clients re-use samples"}``.
"""

from __future__ import annotations

import random
import unittest
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.protocols import World
from fedcohort.signals import get
from fedcohort.types import Arrays, Index, Part, Updates, Work

WORLD_CLAUSES = frozenset(
    {
        "one_owner",  # no sample belongs to two clients
        "other_seeds",  # another seed makes another world
        "honest",  # replies are not tampered with
    }
)


class WorldContract:
    """What every world promises: consistent ownership, keyed draws, one digest per seed."""

    exempt: ClassVar[Mapping[str, str]] = {}  # clause -> why it does not apply
    noisy: ClassVar[bool | None] = None  # True: some labels must be wrong; False: none may be; None: not checked
    rounds: ClassVar[int] = 6

    def make(self, seed: int) -> World:
        """A fresh world of this seed."""
        raise NotImplementedError("override make(seed) to return a fresh world")

    def test_exemptions_are_known_and_reasoned(self) -> None:
        """Only known clauses, each with a reason."""
        for clause, reason in self.exempt.items():
            assert clause in WORLD_CLAUSES, f"no clause {clause!r}; exempt may name {sorted(WORLD_CLAUSES)}"
            assert reason.strip(), f"the exemption from {clause!r} needs a reason"

    def test_parts_are_consistent(self) -> None:
        """CSR starts, equal lengths, labels in range."""
        world = self.make(0)
        assert world.population >= 1
        assert world.train.index.size > 0, "nobody owns anything"
        for what, part in (("train", world.train), ("validation", world.validation)):
            _check_part(part, world.population, world.classes, what)

    def test_samples_have_one_owner(self) -> None:
        """Training and validation samples of all clients are different samples."""
        world = self.make(0)
        for client in range(world.population):
            own = world.train.index[world.train.of(client)]
            held = world.validation.index[world.validation.of(client)]
            assert np.intersect1d(own, held).size == 0, f"client {client} validates on its own training samples"
        self._skip_if_exempt("one_owner")
        owned = np.concatenate([world.train.index, world.validation.index])
        assert np.unique(owned).size == owned.size, "a sample belongs to two clients, or twice to one"

    def test_labels_are_noisy_or_not(self) -> None:
        """`label` is what the client sees, `clean` is the truth."""
        part = self.make(0).train
        wrong = float((part.label != part.clean).mean())
        if self.noisy is True:
            assert wrong > 0, "this world is noisy, yet every label is right"
        if self.noisy is False:
            assert wrong == 0, f"this world is clean, yet {wrong:.1%} of the labels are wrong"

    def test_one_seed_one_world(self) -> None:
        """Same seed: same digest, same samples, same draws. Global generators are not touched."""
        before = random.getstate()
        a, b = self.make(3), self.make(3)
        assert random.getstate() == before, "the global generator of `random` was touched"
        assert a.digest == b.digest, "one seed, two digests"
        assert isinstance(a.digest, str)
        assert a.digest, "the digest is empty"
        for one, two in ((a.train, b.train), (a.validation, b.validation)):
            for name in ("start", "index", "label", "clean"):
                assert np.array_equal(getattr(one, name), getattr(two, name)), f"one seed, two parts ({name})"
        for index in range(self.rounds):
            assert np.array_equal(a.available(index, 0.0), b.available(index, 0.0)), "one seed, two availabilities"
            who = np.arange(a.population)
            assert np.array_equal(a.seconds(index, who, _work(a, who)), b.seconds(index, who, _work(b, who)))
            assert np.array_equal(a.dropped(index, who), b.dropped(index, who)), "one seed, two drop-outs"

    def test_other_seeds_make_other_worlds(self) -> None:
        """The digest tells worlds apart."""
        self._skip_if_exempt("other_seeds")
        assert len({self.make(seed).digest for seed in range(3)}) == 3, "three seeds share a digest"

    def test_available_slots_are_sorted_and_repeatable(self) -> None:
        """Sorted unique slots as int64, the same when asked again, and somebody is there at times."""
        world, seen = self.make(0), 0
        for index in range(self.rounds):
            slots = world.available(index, 10.0 * index)
            assert slots.dtype == np.int64, f"available slots are {slots.dtype}"
            assert (np.diff(slots) > 0).all(), "available slots must be sorted and unique"
            assert slots.size == 0 or (slots[0] >= 0 and slots[-1] < world.population), "a slot out of range"
            assert np.array_equal(slots, world.available(index, 10.0 * index)), "asked again, others are available"
            seen += slots.size
        assert seen > 0, f"nobody was available in {self.rounds} rounds"

    def test_seconds_are_positive_and_do_not_depend_on_companions(self) -> None:
        """Draws are keyed by (client, round): not by the cohort, its order, or what was asked before."""
        world = self.make(0)
        who = np.arange(world.population)
        for index in range(self.rounds):
            together = world.seconds(index, who, _work(world, who))
            assert together.shape == who.shape
            assert np.isfinite(together).all(), "a duration is not finite"
            assert (together > 0).all(), "a duration is not positive"
            for some in self._cohorts(world.population):
                alone = world.seconds(index, some, _work(world, some))
                assert np.allclose(alone, together[some], rtol=1e-12), "a client's seconds depend on its companions"
        nobody = np.empty(0, np.int64)
        assert world.seconds(0, nobody, _work(world, nobody)).shape == (0,)

    def test_more_work_takes_no_less_time(self) -> None:
        """With the same random draws, more passes and bytes never make a client faster."""
        world = self.make(0)
        who = np.arange(world.population)
        little, much = _work(world, who), _work(world, who, factor=4.0)
        for index in range(self.rounds):
            gap = world.seconds(index, who, much) - world.seconds(index, who, little)
            assert (gap >= -1e-9).all(), "four times the work takes less time"

    def test_drop_outs_do_not_depend_on_companions(self) -> None:
        """A mask with one entry per client, keyed like the seconds."""
        world = self.make(0)
        who = np.arange(world.population)
        for index in range(self.rounds):
            together = world.dropped(index, who)
            assert together.shape == who.shape
            assert together.dtype == np.bool_
            for some in self._cohorts(world.population):
                assert np.array_equal(world.dropped(index, some), together[some]), "drop-outs depend on companions"

    def test_tampering_keeps_shapes_and_leaves_the_input_alone(self) -> None:
        """Honest worlds return what they were given; others may change values, never rows."""
        world = self.make(0)
        who = np.arange(min(world.population, 8))
        delta = generator(0, "delta").standard_normal((who.size, 5)).astype(np.float32)
        updates = Updates(who, delta.copy(), np.full(who.size, 10.0), np.full(who.size, 3))
        signals: Arrays = {"train_loss": np.linspace(1, 2, who.size)}
        for index in range(self.rounds):
            out, reports = world.tamper(index, updates, dict(signals))
            assert np.array_equal(updates.delta, delta), "tamper changed its input"
            assert np.array_equal(signals["train_loss"], np.linspace(1, 2, who.size)), "tamper changed its input"
            assert np.array_equal(out.clients, who), "tamper changed who replied"
            assert out.delta.shape == delta.shape
            assert reports["train_loss"].shape == who.shape
            if "honest" not in self.exempt:
                assert np.array_equal(out.delta, delta), "an honest world changed an update"
                assert np.array_equal(reports["train_loss"], signals["train_loss"]), "an honest world changed a signal"

    def test_profiles_tell_the_truth(self) -> None:
        """Known profile signals, one row per client; samples and label histogram agree with the parts."""
        world = self.make(0)
        profiles = world.profiles()
        assert "samples" in profiles, "every world knows how much its clients own"
        for name, column in profiles.items():
            assert get(name).side == "profile", f"{name!r} is not a profile signal"
            assert column.shape[:1] == (world.population,), f"profile {name!r} has {column.shape[:1]} rows"
            assert np.isfinite(column).all(), f"profile {name!r} is not finite"
        assert np.array_equal(profiles["samples"], world.train.sizes), "samples differ from what clients own"
        if "label_histogram" in profiles:
            want = _histogram(world.train, world.classes)
            assert np.allclose(profiles["label_histogram"], want, atol=1e-5), "label_histogram differs from the labels"

    def _skip_if_exempt(self, clause: str) -> None:
        if clause in self.exempt:
            raise unittest.SkipTest(f"exempt from {clause}: {self.exempt[clause]}")

    def _cohorts(self, population: int) -> list[Index]:
        """A single client, a few in another order, the upper half."""
        few = generator(1, "cohorts").permutation(population)[:5].astype(np.int64)
        return [few[:1], few, np.arange(population // 2, population)]


def _check_part(part: Part, population: int, classes: int, what: str) -> None:
    assert part.start.shape == (population + 1,), f"{what}.start has shape {part.start.shape}"
    assert part.start[0] == 0, f"{what}.start does not begin at 0"
    assert (np.diff(part.start) >= 0).all(), f"{what}.start decreases"
    total = int(part.start[-1])
    for name in ("index", "label", "clean"):
        column = getattr(part, name)
        assert column.shape == (total,), f"{what}.{name} has {column.shape} rows for {total} samples"
        assert column.dtype == np.int64, f"{what}.{name} is {column.dtype}"
        assert total == 0 or column.min() >= 0, f"{what}.{name} is negative"
    for name in ("label", "clean"):
        assert total == 0 or getattr(part, name).max() < classes, f"{what}.{name} is beyond the {classes} classes"


def _work(world: World, clients: Index, factor: float = 1.0) -> Work:
    one = np.full(clients.size, factor)
    return Work(world.train.sizes[clients], one, 4e4 * one, 4e4 * one, 10_000)


def _histogram(part: Part, classes: int) -> NDArray[np.float64]:
    counts = np.zeros((part.sizes.size, classes))
    np.add.at(counts, (np.repeat(np.arange(part.sizes.size), part.sizes), part.label), 1.0)
    return counts / np.maximum(part.sizes, 1)[:, None]
