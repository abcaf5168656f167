"""Named, versioned worlds. A world that has been published never changes: a correction is a new version."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcohort.core.plain_text import shown
from fedcohort.errors import DataError, UnknownName, check
from fedcohort.worlds.availability import Markov
from fedcohort.worlds.dirichlet import ClassDirichlet, ClientDirichlet, LayeredDirichlet, SelfBalancing
from fedcohort.worlds.faults import Faults
from fedcohort.worlds.label_noise import BetaNoise, NoNoise
from fedcohort.worlds.latency import (
    Constant,
    FixedExponential,
    FlashRLLatency,
    Latency,
    Lognormal,
    Pareto,
    ShiftedExponential,
)
from fedcohort.worlds.natural import LabelSkew, LabelsPerClient, Natural, Shards
from fedcohort.worlds.partition import Dominance, FewClass, FlashPartition, Iid, Partition, QuantitySkew
from fedcohort.worlds.world_spec import Validation, WorldSpec

_FLASH_TIME = ShiftedExponential(a=1.0, lam=10.0)
_FLASH_SPEED = FixedExponential(a=1.0, lam=10.0)


def _fedacs(name: str, partition: Partition, about: str) -> WorldSpec:
    return WorldSpec(
        name, 200, partition, allocation="recycle", validation=Validation(held_out=0.1), about=f"FedACS: {about}"
    )


def _flash(name: str, skewed: float, noise: bool, about: str, time: Latency = _FLASH_TIME) -> WorldSpec:
    return WorldSpec(
        name,
        50,
        FlashPartition(share=skewed, major=0.8) if skewed else Iid(balanced=True),
        latency=time,
        validation=Validation(held_out=0.1, flipped=True),
        allocation="scale",
        about=f"FLASH: {about}",
        noise=BetaNoise(a=15.0) if noise else NoNoise(),
    )


def _flash_rl(name: str, partition: Partition, about: str, clients: int = 100) -> WorldSpec:
    time: Latency = FlashRLLatency()
    return WorldSpec(
        name, clients, partition, latency=time, validation=Validation(held_out=0.1), about=f"FLASH-RL: {about}"
    )


_ALL: tuple[WorldSpec, ...] = (
    WorldSpec("iid-v1", 50, Iid(), latency=_FLASH_TIME, about="the even world: same mix, same size"),
    WorldSpec(
        "dirichlet-0.1-v1",
        50,
        ClassDirichlet(alpha=0.1),
        latency=_FLASH_TIME,
        allocation="redistribute",
        about="class-Dirichlet, alpha 0.1 per class, equal sizes",
    ),
    _fedacs("fedacs-uniform-v1", Dominance(law="uniform", reuse=8.0), "dominance alpha ~ U[0, 1]"),
    _fedacs("fedacs-pareto-v1", Dominance(law="pareto", shape=2.0, reuse=8.0), "inverse Pareto dominance, s = 2"),
    _fedacs("fedacs-dirichlet-v1", LayeredDirichlet(reuse=8.0), "half beta ~ U(0, 0.2], half U(0.2, 3]"),
    _fedacs("fedacs-fewclass-v1", FewClass(reuse=8.0), "1 to 10 classes, dominance among them"),
    _flash("flash-noniid30-v1", 0.3, False, "30 % of clients 80/20"),
    _flash("flash-noise15-v1", 0.0, True, "label noise Beta(15, 85)"),
    _flash("flash-noniid30-noise15-v1", 0.3, True, "30 % of clients 80/20, label noise Beta(15, 85)"),
    _flash("flash-noniid30-v2", 0.3, False, "30 % of clients 80/20; speeds that stay", _FLASH_SPEED),
    _flash("flash-noise15-v2", 0.0, True, "label noise Beta(15, 85); speeds that stay", _FLASH_SPEED),
    _flash(
        "flash-noniid30-noise15-v2",
        0.3,
        True,
        "30 % of clients 80/20, label noise Beta(15, 85); speeds that stay",
        _FLASH_SPEED,
    ),
    _flash_rl("flashrl-dirichlet0.8-v1", SelfBalancing(alpha=0.8), "self-balancing Dirichlet 0.8"),
    _flash_rl("flashrl-dirichlet0.5-v1", SelfBalancing(alpha=0.5), "self-balancing Dirichlet 0.5"),
    _flash_rl("flashrl-shards-v1", Shards(shards=2), "two shards per client"),
    _flash_rl("flashrl-noniid-label-v1", LabelsPerClient(labels=2), "two labels per client"),
    WorldSpec("fedcm-client-0.1-v1", 20, ClientDirichlet(alpha=0.1), about="FedCM: client heterogeneity, alpha 0.1"),
    WorldSpec(
        "fedcm-class-0.1-v1",
        20,
        ClassDirichlet(alpha=0.1),
        allocation="redistribute",
        about="FedCM: class heterogeneity, alpha 0.1",
    ),
    WorldSpec(
        "hetero-0.1-v1", 12, ClientDirichlet(alpha=0.1, min_size=2), about="HeteRo-Select: 12 clients, alpha 0.1"
    ),
    _flash_rl("volunteers-v1", Natural(), "one client per volunteer or writer", clients=0),
    _flash_rl("label-skew-8-v1", LabelSkew(labels=8), "volunteers with 8 of their activities", clients=0),
    _flash_rl("label-skew-4-v1", LabelSkew(labels=4), "volunteers with 4 of their activities", clients=0),
    WorldSpec(
        "owners-v1",
        0,
        Natural(),
        latency=Constant(seconds_each=1.0, per_sample=0.01),
        about="one client per owner that the data name; alike in everything else",
    ),
    WorldSpec(
        "quantity-v1",
        50,
        QuantitySkew(law="lognormal", sigma=1.0, min_size=2),
        latency=_FLASH_TIME,
        about="same mix, very different amounts",
    ),
    WorldSpec(
        "diurnal-v1",
        50,
        ClassDirichlet(alpha=0.3),
        latency=Lognormal(a=0.1, sigma=1.0, factors=(0.5, 1.0, 4.0), shares=(0.3, 0.4, 0.3)),
        availability=Markov(on=12.0, off=8.0, depth=0.6, period=24.0, groups=5, outage=0.01, outage_ticks=4),
        allocation="redistribute",
        about="clients that sleep, regions that fail, heavy-tailed times",
    ),
    WorldSpec(
        "liars-v1",
        50,
        ClassDirichlet(alpha=0.5),
        latency=Pareto(a=0.1, shape=2.5),
        faults=Faults(dropout=0.05, nan=0.04, scaled=0.04, sign_flipped=0.04, label_flipped=0.04, free_riders=0.04),
        allocation="redistribute",
        about="a fifth of the clients is broken or malicious, in five ways",
    ),
    WorldSpec(
        "mixed-v1",
        50,
        ClassDirichlet(alpha=0.3, spread=0.4),
        noise=BetaNoise(a=0.6, concentration=3.0),
        latency=ShiftedExponential(a=0.02, lam=0.02, factors=(0.5, 1.0, 2.0, 8.0), shares=(0.2, 0.4, 0.2, 0.2)),
        faults=Faults(dropout=0.02, flaky=0.2, flaky_dropout=0.25),
        validation=Validation(held_out=0.15, flipped=True),
        allocation="redistribute",
        about="the demo: skew, noise, slow clients and drop-out at once",
    ),
)
WORLDS: dict[str, WorldSpec] = {w.name: w for w in _ALL}


def names() -> list[str]:
    """All worlds of the catalogue."""
    return list(WORLDS)


def get(name: str, /, **overrides: Any) -> WorldSpec:
    """The specification of a world, changed where asked: get("dirichlet-0.1-v1", clients=20, alpha=0.5)."""
    said = shown(repr(overrides.get("name")))
    check("name" not in overrides, f"name = {said}", "a world of the catalogue has its own", "leave it out")
    if name not in WORLDS:
        raise UnknownName.among("world", name, WORLDS)
    if not overrides:
        return WORLDS[name]
    changed = WORLDS[name].replace(**overrides)
    given = ", ".join(f"{k}={v!r}" for k, v in sorted(overrides.items()))
    return changed.replace(name=f"{name}({given})")


def load(path: str | Path) -> WorldSpec:
    """A world of your own from a .json or .toml file with the keys of `WorldSpec.to_dict`."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text) if file.suffix.lower() == ".toml" else json.loads(text)
    except FileNotFoundError as error:
        raise DataError(f"world file {str(path)!r}", "does not exist", "check the path") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"world file {str(path)!r}", f"cannot be read ({error})", "check the file") from error
    if not isinstance(data, Mapping):
        raise DataError(f"world file {str(path)!r}", "is not a table of keys", "see docs/worlds.md")
    return WorldSpec.from_dict(data)
