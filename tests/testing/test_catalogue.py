"""The shipped contracts over everything in the catalogue: whatever is listed there is tested here."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import DataError, MissingExtra
from fedcohort.registry import lookup as registry
from fedcohort.testing import MethodContract, SelectorContract, TaskContract, WorldContract
from fedcohort.worlds.built_world import build_world

from . import settings, toys


def list_contract(base, prefix, name, make, knobs):
    """A test class of its own for each entry, so that a failing clause names its entry."""
    title = f"Test{prefix}_{name.replace('-', '_').replace('.', '_')}"
    globals()[title] = type(title, (base,), {"make": make, "__module__": __name__, **knobs.get(name, {})})


def selector_maker(name):
    def make(self):
        try:
            return registry.make_selector(name)
        except MissingExtra as error:
            pytest.skip(str(error))

    return make


def method_maker(name):
    def make(self):
        return registry.make_method(name)

    return make


class ListedMethod(MethodContract):
    """With a small bench at the server, for the methods that compute there."""

    def server_evaluator(self):
        return toys.LinearEvaluator()


def world_maker(name):
    def make(self, seed):
        """20 000 samples of 10 classes by 30 owners, for worlds of any partition."""
        r = generator(0, "catalogue-test")
        labels = r.permutation(np.arange(20_000) % 10)
        owners = r.integers(0, 30, labels.size)
        spec = registry.make_world_spec(name)
        return build_world(spec, labels, seed=seed, owners=owners, classes=10, activities=labels)

    return make


@cache
def bound(name):
    spec = registry.make_task_spec(settings.FEW_IMAGES.get(name, name))
    labels = spec.labels()
    world = build_world(registry.make_world_spec("iid-v1(clients=8)"), labels[:400], seed=0, classes=spec.classes)
    return spec.bind(world)


def task_maker(name):
    def make(self):
        try:
            return bound(name)
        except (DataError, MissingExtra) as error:
            pytest.skip(str(error))

    return make


for entry in registry.names("selector"):
    list_contract(SelectorContract, "Selector", entry, selector_maker(entry), settings.SELECTORS)
for entry in registry.names("method"):
    list_contract(ListedMethod, "Method", entry, method_maker(entry), settings.METHODS)
for entry in registry.names("world"):
    list_contract(WorldContract, "World", entry, world_maker(entry), settings.WORLDS)
for entry in registry.names("task"):
    list_contract(TaskContract, "Task", entry, task_maker(entry), settings.TASKS)


@pytest.mark.parametrize("kind", ["selector", "method", "world", "task"])
def test_settings_name_catalogue_entries(kind):
    """A knob for something that is not listed is a left-over."""
    assert set(getattr(settings, f"{kind.upper()}S")) <= set(registry.names(kind))
