"""Run a simulation in one line: names or objects of your own, in any combination."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.errors import BadParameter, check, check_object, shown
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.object_texts import text_of
from fedcohort.experiment.round_progress import told_too
from fedcohort.experiment.runner import OnEvent
from fedcohort.experiment.runs import Objects, run
from fedcohort.experiment.runs import resume as continue_run
from fedcohort.experiment.store import ROOT, Store, check_same
from fedcohort.experiment.sweep import SweepOutcome, run_sweep
from fedcohort.experiment.sweep import from_mapping as sweep_from
from fedcohort.experiment.texts import OWNERS, WORLD
from fedcohort.protocols import Method, Selector
from fedcohort.registry.own_objects import GIVEN, check_calls
from fedcohort.rounds.history import History
from fedcohort.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

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
    world: str | WorldSpec | None = None,
    task: str | TaskSpec = "digits-mlp",
    rounds: int = 50,
    cohort_size: int = 10,
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[dict[str, float]], None] | None = None,
    progress: bool = False,
    **more: Any,
) -> History:
    """Run a selector and a method on a task in a world, and return what happened.

    Each of the four may be a text ("oort(explore=0.8)", "mymodule:MySelector(a=1)", "csv:clinic.csv(target=ill)") or an
    object of your own (see `task_from` for your own data). Without a `world`, data that name the owners of their
    samples are divided among these ("owners-v1"), and all others as in "mixed-v1".
    `rounds`, `cohort_size` and `seed` say how long, how many clients a round and which random draws, `device` where
    torch engines compute ("cuda"); `more` takes every other key of a run's configuration, e.g. deadline=300. With
    `out`, the run is kept in that folder, and with `resume` one that was begun there is continued: objects from
    which no text can be made must then be given again. `on_round` is called with the numbers of each round; with
    `progress`, standard error shows the round, the accuracy and the time left. The trained model is `history.model`.

    >>> simulate("oort", task="quadratic", rounds=3, cohort_size=2).column("asked").tolist()
    [2.0, 2.0, 2.0]
    """
    given: dict[str, Any] = {"selector": selector, "method": method, "world": world, "task": task}
    own = {k: v for k, v in given.items() if not isinstance(v, str) and not (k == "world" and v is None)}
    for kind, value in own.items():
        _check_not_data(kind, value)
        check_object(kind, value)
        check(
            all(hasattr(value, part) for part in _PARTS[kind]),
            shown(kind, value),
            f"this is neither the name of a {kind} nor an object with {' and '.join(_PARTS[kind])}",
            f"see `fedcohort list {kind}s`, or docs/testing.md for your own",
        )
        if kind in ("selector", "method"):
            check_calls(kind, type(value).__name__, value, stored=out is not None)
    if world is None and "task" in own:
        given["world"] = OWNERS if own["task"].owners() is not None else WORLD
    texts = {k: text_of(k, v) if k in own else v for k, v in given.items() if v is not None}
    numbers = {"rounds": rounds, "cohort_size": cohort_size, "seed": seed, "device": device}
    config = from_mapping({**texts, **numbers, **more})
    if progress:
        on_round = told_too(config.rounds, on_round)
    folder = None if out is None else Path(out)
    if resume:
        check(folder is not None, "resume = True", "it needs the folder of the run", "give out=FOLDER")
    if resume and folder is not None and RunFolder(folder).begun:
        check_same(config, folder)
        return continue_run(folder, on_round, Objects(**own)).history
    return run(config, folder, on_round, Objects(**own)).history


def _check_not_data(kind: str, value: Any) -> None:
    from fedcohort.data.dataset import Dataset

    if isinstance(value, Dataset):
        rule = "a Dataset is data, and a task is data with a model and its training"
        remedy = "give task=fedcohort.task_from(data)"
        raise BadParameter(shown(kind, value), rule, remedy)
    if kind == "task" and callable(value) and not hasattr(value, "bind"):  # a torch module, or what makes one
        rule = "a module is a model, and a task is a model with data and its training"
        raise BadParameter(shown(kind, value), rule, "give task=fedcohort.TorchTask(module, (x, y))")


def sweep(*, store: str | Path = ROOT, workers: int = 0, on_event: OnEvent | None = None, **keys: Any) -> SweepOutcome:
    """Run all combinations of lists: selectors, methods, worlds, tasks, seeds, and any other key that is a list.

    A selector, method, world or task is a text, or an object that a text can make again (of a module, not of a script).
    Parameters are written with two underscores: `selector__explore=[0.1, 0.5]` changes those selectors that have it.
    Runs are kept in the folder `store`, which is what `compare` and reports read; those that it has are not repeated.
    `workers` is the number of processes (0: one per core), and `on_event` hears of every round and run.

    >>> from tempfile import mkdtemp
    >>> outcome = sweep(store=mkdtemp(), workers=1, task="quadratic", rounds=2, seeds=1, cohort_size=[2, 3])
    >>> list(outcome.states.values())
    ['run', 'run']
    """
    values = {key.replace("__", "."): _as_texts(key, value) for key, value in keys.items()}
    return run_sweep(sweep_from(values), Store(Path(store)), workers=workers, on_event=on_event)


def _as_texts(key: str, given: Any) -> Any:
    """Objects as the texts that make them again: the runs of a sweep are done by other processes."""
    if isinstance(given, np.ndarray):  # seeds=np.arange(5)
        return given.tolist()
    kind = key.removesuffix("s")
    if kind not in _PARTS:
        return given
    if isinstance(given, (list, tuple)):
        return [_as_texts(key, each) for each in given]
    if isinstance(given, (str, Mapping)) or not all(hasattr(given, part) for part in _PARTS[kind]):
        return given
    text = text_of(kind, given)
    rule = "other processes do the runs of a sweep, and nothing says how to make this object there"
    name = type(given).__name__
    remedy = f"put it into a module and name it as 'mymodule:{name}(...)', or loop over simulate"
    check(not isinstance(given, type), f"{key}: {name} {given!r}"[:120], "this is a class", "give an object of it")
    check(not text.startswith(GIVEN), f"{key}: a {name}", rule, remedy)
    return text


def task_from(
    data: Dataset, *, hidden: int | tuple[int, ...] = (64,), lr: float = 0.1, epochs: int = 2, **more: Any
) -> TaskSpec:
    """A task on your own data: `task_from(Dataset.from_arrays(x, y, client=writer))`.

    The model is a perceptron on the flattened inputs (`hidden=()` for softmax regression); for another network make a
    `fedcohort.tasks.ClassificationSpec` yourself. `more` are options of local training (lr, batch_size, ...) and of the
    cuts (validation, test, ...).

    >>> import numpy as np
    >>> from fedcohort import Dataset, task_from
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    >>> task_from(Dataset.from_arrays(x, y), hidden=16).model.layers
    (Linear(out=16, bias=True), ReLU(), Linear(out=3, bias=True))
    """
    from fedcohort.tasks.own_task import task_on

    return task_on(data, hidden=hidden, lr=lr, epochs=epochs, **more)
