"""Sweeps: selectors x methods x worlds x tasks x any other key x seeds, as data; resumable, and none stops the rest.

::

    name = "noise"
    selectors = ["uniform", "oort", {name = "oort", explore = 0.5}]
    worlds = ["iid-v1", "mixed-v1"]
    seeds = 5                         # 0, 1, 2, 3, 4; or a list
    rounds = 40                       # any other key of a run holds for all
    cohort_size = [5, 10]             # or is varied, where it is a list
    "selector.cutoff" = [0.9, 0.95]   # a parameter of those selectors that have it

Each run goes to the store under its own id, so two sweeps that share runs share the work. What became of each run is
written to `STORE/sweeps/NAME-DIGEST.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedcohort.errors import BadParameter, ConfigError, StoreError, UnknownName, check
from fedcohort.experiment import config as configuration
from fedcohort.experiment import texts
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runner import Event, Job, OnEvent, run_local
from fedcohort.experiment.store import SHORT, Store, identity
from fedcohort.registry import lookup
from fedcohort.storage.snapshots import write_durably

AXES = {"selectors": "selector", "methods": "method", "worlds": "world", "tasks": "task"}
PLURALS = {kind: plural for plural, kind in AXES.items()} | {"seed": "seeds"}
BACKENDS = ("local", "ray")
_WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: every combination of the lists, with the other keys of a run in `base`.

    The texts are in canonical form and without repetition, which :func:`from_mapping` takes care of.

    >>> sweep = from_mapping({"selectors": ["uniform", "oort"], "seeds": 3, "rounds": 40})
    >>> len(sweep.runs()), sweep.runs()[1].selector
    (6, 'oort')
    """

    name: str = "sweep"  # part of its file's name
    selectors: tuple[str, ...] = ("uniform",)
    methods: tuple[str, ...] = ("fedavg",)
    worlds: tuple[str, ...] = ("mixed-v1",)
    tasks: tuple[str, ...] = ("digits-mlp",)
    seeds: tuple[int, ...] = (0, 1, 2)  # a list of seeds, or how many (counted from 0)
    base: RunConfig = field(default_factory=RunConfig)  # every other key of a run, the same for all
    grid: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # further keys, also selector.explore, and values

    def runs(self) -> list[RunConfig]:
        """Every run once, those that are compared with each other next to each other."""
        names = ("task", "world", *(key for key, _ in self.grid), "seed", "method", "selector")
        values = (self.tasks, self.worlds, *(v for _, v in self.grid), self.seeds, self.methods, self.selectors)
        points = (dict(zip(names, point, strict=True)) for point in itertools.product(*values))
        return list(dict.fromkeys(self._run(point) for point in points))

    def _run(self, point: dict[str, Any]) -> RunConfig:
        """One point of the grid. A parameter changes the texts that have it and leaves the others alone."""
        for key in [key for key in point if "." in key]:
            value, (kind, *path) = point.pop(key), key.split(".")
            with contextlib.suppress(UnknownName):
                point[kind] = texts.canonical(kind, texts.changed(kind, point[kind], path, value))
        return configuration.from_mapping({**self.base.to_dict(), **point})

    def id(self) -> str:
        """Name and digest: the same runs, however they are listed, have the same id."""
        whole = "\n".join(sorted(run.digest() for run in self.runs()))
        return f"{self.name}-{hashlib.sha256(whole.encode()).hexdigest()[:SHORT]}"

    def toml(self) -> str:
        """This sweep as a TOML file."""
        import tomli_w

        own = {k: getattr(self, k) for k in ("name", *AXES, "seeds")} | dict(self.grid)
        same = {k: v for k, v in self.base.to_dict().items() if k not in (*AXES.values(), "seed", *own)}
        return tomli_w.dumps(own | same)


def from_mapping(values: Mapping[str, Any]) -> Sweep:
    """A sweep from keys and values; `selector = ...` is a list of one. Unknown keys are answered with the nearest."""
    given = dict(values)
    own: dict[str, Any] = {"name": str(given.pop("name", "sweep"))}
    check(bool(own["name"]) and set(own["name"]) <= set(_WORD), f"name = {own['name']!r}", *_NAME_RULE)
    for plural, kind in {**AXES, "seeds": "seed"}.items():
        if plural in given and kind in given:
            raise BadParameter(f"{plural} and {kind}", "they say the same", f"keep {plural}")
        if kind == "seed" and type(given.get(kind)) is int:
            given[kind] = [given[kind]]  # `seeds` may be how many, `seed` is one
        listed = given.pop(plural, given.pop(kind, None))
        if listed is not None:
            own[plural] = _seeds(listed) if kind == "seed" else _texts(kind, plural, listed)
    own.setdefault("worlds", _default_worlds(own.get("tasks", Sweep.tasks)))
    lists = {key: given.pop(key) for key, value in values.items() if key in given and _varied(key, value)}
    for key in given:
        if key not in configuration.KEYS:
            raise configuration.unknown_key(key, (*AXES, "seeds", "name"))
    sweep = Sweep(**own, base=configuration.from_mapping(given))
    sweep = replace(sweep, grid=tuple(_axis(sweep, key, value) for key, value in lists.items()))
    if sweep.grid:
        sweep.runs()  # every combination is checked before anything is run
    return sweep


def _varied(key: str, value: Any) -> bool:
    return "." in key or (key in configuration.KEYS and isinstance(value, (list, tuple)))


def _axis(sweep: Sweep, key: str, listed: Any) -> tuple[str, tuple[Any, ...]]:
    """A key of the grid with its values; a parameter has to be one of at least one entry of its list."""
    found = tuple(listed) if isinstance(listed, (list, tuple)) else (listed,)
    check(
        bool(found), f"{key} = {listed!r}", "there is nothing to vary", f"give at least one value, or leave {key} out"
    )
    kind, _, rest = key.partition(".")
    if not rest:
        return key, found
    plural = next((p for p, k in AXES.items() if kind in (p, k)), None)
    if plural is None:
        raise configuration.unknown_key(key, (*AXES, "seeds", "name"))
    kind = AXES[plural]
    for text in getattr(sweep, plural):
        with contextlib.suppress(UnknownName):
            for value in found:
                changed = texts.canonical(kind, texts.changed(kind, text, rest.split("."), value))
                if kind in _MAKE:
                    _MAKE[kind](changed)
            return f"{kind}.{rest}", found
    some = texts.holders(kind, rest)
    remedy = f"add one of {', '.join(some[:6])}" if some else f"see `fedcohort list {plural}` and `fedcohort show NAME`"
    listed_names = ", ".join(texts.name_of(t) for t in getattr(sweep, plural))
    raise BadParameter(f"{kind}.{rest}", f"no {kind} of this sweep ({listed_names}) has such a parameter", remedy)


_MAKE: Mapping[str, Callable[[str], Any]] = {"selector": lookup.make_selector, "method": lookup.make_method}


_NAME_RULE = ("it becomes part of a file's name", "use letters, digits, dots and dashes")


def assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one key of a sweep; a dotted one (world.clients) changes every entry of its list."""
    head, _, rest = key.partition(".")
    plural = next((p for p, kind in AXES.items() if head in (p, kind)), None)
    if plural is None or not rest:
        values[key] = value
        return
    kind = AXES[plural]
    listed = values.pop(plural, values.pop(kind, None))
    if listed is None and kind == "world":
        listed = _default_worlds(_texts("task", "tasks", values.get("tasks", values.get("task", Sweep.tasks))))
    listed = list(getattr(Sweep, plural)) if listed is None else listed
    values[plural] = [texts.changed(kind, t, rest.split("."), value) for t in _texts(kind, plural, listed)]


def split(text: str) -> list[str]:
    """Entries of "uniform, oort(explore=0.8, ucb=False)": at the commas that are in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [p.strip() for p in parts if p.strip()]


def seeds_of(text: str) -> list[int] | int:
    """ "5" is how many; "0,3,7" and "10-14" are seeds."""
    try:
        if text.strip().isdigit():
            return int(text)
        found: list[int] = []
        for part in split(text):
            low, dash, high = part.partition("-")
            found += range(int(low), int(high) + 1) if dash else [int(low)]
        return found
    except ValueError:
        raise BadParameter(f"seeds {text!r}", "these are not seeds", "write 5 (how many), 0,3,7 or 10-14") from None


def _texts(kind: str, plural: str, listed: Any) -> tuple[str, ...]:
    entries = [listed] if isinstance(listed, (str, Mapping)) else listed
    default = str(getattr(RunConfig, kind))
    if not isinstance(entries, (list, tuple)) or not entries:
        raise BadParameter(f"{plural} = {listed!r}", "this is not a list of texts", f'write e.g. ["{default}"]')
    found = []
    for entry in entries:
        if not isinstance(entry, (str, Mapping)):
            raise BadParameter(f"{plural}: {entry!r}", f"this is not a {kind}", f'write a text such as "{default}"')
        text = texts.from_table(kind, entry, default) if isinstance(entry, Mapping) else entry
        found.append(texts.canonical(kind, text))
    return tuple(dict.fromkeys(found))


def _default_worlds(tasks: Sequence[str]) -> tuple[str, ...]:
    """The world where none is named: the owners of the data, if all tasks have some."""
    found = tuple(dict.fromkeys(texts.default_world(task) for task in tasks))
    rule = "the data of some name owners and those of others do not, so there is no common default"
    check(len(found) == 1, f"tasks {', '.join(tasks)} without worlds", rule, f"name worlds, e.g. {found[0]}")
    return found


def _seeds(listed: Any) -> tuple[int, ...]:
    given = list(range(listed)) if isinstance(listed, int) and not isinstance(listed, bool) else listed
    fine = isinstance(given, (list, tuple)) and all(type(s) is int and s >= 0 for s in given) and len(given) > 0
    check(fine, f"seeds = {listed!r}", "seeds are whole numbers from 0, at least one", "write a list, or how many")
    return tuple(dict.fromkeys(given))


class SweepOutcome:
    """What became of a sweep: one state per run, "read", "run", "resumed", "failed" or "waiting"."""

    def __init__(self, sweep: Sweep, store: Store) -> None:
        self.sweep, self.store = sweep, store
        self.runs = {identity(config): config for config in sweep.runs()}
        self.states = dict.fromkeys(self.runs, "waiting")
        self.errors: dict[str, str] = {}
        self.notes: dict[str, tuple[str, ...]] = {}  # what a person must know of runs that were done now
        self.id = sweep.id()
        self._saved = 0.0  # when it was written last

    @property
    def file(self) -> Path:
        """Where this is written."""
        return self.store.sweeps / f"{self.id}.json"

    def save_now_and_then(self) -> None:
        """Write it down if that was not done within the last second: the file lists every run of the sweep."""
        if time.monotonic() - self._saved >= 1.0:
            self.save()

    def save(self) -> None:
        """Write it down."""
        self._saved = time.monotonic()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        runs = [
            {"id": name, "config": config.to_dict(), "state": self.states[name], "error": self.errors.get(name)}
            for name, config in self.runs.items()
        ]
        whole = {"name": self.sweep.name, "id": self.id, "sweep": self.sweep.toml(), "runs": runs}
        write_durably(self.file, json.dumps(whole, indent=1).encode(), shared=True)


def run_sweep(
    sweep: Sweep,
    store: Store | None = None,
    *,
    backend: str = "local",
    workers: int = 0,
    address: str | None = None,
    on_event: OnEvent | None = None,
) -> SweepOutcome:
    """Do the runs of a sweep that the store does not have yet; interrupted, the same call continues where it stopped.

    `backend` is "local" (`workers` processes, 0 for one per core) or "ray" (the cluster at `address`); `on_event` hears
    of every round and run. One run that fails does not stop the others: the outcome lists it.

    >>> from tempfile import mkdtemp
    >>> sweep = from_mapping({"seeds": 1, "task": "quadratic", "rounds": 2, "cohort_size": 2})
    >>> store = Store(Path(mkdtemp()))
    >>> done = store.obtain(sweep.runs()[0])
    >>> list(run_sweep(sweep, store).states.values())
    ['read']
    """
    if backend not in BACKENDS:
        raise UnknownName.among("backend", backend, BACKENDS)
    store = store or Store()
    outcome = SweepOutcome(sweep, store)
    states = {name: store.state(config, store.root / name) for name, config in outcome.runs.items()}
    outcome.states.update({name: "read" for name, state in states.items() if state == "finished"})
    outcome.save()

    def heard(event: Event) -> None:
        if event.kind in ("done", "failed"):
            outcome.states[event.job.id] = event.text if event.kind == "done" else "failed"
            if event.kind == "failed":
                outcome.errors[event.job.id] = event.text
            if event.notes:
                outcome.notes[event.job.id] = event.notes
            outcome.save_now_and_then()
        if on_event is not None:
            on_event(event)

    try:
        run_all(list(outcome.runs.values()), store, heard, backend=backend, workers=workers, address=address)
    finally:
        outcome.save()
    return outcome


def run_all(
    configs: Sequence[RunConfig],
    store: Store,
    on_event: OnEvent,
    *,
    backend: str = "local",
    workers: int = 0,
    address: str | None = None,
) -> None:
    """Do those of the runs that the store does not have; one that fails does not stop the others."""
    named = {identity(config): config for config in configs}
    jobs = [
        Job(name, config.to_dict(), str((store.root / name).absolute()), config.rounds)
        for name, config in named.items()
        if store.state(config, store.root / name) != "finished"
    ]
    if backend == "ray" and jobs:
        from fedcohort.experiment.ray_sweep import run_ray

        run_ray(jobs, on_event, address)
    elif jobs:
        run_local(jobs, on_event, workers)


def read_file(path: Path) -> tuple[list[str], str]:
    """The ids of the runs of a sweep file that `run_sweep` wrote, and the sweep's name."""
    try:
        found = json.loads(path.read_text())
        return [str(run["id"]) for run in found["runs"]], str(found["name"])
    except OSError:
        raise StoreError(f"{path}", "there is no such file", "check the path") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path}", "this is not the file of a sweep", "name a file in STORE/sweeps/") from None
