"""A run as data: TOML to a frozen model and back, every key documented, unknown keys answered with the nearest."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcohort.errors import BadParameter, ConfigError, UnknownName
from fedcohort.sim.loop import Settings


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
    over_select: float = Field(default=1.0, ge=1, description="ask this many times `size`, close at the size-th reply")
    evaluate_every: int = Field(default=1, ge=1, description="rounds between evaluations on the test set")
    lr_decay: float = Field(default=1.0, gt=0, description="factor on the learning rate after every round")
    max_privacy: str = Field(default="P2", pattern="^P[0-3]$", description="highest privacy level a selector may read")
    max_norm: float = Field(default=math.inf, gt=0, description="updates of a larger norm are rejected")
    engine: str = Field(default="auto", description="local training engine: auto, fused, numpy, reference or batched")
    workers: int = Field(default=0, ge=0, description="threads or processes of the engine (0: all cores)")

    def settings(self) -> Settings:
        """The part that the loop needs."""
        return Settings(
            rounds=self.rounds,
            size=self.size,
            seed=self.seed,
            deadline=self.deadline,
            over_select=self.over_select,
            evaluate_every=self.evaluate_every,
            lr_decay=self.lr_decay,
            max_privacy=self.max_privacy,
            max_norm=self.max_norm,
        )

    def plain(self) -> dict[str, Any]:
        """As JSON-able values; an infinite limit is left out."""
        return {k: v for k, v in self.model_dump().items() if not (isinstance(v, float) and math.isinf(v))}

    def digest(self) -> str:
        """Content address of everything that can change the result (workers cannot)."""
        plain = {k: v for k, v in self.plain().items() if k != "workers"}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        """This configuration as a TOML file with a comment for every key."""
        lines = []
        for name, value in self.plain().items():
            text = json.dumps(value) if not isinstance(value, float) else repr(value)
            lines.append(f"{name} = {text}  # {RunConfig.model_fields[name].description}")
        return "\n".join(lines) + "\n"


def from_mapping(values: Mapping[str, Any]) -> RunConfig:
    """A configuration from keys and values, with one clear sentence for each mistake."""
    for key in values:
        if key not in RunConfig.model_fields:
            raise UnknownName.among("key", key, RunConfig.model_fields)
    try:
        return RunConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        rule = first["msg"][0].lower() + first["msg"][1:]
        about = RunConfig.model_fields[key].description if key in RunConfig.model_fields else "see the documentation"
        raise BadParameter(f"{key} = {first['input']!r}", rule, f"it means: {about}") from None


def from_toml(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}", "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}", "this is a folder", "name a .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}", f"this is not valid TOML ({error})", "mend the line that is named") from None
