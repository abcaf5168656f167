"""FLASH, Fig. 4: (a, b) other bandits instead of the linear one, (c, d) contexts without one of their elements."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.flash.flash_setting import CIFAR
from fedcohort.papers.study import (
    PERFECT_ROW,
    SEEDS,
    Cell,
    Claim,
    Lookup,
    Quantity,
    Study,
    Value,
    beats,
    common_target,
    of_scale,
    quantity,
    row_beats,
    until,
)
from fedcohort.registry.lookup import make_selector
from fedcohort.rounds.session import Session
from fedcohort.types import Index, Outcome, Probed, RoundResult, Signals

LINEAR, NEURAL, RESTLESS = "linear bandit (FLASH)", "neural bandit", "restless bandit"
BANDITS = (LINEAR, NEURAL, RESTLESS)
SETTINGS = {"noise 15 %": (0, 15), "skewed 30 %": (30, 0)}  # (skewed, noise)
REACHED, WHOLE = "seconds to the lowest best", "seconds in all"
THINKING, THINKING_ROUNDS = "own milliseconds a round", 50
MEASURED = "noise 15 %"  # the column of milliseconds, which do not depend on the world
ELEMENTS = {
    "training loss": "val,duration,reward",
    "validation loss": "loss,duration,reward",
    "duration": "loss,val,reward",
    "reward": "loss,val,duration",
}
FULL = "whole context"


def column(setting: str, what: str) -> str:
    """The heading of a column."""
    return f"{setting}: {what}"


def accuracy(scale: str) -> str:
    """The heading of accuracies."""
    return "early-stop accuracy" if scale == "desk" else "best accuracy"


def thinking(record: RunRecord, others: Lookup) -> Value:
    """Milliseconds of processor time a round that the run's selector takes, among 50 clients that report at random."""
    del others
    session = Session(make_selector(record.config.selector), cohort_size=10, seed=record.config.seed)
    rng = generator(record.config.seed, "fig4-thinking")
    everybody = np.arange(50)

    def report(clients: Index, names: frozenset[str]) -> Probed:
        return Probed(clients, Signals({name: rng.random(clients.size) for name in sorted(names)}))

    needs = frozenset(name for name in session.selector.needs if not name.startswith("probe_"))
    started = time.process_time()
    for index in range(THINKING_ROUNDS):
        clients = session.ask(everybody, probe=report).clients
        outcome = np.full(clients.size, Outcome.OK, np.int8)
        session.tell(RoundResult(index, clients, outcome, 1 + rng.random(clients.size), report(clients, needs).signals))
    return 1000 * (time.process_time() - started) / THINKING_ROUNDS


def bandit_cells(scale: str) -> Sequence[Cell]:
    """Three bandits in two settings, all on FLASH's loss: accuracy, virtual time, and what the bandit itself takes."""
    known = flash.selectors(scale)
    others = {row: flash.bandit(scale, row.replace(" ", "-")) for row in (NEURAL, RESTLESS)}
    texts = {LINEAR: known[flash.FLASH], **others}
    found = []
    for row in (*texts, PERFECT_ROW):
        for setting, level in SETTINGS.items():
            selector = flash.best_choice(level[0]) if row == PERFECT_ROW else texts[row]
            keys = flash.run(scale, selector, flash.world(*level, scale=scale), loss=flash.objective(CIFAR))
            if row == PERFECT_ROW:
                found.append(Cell(row, column(setting, accuracy(scale)), keys, flash.in_figures(scale)))
                continue
            measured = {
                accuracy(scale): flash.in_figures(scale),
                REACHED: until(common_target((b, column(setting, accuracy(scale))) for b in BANDITS), "time_to_target"),
                WHOLE: quantity("seconds", digits=0),
            }
            if setting == MEASURED:
                measured[THINKING] = Quantity("milliseconds a round", thinking, -1, digits=2)
            found += [Cell(row, column(setting, what), keys, q) for what, q in measured.items()]
    return found


def bandit_claims(scale: str) -> Sequence[Claim]:
    """The linear bandit is as accurate in less time."""
    found = []
    for setting in SETTINGS:
        for bandit in (NEURAL, RESTLESS):
            level, reached = column(setting, accuracy(scale)), column(setting, REACHED)
            found.append(
                beats(
                    f"{setting}: a {bandit} does not improve accuracy (by a point or more)",
                    (LINEAR, level),
                    (bandit, level),
                    margin=-1.0,
                )
            )
            found.append(beats(f"{setting}: FLASH is faster than a {bandit}", (LINEAR, reached), (bandit, reached)))
    own = column(MEASURED, THINKING)
    less = [beats(f"FLASH computes less than a {b}", (LINEAR, own), (b, own)) for b in (NEURAL, RESTLESS)]
    return [*found, *less]


def levels(scale: str) -> dict[str, tuple[int, int]]:
    """The columns of the ablation: (skewed, noise)."""
    skew, noise = of_scale(
        scale,
        smoke=((40,), (25,)),
        laptop=((30, 40), (15, 25)),
        desk=((30,), (15,)),
        paper=((10, 20, 30, 40), (5, 10, 15, 20, 25)),
    )
    return {**{f"skewed {s} %": (s, 0) for s in skew}, **{f"noise {n} %": (0, n) for n in noise}}


def without(element: str) -> str:
    """The heading of a row."""
    return f"without {element}"


def contexts(scale: str) -> dict[str, str]:
    """FLASH with its whole context and without each element."""
    whole = flash.selectors(scale)[flash.FLASH]
    more = whole.removeprefix("flash").strip("()")
    return {
        FULL: whole,
        **{without(e): f"flash(context={kept!r}{', ' * bool(more)}{more})" for e, kept in ELEMENTS.items()},
    }


def context_cells(scale: str) -> Sequence[Cell]:
    """Best accuracy at every level and the virtual time of the run; a random and a perfect choice on the same loss."""
    found = []
    for row, selector in contexts(scale).items():
        for heading, level in levels(scale).items():
            keys = flash.run(scale, selector, flash.world(*level, scale=scale), loss=flash.objective(CIFAR))
            found.append(Cell(row, heading, keys, flash.in_figures(scale)))
            found.append(Cell(row, column(heading, WHOLE), keys, quantity("seconds", digits=0)))
    for row in (flash.RANDOM, PERFECT_ROW):
        for heading, level in levels(scale).items():
            selector, _ = flash.who(scale, row, skewed=level[0])
            keys = flash.run(scale, selector, flash.world(*level, scale=scale), loss=flash.objective(CIFAR))
            found.append(Cell(row, heading, keys, flash.in_figures(scale)))
    return found


def context_claims(scale: str) -> Sequence[Claim]:
    """Which element matters where."""
    skew = [heading for heading, (s, _) in levels(scale).items() if s]
    noise = [heading for heading, (s, _) in levels(scale).items() if not s]
    loss, val, duration, reward = (without(e) for e in ELEMENTS)
    times = [column(heading, WHOLE) for heading in levels(scale)]
    return (
        row_beats("training loss is crucial with noise: leaving it out costs accuracy", FULL, loss, noise),
        row_beats("with noise it matters more than validation loss", val, loss, noise),
        row_beats("validation loss is important with skew: leaving it out costs accuracy", FULL, val, skew),
        row_beats("with skew it matters more than training loss", loss, val, skew),
        row_beats("the previous reward helps in all settings", FULL, reward, [*skew, *noise]),
        row_beats("duration in the context makes runs shorter", FULL, duration, times),
    )


STUDIES = (
    Study(
        "flash:fig4-bandits",
        "FLASH, Fig. 4 a and b: other bandits instead of the linear one, with FedAvg (CIFAR-10; %, virtual s)",
        bandit_cells,
        bandit_claims,
        SEEDS,
        {scale: (*flash.told(scale), *([flash.BUILT] * (scale == "desk"))) for scale in SEEDS},
    ),
    Study(
        "flash:fig4-context",
        "FLASH, Fig. 4 c and d: contexts without one element, with FedAvg (CIFAR-10, accuracy, %)",
        context_cells,
        context_claims,
        SEEDS,
        {scale: flash.told(scale) for scale in SEEDS},
    ),
)
