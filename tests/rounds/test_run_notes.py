"""Doubts before a run and findings after it: which combinations are named, which are not."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.registry.lookup import make_method, make_selector
from fedcohort.rounds.history import History
from fedcohort.rounds.policy import RoundPolicy
from fedcohort.rounds.run_notes import doubts, findings
from fedcohort.types import Model, Plan

ADAM, SGD = Plan(optimiser="adam"), Plan()
ROUNDS, BUFFER = RoundPolicy(), RoundPolicy(buffer_size=2)
START = {"loss": 2.3, "accuracy": 0.1}
FINE = Model(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("selector", "method", "policy", "plan", "said"),
    [
        ("fedcm-ucb", "fedavg", ROUNDS, SGD, "fedcm-ucb without the method fedca"),
        ("fedcm-ts", "krum", ROUNDS, SGD, "krum does not make that choice"),
        ("quota(inner='fedcm-ts')", "fedavg", ROUNDS, SGD, "fedcm-ts without the method fedca"),
        ("fedcm-ucb", "fedca", ROUNDS, SGD, None),
        ("fedcm-ucb", "cmfl(inner='fedca')", ROUNDS, SGD, None),
        ("uniform", "fedbuff", ROUNDS, SGD, "fedbuff without asynchronous rounds"),
        ("uniform", "cmfl(inner='fedbuff')", ROUNDS, SGD, "fedbuff without asynchronous rounds"),
        ("uniform", "fedbuff", BUFFER, SGD, None),
        ("uniform", "fedprox", ROUNDS, ADAM, "fedprox with optimiser='adam'"),
        ("uniform", "fednova(adam='steps')", ROUNDS, ADAM, "fednova with optimiser='adam'"),
        ("uniform", "scaffold(option='I')", ROUNDS, ADAM, "scaffold with optimiser='adam'"),
        ("uniform", "feddyn", ROUNDS, ADAM, "feddyn with optimiser='adam'"),
        ("uniform", "fedca(inner='fedprox')", ROUNDS, ADAM, "fedprox with optimiser='adam'"),
        ("uniform", "fedavg", ROUNDS, ADAM, None),
        ("uniform", "fedprox", ROUNDS, SGD, None),
    ],
)
def test_parts_that_do_not_fit(selector, method, policy, plan, said):
    found = doubts(make_selector(selector), make_method(method), policy, plan)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def history(rounds=4, reasons=(), losses=(1.0,), **counts):
    """`rounds` rounds of ten clients, with these outcomes each and these losses at the end."""
    rows = [{"round": t, "asked": 10.0, "accuracy": 0.5, "loss": 1.5, **counts} for t in range(rounds)]
    rows[-1] = {k: v for k, v in {**rows[-1], "loss": losses[-1]}.items() if v is not None}
    return History(20, rows, reasons=[dict(enumerate(reasons)) for _ in rows])


@pytest.mark.parametrize(
    ("made", "policy", "said"),
    [
        (history(ok=10), ROUNDS, None),
        (history(ok=6, late=4), ROUNDS, None),
        (history(ok=4, late=6), RoundPolicy(deadline=20), "of 40 that were asked for, 24 were late; allow a longer d"),
        (history(ok=3, late=7), RoundPolicy(close_after=3), None),  # seven more than are wanted
        (history(ok=1, filtered=5, late=4), ROUNDS, None),
        (history(ok=2, failed=8, reasons=["dropped-out"] * 8), ROUNDS, "32 failed, most of all as dropped-out"),
        (
            history(ok=2, rejected=8, reasons=["update-too-large"] * 8),
            ROUNDS,
            "32 were rejected, most of all as update-t",
        ),
        (history(ok=2, rejected=8, reasons=["update-not-finite"] * 8), ROUNDS, "diverged on the clients"),
        (history(ok=0, failed=10, reasons=["training became non-finite"] * 10), ROUNDS, "diverged on the clients"),
        (history(ok=10, losses=(2.4,)), ROUNDS, "diverged: the test loss is 2.4 at the end and was 2.3"),
        (history(ok=10, losses=(None,)), ROUNDS, "diverged: the test loss is not a finite number"),
        (history(ok=0, asked=0.0), ROUNDS, "nobody was asked in 4 of 4 rounds"),
    ],
)
def test_results_that_mean_something_else(made, policy, said):
    found = findings(made, policy, START, FINE)
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


class Hours:
    """A world in which somebody is there only in these rounds, each of which begins ten seconds after the last."""

    def __init__(self, *rounds):
        self.rounds = rounds

    def available(self, index, clock):
        assert clock == 10.0 * index
        return np.arange(3 if index in self.rounds else 0)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (Hours(), "nobody was available; choose another world."),
        (Hours(0, 1, 2, 3), "clients were available, but the selector chose nobody; choose another selector or"),
        (
            Hours(0, 3),
            "nobody was available in 2 of these, and in 1 the selector chose nobody; choose another world or",
        ),
        (None, "nobody was available, or the selector chose nobody; choose another world or selector."),
    ],
)
def test_whose_doing_it_was_that_nobody_was_asked(world, said):
    """Four rounds, in the first of which somebody was asked."""
    made = history(ok=0, asked=0.0)
    rows = [
        {**row, "clock": 10.0 * (t + 1), "asked": 0.0 if t else 10.0, "ok": 10.0} for t, row in enumerate(made.rows)
    ]
    (found,) = findings(History(20, rows), ROUNDS, START, FINE, world)
    assert found.startswith(f"nobody was asked in 3 of 4 rounds: {said}")


def test_a_model_that_is_not_finite_has_diverged():
    found = findings(history(ok=10), ROUNDS, START, Model(np.array([1.0, np.nan], np.float32)))
    assert found == ["diverged: the model's parameters are not finite numbers; lower the learning rate."]
    assert findings(history(ok=10), ROUNDS, {}, FINE) == []  # a task without a loss
