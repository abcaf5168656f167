"""Datasets as arrays: the embedded digits, the files under `$FEDCOHORT_DATA`, and arrays of your own.

Samples stay as stored (bytes, 16-bit integers or float32); `features` gives the normalised float32 rows that a model
reads: value = x * scale + shift. Images are channels first, (n, c, h, w); windows of a sensor are (n, time, channel).
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.constraints import Interval
from fedcohort.data.formats import AGAIN, refused
from fedcohort.data.known import KNOWN, FoundFiles, digits, find, missing, read_layouts
from fedcohort.errors import DataError, FedcohortError, UnknownName, checked
from fedcohort.types import Array, Arrays, Index

_IMAGE_CHANNELS = (1, 3, 4)
Scale = float | NDArray[np.float32]  # one number, or one per channel of a window (last axis)
TestShare = Annotated[float, Interval(0, 1, ends="()", example=0.2)]


@dataclass(frozen=True)
class Dataset:
    """Labelled samples, their test set, and who naturally owns each sample where the data say so.

    Make it from your own arrays with :meth:`from_arrays`, or by name with :func:`load`.

    >>> data = Dataset.from_arrays(np.zeros((4, 2)), y=[0, 1, 0, 1], client=["ann", "bob", "bob", "eve"])
    >>> len(data), data.shape, data.classes, data.clients
    (4, (2,), 2, 3)
    """

    name: str
    x: Array  # (n, c, h, w), (n, time, channel) or (n, features)
    y: Index
    x_test: Array  # no rows where there is no official test set: see `held_out`
    y_test: Index
    classes: int
    client: Index | None = None  # owner of each training sample (writer, volunteer), 0 .. C - 1
    client_test: Index | None = None
    scale: Scale = 1.0
    shift: Scale = 0.0
    activity: Index | None = None  # finer class of each training sample, where the data have one (MobiFall)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def clients(self) -> int:
        """How many natural owners the training samples have; 0 where the data name none."""
        return 0 if self.client is None or not len(self.client) else int(self.client.max()) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    def features(self, rows: ArrayLike | slice | None = None, test: bool = False) -> NDArray[np.float32]:
        """Normalised float32 samples, contiguous: all of them, or these rows (positions, a mask or a slice)."""
        source = self.x_test if test else self.x
        if rows is not None:
            source = source[rows if isinstance(rows, slice) else np.asarray(rows)]
        out = np.array(source, np.float32, order="C")
        out *= np.asarray(self.scale, np.float32)
        out += np.asarray(self.shift, np.float32)
        return out

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client: ArrayLike | None = None,
        *,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        client_test: ArrayLike | None = None,
        activity: ArrayLike | None = None,
        name: str = "mine",
        classes: int | None = None,
        scale: Scale | None = None,
        shift: Scale = 0.0,
    ) -> Dataset:
        """Your own arrays, checked.

        A four-axis x is taken as images, (n, c, h, w) or (n, h, w, c) with 1, 3 or 4 channels; three axes are windows,
        (n, time, channel); two are flat. `client` may hold any integers or strings: owners are numbered 0 .. C - 1
        in sorted order. `scale` defaults to 1/255 for images of bytes and to 1 for everything else.
        """
        x, y = _samples("x", x), _labels("y", y)
        _same_length("x", x, "y", y)
        _rule(len(y) > 0, f"x of shape {x.shape}", "a dataset has at least one sample", "give some samples")
        paired = (x_test is None) == (y_test is None)
        _rule(paired, "x_test and y_test", "both or neither must be given", "give the missing one")
        xt = x[:0] if x_test is None else _samples("x_test", x_test)
        yt = y[:0] if y_test is None else _labels("y_test", y_test)
        _same_length("x_test", xt, "y_test", yt)
        same = xt.shape[1:] == x.shape[1:]
        _rule(same, f"x_test with samples of shape {xt.shape[1:]}", f"x has {x.shape[1:]}", "give both the same shape")
        whole = classes is None or (isinstance(classes, (int, np.integer)) and not isinstance(classes, bool))
        remedy = "leave it out, or say how many classes there are"
        _rule(whole, f"classes = {classes!r}", "it must be a whole number", remedy)
        top = 1 + max(int(labels.max(initial=-1)) for labels in (y, yt))
        _rule(classes is None or classes >= top, f"classes = {classes}", f"the labels reach {top - 1}", "raise classes")
        if scale is None:
            scale = 1.0 / 255.0 if x.ndim == 4 and x.dtype == np.uint8 else 1.0
        _normalisable(x, scale, shift)
        owner, owner_test = _owners(client, client_test, len(y), len(yt))
        finer = None if activity is None else _labels("activity", activity)
        if finer is not None:
            _same_length("x", x, "activity", finer)
        return cls(name, x, y, xt, yt, classes or top, owner, owner_test, scale, shift, finer)

    @checked
    def held_out(self, share: TestShare, rng: np.random.Generator, by_client: bool = False) -> Dataset:
        """The same samples with a test set cut away at random: this share of the samples, or of whole clients.

        By client (volunteers, writers) nobody is on both sides: use it where windows overlap. Owners that stay are
        numbered anew, in order, and so are those of the test set. At least one goes and at least one stays.
        """
        _rule(not len(self.y_test), f"dataset {self.name!r}", "it already has a test set", "use y_test as it is")
        what = "clients" if by_client else "samples"
        count = self.clients if by_client else len(self)
        _rule(
            count >= 2, f"dataset {self.name!r} with {count} {what}", "two are needed to cut a test set", f"add {what}"
        )
        chosen = np.zeros(count, np.bool_)
        chosen[rng.permutation(count)[: min(count - 1, max(1, round(share * count)))]] = True
        test = chosen[self.client] if by_client and self.client is not None else chosen
        parts: dict[str, Any] = {"x": self.x[~test], "y": self.y[~test], "x_test": self.x[test], "y_test": self.y[test]}
        if self.client is not None:
            parts |= {"client": self.client[~test], "client_test": self.client[test]}
        if self.activity is not None:
            parts["activity"] = self.activity[~test]
        if by_client:
            parts |= {side: np.unique(parts[side], return_inverse=True)[1] for side in ("client", "client_test")}
        return replace(self, **parts)


def _rule(ok: bool, value: str, rule: str, remedy: str) -> None:
    if not ok:
        raise DataError(value, rule, remedy)


def _array(name: str, given: ArrayLike) -> Array:
    try:
        out = np.asarray(given)
    except ValueError:
        raise DataError(name, "its rows differ in shape", "give a rectangular array") from None
    _rule(not out.dtype.hasobject, f"{name} of dtype object", "object arrays are refused", "give plain numbers")
    return out


def _samples(name: str, given: ArrayLike) -> Array:
    x = _array(name, given)
    _rule(x.dtype.kind in "biuf", f"{name} of dtype {x.dtype}", "samples are plain numbers", "convert it to float32")
    _rule(2 <= x.ndim <= 4, f"{name} of shape {x.shape}", "samples have 2, 3 or 4 axes", "give (n, features) or images")
    _rule(0 not in x.shape[1:], f"{name} of shape {x.shape}", "a sample has at least one value", "drop the empty axis")
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        finite = np.isfinite(x)
        if not finite.all():
            row = int(np.argwhere(~finite)[0][0])
            raise DataError(f"{name}[{row}]", "it holds NaN or infinity", "drop or repair the sample")
    elif x.dtype.kind == "b":
        x = x.astype(np.uint8)
    return channels_first(x)


def channels_first(x: Array) -> Array:
    """(n, h, w, c) as (n, c, h, w); anything else, and what is channels first already, as it is."""
    last = x.ndim == 4 and x.shape[3] in _IMAGE_CHANNELS and x.shape[1] not in _IMAGE_CHANNELS
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if last else x)


def _labels(name: str, given: ArrayLike) -> Index:
    y = _array(name, given)
    _rule(y.ndim == 1, f"{name} of shape {y.shape}", "labels have one axis", "give one class number per sample")
    if not len(y):
        return np.zeros(0, np.int64)
    _rule(
        y.dtype.kind in "biu",
        f"{name} of dtype {y.dtype}",
        "labels are integers",
        "convert it to class numbers 0 .. C - 1",
    )
    _rule(int(y.min()) >= 0, f"{name} with label {y.min()}", "labels are 0 or more", "number the classes from 0")
    _rule(
        int(y.max()) < 1 << 20,
        f"{name} with label {y.max()}",
        "labels stay below 1048576",
        "number the classes densely",
    )
    return y.astype(np.int64)


def _same_length(a: str, first: Array, b: str, second: Array) -> None:
    value = f"{a} with {len(first)} rows and {b} with {len(second)}"
    _rule(len(first) == len(second), value, "they must have one row per sample", "give both the same length")


def _normalisable(x: Array, scale: Scale, shift: Scale) -> None:
    for name, value in (("scale", scale), ("shift", shift)):
        plain = np.asarray(value).dtype.kind in "iuf"
        _rule(plain, f"{name} = {value!r}"[:80], "it must be a number, or numbers", "give one number")
        shape = np.shape(value)
        fits = len(shape) < x.ndim and all(a in (1, b) for a, b in zip(shape[::-1], x.shape[::-1], strict=False))
        _rule(fits, f"{name} of shape {shape}", f"it must fit samples of shape {x.shape[1:]}", "give one number")
        _rule(bool(np.isfinite(value).all()), name, "it holds NaN or infinity", "give finite numbers")


def _owners(client: ArrayLike | None, test: ArrayLike | None, n: int, n_test: int) -> tuple[Index | None, Index | None]:
    if client is None:
        _rule(test is None, "client_test without client", "owners are given for both or not at all", "give client too")
        return None, None
    both = [_array("client", client)] + ([] if test is None else [_array("client_test", test)])
    for name, column, rows in zip(("client", "client_test"), both, (n, n_test), strict=False):
        _rule(
            column.shape == (rows,), f"{name} of shape {column.shape}", f"{rows} samples need one owner each", "fix it"
        )
        ok = column.dtype.kind in "iuU" or not rows
        _rule(ok, f"{name} of dtype {column.dtype}", "owners are integers or strings", "convert it")
    names, place = np.unique(np.concatenate(both), return_inverse=True)
    only_test = np.ones(len(names), np.bool_)
    only_test[place[:n]] = False  # those who own training samples come first, so that these are numbered densely
    number = np.argsort(np.argsort(only_test, kind="stable"), kind="stable")[place]
    return number[:n], None if test is None else number[n:]


def data_root(root: Path | str | None = None) -> Path:
    """Where datasets are: `root`, else `$FEDCOHORT_DATA`, else `~/.cache/fedcohort/data`."""
    given = root or os.environ.get("FEDCOHORT_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "fedcohort" / "data"


def load(name: str, root: Path | str | None = None) -> Dataset:
    """A dataset by name: "digits" is embedded; the others, and NAME.npz of your own, are read from the data folder.

    >>> load("digits").shape
    (1, 8, 8)
    """
    if name == "digits":
        return _assemble(name, digits(), Path("scikit-learn"))
    folder = data_root(root)
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None
    found = find(name, folder) if plain else None
    if found is None:
        if name in KNOWN:
            raise missing(name, folder)
        raise UnknownName.among("dataset", name, ["digits", *KNOWN])
    try:
        return _assemble(name, found.read(), found.files[0])
    except DataError as error:
        if name not in KNOWN or error.remedy != AGAIN:
            raise
        raise DataError(error.value, error.rule, f"delete it and run: fedcohort data get {name}") from None


def check_file(name: str, path: Path) -> Dataset:
    """Read an .npz as the dataset of this name, whatever the file is called, with every check that `load` makes."""
    return _assemble(name, read_layouts(path, KNOWN.get(name)), path)


@dataclass(frozen=True)
class Status:
    """What is known of one dataset on this machine. `problem` is empty unless it was checked and is not right."""

    name: str
    title: str
    form: str  # "embedded", "npz", "idx" ...; empty when it is not there
    place: str
    nbytes: int = 0
    samples: str = ""
    problem: str = ""
    checksum: str = ""  # "right" where the official one is known and was compared

    @property
    def present(self) -> bool:
        """Its files are there (they may still be damaged: see `problem`)."""
        return bool(self.form)


def available(root: Path | str | None = None, *, verify: bool = False) -> list[Status]:
    """Every known dataset and every .npz of your own: where it is and how big; with `verify`, whether it is right.

    >>> [found.name for found in available("/no/such/folder") if found.present]
    ['digits']
    """
    folder = data_root(root)
    own = sorted(path.stem for path in folder.glob("*.npz") if path.stem not in KNOWN) if folder.is_dir() else []
    return [status(name, folder, verify=verify) for name in ("digits", *KNOWN, *own)]


def status(name: str, root: Path | str | None = None, *, verify: bool = False) -> Status:
    """One dataset: where it is, and with `verify` whether all of it can be read and is right."""
    folder = data_root(root)
    title = KNOWN[name].title if name in KNOWN else "yours"
    if name == "digits":
        out = Status(name, "Handwritten digits, 8 x 8", "embedded", "scikit-learn")
    else:
        found = find(name, folder)
        if found is None:
            return Status(name, title, "", str(folder))
        size = sum(path.stat().st_size for path in found.files if path.is_file())
        out = Status(name, title, found.form, str(found.files[0].parent), size)
        if verify and (problem := _checksum_problem(name, found)) is not None:
            out = replace(out, problem=problem, checksum="" if problem else "right")
    return _verified(out, folder) if verify and not out.problem else out


def _checksum_problem(name: str, found: FoundFiles) -> str | None:
    """None where nothing is published for these files; else what is wrong, or nothing."""
    from fedcohort.data.sources import SOURCES, sha256_of

    known = {remote.file: remote.sha256 for remote in SOURCES[name].files} if name in SOURCES else {}
    files = [path for path in found.files if path.name in known and path.is_file()]
    bad = [path.name for path in files if sha256_of(path) != known[path.name]]
    return None if not files else f"wrong checksum: {', '.join(bad)}" if bad else ""


def _verified(status: Status, folder: Path) -> Status:
    try:
        data = load(status.name, folder)
    except FedcohortError as error:
        return replace(status, problem=str(error))
    owners = f", {data.clients} owners" if data.client is not None else ""
    status = replace(status, samples=f"{len(data):,} + {len(data.y_test):,} of {data.shape}{owners}")
    known = KNOWN.get(status.name)
    if known is None or not known.content or known.rows != (len(data), len(data.y_test)):
        return status
    digest = hashlib.sha256()
    for part in (data.x, data.y, data.x_test, data.y_test):
        digest.update(np.ascontiguousarray(part.astype(np.uint8)).data)
    if digest.hexdigest() == known.content:
        return replace(status, checksum="right")
    return replace(status, problem="its samples or labels are not the official ones")


def _assemble(name: str, columns: Arrays, path: Path) -> Dataset:
    """Columns of a reader as a checked Dataset, with the normalisation that is usual for this set."""
    known = KNOWN.get(name)
    for side in ("x", "x_test"):
        if known and side in columns:
            columns[side] = known.arrange(columns[side])
    scale, shift = columns.pop("scale", None), columns.pop("shift", None)
    if scale is None and known:
        scale, shift = np.asarray(known.scale), np.asarray(known.shift)
    try:
        return Dataset.from_arrays(
            **columns,
            name=name,
            classes=known.classes if known else None,
            scale=None if scale is None else _plain(scale),
            shift=0.0 if shift is None else _plain(shift),
        )
    except DataError as error:
        raise refused(path, str(error).rstrip(".")) from None


def _plain(value: Array) -> Scale:
    return float(value) if value.ndim == 0 else value.astype(np.float32)
