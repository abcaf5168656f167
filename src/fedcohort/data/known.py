"""The datasets known by name: what they look like, in which files they may be stored, and how those become arrays.

Readers return plain columns (x, y, x_test, y_test, client, client_test, scale); `data.dataset` makes the Dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from fedcohort.data import cifar_batches as batches
from fedcohort.data import formats, har
from fedcohort.data.formats import ReadLimits
from fedcohort.errors import DataError
from fedcohort.types import Array, Arrays

SPLIT = ("x_train", "y_train", "x_test", "y_test")  # the layout of sets with an official test set
NATURAL = ("x", "y", "client", "x_test", "y_test", "client_test", "activity", "scale", "shift")  # and with owners
Reader = Callable[[bytes, Path], batches.Batch]
ROWS = 2_000_000  # no known set has more samples; full FEMNIST has 805,263


@dataclass(frozen=True)
class KnownDataset:
    """One dataset: its form, its normalisation, and where its files may be."""

    title: str
    sample: tuple[int, ...]  # channels first for images
    classes: int
    scale: float = 1.0
    shift: float = 0.0
    rows: tuple[int, int] = (0, 0)  # of the official training and test sets, where there are such
    content: str = ""  # sha256 of the official samples and labels as bytes, whatever file they come in

    @property
    def image(self) -> bool:
        """Samples are pictures (c, h, w), not windows (time, channel)."""
        return len(self.sample) == 3

    def limits(self) -> ReadLimits:
        """What a file of samples may declare: this set's shapes, channels first, last or left out."""
        if not self.image:
            return ReadLimits(rows=ROWS, samples=(self.sample,))
        c, h, w = self.sample
        shapes = ((c, h, w), (h, w, c)) + (((h, w),) if c == 1 else ())
        return ReadLimits(rows=ROWS, samples=shapes)

    def arrange(self, x: Array) -> Array:
        """Samples as (n, c, h, w) or (n, time, channel)."""
        if self.image and x.shape[1:] != self.sample:
            c, h, w = self.sample
            x = x.reshape(-1, h, w, c).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(x)


KNOWN: dict[str, KnownDataset] = {
    "cifar10": KnownDataset(
        "CIFAR-10, 10 classes of pictures",
        (3, 32, 32),
        10,
        2 / 255,
        -1.0,
        (50_000, 10_000),
        "32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493",
    ),
    "mnist": KnownDataset(
        "MNIST, handwritten digits",
        (1, 28, 28),
        10,
        1 / (255 * 0.3081),
        -0.1307 / 0.3081,
        (60_000, 10_000),
        "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    ),
    "fashion-mnist": KnownDataset(
        "Fashion-MNIST, articles of clothing", (1, 28, 28), 10, 1 / (255 * 0.3530), -0.2860 / 0.3530
    ),
    "femnist": KnownDataset("FEMNIST by writer (LEAF)", (1, 28, 28), 62, 1 / 255),
    "har": KnownDataset("Human activities by volunteer (UCI)", (128, 6), 6),
    "mobifall": KnownDataset("Falls and daily activities by volunteer (MobiFall)", (128, 6), 2),
}


def read_layouts(path: Path, known: KnownDataset | None) -> Arrays:
    """An .npz file in either layout: x_train, y_train, x_test, y_test; or x, y with client and scale optional."""

    def limits(name: str) -> ReadLimits | None:
        if name in ("x", "x_train", "x_test"):
            return known.limits() if known else ReadLimits()
        if name in ("y", "y_train", "y_test", "client", "client_test", "activity"):
            return ReadLimits(8 * ROWS, ROWS, ((),)) if known else ReadLimits(samples=((),))
        return ReadLimits(1 << 16) if name in ("scale", "shift") else None

    found = formats.read_npz(path, limits)
    if all(name in found for name in SPLIT):
        found["x"], found["y"] = found.pop("x_train"), found.pop("y_train")
        return found
    if "x" in found and "y" in found:
        return {name: found[name] for name in NATURAL if name in found}
    has = ", ".join(formats.npz_names(path)) or "none"
    say = formats.refused if known else formats.unfit
    raise say(
        path, f"its arrays must be x and y, with client where owners are known, or {', '.join(SPLIT)}; it has {has}"
    )


def digits() -> Arrays:
    """The 8 x 8 digits of this package: the first 1,500 to train, the last 297 to test.

    They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998) from the UCI
    Machine Learning Repository, licence CC BY 4.0, in the order in which scikit-learn has them.
    """
    place = resources.files("fedcohort.data").joinpath("digits.npz")
    with place.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        x, y = arrays["x"][:, None], arrays["y"].astype(np.int64)
    return {"x": x[:1500], "y": y[:1500], "x_test": x[1500:], "y_test": y[1500:], "scale": np.asarray(1 / 16)}


@dataclass(frozen=True)
class FoundFiles:
    """A dataset in a folder: in which form, under which base, which files, and the reader for them."""

    form: str
    base: Path
    files: tuple[Path, ...]
    read: Callable[[], Arrays]


def find(name: str, root: Path, *, loose: bool = False) -> FoundFiles | None:
    """The first form in which this dataset lies in the folder, or None: NAME.npz, then the official files.

    `loose` is for a folder that may itself be the dataset's: it is searched too, and so is its `data`.
    """
    npz = root / f"{name}.npz"
    if npz.is_file():
        return FoundFiles("npz", root, (npz,), lambda: read_layouts(npz, KNOWN.get(name)))
    folders = FOLDERS.get(name, ()) + ((".", "data") if loose and name in FOLDERS else ())
    for folder in folders:
        found = _FINDERS[name](root / folder)
        if found is not None:
            return found
    return None


def missing(name: str, root: Path) -> DataError:
    """The error for a known dataset of which no file is there."""
    where = f"neither {name}.npz nor its official files are in {root}"
    return DataError(f"dataset {name!r}", where, f"run: fedcohort data get {name}")


def _need(name: str, paths: tuple[Path, ...]) -> None:
    for path in paths:
        if not path.is_file():
            rule = f"the file {path.name} is not in {path.parent}"
            raise DataError(f"dataset {name!r}", rule, f"run: fedcohort data get {name}")


def _find_batches(base: Path) -> FoundFiles | None:
    for form, suffix, folder in (("binary", ".bin", "cifar-10-batches-bin"), ("python", "", "cifar-10-batches-py")):
        names = (*(f"data_batch_{i}{suffix}" for i in range(1, 6)), f"test_batch{suffix}")
        reader = batches.read_binary if form == "binary" else batches.read_python
        for place in (base / folder, base):
            files = tuple(place / name for name in names)
            if any(path.is_file() for path in files):
                return FoundFiles(f"{form} batches", base, files, partial(_read_batches, files, reader))
        archive = base / f"cifar-10-{form}.tar.gz"
        if archive.is_file():
            return FoundFiles(f"{form} archive", base, (archive,), partial(_read_archive, archive, names, reader))
    return None


def _read_batches(files: tuple[Path, ...], reader: Reader) -> Arrays:
    _need("cifar10", files)
    return _join([reader(batches.read_file(path), path) for path in files])


def _read_archive(path: Path, names: tuple[str, ...], reader: Reader) -> Arrays:
    members = batches.read_archive(path, names)
    return _join([reader(members[name], path) for name in names])


def _join(parts: list[batches.Batch]) -> Arrays:
    x, y = (np.concatenate([part[side] for part in parts[:-1]]) for side in (0, 1))
    return {"x": x, "y": y, "x_test": parts[-1][0], "y_test": parts[-1][1]}


def _find_idx(name: str, base: Path) -> FoundFiles | None:
    stems = [f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    files = tuple(_spelling(base, f"{stem}-ubyte") for stem in stems)
    if not any(path.is_file() for path in files):
        return None

    def read() -> Arrays:
        _need(name, files)
        x, y, x_test, y_test = (formats.read_idx(path, _idx_limits("images" in path.name)) for path in files)
        return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}

    return FoundFiles("idx", base, files, read)


def _spelling(base: Path, name: str) -> Path:
    """The file as it is spelt here: gzipped or not, `images-idx3` or `images.idx3`; as official where there is none."""
    for spelt in (f"{name}.gz", name, name.replace("-idx", ".idx") + ".gz", name.replace("-idx", ".idx")):
        if (base / spelt).is_file():
            return base / spelt
    return base / f"{name}.gz"


def _idx_limits(images: bool) -> ReadLimits:
    return ReadLimits(28 * 28 * ROWS, ROWS, ((28, 28),)) if images else ReadLimits(ROWS, ROWS, ((),))


def _find_leaf(base: Path) -> FoundFiles | None:
    train, test = (tuple(sorted((base / part).glob("*.json"))) for part in ("train", "test"))
    pool = tuple(sorted([*base.glob("*.json"), *(base / "all_data").glob("*.json")]))
    files = (train + test) if train else pool
    return (
        FoundFiles("LEAF json", base, files, lambda: _read_leaf(train or pool, test if train else ()))
        if files
        else None
    )


def _read_leaf(train: tuple[Path, ...], test: tuple[Path, ...]) -> Arrays:
    x, y, writers = formats.read_leaf(list(train), 28)
    out: Arrays = {"x": x, "y": y, "client": np.array(writers)}
    if test:
        x_test, out["y_test"], writers_test = formats.read_leaf(list(test), 28)
        out["client_test"] = np.array(writers_test)
        if x_test.dtype != x.dtype:
            x, x_test = (
                part.astype(np.float32) / np.float32(255) if part.dtype == np.uint8 else part for part in (x, x_test)
            )
        out["x"], out["x_test"] = x, x_test
    out["scale"] = np.asarray(1 / 255 if x.dtype == np.uint8 else 1, np.float32)
    return out


def _find_har(base: Path) -> FoundFiles | None:
    folder = base / har.FOLDER
    if (folder / "train").is_dir():
        return FoundFiles("folder", base, tuple(sorted(folder.rglob("*_t*.txt"))), lambda: har.read_folder(folder))
    for name in (HAR_ARCHIVE, har.INNER):
        path = base / name
        if path.is_file():
            return FoundFiles("archive", base, (path,), partial(har.read_zip, path))
    return None


HAR_ARCHIVE = "human+activity+recognition+using+smartphones.zip"
FOLDERS: dict[str, tuple[str, ...]] = {  # under the data folder, in the order in which they are searched
    "cifar10": ("cifar10", "."),
    "mnist": ("mnist", "MNIST/raw", "."),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw"),
    "femnist": ("femnist", "femnist/data"),
    "har": ("har", "."),
}
_FINDERS: dict[str, Callable[[Path], FoundFiles | None]] = {
    "cifar10": _find_batches,
    "mnist": partial(_find_idx, "mnist"),
    "fashion-mnist": partial(_find_idx, "fashion-mnist"),
    "femnist": _find_leaf,
    "har": _find_har,
}
