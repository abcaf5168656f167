"""A world as data: everything that makes it, in frozen sections that go to and from JSON or TOML unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from fedcohort.errors import BadParameter, UnknownName, check
from fedcohort.worlds.allocate import POLICIES
from fedcohort.worlds.availability import AVAILABILITIES, Always, Availability, Bernoulli
from fedcohort.worlds.dirichlet import ClassDirichlet, ClientDirichlet, LayeredDirichlet, SelfBalancing
from fedcohort.worlds.faults import FAULTS, Faults
from fedcohort.worlds.label_noise import NOISES, BetaNoise, GivenNoise, Noise, NoNoise
from fedcohort.worlds.latency import LATENCIES, Constant, Latency
from fedcohort.worlds.natural import LabelSkew, LabelsPerClient, Natural, Shards
from fedcohort.worlds.partition import Dominance, FewClass, FlashPartition, Iid, Partition, QuantitySkew
from fedcohort.worlds.section import Section, coerce, from_dict, share, table

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
    """What each client keeps aside, and whether its labels are as wrong as the others."""

    kind: ClassVar[str] = "held-out"

    held_out: float = 0.15  # share of each client's samples, rounded half up; a client keeps at least one for training
    flipped: bool = True  # label noise reaches the validation part too

    def check(self) -> None:
        """A share below one."""
        share("held_out", self.held_out)
        check(self.held_out < 1.0, "held_out=1", "nothing would be left to train on", "lower held_out")


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
    """Everything that makes a world, except the labels and the seed."""

    name: str
    clients: int  # 0: as many as the data have owners (natural partitions only)
    partition: Partition
    noise: Noise = field(default_factory=NoNoise)
    latency: Latency = field(default_factory=Constant)
    availability: Availability = field(default_factory=Always)
    faults: Faults = field(default_factory=Faults)
    validation: Validation = field(default_factory=Validation)
    allocation: str = "strict"
    version: int = 1
    about: str = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name in SECTIONS:
                base = {"faults": Faults, "validation": Validation}.get(f.name, Section)
                value = getattr(self, f.name)
                check(isinstance(value, base), f"{f.name}={value!r}", "must be a section", "use WorldSpec.from_dict")
            else:
                object.__setattr__(self, f.name, coerce(f.name, str(f.type), getattr(self, f.name)))
        if self.allocation not in POLICIES:
            raise UnknownName.among("allocation", self.allocation, POLICIES)
        natural = isinstance(self.partition, Natural)
        check(
            self.clients >= (0 if natural else 1),
            f"clients={self.clients}",
            "must be at least 1 (0 means all owners, with natural partitions only)",
            "raise clients",
        )

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
        made = {k: from_dict(k, SECTIONS[k], v) if k in SECTIONS else v for k, v in data.items()}
        return cls(**made)

    def replace(self, **overrides: Any) -> WorldSpec:
        """A changed copy. Keys are top-level fields, section__field, or a field that one section alone has.

        A section takes a kind, a table, or an obvious number: noise=0.2 (mean rate), availability=0.8 (Bernoulli).
        """
        spec = self
        for key, value in overrides.items():
            spec = spec._with(key, value)
        return spec

    def _with(self, key: str, value: Any) -> WorldSpec:
        section, _, inner = key.replace(".", "__").partition("__")
        if inner:
            if section not in SECTIONS:
                raise UnknownName.among("section of a world", section, SECTIONS)
            return self._with_field(section, inner, value)
        if key in SECTIONS:
            return replace(self, **{key: self._section(key, value)})
        if key in {f.name for f in fields(self)}:
            return replace(self, **{key: value})
        holders = [s for s in SECTIONS if key in _field_names(getattr(self, s))]
        if len(holders) == 1:
            return self._with_field(holders[0], key, value)
        if holders:
            choices = " or ".join(f"{s}__{key}" for s in holders)
            raise BadParameter(f"{key}={value!r}", "more than one section has a field of this name", f"write {choices}")
        fine = {n for s in SECTIONS for n in _field_names(getattr(self, s))}
        raise UnknownName.among(f"parameter of world {self.name}", key, fine | {f.name for f in fields(self)})

    def _with_field(self, section: str, name: str, value: Any) -> WorldSpec:
        current = getattr(self, section)
        if name == "kind":
            return replace(self, **{section: from_dict(section, SECTIONS[section], {"kind": value})})
        if name not in _field_names(current):
            raise UnknownName.among(f"parameter of {section} {current.kind!r}", name, _field_names(current))
        return replace(self, **{section: replace(current, **{name: value})})

    def _section(self, name: str, value: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name == "noise" and number:
            share("noise", value)
            if isinstance(self.noise, BetaNoise) and 0.0 < value < 1.0:
                return replace(self.noise, a=value * self.noise.concentration)
            return GivenNoise(rate=(float(value),)) if value else NoNoise()
        if name == "availability" and number:
            return Bernoulli(rate=float(value))
        if isinstance(value, Section):
            return value
        return from_dict(name, SECTIONS[name], {"kind": value} if isinstance(value, str) else value)


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Section) else value


def _field_names(section: Any) -> set[str]:
    return {f.name for f in fields(section)}
