"""Datasets as arrays: the embedded digits, the files under `$FEDCOHORT_DATA`, and arrays of your own.

Samples stay as stored (bytes, 16-bit integers or float32); `features` gives the normalised float32 rows that a model
reads: value = x * scale + shift. Images are channels first, (n, c, h, w); windows of a sensor are (n, time, channel).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.constraints import Interval
from fedcohort.data import own_collections, own_tables
from fedcohort.data.array_checks import (
    Names,
    Scale,
    check_normalisable,
    class_numbers,
    owner_numbers,
    plain_array,
    renamed,
    rule,
    same_length,
    samples_of,
    whole_numbers,
)
from fedcohort.data.formats import AGAIN, OFFICIAL, OWN, refused, unfit
from fedcohort.data.known import KNOWN, FoundFiles, digits, find, missing, read_layouts
from fedcohort.errors import DataError, FedcohortError, UnknownName, checked
from fedcohort.types import Array, Arrays, Index

TestShare = Annotated[float, Interval(0, 1, ends="()", example=0.2)]


@dataclass(frozen=True, repr=False)
class Dataset:
    """Labelled samples, their test set, and who naturally owns each sample where the data say so.

    Make it from your own data with :meth:`from_arrays`, :meth:`from_csv`, :meth:`from_pandas`, :meth:`from_torch`,
    :meth:`from_huggingface` or :meth:`from_flwr_partitioner`, or by name with :func:`load`.

    >>> data = Dataset.from_arrays(np.zeros((4, 2)), y=["no", "yes", "no", "yes"], client=["ann", "bob", "bob", "eve"])
    >>> data
    Dataset 'mine': 4 samples of (2,), no test set; 2 classes: no, yes; 3 clients: ann, bob, eve
    >>> data.y.tolist(), data.client.tolist()
    ([0, 1, 0, 1], [0, 1, 1, 2])
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
    class_names: Names = ()  # the label that each class number stands for
    client_names: Names = ()  # the owner that each client number stands for

    def __repr__(self) -> str:
        test = f"{len(self.y_test):,} to test" if len(self.y_test) else "no test set"
        parts = [f"{len(self):,} samples of {self.shape}, {test}"]
        parts.append(f"{self.classes} classes: {_listed(self.class_names or range(self.classes))}")
        if self.clients:
            names = self.client_names[: self.clients] or range(self.clients)
            parts.append(f"{self.clients:,} clients: {_listed(names)}")
        return f"Dataset {self.name!r}: {'; '.join(parts)}"

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
        class_names: Sequence[str] | None = None,
        scale: Scale | None = None,
        shift: Scale = 0.0,
    ) -> Dataset:
        """Your own arrays, checked.

        A four-axis x is taken as images, (n, c, h, w) or (n, h, w, c) with 1, 3 or 4 channels; three axes are windows,
        (n, time, channel); two are flat. `y` may hold any integers or strings: the labels that occur are numbered
        0 .. C - 1 in sorted order, and `class_names` keeps them (with `classes` given they are such numbers already).
        Where labels are numbers, `class_names` may give them better names: that of label k is class_names[k].
        So are the owners in `client`, kept in `client_names`: those of training samples first, in sorted order.
        `scale` defaults to 1/255 for images of bytes and to 1 for everything else.
        """
        x, y = samples_of("x", x), plain_array("y", y)
        same_length("x", x, "y", y)
        rule(len(x) > 0, f"x of shape {x.shape}", "a dataset has at least one sample", "give some samples")
        paired = (x_test is None) == (y_test is None)
        rule(paired, "x_test and y_test", "both or neither must be given", "give the missing one")
        xt = x[:0] if x_test is None else samples_of("x_test", x_test)
        yt = y[:0] if y_test is None else plain_array("y_test", y_test)
        same_length("x_test", xt, "y_test", yt)
        same = xt.shape[1:] == x.shape[1:]
        rule(same, f"x_test with samples of shape {xt.shape[1:]}", f"x has {x.shape[1:]}", "give both the same shape")
        whole = classes is None or (isinstance(classes, (int, np.integer)) and not isinstance(classes, bool))
        remedy = "leave it out, or say how many classes there are"
        rule(whole, f"classes = {classes!r}", "it must be a whole number", remedy)
        label = class_numbers(y, yt, None if classes is None else int(classes))
        if scale is None:
            scale = 1.0 / 255.0 if x.ndim == 4 and x.dtype == np.uint8 else 1.0
        check_normalisable(x, scale, shift)
        owner = owner_numbers(client, client_test, len(x), len(xt))
        finer = None if activity is None else whole_numbers("activity", activity)
        if finer is not None:
            same_length("x", x, "activity", finer)
        test = owner.test if owner is not None and client_test is not None else None
        train, known = (None, ()) if owner is None else (owner.train, owner.names)
        names = renamed(label.names, class_names)
        return cls(name, x, label.train, xt, label.test, len(names), train, test, scale, shift, finer, names, known)

    @classmethod
    def from_csv(
        cls, path: str | Path, target: str = "", client: str = "", *, name: str | None = None, **more: Any
    ) -> Dataset:
        """A CSV file with a header line: `target` is the column of the labels, `client` that of the owners.

        Left out, they are columns of the usual names (target, label, class or y; client or owner). `more` goes to
        :meth:`from_pandas`, which says what becomes of the other columns. pandas is not needed.
        """
        file = Path(path).expanduser()
        with own_tables.naming(file):
            return cls.from_pandas(own_tables.read_csv(file), target, client, name=name or file.stem, **more)

    @classmethod
    def from_parquet(
        cls, path: str | Path, target: str = "", client: str = "", *, name: str | None = None, **more: Any
    ) -> Dataset:
        """As :meth:`from_csv`, for a parquet file; pyarrow or pandas reads it."""
        file = Path(path).expanduser()
        with own_tables.naming(file):
            return cls.from_pandas(own_tables.read_parquet(file), target, client, name=name or file.stem, **more)

    @classmethod
    def from_pandas(cls, frame: Any, target: str = "", client: str = "", *, name: str = "mine", **more: Any) -> Dataset:
        """A data frame, or any mapping of column names to columns; `target` and `client` as in :meth:`from_csv`.

        All other columns are features and must hold numbers: `drop` names those to leave out, `features` those to
        use. `standardise` (on) gives every feature mean 0 and deviation 1; `name` is the dataset's name.

        >>> Dataset.from_pandas({"age": [31, 58], "ill": ["no", "yes"], "site": ["a", "b"]}, "ill", "site").client_names
        ('a', 'b')
        """
        return cls.from_arrays(**own_tables.table_arrays(frame, target, client, **more), name=name)

    @classmethod
    def from_torch(cls, samples: Any, client: ArrayLike | None = None, *, test: Any = None, **more: Any) -> Dataset:
        """A torch dataset (anything with a length whose items are (x, y) pairs); `client` holds one owner per sample.

        `test` is another such dataset, if there is one; `more` goes to :meth:`from_arrays`.
        """
        return cls.from_arrays(**own_collections.torch_arrays(samples, test), client=client, **more)

    @classmethod
    def from_huggingface(
        cls, samples: Any, target: str = "", client: str = "", *, features: own_tables.Chosen = None, **more: Any
    ) -> Dataset:
        """A `datasets.Dataset`, or a `DatasetDict` with train and test; `target` and `client` name columns.

        `features` names the columns of a sample (default: the one that holds images or lists, else all numbers); `more`
        goes to :meth:`from_arrays`.
        """
        return cls.from_arrays(**own_collections.huggingface_arrays(samples, target, client, features), **more)

    @classmethod
    def from_flwr_partitioner(
        cls, partitioner: Any, target: str = "", *, features: own_tables.Chosen = None, **more: Any
    ) -> Dataset:
        """A partitioner of flwr-datasets with its dataset assigned: every partition becomes a client of that number.

        `target`, `features` and `more` are those of :meth:`from_huggingface`.
        """
        return cls.from_arrays(**own_collections.partition_arrays(partitioner, target, features), **more)

    @checked
    def held_out(self, share: TestShare, rng: np.random.Generator, by_client: bool = False) -> Dataset:
        """The same samples with a test set cut away at random: this share of the samples, or of whole clients.

        By client (volunteers, writers) nobody is on both sides: use it where windows overlap. Owners that stay are
        numbered anew, in order, and those of the test set after them. At least one goes and at least one stays.
        """
        rule(not len(self.y_test), f"dataset {self.name!r}", "it already has a test set", "use y_test as it is")
        what = "clients" if by_client else "samples"
        count = self.clients if by_client else len(self)
        rule(
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
            order = np.argsort(chosen, kind="stable")  # those who stay come first
            number = np.argsort(order, kind="stable")
            parts |= {side: number[parts[side]] for side in ("client", "client_test")}
            parts["client_names"] = tuple(self.client_names[i] for i in order) if self.client_names else ()
        return replace(self, **parts)


def _listed(names: Sequence[Any], most: int = 6) -> str:
    more = f", ... {names[-1]}" if len(names) > most else ""
    return ", ".join(map(str, names[: most - 1] if more else names)) + more


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
        return _assemble(name, digits(), Path("fedcohort"))
    found = locate(name, root)
    try:
        return _assemble(name, found.read(), found.files[0])
    except DataError as error:
        if name not in KNOWN or error.remedy != AGAIN:
            raise
        raise DataError(error.value, error.rule, f"delete it and run: fedcohort data get {name}") from None


def locate(name: str, root: Path | str | None = None) -> Any:
    """Where a dataset is and how it is read; one that is not there is answered with how to get it."""
    folder = data_root(root)
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None
    found = find(name, folder) if plain else None
    if found is None:
        if name in KNOWN:
            raise missing(name, folder)
        raise UnknownName.among("dataset", name, ["digits", *KNOWN])
    return found


def check_file(name: str, path: Path) -> Dataset:
    """Read an .npz as the dataset of this name, whatever the file is called, with every check that `load` makes."""
    if name in KNOWN:
        return _assemble(name, read_layouts(path, KNOWN[name]), path)
    try:
        return _assemble(name, read_layouts(path, None), path)
    except DataError as error:
        if error.remedy != OFFICIAL:
            raise
        better = "give one class per sample: y.argmax(axis=1) of one-hot labels" if "'y" in error.rule else OWN
        raise DataError(error.value, error.rule, better) from None


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
        out = Status(name, "Handwritten digits, 8 x 8", "embedded", "fedcohort")
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
    arrays: dict[str, Any] = dict(columns)
    try:
        return Dataset.from_arrays(
            **arrays,
            name=name,
            classes=known.classes if known else None,
            scale=None if scale is None else _plain(scale),
            shift=0.0 if shift is None else _plain(shift),
        )
    except DataError as error:
        say = refused if known else unfit
        raise say(path, str(error).rstrip(".")) from None


def _plain(value: Array) -> Scale:
    return float(value) if value.ndim == 0 else value.astype(np.float32)
