"""What is measurable about a world: the numbers by which the nearest problems are found."""

from __future__ import annotations

import math

import numpy as np

from fedcohort.types import Work
from fedcohort.worlds.built_world import NOMINAL_PARAMS, BuiltWorld
from fedcohort.worlds.faults import HONEST

TRAITS = {  # name -> (what it is, how much of it counts as one step apart)
    "skew": ("mean Jensen-Shannon divergence of clients' labels to everybody's, in bits", 0.15),
    "noise": ("mean share of wrong labels", 0.1),
    "noise_spread": ("standard deviation of that share between clients", 0.1),
    "speed": ("log10 of the time of the slow tenth over that of the fast tenth", 0.4),
    "availability": ("mean share of clients that can be asked", 0.2),
    "quantity": ("coefficient of variation of clients' amounts of data", 0.4),
    "dropout": ("mean probability to drop out of a round", 0.1),
    "faulty": ("share of broken or malicious clients", 0.1),
    "clients": ("log10 of the number of clients", 0.5),
}
_ROUNDS = 48  # that availability is averaged over


def measure_world(world: BuiltWorld) -> dict[str, float]:
    """The traits of a built world."""
    ids, part = np.arange(world.population), world.train
    sent = np.full(ids.size, 4.0 * NOMINAL_PARAMS)
    seconds = world.expected_seconds(ids, Work(part.sizes, np.ones(ids.size), sent, sent, NOMINAL_PARAMS))
    low, high = np.quantile(np.maximum(seconds, 1e-9), (0.1, 0.9))
    wrong = world.wrong_labels()
    there = [world.available(i, 60.0 * i).size for i in range(_ROUNDS)]
    lie = np.asarray(world.fixed.get("lie", np.full(ids.size, HONEST)))
    found = {
        "skew": float(world.divergence().mean()),
        "noise": float(wrong.mean()),
        "noise_spread": float(wrong.std()),
        "speed": math.log10(high / low),
        "availability": float(np.mean(there)) / ids.size,
        "quantity": float(part.sizes.std() / max(part.sizes.mean(), 1e-9)),
        "dropout": float(np.mean(world.fixed.get("dropout", np.zeros(1)))),
        "faulty": float((lie != HONEST).mean()),
        "clients": math.log10(ids.size),
    }
    return {name: round(value, 3) for name, value in found.items()}


def distance(a: dict[str, float], b: dict[str, float]) -> float:
    """How far apart two worlds are, in steps of the table above."""
    steps = [(a.get(name, 0.0) - b.get(name, 0.0)) / step for name, (_, step) in TRAITS.items()]
    return math.sqrt(sum(s * s for s in steps))
