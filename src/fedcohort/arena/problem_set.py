"""Frozen problems: world x task x method x cohort size x horizon, as data in `problems-v1.toml`.

A published problem never changes; a correction is a new version. Each problem carries the digest of its resolved
configuration, so a changed file, a changed world of the catalogue or a changed default is noticed and refused.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fedcohort.data.dataset import data_root
from fedcohort.data.known import find
from fedcohort.errors import BadParameter, ConfigError, UnknownName, check
from fedcohort.experiment import texts
from fedcohort.experiment.config import RunConfig

VERSION = "v1"
VERSIONS = ("v1",)
TIERS = ("quick", "full")
ARCHIVE_SEEDS = (0, 1, 2, 3, 4)
TUNING_SEEDS = 100  # from here on seeds may be used to tune a selector
ANY_PRIVACY = "P3"  # everybody may play; what a selector needs is shown beside its rank
_SHORT = 16  # hexadecimal digits of a digest


@dataclass(frozen=True)
class Problem:
    """One frozen entry: who is asked, on what, for how long, and what counts as reached.

    >>> problem("digits-skew").group, problem("digits-skew").config("oort", seed=3).seed
    ('digits', 3)
    """

    name: str
    group: str  # digits, cifar, femnist, sensors
    kind: str  # the heterogeneity: skew, noise, speed, availability, quantity, liars, dropout, mixed
    about: str
    world: str
    task: str
    method: str
    cohort_size: int
    horizon: float  # virtual seconds that are scored
    rounds: int  # cap on rounds
    target: float  # accuracy to reach
    digest: str
    evaluate_every: int = 1
    data: str = ""  # the dataset that must be there; empty: embedded
    traits: Mapping[str, float] = field(default_factory=dict)  # what is measurable about its world, for advice

    @property
    def quick(self) -> bool:
        """Whether it needs no download."""
        return not self.data

    @property
    def available(self) -> bool:
        """Whether its data are on this machine."""
        return not self.data or find(self.data, data_root()) is not None

    def config(self, selector: str = "uniform", seed: int = 0) -> RunConfig:
        """The run of a selector on this problem."""
        return RunConfig(
            selector=selector,
            method=self.method,
            world=self.world,
            task=self.task,
            cohort_size=self.cohort_size,
            rounds=self.rounds,
            seed=seed,
            evaluate_every=self.evaluate_every,
            max_privacy=ANY_PRIVACY,
            workers=1,
        )

    def fingerprint(self) -> str:
        """The digest of everything that can change a result, except selector and seed."""
        resolved = self.config().resolved()
        plain = {k: v for k, v in resolved.items() if k not in ("selector", "seed")}
        return digest_of({**plain, "horizon": self.horizon, "target": self.target})


def digest_of(value: Any) -> str:
    """The head of the sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_SHORT]


def run_digest(of: Problem, selector: str, seed: int, resolved: Any = None) -> str:
    """The digest of one run; `resolved` stands for a selector that is not in the catalogue."""
    return digest_of([of.digest, _resolved(selector) if resolved is None else resolved, seed])


@cache
def _resolved(selector: str) -> Any:
    return texts.resolved("selector", selector)


def read_problems(text: str, source: str) -> tuple[Problem, ...]:
    """The problems of a TOML text; one whose digest does not fit its configuration is refused."""
    try:
        tables = tomllib.loads(text)["problem"]
        known = {f.name for f in fields(Problem)}
        found = []
        for table in tables:
            for key in table:
                if key not in known:
                    raise UnknownName.among("key of a problem", key, known)
            found.append(Problem(**table))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ConfigError(source, f"this is not a file of problems ({error})", "restore the published file") from None
    for each in found:
        if each.fingerprint() != each.digest:
            raise ConfigError(
                f"problem {each.name} in {source}",
                f"its digest is {each.fingerprint()}, the published one {each.digest}: something in it has changed",
                "restore the file, or publish the change as a new version",
            )
    return tuple(found)


@cache
def problems(version: str = VERSION) -> tuple[Problem, ...]:
    """Every problem of a version, in the order of the file.

    >>> len(problems())
    16
    """
    if version not in VERSIONS:
        raise UnknownName.among("version of the arena", version, VERSIONS)
    name = f"problems-{version}.toml"
    return read_problems(files("fedcohort.arena").joinpath(name).read_text(encoding="utf-8"), name)


def problem(name: str, version: str = VERSION) -> Problem:
    """The problem of this name.

    >>> problem("digits-mixed").kind
    'mixed'
    """
    found = {p.name: p for p in problems(version)}
    if name not in found:
        raise UnknownName.among("problem", name, found)
    return found[name]


def tier_problems(tier: str = "full", version: str = VERSION) -> tuple[Problem, ...]:
    """Problems of a tier: "quick" needs no download, "full" is all of them.

    >>> [p.name for p in tier_problems("quick")][:3]
    ['digits-skew', 'digits-noise', 'digits-speed']
    """
    if tier not in TIERS:
        raise UnknownName.among("tier", tier, TIERS)
    return tuple(p for p in problems(version) if p.quick or tier == "full")


def missing_data(chosen: Iterable[Problem]) -> str:
    """One sentence that names the problems whose data are not on this machine; empty where all are."""
    left = [p for p in chosen if not p.available]
    if not left:
        return ""
    names, data = ", ".join(p.name for p in left), ", ".join(dict.fromkeys(p.data for p in left))
    return f"left out, because their data are not in {data_root()}: {names}; `fedcohort data get` fetches {data}"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from a text such as "0-4", "100" or "0,2,5-7".

    >>> parse_seeds("0-2,7")
    (0, 1, 2, 7)
    """
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise BadParameter(f"seeds {text!r}", "they must be whole numbers and ranges", "write e.g. 0-4 or 0,2,7")
        found += range(int(low), int(high or low) + 1)
    check(bool(found), f"seeds {text!r}", "the range is empty", "write e.g. 0-4")
    return tuple(dict.fromkeys(found))


def published(changed: Problem, **traits: float) -> Problem:
    """The problem with its digest (and traits) filled in, for a new version of the file."""
    made = replace(changed, traits=traits or changed.traits)
    return replace(made, digest=made.fingerprint())
