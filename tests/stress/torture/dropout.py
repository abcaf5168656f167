"""Drop-out: do enough come back, how many are asked for it, and does every round end?"""

from __future__ import annotations

import numpy as np

from fedcohort.rounds.engine import Policy, RoundEngine
from fedcohort.rounds.over_selection import OverSelection, enough_for
from fedcohort.rounds.session import Session
from fedcohort.selectors.uniform import Uniform


def reach(rate: float, rounds: int, seed: int, rule: str | float = "adaptive", size: int = 100) -> dict:
    """Share of rounds with at least `size` replies and requests per optimum, the drop-out unknown at the start."""
    rng, asking = np.random.default_rng(seed), OverSelection(rule)
    reached = asked = 0
    for _ in range(rounds):
        many = asking.ask_for(size)
        came = int(rng.binomial(many, 1.0 - rate))
        asking.learn(came, many - came)
        reached, asked = reached + (came >= size), asked + many
    optimum = enough_for(size, rate)
    return {"rounds": rounds, "reached": reached / rounds, "asked": asked / rounds / size, "optimum": optimum / size}


def change(rounds: int, seed: int) -> dict:
    """The drop-out jumps from 10 to 50 % and back: rounds missed in the 200 that follow each jump."""
    rng, asking, missed = np.random.default_rng(seed), OverSelection(), [0, 0, 0]
    for phase, rate in enumerate((0.1, 0.5, 0.1)):
        for _ in range(200):
            many = asking.ask_for(100)
            came = int(rng.binomial(many, 1.0 - rate))
            asking.learn(came, many - came)
            missed[phase] += came < 100
    return {"missed at 10 %": missed[0], "after the jump to 50 %": missed[1], "after the jump back": missed[2]}


def hangs(rounds: int, seed: int) -> dict:
    """The engine with replies that come early, late, twice or never, drop-out 10 to 100 %: does every round end?"""
    rng, now = np.random.default_rng(seed), [0.0]
    engine = RoundEngine(
        Session(Uniform(), cohort_size=10, seed=seed),
        Policy(size=10, deadline=10.0, quorum=5, back_off=1.0, max_back_off=60.0),
        clock=lambda: now[0],
        signals={"train_loss": 0},
    )
    everybody, ends, hung = np.arange(300), {}, 0
    for index in range(rounds):
        rate = (0.1, 0.3, 0.5, 1.0)[index // 50 % 4] if index % 997 else 1.0
        cohort = None
        while cohort is None:
            now[0] += engine.wait()
            cohort = engine.plan(everybody)
        closed = _round(engine, now, cohort.clients, index, rate, rng)
        if closed is None:
            hung += 1
            break
        engine.settle(closed)
        ends[closed.reason] = ends.get(closed.reason, 0) + 1
    return {"rounds": index + 1, "hung": hung, **ends}


def _round(engine, now, clients, index, rate, rng):
    delays = np.where(rng.random(clients.size) < rate, np.inf, rng.exponential(3.0, clients.size))
    start = now[0]
    for at in np.argsort(delays).tolist():
        if not np.isfinite(delays[at]):
            break
        now[0] = max(now[0], start + float(delays[at]))
        closed = engine.due()
        reply = {
            "client": int(clients[at]),
            "round": index,
            "weight": 1.0,
            "steps": 1,
            "signals": {"train_loss": 1.0},
            "delta": None,
        }
        if closed is not None:
            return closed
        engine.reply(reply)
        if at % 7 == 0:
            engine.reply(reply)
    closed = engine.due()
    if closed is None:
        now[0] += engine.wait()
        closed = engine.due()
    return closed
