"""The one-line way in: names or objects, mixed as you like."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcohort.errors import BadParameter
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.run import Objects, build, run
from fedcohort.protocols import Method, Selector
from fedcohort.sim.history import History
from fedcohort.types import Plan

if TYPE_CHECKING:
    from fedcohort.tasks.base import TaskSpec
    from fedcohort.tasks.data import Dataset
    from fedcohort.worlds.spec import WorldSpec


def simulate(
    selector: str | Selector = "uniform",
    *,
    method: str | Method = "fedavg",
    world: str | WorldSpec = "mixed-v1",
    task: str | TaskSpec = "digits-mlp",
    rounds: int = 50,
    size: int = 10,
    seed: int = 0,
    out: str | Path | None = None,
    on_round: Callable[[dict[str, float]], None] | None = None,
    **more: Any,
) -> History:
    """Run a selector and a method on a task in a world, and return what happened.

    Each of the four may be a name ("oort(explore=0.8)") or an object of your own (see `task_from` for your own arrays).
    `more` takes every other key of a run's configuration, e.g. deadline=300. With `out`, the run is kept in that folder
    and can be resumed; that needs names.
    """
    given: dict[str, Any] = {"selector": selector, "method": method, "world": world, "task": task}
    own = {k: v for k, v in given.items() if not isinstance(v, str)}
    texts = {k: v for k, v in given.items() if isinstance(v, str)}
    config = from_mapping({**texts, "rounds": rounds, "size": size, "seed": seed, **more})
    if not own:
        return run(config, Path(out) if out is not None else None, on_round).history
    if out is not None:
        raise BadParameter(
            f"out with an object as {' and '.join(own)}",
            "a run that can be resumed is made from names",
            "leave out= away",
        )
    return build(config, Objects(**own)).run(on_round)


def task_from(
    data: Dataset, *, hidden: tuple[int, ...] = (64,), lr: float = 0.1, epochs: int = 2, **more: Any
) -> TaskSpec:
    """A task on your own arrays: `task_from(Dataset.from_arrays(x, y, client=writer))`.

    The model is a perceptron on the flattened inputs (`hidden=()` for softmax regression); for another network or
    other splits make a `fedcohort.tasks.classify.ClassificationSpec` yourself. `more` goes to the local training plan.
    """
    from fedcohort.tasks.classify import ClassificationSpec
    from fedcohort.tasks.models import Flatten, Network, mlp

    inner = mlp(math.prod(data.shape), *hidden, classes=data.classes)
    model = inner if len(data.shape) == 1 else Network(tuple(data.shape), (Flatten(), *inner.layers))
    return ClassificationSpec(data.name, data, model, Plan(lr=lr, epochs=epochs, **more))
