"""Liars and Sybils against every selector that believes what clients report.

A fifth of 100 clients lie in the way that serves them best (the worst of four lies is reported): everything times 1000,
everything by 1000, a huge loss before and none after, or a zero vector. Share of the cohort over share of the
population, in the rounds after everybody could have been asked once. Sybils: the liars register after a third of the run.
"""

from __future__ import annotations

import numpy as np

from fedcohort.registry import lookup as registry
from fedcohort.signals import SIGNALS
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

N, K, LIARS = 100, 10, 20
WIDTH = {
    "insight": 8,
    "network_insight": 8,
    "delta": 8,
    "last_layer_delta": 8,
    "weights": 8,
    "probe_weights": 8,
    "label_histogram": 10,
}
LIES = ("high", "low", "gain", "zero")
RAW, CAPPED = "{}", "probability-cap(inner='{}', cap=1.4, fill=True)"
BELIEVERS = (
    "oort",
    "pyramidfl",
    "flash",
    "linucb",
    "restless-bandit",
    "neural-bandit",
    "fedacs",
    "rexp3",
    "hetero-select",
    "power-of-choice",
    "afl",
    "epsilon-greedy",
    "ucb1",
    "feel",
    "fedcor",
    "divfl",
    "tifl",
    "ledger",
)


def _told(name: str, clients: np.ndarray, lie: str, rng: np.random.Generator) -> np.ndarray:
    if name in WIDTH:
        value = rng.standard_normal((clients.size, WIDTH[name])).astype(np.float32)
    else:
        value = np.exp(0.5 * rng.standard_normal(clients.size)) * (0.8 if name == "loss_after" else 1.0)
    factor = {"high": 1e3, "low": 1e-3, "gain": 1e-3 if name == "loss_after" else 1e3, "zero": 0.0}[lie]
    if SIGNALS[name].side in ("client", "probe") or name in ("delta", "delta_norm", "last_layer_delta"):
        value[clients < LIARS] *= factor
    return value


def share(text: str, lie: str, rounds: int, seed: int, *, sybils: bool = False) -> float:
    """The liars' share of the cohorts over their share of those who could be chosen."""
    rng, selector = np.random.default_rng(seed), registry.make_selector(text)
    needs, third = selector.needs, rounds // 3
    profiles = {n: np.full((N, WIDTH[n]) if n in WIDTH else N, 10.0) for n in needs if SIGNALS[n].side == "profile"}
    asked, seats, expected = 0, 0, 0.0
    for index in range(rounds):
        available = np.arange(LIARS if sybils and index < third else 0, N)
        rnd = Round(index, K, available, N, float(index), Signals(profiles, needs))
        if hasattr(selector, "probe"):
            clients = np.unique(selector.probe(rnd, np.random.default_rng((seed, index, 1))))
            answers = {n: _told(n, clients, lie, rng) for n in needs if SIGNALS[n].side == "probe"}
            rnd = Round(index, K, available, N, rnd.clock, rnd.profiles, Probed(clients, Signals(answers, needs)))
        cohort = np.sort(selector.select(rnd, np.random.default_rng((seed, index))).clients)
        told = {
            n: _told(n, cohort, lie, rng) for n in needs if SIGNALS[n].side in ("client", "server") and n != "model"
        }
        ok = np.full(cohort.size, Outcome.OK, np.int8)
        time = np.exp(0.3 * rng.standard_normal(cohort.size)) * 10.0
        selector.observe(RoundResult(index, cohort, ok, time, Signals(told, needs), 0.5, rnd.probed))
        if index >= third:
            asked, seats = asked + int((cohort < LIARS).sum()), seats + cohort.size
            expected += cohort.size * LIARS / N
    return asked / max(expected, 1e-9)


def worst(name: str, rounds: int, seed: int) -> dict:
    """The largest ratio over the lies: bare and capped, from the start and as Sybils."""
    out: dict[str, float] = {}
    for label, text in (("raw", RAW.format(name)), ("capped", CAPPED.format(name))):
        out[label] = round(max(share(text, lie, rounds, seed) for lie in LIES), 2)
        out[f"{label}, Sybils"] = round(max(share(text, lie, rounds, seed, sybils=True) for lie in LIES[:3:2]), 2)
    return out
