"""A run as data: TOML to a frozen model and back, every key documented, unknown keys answered with the nearest.

The four texts may be written as text or as tables, and single parameters changed with dotted keys::

    selector = "oort(explore=0.8)"          [selector]
                                            name = "oort"
    --set selector.explore=0.8              explore = 0.8
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedcohort.core.constraints import Choice, CountOrZero
from fedcohort.engines.interface import DEVICES, ENGINES, PRECISIONS
from fedcohort.errors import BadParameter, ConfigError, UnknownName
from fedcohort.experiment import texts
from fedcohort.rounds.policy import about, setting
from fedcohort.sim.run_settings import RunSettings

UNLIMITED = ("deadline", "max_norm")  # keys that may be infinite: no limit
# Keys that came later: written only where they are used, so that old digests hold.
LATER = (
    *("stop_at", "patience", "wait_for_slow", "use_floor", "weight_by_use", "size_schedule", "lr_schedule"),
    *("device", "precision", "score"),
)
NO_EFFECT = ("workers", "snapshot_every")  # keys that cannot change a result
Engine = Annotated[str, Choice("auto", *ENGINES)]
Device = Annotated[str, Choice(*DEVICES, counted="cuda")]
Precision = Annotated[str, Choice(*PRECISIONS)]


@dataclass(frozen=True)
class RunConfig(RunSettings):
    """One run. Selector, method, world and task are texts such as "oort(explore=0.8)".

    Every key has a default; `fedcohort show config` lists them with their meaning.

    >>> RunConfig(selector="oort", cohort_size=5).cohort_size
    5
    """

    selector: str = setting("uniform", "who is asked: a selector of `fedcohort list selectors`")
    method: str = setting("fedavg", "how updates become a model: `fedcohort list methods`")
    world: str = setting("mixed-v1", "the heterogeneity: `fedcohort list worlds`; owners-v1 where the data name owners")
    task: str = setting("digits-mlp", "what is trained: `fedcohort list tasks`")
    engine: Engine = setting("auto", f"local training engine: auto, {', '.join(ENGINES)}")
    workers: CountOrZero = setting(0, "threads or processes of the engine (0: all cores)")
    device: Device = setting("auto", "where torch engines compute: auto, cpu, cuda, cuda:1, mps")
    precision: Precision = setting("float32", "forward passes of torch engines on a device: float32 or bfloat16")

    @property
    def texts(self) -> tuple[str, ...]:
        """Selector, method, world and task."""
        return tuple(getattr(self, kind) for kind in texts.KINDS)

    def canonical(self) -> RunConfig:
        """The same run with its texts in canonical form; unknown names and parameters are refused."""
        changes: dict[str, Any] = {}
        for kind in texts.KINDS:
            try:
                changes[kind] = texts.canonical(kind, getattr(self, kind))
            except BadParameter as error:
                text = f"{kind} = {error.value}" if error.value == repr(getattr(self, kind)) else error.value
                raise BadParameter(text, error.rule, error.remedy) from None
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values in the order of the documentation; infinite limits and unused later keys are left out."""
        found = asdict(self)
        unused = {k for k in LATER if found[k] == _FIELDS[k].default}
        return {k: found[k] for k in KEYS if k not in unused and not (k in UNLIMITED and math.isinf(found[k]))}

    def resolved(self) -> dict[str, Any]:
        """Everything that can change the result, defaults filled in."""
        values = {k: v for k, v in self.to_dict().items() if k not in NO_EFFECT}
        return values | {kind: texts.resolved(kind, getattr(self, kind)) for kind in texts.KINDS}

    def digest(self) -> str:
        """Content address: equal for two ways of writing the same run, different for anything else."""
        return self.digests((self.seed,))[self.seed]

    def digests(self, seeds: Iterable[int]) -> dict[int, str]:
        """The content addresses of the same run with these seeds."""
        found = self.resolved()
        return {s: hashlib.sha256(json.dumps({**found, "seed": s}, sort_keys=True).encode()).hexdigest() for s in seeds}

    def toml(self) -> str:
        """This configuration as a TOML file with a comment for every key."""
        import tomli_w

        keys = ((tomli_w.dumps({name: value}).rstrip(), name) for name, value in self.to_dict().items())
        return "".join(f"{line}  # {meaning(name)}\n" for line, name in keys)


_FIELDS = about(RunConfig)
KEYS = (*texts.KINDS, "rounds", *(name for name in _FIELDS if name not in (*texts.KINDS, "rounds")))


def meaning(key: str) -> str:
    """What a key means, in a sentence."""
    return str(_FIELDS[key].metadata["about"])


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a run, as the documentation shows it."""

    name: str
    kind: str
    default: str
    about: str


def keys() -> list[Key]:
    """Every key of a run, from the model itself."""
    found = []
    for name in KEYS:
        default = _FIELDS[name].default
        kind = {str: "text", int: "whole number", float: "number"}[type(default)]
        found.append(Key(name, kind, "no limit" if name in UNLIMITED else str(default), meaning(name)))
    return found


def markdown() -> str:
    """The table of all keys for the documentation."""
    rows = [f"| `{k.name}` | {k.kind} | `{k.default}` | {k.about} |" for k in keys()]
    return "\n".join(["| key | kind | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one key. A dotted one (selector.explore) changes a parameter in the text that is there, or the default's."""
    head, _, rest = key.partition(".")
    if head not in KEYS:
        raise unknown_key(key, given=values)
    if not rest:
        values[key] = value
    elif head not in texts.KINDS:
        raise BadParameter(key, f"{head} is one value, without parameters", f"write {head}=VALUE")
    else:
        values[head] = texts.changed(head, _text(head, values), rest.split("."), value)


def unknown_key(key: str, more: Iterable[str] = (), given: Mapping[str, Any] | None = None) -> UnknownName:
    """The error for a key that there is not; a parameter of one of the four texts is proposed with its dotted key."""
    if "." not in key:
        given = given or {}
        for kind in texts.KINDS:
            text = _text(kind, given)
            if isinstance(text, str) and key in texts.parameters(kind, text):
                name = texts.name_of(text)
                remedy = f"write {kind}.{key}=VALUE, or {kind} = '{name}({key}=VALUE)'"
                return UnknownName(f"key {key!r}", f"it is a parameter of the {kind} {name}", remedy)
        homes = [f"{kind}.{key}" for kind in texts.KINDS if texts.holders(kind, key)]
        if homes:
            some = texts.holders(homes[0].partition(".")[0], key)
            rule = f"a run has no such key; it is a parameter of {', '.join(some[:4])}"
            return UnknownName(f"key {key!r}", rule, f"write {' or '.join(homes)}=VALUE with one of these")
    return UnknownName.among("key", key.partition(".")[0], [*KEYS, *more])


def from_mapping(values: Mapping[str, Any]) -> RunConfig:
    """A configuration from keys and values, with one clear sentence for each mistake."""
    for key in values:
        if key not in KEYS:
            raise unknown_key(key, given=values)
    values = {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}  # a seed of np.arange(5)
    try:
        given = [k for k in texts.KINDS if k in values]
        return RunConfig(**{**values, **{k: _text(k, values) for k in (*given, "world")}})
    except BadParameter as error:
        key = error.value.partition(" ")[0]
        means = f" ({key}: {meaning(key)})" if key in KEYS else ""
        raise BadParameter(error.value, error.rule, error.remedy + means) from None


def _text(kind: str, values: Mapping[str, Any]) -> Any:
    """A text stays, a table becomes one, nothing is the default; that of the world depends on the task."""
    value = values.get(kind)
    if kind == "world" and not isinstance(value, str):
        task = _text("task", values)
        default = texts.default_world(task) if isinstance(task, str) else texts.WORLD
    else:
        default = str(_FIELDS[kind].default)
    if isinstance(value, Mapping):
        return texts.from_table(kind, value, default)
    return default if value is None else value


def from_toml(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}", "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}", "this is a folder", "name a .toml file") from None
    except (ValueError, RecursionError) as error:  # ValueError: also of a number with thousands of digits
        raise ConfigError(f"{path}", f"this is not valid TOML ({error})", "fix the line that is named") from None
