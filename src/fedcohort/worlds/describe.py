"""What a world looks like, as numbers: one row per client and a summary. Oracle knowledge, for people only."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.stats import effective_classes
from fedcohort.types import Work
from fedcohort.worlds import devices, keyed_draws
from fedcohort.worlds.built_world import NOMINAL_PARAMS, BuiltWorld
from fedcohort.worlds.faults import HONEST, LIES

Double = NDArray[np.float64]
_LESS_IMPORTANT = ("held out", "top class", "classes", "slowness", "top share", "link", "lie", "device")


@dataclass(frozen=True)
class Description:
    """Columns over clients and a summary; `str()` prints both."""

    name: str
    summary: Mapping[str, Any]
    columns: Mapping[str, NDArray[Any]]  # one entry per client
    seconds: Double  # (rounds, clients shown) draws of a standard round

    def rows(self, limit: int = 20) -> list[dict[str, Any]]:
        """Clients from the most even to the most skewed; at most `limit`, evenly spaced in that order."""
        order = np.argsort(self.columns["js"], kind="stable")
        at = order[np.unique(np.linspace(0, order.size - 1, min(limit, order.size)).astype(np.int64))]
        return [{name: value[i].item() for name, value in self.columns.items()} for i in at]

    def text(self, limit: int = 20, width: int = 0) -> str:
        """Summary, then a table of clients. With a width, lines are broken and less important columns left out."""
        rows = self.rows(limit)
        cells = {name: [name, *[_shown(row[name]) for row in rows]] for name in self.columns}
        wide = {name: max(map(len, column)) for name, column in cells.items()}
        left_out = [name for name in _LESS_IMPORTANT if name in cells]
        while width and left_out and sum(wide.values()) + 2 * len(wide) - 2 > width:
            del wide[left_out.pop(0)]
        lines = ["  ".join(f"{cells[n][i]:>{w}}" for n, w in wide.items()) for i in range(len(rows) + 1)]
        note = f"clients from even to skewed ({len(rows)} of {self.summary['clients']})"
        return "\n".join([self.name, *self._head(width), "", note, *lines])

    def _head(self, width: int) -> list[str]:
        first = max(len(k) for k in self.summary)
        lines = []
        for key, value in self.summary.items():
            start = f"  {key:<{first}}  "
            fill = textwrap.TextWrapper(width or 10_000, start, " " * len(start), break_long_words=False)
            lines += fill.wrap(_shown(value)) or [start]
        return lines

    def __str__(self) -> str:
        return self.text()


def describe(world: BuiltWorld, *, params: int = NOMINAL_PARAMS, passes: float = 1.0, rounds: int = 100) -> Description:
    """Numbers that say how clients differ. Times are of a round with this many parameters and passes."""
    mix = world.histogram(clean=True)
    js = world.divergence()
    ids = np.arange(world.population)
    work = _work(world, ids, params, passes)
    expected = world.expected_seconds(ids, work)
    columns: dict[str, NDArray[Any]] = {
        "client": ids,
        "samples": world.train.sizes,
        "held out": world.validation.sizes,
        "classes": (mix > 0).sum(axis=1),
        "effective": effective_classes(mix).round(2),
        "top class": mix.argmax(axis=1),
        "top share": mix.max(axis=1).astype(np.float64).round(3),
        "js": js.round(4),
        "noise": world.noise_rate.astype(np.float64).round(4),
        "wrong": world.wrong_labels().round(4),
        "seconds": expected.round(3),
        **_fixed(world),
    }
    seconds = _times(world, params, passes, rounds)
    return Description(world.name, _summary(world, columns, expected, seconds), columns, seconds)


def _summary(
    world: BuiltWorld, columns: Mapping[str, NDArray[Any]], expected: Double, seconds: Double
) -> dict[str, Any]:
    sizes = world.train.sizes + world.validation.sizes
    handed = int(sizes.sum())
    drawn = np.unique(np.concatenate([world.train.index, world.validation.index])).size
    wrong = float(np.mean(world.train.label != world.train.clean)) if world.train.label.size else 0.0
    low, middle, high = np.quantile(expected, [0.05, 0.5, 0.95])
    tail = np.quantile(seconds, [0.5, 0.99]) if seconds.size else np.zeros(2)
    spec = world.spec
    return {
        "about": spec.about,
        "clients": world.population,
        "classes": world.classes,
        "partition": f"{spec.partition.kind}, {spec.allocation}",
        "samples handed out": f"{handed} ({drawn} different), {sizes.min()} to {sizes.max()} a client",
        "size variation (CV)": float(sizes.std() / max(sizes.mean(), 1e-12)),
        "effective classes": f"mean {columns['effective'].mean():.2f}, least {columns['effective'].min():.2f}",
        "JS to the global mix": f"mean {columns['js'].mean():.3f}, most {columns['js'].max():.3f} bits",
        "label noise": f"{spec.noise.kind}, rate mean {columns['noise'].mean():.3f}, sd {columns['noise'].std():.3f}, "
        f"{wrong:.3f} of training labels wrong; validation {'flipped too' if spec.validation.flipped else 'clean'}",
        "latency": f"{spec.latency.kind}, client means {low:.3g} / {middle:.3g} / {high:.3g} s (5, 50, 95 %)",
        "one round": f"median {tail[0]:.3g} s, 99 % {tail[1]:.3g} s",
        "availability": f"{spec.availability.kind}, {world.available(0, 0.0).size} at the start",
        "drop-out": f"mean {world.fixed['dropout'].mean():.3f} a round",
        "liars": _liars(world),
        "seed": world.seed,
        "digest": world.digest,
    }


def _liars(world: BuiltWorld) -> str:
    many = np.bincount(world.fixed["lie"][world.fixed["lie"] != HONEST], minlength=len(LIES))
    return ", ".join(f"{n} {name}" for name, n in zip(LIES, many, strict=True) if n) or "none"


def _fixed(world: BuiltWorld) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {}
    if "device" in world.fixed:
        out["device"] = np.array([d.name for d in devices.DEVICES])[world.fixed["device"]]
        out["link"] = np.array([x.name for x in devices.LINKS])[world.fixed["link"]]
    elif "slowness" in world.fixed:
        out["slowness"] = world.fixed["slowness"].astype(np.float64)
    if (world.fixed["lie"] != HONEST).any():
        out["lie"] = np.array([*LIES, "-"])[world.fixed["lie"]]
    return out


def _work(world: BuiltWorld, ids: NDArray[np.int64], params: int, passes: float) -> Work:
    sent = np.full(ids.size, 4.0 * params)
    return Work(world.train.sizes[ids], np.full(ids.size, passes), sent, sent, params)


def _times(world: BuiltWorld, params: int, passes: float, rounds: int, most: int = 500) -> Double:
    ids = np.sort(keyed_draws.order(world.seed, "shown", world.population)[:most])
    work = _work(world, ids, params, passes)
    return np.stack([world.seconds(r, ids, work) for r in range(rounds)]) if rounds else np.empty((0, ids.size))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
