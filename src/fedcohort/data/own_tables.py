"""Tables of your own as the arrays of a dataset: CSV and parquet files and data frames, one row per sample.

One column holds the labels, one may hold the owners, and every other one is a feature and must hold numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.data.array_checks import plain_array, rule
from fedcohort.data.formats import damaged, reading
from fedcohort.errors import DataError, MissingExtra, UnknownName
from fedcohort.types import Array

TARGETS = ("target", "label", "class", "y")  # the usual names, in any case
CLIENTS = ("client", "owner", "client_id")
MANY = 100  # labels; where there are more, and most occur once, the column is a number to be predicted
Columns = dict[str, Array]
Chosen = str | Sequence[str] | None  # columns by name; None leaves it open
_NOT_TEXT = {  # how files begin that are taken for CSV: what they are, and what to do
    b"PK\x03\x04": ("a zip file (.npz, or a spreadsheet)", "name it as npz:{}, or save the sheet as CSV"),
    b"PAR1": ("a parquet file", "name it as parquet:{}"),
    b"\x1f\x8b": ("a gzip file", "unpack it first, with gunzip"),
}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with the columns of a file is said with its name before it."""
    try:
        yield
    except DataError as error:
        if error.value.startswith(str(path)):
            raise
        raise DataError(f"{path}, {error.value}", error.rule, error.remedy) from None


def table_arrays(
    frame: Any,
    target: str = "",
    client: str = "",
    *,
    drop: str | Sequence[str] = (),
    features: Chosen = None,
    standardise: bool = True,
) -> dict[str, Any]:
    """What `Dataset.from_arrays` needs of a table; see `Dataset.from_pandas` for the arguments."""
    columns = _columns(frame)
    target = named_column("target", target, columns, TARGETS) or _no_target(columns)
    drop = (drop,) if isinstance(drop, str) else tuple(drop)
    for column in drop:
        if column not in columns:
            raise UnknownName.among("column", column, columns)
    left = {c: v for c, v in columns.items() if c not in drop}
    client = named_column("client", client, {c: v for c, v in left.items() if c != target}, CLIENTS)
    roles = {**dict.fromkeys(drop, "among those to drop"), client: "the client", target: "the target"}
    used = chosen_features(features, columns, roles) or tuple(c for c in left if c not in roles)
    rule(bool(used), "the table", "no column is left as a feature", "give more columns")
    x = np.stack([_feature(c, columns[c]) for c in used], axis=1)
    y = _ids("target", target, columns[target])
    _check_classes(target, y)
    scale, shift = _standard(x) if standardise else (1.0, 0.0)
    owner = _ids("client", client, columns[client]) if client else None
    return {"x": x.astype(np.float32), "y": y, "client": owner, "scale": scale, "shift": shift}


def read_csv(path: Path) -> Columns:
    """The columns of a CSV file with a header line: separated by commas, semicolons or tabs."""
    rows = [row for row in _csv_rows(path) if row]
    rule(len(rows) > 1, str(path), "it has no rows below its header line", "give one row per sample")
    header, body = [c.strip() for c in rows[0]], rows[1:]
    twice = [c for c in header if header.count(c) > 1]
    rule(not twice, f"{path}, column {''.join(twice[:1])!r}", "the header has it twice", "rename one")
    number = all(_is_number(c) for c in header)
    rule(not number, str(path), "its first line holds numbers, not the names of columns", "add a header line")
    for at, row in enumerate(body):
        value = f"{path}, line {at + 2} with {len(row)} cells"
        rule(len(row) == len(header), value, f"the header has {len(header)}", "repair the line")
    return {c: _typed(np.array([row[at].strip() for row in body])) for at, c in enumerate(header)}


def _csv_rows(path: Path) -> list[list[str]]:
    with reading(path):
        data = path.read_bytes()
    for start, (what, remedy) in _NOT_TEXT.items():
        rule(not data.startswith(start), str(path), f"this is {what}, not a table of text", remedy.format(path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        said = f"line {line} holds a letter that is not UTF-8"
        raise DataError(str(path), said, "save it as CSV in UTF-8 (in a spreadsheet: CSV UTF-8)") from None
    try:
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise DataError(str(path), f"this is not CSV ({error})", "save it as CSV again") from None


def read_parquet(path: Path) -> Columns:
    """The columns of a parquet file."""
    with reading(path), path.open("rb") as file:
        rule(file.read(4) == b"PAR1", str(path), "this is not a parquet file", "name a .parquet file")
    try:
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return _columns(_pandas(path))
    try:
        table = parquet.read_table(path)
        return {c: table.column(c).to_numpy() for c in table.column_names}
    except Exception as error:  # a damaged file makes pyarrow raise errors of every kind
        raise damaged(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def _pandas(path: Path) -> Any:
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]

        return pandas.read_parquet(path)
    except ImportError:
        raise MissingExtra.of(f"the parquet file {path}", "parquet") from None


def _columns(frame: Any) -> Columns:
    """Any frame or mapping as columns by name."""
    if not isinstance(frame, Mapping) and not hasattr(frame, "columns"):
        kind = type(frame).__name__
        raise DataError(f"a {kind}", "this is not a data frame", "give a frame, or a dict of columns")
    names = list(frame) if isinstance(frame, Mapping) else list(frame.columns)
    return {str(c): np.asarray(frame[c]) for c in names}


def named_column(what: str, given: str, columns: Collection[str], usual: tuple[str, ...]) -> str:
    """The column of this name; without one, the only column with a usual name, if there is one."""
    if given:
        alike = [c for c in columns if c.lower() == given.lower()]
        if given not in columns and len(alike) != 1:
            near = UnknownName.among("column", given, columns)
            raise DataError(f"{what}={given!r}", "there is no such column", near.remedy)
        return given if given in columns else alike[0]
    found = [c for c in columns if c.lower() in usual]
    several = f"columns {', '.join(found)}"
    rule(len(found) < 2, several, f"each of them could be the {what}", f"say which: {what}={(found or [''])[0]!r}")
    return found[0] if found else ""


def chosen_features(given: Chosen, columns: Collection[str], roles: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that are named as features (none: that is left open); one with another role is refused."""
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given)
    rule(bool(names), f"features={given!r}", "no column is left as a feature", "name some, or leave features out")
    for name in names:
        if name not in columns:
            raise UnknownName.among("column", name, columns)
        said = f"it is {roles.get(name)}, and a feature is what the model may see"
        rule(name not in roles, f"column {name!r} in features", said, "leave it out of features")
    return names


def _no_target(columns: Mapping[str, Any]) -> str:
    names = ", ".join(columns)
    raise DataError(f"columns {names}"[:300], "none of them is named as the labels", "give target='COLUMN'")


def _feature(name: str, column: Array) -> NDArray[np.float64]:
    _check_missing(name, column, f"leave out these rows, or the column with drop=[{name!r}]")
    if column.dtype.kind not in "biuf":
        raise _not_numbers(name, [str(v) for v in column.tolist()])
    finite = bool(np.isfinite(column).all())
    rule(finite, f"column {name!r}", "it holds an infinite number", "replace it, or leave the row out")
    return column.astype(np.float64)


def _not_numbers(name: str, cells: Sequence[str]) -> DataError:
    """What a column holds besides numbers: the first of a few cells with its row, else what there is."""
    odd = [at for at, cell in enumerate(cells) if not _is_number(cell)]
    words = [at for at in odd if not _is_number(cells[at].replace(",", ".", 1))]
    point = "write decimals with a point" if odd and not words else ""
    odd = words or odd
    if odd and 2 * len(odd) <= len(cells):
        first = f"the first is {cells[odd[0]][:20]!r} in row {odd[0] + 1}"
        remedy = point or f"put numbers there, leave out these rows, or the column with drop=[{name!r}]"
        return DataError(f"column {name!r}", f"{len(odd)} cells are not numbers, and {first}", remedy)
    kinds = list(dict.fromkeys(cell[:20] for cell in cells[:50]))
    some = ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "")
    encode = f"encode it as numbers, leave it out with drop=[{name!r}], or say client={name!r} if it names owners"
    return DataError(f"column {name!r}", f"a feature is a number, and this holds {some}", point or encode)


def _ids(role: str, name: str, column: Array) -> Array:
    """Labels or owners: whole numbers or words."""
    _check_missing(name, column, f"leave out these rows, or name another column as {role}")
    if column.dtype.kind == "f" and bool(((column == np.rint(column)) & (np.abs(column) < 1 << 53)).all()):
        return column.astype(np.int64)
    if column.dtype.kind not in "iuf":
        column = np.array([str(v) for v in column.tolist()])
    return plain_array(name, column)


def _check_missing(name: str, column: Array, otherwise: str) -> None:
    gone = np.array([v is None or v == "" or v != v for v in column.tolist()])
    if gone.any():
        said = f"{int(gone.sum())} cells are empty, the first in row {int(np.argmax(gone)) + 1}"
        raise DataError(f"column {name!r}", said, f"fill them in, {otherwise}")


def _check_classes(name: str, y: Array) -> None:
    many = np.unique(y).size
    rule(
        many <= MANY or many <= y.size // 2,
        f"column {name!r} as target",
        f"it has {many:,} different values in {y.size:,} rows: these are not classes",
        "cut it into classes, or choose another column",
    )


def _standard(x: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mean, spread = x.mean(axis=0), x.std(axis=0)
    spread[spread == 0] = 1.0
    return (1 / spread).astype(np.float32), (-mean / spread).astype(np.float32)


def _typed(cells: NDArray[np.str_]) -> Array:
    """Numbers where every cell is one and would be written like that again ("007" is a name)."""
    try:
        numbers = cells.astype(np.float64)
    except ValueError:
        return _with_gaps(cells)
    padded = any(len(c.lstrip("+-")) > 1 and c.lstrip("+-").startswith("0") and "." not in c for c in cells.tolist())
    if padded:
        return cells
    small = np.isfinite(numbers).all() and bool((np.abs(numbers) < 1 << 53).all())
    whole = small and not any(set(c) & set(".eE") for c in cells.tolist())
    return numbers.astype(np.int64) if whole else numbers


def _with_gaps(cells: NDArray[np.str_]) -> Array:
    """Texts; or numbers with NaN where a cell is empty, so that the gap is what is complained of."""
    empty = np.isin(np.char.lower(cells), ("", "na", "nan", "null", "none"))
    if not empty.any() or empty.all():
        return cells
    try:
        return np.where(empty, "nan", cells).astype(np.float64)
    except ValueError:
        return np.where(empty, "", cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
