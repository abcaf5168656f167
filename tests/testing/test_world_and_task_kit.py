"""The world and task contracts hold for sound ones and catch broken ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import FedcohortError
from fedcohort.tasks.quadratic import Quadratic, QuadraticSpec
from fedcohort.testing import TaskContract, WorldContract

from .toys import ToyWorld


class TestToyWorld(WorldContract):
    noisy = True

    def make(self, seed):
        return ToyWorld(seed)


class TestQuadratic(TaskContract):
    def make(self):
        return QuadraticSpec(dimension=5, classes=3).bind(ToyWorld(0))


class Forgetful(ToyWorld):
    """Luck that depends on the cohort: a generator for the round, drawn in the order of the cohort."""

    def seconds(self, index, clients, work):
        return 1.0 + generator(self.seed, "time", index).random(clients.size)

    def dropped(self, index, clients):
        return generator(self.seed, "drop", index).random(clients.size) < 0.5


class Unsorted(ToyWorld):
    def available(self, index, clock):
        return super().available(index, clock)[::-1].copy()


class SameDigest(ToyWorld):
    def __init__(self, seed):
        super().__init__(seed)
        self.digest = "toy"


class Leaky(ToyWorld):
    def __init__(self, seed):
        super().__init__(seed)
        self.validation = replace(self.train)


class TooManyLabels(ToyWorld):
    def __init__(self, seed):
        super().__init__(seed)
        self.train = replace(self.train, label=self.train.label + 1)


class Lies(ToyWorld):
    def tamper(self, index, updates, signals):
        return replace(updates, delta=-updates.delta), signals


class Overwrites(ToyWorld):
    def tamper(self, index, updates, signals):
        updates.delta[0] = 0.0
        return updates, signals


class Boasts(ToyWorld):
    def profiles(self):
        return {"samples": self.train.sizes + 1}


class Random(ToyWorld):
    def __init__(self, seed):
        super().__init__(np.random.default_rng().integers(1 << 30))
        self.digest = f"toy-{seed}"


WORLDS = [
    (Forgetful, "test_seconds_are_positive_and_do_not_depend_on_companions"),
    (Forgetful, "test_drop_outs_do_not_depend_on_companions"),
    (Unsorted, "test_available_slots_are_sorted_and_repeatable"),
    (SameDigest, "test_other_seeds_make_other_worlds"),
    (Leaky, "test_samples_have_one_owner"),
    (TooManyLabels, "test_parts_are_consistent"),
    (Lies, "test_tampering_keeps_shapes_and_leaves_the_input_alone"),
    (Overwrites, "test_tampering_keeps_shapes_and_leaves_the_input_alone"),
    (Boasts, "test_profiles_tell_the_truth"),
    (Random, "test_one_seed_one_world"),
]


@pytest.mark.parametrize(("cls", "clause"), WORLDS, ids=[f"{c.__name__}-{t[5:]}" for c, t in WORLDS])
def test_a_broken_world_is_caught(cls, clause):
    contract = type("Broken", (WorldContract,), {"make": lambda self, seed: cls(seed)})()
    with pytest.raises((AssertionError, FedcohortError)):
        getattr(contract, clause)()


def test_noise_is_checked_both_ways():
    class Clean(TestToyWorld):
        noisy = False

    with pytest.raises(AssertionError, match="wrong"):
        Clean().test_labels_are_noisy_or_not()


class SortsRows(Quadratic):
    def train(self, model, clients, plan):
        return super().train(model, np.sort(clients), plan)


class FeelsCompany(Quadratic):
    def train(self, model, clients, plan):
        done = super().train(model, clients, plan)
        return replace(done, updates=replace(done.updates, delta=done.updates.delta * np.float32(clients.size)))


class Drifts(Quadratic):
    def train(self, model, clients, plan):
        done = super().train(model, clients, plan)
        shake = np.random.default_rng().normal(size=done.updates.delta.shape).astype(np.float32)
        return replace(done, updates=replace(done.updates, delta=done.updates.delta + 1e-4 * shake))


class SilentFailure(Quadratic):
    def train(self, model, clients, plan):
        return replace(super().train(model, clients, plan), failed=np.zeros(clients.size, bool), reasons={})


class ForgetsAProbe(Quadratic):
    def probe(self, model, clients, signals, plan):
        return super().probe(model, clients, signals - {"probe_loss"}, plan)


class TrainsInProbe(Quadratic):
    def probe(self, model, clients, signals, plan):
        model.params[:] = 0.0
        return super().probe(model, clients, signals, plan)


TASKS = [
    (SortsRows, "test_rows_follow_the_clients"),
    (FeelsCompany, "test_clients_do_not_feel_their_companions"),
    (Drifts, "test_same_plan_same_bytes"),
    (Drifts, "test_rate_zero_moves_nothing"),
    (SilentFailure, "test_one_broken_client_hurts_nobody"),
    (ForgetsAProbe, "test_probes_answer_without_training"),
    (TrainsInProbe, "test_probes_answer_without_training"),
]


@pytest.mark.parametrize(("cls", "clause"), TASKS, ids=[f"{c.__name__}-{t[5:]}" for c, t in TASKS])
def test_a_broken_task_is_caught(cls, clause):
    r = np.random.default_rng(0)
    made = cls.from_arrays(r.uniform(0.5, 2, (6, 4)), r.normal(size=(6, 4)), np.full(6, 10))
    contract = type("Broken", (TaskContract,), {"make": lambda self: made})()
    with pytest.raises(AssertionError):
        getattr(contract, clause)()
