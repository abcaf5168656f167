"""A run and its folder: resolved configuration, versions, journal, snapshots, metrics.

::

    runs/uniform-3f9a.../
        config.toml      the resolved configuration
        versions.json    of everything that can change the result
        journal.db       who was chosen, and what came of it
        snapshots/       where to go on
        clients.json     accuracy of the final model at every client
        metrics.jsonl    one line per round, written when the run ends: where it is, the run is finished
        lock             held by the process that runs it
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from fedcohort import __version__
from fedcohort.errors import RunExists, StoreError, VersionMismatch
from fedcohort.experiment.config import RunConfig, from_mapping
from fedcohort.protocols import Method, Selector
from fedcohort.registry.lookup import make_method, make_selector, make_task_spec, make_world_spec
from fedcohort.rounds.history import History
from fedcohort.sim.asynchronous import Asynchronous
from fedcohort.sim.simulation import Simulation, read_history
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots, write_durably

if TYPE_CHECKING:
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

OnRound = Callable[[dict[str, float]], None]
METRICS, CLIENTS = "metrics.jsonl", "clients.json"
_PACKAGES = ("numpy", "numba", "scikit-learn", "torch")


@dataclass(frozen=True)
class RunResult:
    """A run that came to its end."""

    config: RunConfig
    history: History
    folder: Path | None = None


@dataclass(frozen=True)
class Objects:
    """Objects of your own in the place of names; None takes the configuration's."""

    selector: Selector | None = None
    method: Method | None = None
    world: WorldSpec | None = None
    task: TaskSpec | None = None


def build(
    config: RunConfig,
    own: Objects | None = None,
    *,
    journal: Journal | None = None,
    snapshots: Snapshots | None = None,
) -> Simulation:
    """The objects of a configuration, put together."""
    from fedcohort.worlds.built_world import build_world

    own = own or Objects()
    selector = own.selector if own.selector is not None else make_selector(config.selector)
    method = own.method if own.method is not None else make_method(config.method)
    spec = own.task if own.task is not None else make_task_spec(config.task)
    world_spec = own.world if own.world is not None else make_world_spec(config.world)
    world = build_world(
        world_spec,
        spec.labels(),
        seed=config.seed,
        owners=spec.owners(),
        activities=spec.activities(),
        classes=spec.classes,
    )
    task = spec.bind(world, engine=config.engine, workers=config.workers)
    loop = Asynchronous if config.buffer_size else Simulation
    return loop(selector, method, world, task, config, journal=journal, snapshots=snapshots)


def run(config: RunConfig, folder: Path | None = None, on_round: OnRound | None = None) -> RunResult:
    """Run from the start; with a folder, everything is kept there."""
    if folder is None:
        return RunResult(config, build(config).run(on_round))
    if (folder / "journal.db").exists():
        raise RunExists(
            f"run folder {folder}", "it holds a run already", f"`fedcohort resume {folder}`, or another --out"
        )
    build(config)  # every mistake shows before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal.create(folder / "journal.db", {"config": config.to_dict(), "version": __version__})
    try:
        write_durably(folder / "config.toml", config.toml().encode())
        write_durably(folder / "versions.json", json.dumps(versions(), indent=2).encode())
        return _go_on(config, folder, journal, on_round)
    finally:
        journal.close()


def resume(folder: Path, on_round: OnRound | None = None) -> RunResult:
    """Go on where the last process stopped."""
    journal = Journal.open(journal_of(folder))
    try:
        return _go_on(configuration(journal), folder, journal, on_round)
    finally:
        journal.close()


def read(folder: Path) -> RunResult:
    """What a run folder holds, finished or not, also while the run goes on."""
    journal = Journal.read(journal_of(folder))
    try:
        config = configuration(journal)
        header_population = _population(journal)
        return RunResult(config, read_history(journal, header_population), folder)
    finally:
        journal.close()


def versions() -> dict[str, str]:
    """Versions of everything that can change a result."""
    found = {"fedcohort": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _go_on(config: RunConfig, folder: Path, journal: Journal, on_round: OnRound | None) -> RunResult:
    simulation = build(config, journal=journal, snapshots=Snapshots(folder / "snapshots"))
    simulation.resume()
    history = simulation.run(on_round)
    measure = getattr(simulation.task, "client_accuracy", None)
    if measure is not None:
        each = [float(a) if math.isfinite(a) else None for a in measure(simulation.model)]
        write_durably(folder / CLIENTS, json.dumps({"accuracy": each}).encode())
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in history.rows)
    write_durably(folder / METRICS, lines.encode())
    return RunResult(config, history, folder)


def journal_of(folder: Path) -> Path:
    """The journal of a run folder."""
    if not folder.is_dir():
        raise StoreError(
            f"run folder {folder}", "there is no such folder", "check the path, or see `fedcohort list runs`"
        )
    if not (folder / "journal.db").exists():
        raise StoreError(f"run folder {folder}", "it holds no journal", "name a folder made by `fedcohort run`")
    return folder / "journal.db"


def configuration(journal: Journal) -> RunConfig:
    """The configuration that a journal was founded with."""
    check_version(journal)
    return from_mapping(journal.header["config"])


def check_version(journal: Journal) -> None:
    """Refuse the journal of another version of this program."""
    written = str(journal.header.get("version", "?"))
    if written.split(".")[:2] != __version__.split(".")[:2]:
        raise VersionMismatch(
            f"run folder {journal.path.parent}",
            f"it was written by fedcohort {written}, this is {__version__}",
            f"install fedcohort {written} to go on with it",
        )


def _population(journal: Journal) -> int:
    for record in journal.records(kind="ask"):
        return int(record.unpack()[1]["population"])
    return 0
