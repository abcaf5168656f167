"""A world as data: everything that makes it, in frozen sections that go to and from JSON or TOML unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

from fedcohort.core.constraints import Choice, Interval
from fedcohort.errors import BadParameter, UnknownName, check, check_fields
from fedcohort.worlds.allocate import POLICIES
from fedcohort.worlds.availability import AVAILABILITIES, Always, Availability, Bernoulli
from fedcohort.worlds.dirichlet import ClassDirichlet, ClientDirichlet, LayeredDirichlet, SelfBalancing
from fedcohort.worlds.faults import FAULTS, Faults
from fedcohort.worlds.given_latency import LATENCIES
from fedcohort.worlds.label_noise import NOISES, BetaNoise, GivenNoise, Noise, NoNoise
from fedcohort.worlds.latency import Constant, Latency
from fedcohort.worlds.natural import LabelSkew, LabelsPerClient, Natural, Shards
from fedcohort.worlds.partition import Dominance, FewClass, FlashPartition, Iid, Partition, QuantitySkew
from fedcohort.worlds.section import Section, canonical_fields, from_dict, from_text, table

MAX_CLIENTS = 10**8  # a world of more would not fit into memory
PARTITIONS: dict[str, type[Partition]] = table(
    Iid,
    Dominance,
    FewClass,
    LayeredDirichlet,
    FlashPartition,
    ClientDirichlet,
    ClassDirichlet,
    SelfBalancing,
    Shards,
    LabelsPerClient,
    QuantitySkew,
    Natural,
    LabelSkew,
)


@dataclass(frozen=True)
class Validation(Section):
    """What each client keeps aside, and whether those labels are noisy too.

    `held_out` is the share of each client's samples, rounded half up; a client keeps at least one for training. With
    `flipped`, label noise reaches the validation part too.

    >>> Validation(held_out=0.1).to_dict()
    {'kind': 'held-out', 'held_out': 0.1, 'flipped': True}
    """

    kind: ClassVar[str] = "held-out"

    held_out: Annotated[float, Interval(0, 1, ends="[)")] = 0.15
    flipped: bool = True


VALIDATIONS: dict[str, type[Validation]] = table(Validation)
SECTIONS: dict[str, Mapping[str, type[Any]]] = {
    "partition": PARTITIONS,
    "noise": NOISES,
    "latency": LATENCIES,
    "availability": AVAILABILITIES,
    "faults": FAULTS,
    "validation": VALIDATIONS,
}


@dataclass(frozen=True)
class WorldSpec:
    """Everything that makes a world, except the labels and the seed.

    `name`; how many `clients` (0: as many as the data have owners, natural partitions only); the `partition` of the
    samples; label `noise`, `latency`, `availability`, `faults` and `validation`; `allocation` is what to do when a
    class runs out ("strict", "recycle", "redistribute", "scale"); `version` and `about` are for the catalogue.

    >>> spec = WorldSpec("mine", clients=20, partition=Iid(), noise=GivenNoise(rate=(0.1,)))
    >>> spec.replace(clients=50, noise=0.2, availability=0.8).noise.rate
    (0.2,)
    """

    name: str
    clients: Annotated[int, Interval(0, MAX_CLIENTS)]
    partition: Partition
    noise: Noise = field(default_factory=NoNoise)
    latency: Latency = field(default_factory=Constant)
    availability: Availability = field(default_factory=Always)
    faults: Faults = field(default_factory=Faults)
    validation: Validation = field(default_factory=Validation)
    allocation: Annotated[str, Choice(*POLICIES)] = "strict"
    version: int = 1
    about: str = ""

    def __post_init__(self) -> None:
        canonical_fields(self)
        check_fields(self)
        for name in SECTIONS:
            base = {"faults": Faults, "validation": Validation}.get(name, Section)
            value = getattr(self, name)
            check(isinstance(value, base), f"{name} = {value!r}", "it must be a section", "use WorldSpec.from_dict")
        natural = isinstance(self.partition, Natural)
        rule = "it must be at least 1 (0 means all owners, with natural partitions only)"
        check(natural or self.clients > 0, f"clients = {self.clients}", rule, "raise clients")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorldSpec:
        """Inverse of :meth:`to_dict`. Sections and fields may be left out where they have a default."""
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known:
                raise UnknownName.among("key of a world", str(key), known)
        for key in ("name", "clients", "partition"):
            check(key in data, f"a world without {key}", "this key has no default", f"add {key}")
        made = {k: _made(k, v) if k in SECTIONS else v for k, v in data.items()}
        return cls(**made)

    def replace(self, **overrides: Any) -> WorldSpec:
        """A changed copy. Keys are top-level fields, section__field, or a field that one section alone has.

        A section takes a kind, a text such as "given(fleet.csv)" or "lognormal(sigma=0.5)", a table, or an obvious
        number: noise=0.2 (mean rate), availability=0.8 (Bernoulli).
        """
        spec = self
        parts: dict[str, dict[str, Any]] = {}  # fields of one section are set together: each alone might not fit
        for key, value in overrides.items():
            section, _, inner = key.replace(".", "__").partition("__")
            if inner and section not in SECTIONS:
                raise UnknownName.among("section of a world", section, SECTIONS)
            if inner == "kind":
                spec = replace(spec, **{section: from_dict(section, SECTIONS[section], {"kind": value})})
            elif inner:
                parts.setdefault(section, {})[inner] = value
            elif key in SECTIONS:
                spec = replace(spec, **{key: spec._section(key, value)})
            elif key in {f.name for f in fields(self)}:
                spec = replace(spec, **{key: value})
            else:
                parts.setdefault(spec._holder(key, value), {})[key] = value
        for section, values in parts.items():
            spec = replace(spec, **{section: _changed(section, getattr(spec, section), values)})
        return spec

    def _holder(self, key: str, value: Any) -> str:
        """The one section that has a field of this name."""
        holders = [s for s in SECTIONS if key in _field_names(getattr(self, s))]
        if len(holders) > 1:
            choices = " or ".join(f"{s}__{key}" for s in holders)
            raise BadParameter(f"{key} = {value!r}", "several sections have a field of this name", f"write {choices}")
        if not holders:
            fine = {n for s in SECTIONS for n in _field_names(getattr(self, s))}
            raise UnknownName.among(f"parameter of world {self.name}", key, fine | {f.name for f in fields(self)})
        return holders[0]

    def _section(self, name: str, value: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name == "noise" and number:
            check(0 <= value <= 1, f"noise = {value!r}", "it must be between 0 and 1", "use e.g. 0.2")
            if isinstance(self.noise, BetaNoise) and 0.0 < value < 1.0:
                return replace(self.noise, a=value * self.noise.concentration)
            return GivenNoise(rate=(float(value),)) if value else NoNoise()
        if name == "availability" and number:
            return Bernoulli(rate=float(value))
        if isinstance(value, Section):
            return value
        return _made(name, value)


def _made(section: str, value: Any) -> Any:
    """A section from its text or its table."""
    if isinstance(value, str):
        return from_text(section, SECTIONS[section], value)
    return from_dict(section, SECTIONS[section], value)


def _changed(section: str, current: Any, values: Mapping[str, Any]) -> Any:
    for name in values:
        if name not in _field_names(current):
            raise UnknownName.among(f"parameter of {section} {current.kind!r}", name, _field_names(current))
    return replace(current, **values)


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Section) else value


def _field_names(section: Any) -> set[str]:
    return {f.name for f in fields(section)}
