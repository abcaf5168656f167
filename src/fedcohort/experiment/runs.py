"""One run, from its configuration to its folder (`storage.run_folder` lists the files)."""

from __future__ import annotations

import contextlib
import io
import json
import math
import platform
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort import __version__
from fedcohort.core.columns import part, prefixed
from fedcohort.engines.fused.processor import processor
from fedcohort.engines.trained_model import (
    PARTS,
    StoredParts,
    TensorPlace,
    TrainedModel,
    deployed_layout,
    layout_from,
    plain_layout,
)
from fedcohort.errors import RunExists, RunWarning, StoreError
from fedcohort.experiment.config import RunConfig, from_mapping
from fedcohort.experiment.contents import CONTENTS, contents
from fedcohort.experiment.perfect_choice import Informed
from fedcohort.experiment.texts import WORLD, name_of
from fedcohort.protocols import Method, Selector
from fedcohort.registry.lookup import make_method, make_selector, make_task_spec, make_world_spec
from fedcohort.registry.own_objects import GIVEN
from fedcohort.rounds.history import History, read_history
from fedcohort.rounds.run_notes import doubts
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.run_folder import RunFolder
from fedcohort.storage.snapshots import Snapshots, write_durably
from fedcohort.tasks.data_notes import data_notes
from fedcohort.tasks.spec import Exportable
from fedcohort.types import Arrays, Model

if TYPE_CHECKING:
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.built_world import BuiltWorld
    from fedcohort.worlds.world_spec import WorldSpec

CHANGED = "a file or a module that this run names has changed since it was started"
OnRound = Callable[[dict[str, float]], None]
DEFAULTS = {"device": "auto", "precision": "float32"}  # left out of `bind`: an own task need not know them
TENSOR = "tensor."  # prefix of names in the file of constants
_PACKAGES = ("numpy", "numba", "scipy", "torch")


@dataclass(frozen=True)
class RunResult:
    """What a run did: its configuration, its history, and the folder it is kept in (if any)."""

    config: RunConfig
    history: History
    folder: Path | None = None


@dataclass(frozen=True)
class Objects:
    """Your own objects instead of names; None means the one that the configuration names."""

    selector: Selector | None = None
    method: Method | None = None
    world: WorldSpec | None = None
    task: TaskSpec | None = None


def build(config: RunConfig, own: Objects | None = None) -> Simulation:
    """The simulation that a configuration describes; every mistake in it shows here. `own` are objects of your own.

    >>> simulation = build(RunConfig(task="quadratic", world="mixed-v1(clients=20)", rounds=3, cohort_size=5))
    >>> len(simulation.run().rows)
    3
    """
    own = own or Objects()
    selector = own.selector if own.selector is not None else make_selector(config.selector)
    method = own.method if own.method is not None else make_method(config.method)
    spec = own.task if own.task is not None else make_task_spec(config.task)
    world = build_world_for(own.world if own.world is not None else make_world_spec(config.world), spec, config.seed)
    where = {k: v for k, v in (("device", config.device), ("precision", config.precision)) if v != DEFAULTS[k]}
    if isinstance(selector, Informed):
        selector.inform(world)
    task = spec.bind(world, engine=config.engine, workers=config.workers, **where)
    simulation = Simulation(selector, method, world, task, config)
    simulation.history.names = world.names
    simulation.history.notes = doubts(selector, method, config, task.plan())
    by_default = own.world is None and name_of(config.world) == WORLD
    simulation.history.notes += data_notes(spec, world, by_default=by_default)
    for text in simulation.history.notes:
        warnings.warn(text, RunWarning, stacklevel=2)
    return simulation


def build_world_for(world: WorldSpec, task: TaskSpec, seed: int) -> BuiltWorld:
    """The world over the samples of a task."""
    from fedcohort.worlds.built_world import build_world

    return build_world(
        world, task.labels(), seed=seed, owners=task.owners(), activities=task.activities(), classes=task.classes
    )


def run(
    config: RunConfig, folder: Path | None = None, on_round: OnRound | None = None, own: Objects | None = None
) -> RunResult:
    """Run a configuration from the start.

    With a `folder`, everything is kept there and the run can be resumed; `on_round` is called with the numbers of each
    round as soon as it has ended. `own` are objects of your own instead of what the configuration names.

    >>> run(RunConfig(selector="oort", task="quadratic", rounds=3, cohort_size=2)).history.column("asked").tolist()
    [2.0, 2.0, 2.0]
    """
    if folder is not None and folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}", "this is a file, and a run is kept in a folder", "name another place")
    if folder is not None and RunFolder(folder).begun:
        how = how_to_resume(folder, config)
        raise RunExists(f"run folder {folder}", "it holds a run already", f"{how}, or use another folder")
    simulation = build(config, own)  # before anything is written
    if folder is None:
        simulation.run(on_round)
        return RunResult(config, _with_model(simulation))
    files = RunFolder(folder)
    header: dict[str, Any] = {"config": config.to_dict(), "version": __version__}
    named = _contents(config, simulation, own)
    if named or any(text.startswith(GIVEN) for text in config.texts):
        header |= {"digest": config.digest(), CONTENTS: named}  # of files, modules and objects as they are now
    if simulation.history.names:
        header["clients"] = list(simulation.history.names)
    trained = _trained(simulation)
    header["layout"], names = plain_layout(trained.layout), trained.beside().names
    if names:
        header["names"] = dict(names)
    if simulation.history.notes:
        header["notes"] = simulation.history.notes
    with contextlib.closing(Journal.create(files.journal, header)) as journal:
        write_durably(files.config, config.toml().encode())
        write_durably(files.versions, json.dumps(versions(), indent=2).encode())
        return _complete(config, simulation, files, journal, on_round)


def resume(folder: str | Path, on_round: OnRound | None = None, own: Objects | None = None) -> RunResult:
    """Continue the run in this folder from its newest snapshot; `on_round` hears of the rounds that were missing.

    A run that was started with objects which no text makes again needs them in `own`.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp()) / "run"
    >>> first = run(RunConfig(task="quadratic", rounds=2, cohort_size=2), folder)
    >>> resume(folder).history.rows == first.history.rows
    True
    """
    folder = Path(folder)
    with contextlib.closing(Journal.open(RunFolder(folder).existing_journal(), repair=True)) as journal:
        config = configuration(journal)
        if changed_since(journal, config):
            warnings.warn(f"{folder}: {CHANGED}", RunWarning, stacklevel=2)
        simulation = build(config, own)
        _check_given(journal, config, simulation, own)
        return _complete(config, simulation, RunFolder(folder), journal, on_round)


def read(folder: str | Path) -> RunResult:
    """What a run folder holds, finished or not, also while the run is going.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp()) / "run"
    >>> done = run(RunConfig(task="quadratic", rounds=2, cohort_size=2), folder)
    >>> read(folder).config == done.config
    True
    """
    folder = Path(folder)
    journal = RunFolder(folder).reader()
    return RunResult(configuration(journal), read_history(journal), folder)


def read_model(folder: str | Path) -> TrainedModel:
    """The model after the last round that a run folder, or a deployment's state folder, keeps.

    Nothing that the folder names is imported.
    """
    files = RunFolder(Path(folder))
    found = Snapshots(files.snapshots).latest()
    if found is None:
        raise StoreError(f"run folder {folder}", "it keeps no model yet", "wait for the first snapshot, or resume it")
    header = files.reader().header
    layout = layout_from(header.get("layout", [])) or layout_from(deployed_layout(header.get("arrays", [])))
    model = _deployed(part(found[1], "backend."), layout) or Model(**part(found[1], "model."))
    return TrainedModel(model, layout, stored=StoredParts(_constants(files), header.get("names", {})))


def _deployed(kept: Arrays, layout: Sequence[TensorPlace]) -> Model | None:
    """The model of a deployment whose flat form is not all of it: float64, or with infinite constants."""
    if "names" not in kept or not layout:
        return None
    names = kept["names"].tobytes().decode().split("\n")
    named = {name: kept[f"model.{i}"].reshape(-1) for i, name in enumerate(names)}
    found = {p: [named[t.name] for t in layout if t.part == p] for p in PARTS}
    return Model(**{p: np.concatenate(arrays) for p, arrays in found.items() if arrays})


def _keep_constants(files: RunFolder, simulation: Simulation) -> None:
    """Write down what nobody trains, unless it is there: a run may have ended before it was."""
    if files.constants.exists() or not (constants := _trained(simulation).beside().constants):
        return
    buffer = io.BytesIO()
    named: dict[str, Any] = prefixed(TENSOR, constants)
    np.savez(buffer, **named)
    write_durably(files.constants, buffer.getvalue())


def _constants(files: RunFolder) -> Arrays:
    """What nobody trained; nothing where the model has no such tensors."""
    if not files.constants.exists():
        return {}
    try:
        with np.load(files.constants, allow_pickle=False) as found:
            return part(dict(found), TENSOR)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        remedy = "copy it again from where the run was made"
        raise StoreError(f"file {files.constants}", "it is damaged", remedy) from None


def _trained(simulation: Simulation) -> TrainedModel:
    task, model = simulation.task, simulation.model
    return task.trained(model) if isinstance(task, Exportable) else TrainedModel(model)


def _with_model(simulation: Simulation) -> History:
    simulation.history.model = _trained(simulation)
    return simulation.history


def changed_since(journal: JournalReader, config: RunConfig) -> bool:
    """Whether the files or modules that a run names are others now than when it was started."""
    return journal.header.get("digest", "") not in ("", config.digest())


def how_to_resume(folder: Path, config: RunConfig) -> str:
    """What continues the run of this configuration: the command, unless it was started with objects."""
    if any(text.startswith(GIVEN) for text in config.texts):
        return "add resume=True to continue it with the same objects"
    return f"`fedcohort resume {folder}`"


def _contents(config: RunConfig, simulation: Simulation, own: Objects | None) -> dict[str, str]:
    """Digests of what the texts of this run only name."""
    given = {} if own is None else {"task": own.task, "world": own.world}
    return contents(config, given, [simulation.task.plan(), plain_layout(_trained(simulation).layout)])


def _check_given(journal: JournalReader, config: RunConfig, simulation: Simulation, own: Objects | None) -> None:
    """Refuse to continue a run with another task or world than the one that it was started with."""
    held = journal.header.get(CONTENTS, {})
    given = [kind for kind in held if getattr(config, kind).startswith(GIVEN)]
    now = _contents(config, simulation, own) if given else {}
    other = [kind for kind in given if now.get(kind) != held[kind]]
    if other:
        what = " (other data, another model or other training)" if "task" in other else ""
        raise RunExists(
            f"run folder {journal.path.parent}",
            f"it was started with another {' and another '.join(other)}{what}",
            "give the same one again, or use another folder",
        )


def configuration(journal: JournalReader) -> RunConfig:
    """The configuration that a journal began with; refused where another version wrote it."""
    header = journal.check_version()
    refuse_deployment(
        header, journal.path.parent, "start its app again with this state_dir, or see `fedcohort flower status`"
    )
    return from_mapping(header["config"])


def refuse_deployment(header: Mapping[str, Any], folder: Path, remedy: str = "leave it out") -> None:
    """Refuse the state folder of a deployment, by the header of its journal."""
    if not isinstance(header.get("config"), dict):
        raise StoreError(f"run folder {folder}", "it belongs to a deployment and has no configuration of a run", remedy)


def versions() -> dict[str, str]:
    """Versions of everything that can change a result; the processor decides in which order numbers are summed up."""
    found = {"fedcohort": __version__, "python": platform.python_version(), "machine": platform.machine()}
    found["cpu"] = processor()
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _complete(
    config: RunConfig, simulation: Simulation, files: RunFolder, journal: Journal, on_round: OnRound | None
) -> RunResult:
    """Run the rounds that are missing, and write what marks a finished run."""
    _keep_constants(files, simulation)
    simulation.attach(journal, Snapshots(files.snapshots))
    simulation.resume()
    simulation.run(on_round)
    history = _with_model(simulation)
    accuracy = simulation.task.client_accuracy(simulation.model)
    if accuracy is not None:
        each = [float(a) if math.isfinite(a) else None for a in accuracy]
        write_durably(files.clients, json.dumps({"accuracy": each}).encode())
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in history.rows)
    write_durably(files.metrics, lines.encode())
    return RunResult(config, history, files.path)
