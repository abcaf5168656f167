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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedcohort.errors import BadParameter, ConfigError, UnknownName
from fedcohort.experiment import texts
from fedcohort.overselect import ADAPTIVE
from fedcohort.sim.loop import Settings

ENDLESS = ("deadline", "max_norm")  # keys that may be infinite: no limit
LATER = {"gather": 0}  # keys that came after the first runs were stored: left out while they have no effect


class RunConfig(BaseModel):
    """One run. Selector, method, world and task are texts such as "oort(explore=0.8)"."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    selector: str = Field(default="uniform", description="who is asked: a selector of `fedcohort list selectors`")
    method: str = Field(default="fedavg", description="how updates become a model: `fedcohort list methods`")
    world: str = Field(default="mixed-v1", description="the heterogeneity: `fedcohort list worlds`")
    task: str = Field(default="digits-mlp", description="what is trained: `fedcohort list tasks`")
    rounds: int = Field(default=50, ge=1, description="number of rounds")
    size: int = Field(default=10, ge=1, description="clients asked per round [K]")
    seed: int = Field(default=0, ge=0, description="the seed of everything random in this run")
    deadline: float = Field(default=math.inf, gt=0, description="virtual seconds after which nobody is waited for")
    over_select: float | str = Field(
        default=1.0, description="ask this many times `size`, or 'adaptive'; close at the size-th reply"
    )
    quorum: int = Field(default=1, ge=1, description="fewer accepted replies: the round is abandoned")
    back_off: float = Field(
        default=0.0, ge=0, description="virtual seconds of pause after an abandoned round, doubling"
    )
    evaluate_every: int = Field(default=1, ge=1, description="rounds between evaluations on the test set")
    lr_decay: float = Field(default=1.0, gt=0, description="factor on the learning rate after every round")
    max_privacy: str = Field(default="P2", pattern="^P[0-3]$", description="highest privacy level a selector may read")
    max_norm: float = Field(default=math.inf, gt=0, description="updates of a larger norm are rejected")
    engine: str = Field(default="auto", description="local training engine: auto, fused, numpy, reference or batched")
    gather: int = Field(
        default=0,
        ge=0,
        description="asynchronous: `size` are always out, the model moves at every so many updates",
    )
    workers: int = Field(default=0, ge=0, description="threads or processes of the engine (0: all cores)")

    @field_validator("over_select")
    @classmethod
    def _rule(cls, value: float | str) -> float | str:
        """A factor of at least 1, or the word."""
        if value == ADAPTIVE or (isinstance(value, int | float) and value >= 1):
            return value
        raise ValueError("it must be 'adaptive' or a factor of at least 1")

    def settings(self) -> Settings:
        """The part that the loop needs."""
        return Settings(
            rounds=self.rounds,
            size=self.size,
            seed=self.seed,
            deadline=self.deadline,
            over_select=self.over_select,
            quorum=self.quorum,
            back_off=self.back_off,
            evaluate_every=self.evaluate_every,
            lr_decay=self.lr_decay,
            max_privacy=self.max_privacy,
            max_norm=self.max_norm,
            gather=self.gather,
        )

    def normal(self) -> RunConfig:
        """The same run with its texts in normal form; unknown names and parameters are refused."""
        return self.model_copy(update={kind: texts.normal(kind, getattr(self, kind)) for kind in texts.KINDS})

    def plain(self) -> dict[str, Any]:
        """As JSON-able values; an infinite limit is left out, and what does nothing and is newer than stored runs."""
        found = {k: v for k, v in self.model_dump().items() if not (k in ENDLESS and math.isinf(v))}
        return {k: v for k, v in found.items() if LATER.get(k, ...) != v}

    def resolved(self) -> dict[str, Any]:
        """Everything that can change the result, defaults filled in (the number of workers cannot)."""
        plain = {k: v for k, v in self.plain().items() if k != "workers"}
        return plain | {kind: texts.resolved(kind, getattr(self, kind)) for kind in texts.KINDS}

    def digest(self) -> str:
        """Content address: equal for two ways of writing the same run, different for anything else."""
        return hashlib.sha256(json.dumps(self.resolved(), sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        """This configuration as a TOML file with a comment for every key."""
        lines = []
        for name, value in self.plain().items():
            lines.append(f"{name} = {toml_value(value)}  # {RunConfig.model_fields[name].description}")
        return "\n".join(lines) + "\n"


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
    for name, known in RunConfig.model_fields.items():
        kind = getattr(known.annotation, "__name__", str(known.annotation))
        kind = {"str": "text", "int": "whole number", "float": "number"}.get(kind, str(known.annotation))
        default = "no limit" if name in ENDLESS else str(known.default)
        found.append(Key(name, kind, default, known.description or ""))
    return found


def markdown() -> str:
    """The table of all keys for the documentation."""
    rows = [f"| `{k.name}` | {k.kind} | `{k.default}` | {k.about} |" for k in keys()]
    return "\n".join(["| key | kind | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def toml_value(value: Any) -> str:
    """A number, word or list as TOML writes it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(v) for v in value)}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one key. A dotted one (selector.explore) changes a parameter in the text that is there, or the default's."""
    head, _, rest = key.partition(".")
    if head not in RunConfig.model_fields:
        raise UnknownName.among("key", head, RunConfig.model_fields)
    if not rest:
        values[key] = value
    elif head not in texts.KINDS:
        raise BadParameter(key, f"{head} is one value, without parameters", f"write {head}=VALUE")
    else:
        values[head] = texts.changed(head, _text(head, values.get(head)), rest.split("."), value)


def from_mapping(values: Mapping[str, Any]) -> RunConfig:
    """A configuration from keys and values, with one clear sentence for each mistake."""
    for key, value in values.items():
        if key not in RunConfig.model_fields:
            raise UnknownName.among("key", key, RunConfig.model_fields)
        _check_value(key, value)
    try:
        return RunConfig(**{**values, **{k: _text(k, values[k]) for k in texts.KINDS if k in values}})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        rule = first["msg"][0].lower() + first["msg"][1:]
        about = RunConfig.model_fields[key].description if key in RunConfig.model_fields else "see the documentation"
        raise BadParameter(f"{key} = {first['input']!r}", rule, f"it means: {about}") from None


def _text(kind: str, value: Any) -> Any:
    """A text stays, a table becomes one, nothing is the default."""
    default = str(RunConfig.model_fields[kind].default)
    if isinstance(value, Mapping):
        return texts.from_table(kind, value, default)
    return default if value is None else value


def _check_value(key: str, value: Any) -> None:
    """What the model itself would let pass: true as a number, an endless number where it makes no sense."""
    about = f"it means: {RunConfig.model_fields[key].description}"
    if isinstance(value, bool):
        raise BadParameter(f"{key} = {value}", "this key is not a yes or no", about)
    if isinstance(value, float) and math.isinf(value) and key not in ENDLESS:
        raise BadParameter(f"{key} = {value}", "it must be finite", about)


def from_toml(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}", "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}", "this is a folder", "name a .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}", f"this is not valid TOML ({error})", "mend the line that is named") from None
