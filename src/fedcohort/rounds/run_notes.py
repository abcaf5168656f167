"""What a person must know of a run besides its numbers: doubts before it starts, findings when it has ended.

Doubts are about parts that do not fit each other: the run works, but what it measures is not what its names say.
Findings are about results that mean something else than they seem to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from fedcohort.methods._parts.inner_method import MethodWrapper
from fedcohort.methods.fedbuff import FedBuff
from fedcohort.methods.fedca import FedCA
from fedcohort.methods.feddyn import FedDyn
from fedcohort.methods.fednova import FedNova
from fedcohort.methods.fedprox import FedProx
from fedcohort.methods.scaffold import Scaffold
from fedcohort.protocols import Method, Selector, World
from fedcohort.rounds.history import History
from fedcohort.rounds.policy import RoundPolicy
from fedcohort.selectors.fedcm import FedCMTS, FedCMUCB
from fedcohort.selectors.wrappers.base import Wrapper
from fedcohort.types import Model, Plan

MOST = 0.5  # of the replies that were wanted
NOT_FINITE = ("not-finite", "non-finite", "signal-not-sane")  # how reasons end

# What a method's formulas become with a local optimiser for which they were not made.
_NOT_SGD: Mapping[type[Method], str] = {
    FedProx: "with {0} a local step is no longer a proximal step: mu does not mean what it means in the paper",
    FedNova: "with {0} the length of a local path is undefined: counting its steps is a heuristic",
    Scaffold: "with {0} the correction is changed by the optimiser: nothing shows that it removes the drift",
    FedDyn: "with {0} the linear terms are no longer gradients at the local optima: h is an estimate only",
}


def doubts(selector: Selector, method: Method, policy: RoundPolicy, plan: Plan) -> list[str]:
    """Why this run may not measure what its names say; each a sentence with its remedy.

    >>> from fedcohort import RoundPolicy, make_method, make_selector
    >>> for text in doubts(make_selector("fedcm-ts"), make_method("fedavg"), RoundPolicy(), Plan()):
    ...     print(text)
    fedcm-ts without the method fedca: it learns from whom fedca leaves out, and fedavg ...; use method='fedca'.
    """
    found = []
    layers = list(_layers(method))
    for part in _selectors(selector):
        if isinstance(part, (FedCMUCB, FedCMTS)) and not any(isinstance(m, FedCA) for m in layers):
            name = "fedcm-ucb" if isinstance(part, FedCMUCB) else "fedcm-ts"
            rule = f"it learns from whom fedca leaves out, and {layers[-1].name} does not make that choice"
            found.append(f"{name} without the method fedca: {rule}; use method='fedca'.")
    for layer in layers:
        if isinstance(layer, FedBuff) and not policy.buffer_size:
            rule = "no update is ever out of date, so that it only averages in portions"
            found.append(f"fedbuff without asynchronous rounds: {rule}; set buffer_size, or use fedavg.")
        if plan.optimiser != "sgd":
            for kind, rule in _NOT_SGD.items():
                if isinstance(layer, kind):
                    rule = rule.format(plan.optimiser)
                    found.append(f"{layer.name} with optimiser='{plan.optimiser}': {rule}; train with optimiser='sgd'.")
    return found


def findings(
    history: History, policy: RoundPolicy, before: Mapping[str, float], model: Model, world: World | None = None
) -> list[str]:
    """What is wrong with the results of a run that has ended; `before` are the test metrics of the untrained model.

    `world` tells who was available, where nobody was asked; without it both reasons are named.
    """
    found = [_divergence(history, before, model), _silence(history, world), _losses(history, policy)]
    found.append(history.usage().sentence(early=policy.closes_early))
    return [text for text in found if text]


def _divergence(history: History, before: Mapping[str, float], model: Model) -> str:
    if not np.isfinite(model.params).all():
        return "diverged: the model's parameters are not finite numbers; lower the learning rate."
    known = [row for row in history.rows if "accuracy" in row or "loss" in row]
    start = before.get("loss", float("nan"))
    if not known or not np.isfinite(start):
        return ""
    end = known[-1].get("loss")
    if end is None:
        return "diverged: the test loss is not a finite number at the end; lower the learning rate."
    if end > start:
        losses = f"the test loss is {end:.4g} at the end and was {start:.4g} before training"
        return f"diverged: {losses}; lower the learning rate."
    return ""


def _silence(history: History, world: World | None) -> str:
    """Whether nobody was asked in most rounds, and whose doing that was."""
    idle, rounds = np.flatnonzero(history.column("asked") == 0), len(history.rows)
    if 2 * idle.size <= rounds:
        return ""
    said = f"nobody was asked in {idle.size} of {rounds} rounds"
    if world is None:
        return f"{said}: nobody was available, or the selector chose nobody; choose another world or selector."
    starts = np.r_[0.0, history.clock[:-1]]
    there = sum(world.available(int(t), float(starts[t])).size > 0 for t in idle)
    if not there:
        return f"{said}: nobody was available; choose another world."
    if there == idle.size:
        return f"{said}: clients were available, but the selector chose nobody; choose another selector or change it."
    both = f"nobody was available in {idle.size - there} of these, and in {there} the selector chose nobody"
    return f"{said}: {both}; choose another world or selector."


def _losses(history: History, policy: RoundPolicy) -> str:
    """Whether most of the replies that were wanted did not count. Those beyond `close_after` are not wanted."""
    asked = history.column("asked")
    wanted = asked if policy.buffer_size else np.minimum(asked, policy.closes_at)
    counts = {name: int(np.nansum(history.column(name))) for name in ("ok", "filtered", "late", "failed", "rejected")}
    if counts["ok"] + counts["filtered"] >= MOST * wanted.sum():
        return ""
    lost = {name: counts[name] for name in _LOST if counts[name]}
    parts = [f"{n} {'' if name == 'failed' else 'were '}{name}" for name, n in lost.items()]
    said = f"most replies did not count: of {int(asked.sum())} that were asked for, {', '.join(parts)}"
    why = Counter(reason.partition(":")[0] for row in history.reasons for reason in row.values())
    if 2 * sum(n for reason, n in why.items() if reason.endswith(NOT_FINITE)) > sum(lost.values()):
        return f"diverged on the clients: {said}, because they were not finite numbers; lower the learning rate."
    if counts["late"] == max(lost.values()):
        return f"{said}; allow a longer deadline than {policy.deadline:g} s."
    cause = f", most of all as {why.most_common(1)[0][0]}" if why else ""
    return f"{said}{cause}; `fedcohort journal show FOLDER --round 0` lists everybody with the reason."


_LOST = ("late", "failed", "rejected")


def _selectors(selector: Selector) -> Iterator[Selector]:
    while isinstance(selector, Wrapper):
        yield selector
        selector = selector.inner
    yield selector


def _layers(method: Method) -> Iterator[Method]:
    while isinstance(method, MethodWrapper):
        yield method
        method = method.inner
    yield method
