"""The datasets known by name: what they look like, in which files they may lie, and how those become arrays.

Readers return plain columns (x, y, x_test, y_test, client, client_test, scale); `tasks.data` makes the Dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcohort.errors import DataError
from fedcohort.tasks import formats
from fedcohort.tasks.formats import Limits
from fedcohort.types import Array, Arrays

SPLIT = ("x_train", "y_train", "x_test", "y_test")  # the layout of sets with an official test set
NATURAL = ("x", "y", "client", "activity", "scale", "shift")  # the layout of sets with natural owners
ROWS = 2_000_000  # no known set has more samples; full FEMNIST has 805,263


@dataclass(frozen=True)
class Known:
    """One dataset: its form, its normalisation, and where its files may be."""

    title: str
    sample: tuple[int, ...]  # channels first for images
    classes: int
    scale: float = 1.0
    shift: float = 0.0
    owned: bool = False  # has natural owners

    @property
    def image(self) -> bool:
        """Samples are pictures (c, h, w), not windows (time, channel)."""
        return len(self.sample) == 3

    def limits(self) -> Limits:
        """What a file of samples may declare: this set's shapes, channels first, last or left out."""
        if not self.image:
            return Limits(math.prod(self.sample) * 8 * ROWS, ROWS, (self.sample,))
        c, h, w = self.sample
        shapes = ((c, h, w), (h, w, c)) + (((h, w),) if c == 1 else ())
        return Limits(math.prod(self.sample) * 8 * ROWS, ROWS, shapes)

    def arrange(self, x: Array) -> Array:
        """Samples as (n, c, h, w) or (n, time, channel)."""
        if self.image and x.shape[1:] != self.sample:
            c, h, w = self.sample
            x = x.reshape(-1, h, w, c).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(x)


KNOWN: dict[str, Known] = {
    "cifar10": Known("CIFAR-10, 10 classes of pictures", (3, 32, 32), 10, 2 / 255, -1.0),
    "mnist": Known("MNIST, handwritten digits", (1, 28, 28), 10, 1 / (255 * 0.3081), -0.1307 / 0.3081),
    "fashion-mnist": Known(
        "Fashion-MNIST, articles of clothing", (1, 28, 28), 10, 1 / (255 * 0.3530), -0.2860 / 0.3530
    ),
    "femnist": Known("FEMNIST by writer (LEAF)", (1, 28, 28), 62, 1 / 255, owned=True),
    "har": Known("Human activities by volunteer (UCI)", (128, 6), 6, owned=True),
    "mobifall": Known("Falls and daily activities by volunteer (MobiFall)", (128, 6), 2, owned=True),
}


def read_layouts(path: Path, known: Known | None) -> Arrays:
    """An .npz file in either layout: x_train, y_train, x_test, y_test; or x, y with client and scale optional."""

    def limits(name: str) -> Limits | None:
        if name in ("x", "x_train", "x_test"):
            return known.limits() if known else Limits()
        if name in ("y", "y_train", "y_test", "client", "activity"):
            return Limits(8 * ROWS, ROWS, ((),)) if known else Limits(samples=((),))
        return Limits(1 << 16) if name in ("scale", "shift") else None

    found = formats.read_npz(path, limits)
    if all(name in found for name in SPLIT):
        found["x"], found["y"] = found.pop("x_train"), found.pop("y_train")
        return found
    if "x" in found and "y" in found:
        return {name: found[name] for name in NATURAL if name in found}
    has = ", ".join(sorted(found)) or "none of them"
    raise formats.refused(path, f"its arrays must be {', '.join(SPLIT)}, or x and y with client; it has {has}")


def digits() -> Arrays:
    """The 8 x 8 digits that scikit-learn carries: the first 1,500 to train, the last 297 to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = images.reshape(-1, 1, 8, 8).astype(np.uint8), labels.astype(np.int64)
    return {"x": x[:1500], "y": y[:1500], "x_test": x[1500:], "y_test": y[1500:], "scale": np.float32(1 / 16)}


@dataclass(frozen=True)
class Found:
    """A dataset in the data folder: in which form, which files, and the reader for them."""

    form: str
    files: tuple[Path, ...]
    read: Callable[[], Arrays]


def find(name: str, root: Path) -> Found | None:
    """The first form in which this dataset lies in the folder, or None."""
    npz = root / f"{name}.npz"
    if npz.is_file():
        return Found("npz", (npz,), lambda: read_layouts(npz, KNOWN.get(name)))
    return None


def missing(name: str, root: Path) -> DataError:
    """The error for a known dataset of which no file is there."""
    where = f"neither {name}.npz nor its official files are in {root}"
    return DataError(f"dataset {name!r}", where, f"run: fedcohort data get {name}")
