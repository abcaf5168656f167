"""Run a simulation in one line: names or objects of your own, in any combination."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcohort.errors import BadParameter, check
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.round_progress import told_too
from fedcohort.experiment.runs import Objects, build, run
from fedcohort.protocols import Method, Selector
from fedcohort.rounds.history import History
from fedcohort.types import Plan

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

FROM_ARRAYS = "make one with Dataset.from_arrays(x, y)"
_PARTS = {  # what an object that is given instead of a name must have at least
    "selector": ("needs", "select", "observe"),
    "method": ("prepare", "aggregate"),
    "world": ("clients", "partition"),
    "task": ("labels", "bind"),
}


def simulate(
    selector: str | Selector = "uniform",
    *,
    method: str | Method = "fedavg",
    world: str | WorldSpec = "mixed-v1",
    task: str | TaskSpec = "digits-mlp",
    rounds: int = 50,
    cohort_size: int = 10,
    seed: int = 0,
    out: str | Path | None = None,
    on_round: Callable[[dict[str, float]], None] | None = None,
    progress: bool = False,
    **more: Any,
) -> History:
    """Run a selector and a method on a task in a world, and return what happened.

    Each of the four may be a name ("oort(explore=0.8)") or an object of your own (see `task_from` for your own arrays).
    `rounds`, `cohort_size` and `seed` say how long, how many clients a round and which random draws; `more` takes every
    other key of a run's configuration, e.g. deadline=300. With `out`, the run is kept in that folder and can be
    resumed, which needs names. `on_round` is called with the numbers of each round; with `progress`, standard
    error shows the round, the accuracy and the time left.

    >>> simulate("oort", task="quadratic", rounds=3, cohort_size=2).column("asked").tolist()
    [2.0, 2.0, 2.0]
    """
    given: dict[str, Any] = {"selector": selector, "method": method, "world": world, "task": task}
    own = {k: v for k, v in given.items() if not isinstance(v, str)}
    texts = {k: v for k, v in given.items() if isinstance(v, str)}
    for kind, value in own.items():
        check(
            all(hasattr(value, part) for part in _PARTS[kind]),
            f"{kind} = {value!r}"[:200],
            f"this is neither the name of a {kind} nor an object that can {' and '.join(_PARTS[kind])}",
            f"see `fedcohort list {kind}s`, or docs/testing.md for your own",
        )
    config = from_mapping({**texts, "rounds": rounds, "cohort_size": cohort_size, "seed": seed, **more})
    if progress:
        on_round = told_too(config.rounds, on_round)
    if not own:
        return run(config, Path(out) if out is not None else None, on_round).history
    if out is not None:
        raise BadParameter(
            f"out with an object as {' and '.join(own)}",
            "a run that can be resumed is made from names",
            "leave out= out, or give names",
        )
    return build(config, Objects(**own)).run(on_round)


def task_from(
    data: Dataset, *, hidden: int | tuple[int, ...] = (64,), lr: float = 0.1, epochs: int = 2, **more: Any
) -> TaskSpec:
    """A task on your own arrays: `task_from(Dataset.from_arrays(x, y, client=writer))`.

    The model is a perceptron on the flattened inputs (`hidden=()` for softmax regression); for another network or
    other splits make a `fedcohort.tasks.ClassificationSpec` yourself. `more` goes to the local training plan.

    >>> import numpy as np
    >>> from fedcohort import Dataset, task_from
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    >>> task_from(Dataset.from_arrays(x, y), hidden=16).model.layers
    (Linear(out=16), ReLU(), Linear(out=3))
    """
    from fedcohort.data.dataset import Dataset
    from fedcohort.engines.networks import Flatten, Network, mlp
    from fedcohort.tasks.catalogue import plan_with
    from fedcohort.tasks.classification import ClassificationSpec

    check(isinstance(data, Dataset), f"data of type {type(data).__name__}", "this is not a Dataset", FROM_ARRAYS)
    hidden = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    for width in hidden:
        whole = isinstance(width, int) and width >= 1
        check(whole, f"hidden = {hidden}", "widths are whole numbers from 1", "give e.g. (64,)")
    inner = mlp(math.prod(data.shape), *hidden, classes=data.classes)
    model = inner if len(data.shape) == 1 else Network(tuple(data.shape), (Flatten(), *inner.layers))
    return ClassificationSpec(data.name, data, model, plan_with(Plan(), lr=lr, epochs=epochs, **more))
