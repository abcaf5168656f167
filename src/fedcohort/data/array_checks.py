"""Arrays from outside as samples, labels and owners: checked, and numbered where they are names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import DataError
from fedcohort.types import Array, Index

_IMAGE_CHANNELS = (1, 3, 4)
MOST_CLASSES = 1 << 20
Scale = float | NDArray[np.float32]  # one number, or one per channel of a window (last axis)
Names = tuple[int | str, ...]


def rule(ok: bool, value: str, said: str, remedy: str) -> None:
    """Raise DataError unless `ok`."""
    if not ok:
        raise DataError(value, said, remedy)


def plain_array(name: str, given: ArrayLike) -> Array:
    """An array of numbers or texts; ragged ones and arrays of objects are refused."""
    try:
        out = np.asarray(given)
    except ValueError:
        raise DataError(name, "its rows differ in shape", "give a rectangular array") from None
    if out.dtype == object and out.size and all(isinstance(v, str) for v in out.flat):
        out = out.astype(str)  # how pandas holds texts
    rule(not out.dtype.hasobject, f"{name} of dtype object", "object arrays are refused", "give plain numbers")
    return out


def samples_of(name: str, given: ArrayLike) -> Array:
    """Samples: finite numbers with 2 to 4 axes; images channels first."""
    x = plain_array(name, given)
    rule(x.dtype.kind in "biuf", f"{name} of dtype {x.dtype}", "samples are plain numbers", "convert it to float32")
    rule(2 <= x.ndim <= 4, f"{name} of shape {x.shape}", "samples have 2, 3 or 4 axes", "give (n, features) or images")
    rule(0 not in x.shape[1:], f"{name} of shape {x.shape}", "a sample has at least one value", "drop the empty axis")
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


@dataclass(frozen=True, slots=True)
class Numbered:
    """Training and test values as numbers 0 .. C - 1, and what each number stands for."""

    train: Index
    test: Index
    names: Names


def class_numbers(y: ArrayLike, y_test: ArrayLike, classes: int | None = None) -> Numbered:
    """Labels as class numbers. With `classes` given they must be such numbers already; else they are sorted and mapped.

    >>> class_numbers([3, 7, 3], []).names, class_numbers(["no", "yes"], ["no"]).test.tolist()
    ((3, 7), [0])
    """
    both = [_labels(name, side) for name, side in (("y", y), ("y_test", y_test))]
    known = [side for side in both if side.size]
    rule(len({side.dtype.kind in "iu" for side in known}) < 2, "y and y_test", *_ONE_KIND)
    whole = np.concatenate(known) if known else np.zeros(0, np.int64)
    if classes is not None:
        rule(whole.dtype.kind in "iu", f"y of dtype {whole.dtype}", *_NUMBERS)
        low, high = int(whole.min(initial=0)), int(whole.max(initial=-1))
        rule(low >= 0, f"label {low}", "labels are 0 or more where classes is given", "leave classes out")
        rule(classes > high, f"classes = {classes}", f"the labels reach {high}", "raise classes")
        return Numbered(both[0].astype(np.int64), both[1].astype(np.int64), tuple(range(classes)))
    names, place = np.unique(whole, return_inverse=True)
    rule(names.size < MOST_CLASSES, f"{names.size} different labels", f"there are at most {MOST_CLASSES}", "check y")
    place = place.reshape(-1).astype(np.int64)
    return Numbered(place[: both[0].size], place[both[0].size :], _names(names))


def renamed(names: Names, better: Sequence[str] | None) -> Names:
    """Better names for labels that are numbers: that of label k is better[k]."""
    if better is None:
        return names
    fits = all(isinstance(n, int) and 0 <= n < len(better) for n in names)
    value = f"class_names with {len(better)} names"
    rule(fits, value, f"the labels are {', '.join(map(str, names[:5]))} ...", "give one name for each label from 0")
    return tuple(str(better[int(n)]) for n in names)


def whole_numbers(name: str, given: ArrayLike) -> Index:
    """One number from 0 per sample, as it is."""
    y = _labels(name, given)
    fine = y.dtype.kind == "i" and int(y.min(initial=0)) >= 0 and int(y.max(initial=0)) < MOST_CLASSES
    rule(fine, f"{name} of dtype {y.dtype}", f"it holds whole numbers from 0 to {MOST_CLASSES - 1}", "number it from 0")
    return y


_ONE_KIND = ("one holds numbers and the other words", "give both the same kind of labels")
_NUMBERS = ("labels are integers where classes is given", "leave classes out to have words mapped")


def _labels(name: str, given: ArrayLike) -> Array:
    """One label per sample: whole numbers or words."""
    y = plain_array(name, given)
    rule(y.ndim == 1, f"{name} of shape {y.shape}", "labels have one axis", "give one class per sample")
    if not y.size:
        return np.zeros(0, np.int64)
    if y.dtype.kind == "f":
        odd = np.flatnonzero(~np.isfinite(y))
        value = f"{name}[{odd[0]}] = {y[odd[0]]}" if odd.size else ""
        rule(not odd.size, value, f"{odd.size} labels are NaN or infinite", "give these samples a label, or drop them")
        y = y.astype(np.int64) if bool((y == np.rint(y)).all()) else y  # 1.0 for 1, as files and frames have them
    remedy = "cut the numbers into classes, or give the pair (x, y) to TorchTask, which takes real numbers"
    rule(y.dtype.kind in "biuU", f"{name} of dtype {y.dtype}", "labels are whole numbers or words", remedy)
    return y.astype(np.int64) if y.dtype.kind in "biu" else y


def owner_numbers(client: ArrayLike | None, test: ArrayLike | None, n: int, n_test: int) -> Numbered | None:
    """Owners as numbers: those who own training samples first, each group in sorted order."""
    if client is None:
        rule(test is None, "client_test without client", "owners are given for both or not at all", "give client too")
        return None
    both = [plain_array("client", client)] + ([] if test is None else [plain_array("client_test", test)])
    for name, column, rows in zip(("client", "client_test"), both, (n, n_test), strict=False):
        rule(
            column.shape == (rows,), f"{name} of shape {column.shape}", f"{rows} samples need one owner each", "fix it"
        )
        ok = column.dtype.kind in "iuU" or not rows
        rule(ok, f"{name} of dtype {column.dtype}", "owners are integers or strings", "convert it")
    names, place = np.unique(np.concatenate(both), return_inverse=True)
    only_test = np.ones(len(names), np.bool_)
    only_test[place[:n]] = False  # those who own training samples come first, so that these are numbered densely
    order = np.argsort(only_test, kind="stable")
    number = np.argsort(order, kind="stable")[place]
    return Numbered(number[:n], number[n:], _names(names[order]))


def _names(found: Array) -> Names:
    return tuple(found.tolist())


def same_length(a: str, first: Array, b: str, second: Array) -> None:
    """Both have one row per sample."""
    value = f"{a} with {len(first)} rows and {b} with {len(second)}"
    rule(len(first) == len(second), value, "they must have one row per sample", "give both the same length")


def check_normalisable(x: Array, scale: Scale, shift: Scale) -> None:
    """Scale and shift are finite numbers that fit the last axes of a sample."""
    for name, value in (("scale", scale), ("shift", shift)):
        plain = np.asarray(value).dtype.kind in "iuf"
        rule(plain, f"{name} = {value!r}"[:80], "it must be a number, or numbers", "give one number")
        shape = np.shape(value)
        fits = len(shape) < x.ndim and all(a in (1, b) for a, b in zip(shape[::-1], x.shape[::-1], strict=False))
        rule(fits, f"{name} of shape {shape}", f"it must fit samples of shape {x.shape[1:]}", "give one number")
        rule(bool(np.isfinite(value).all()), name, "it holds NaN or infinity", "give finite numbers")
