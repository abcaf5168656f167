"""Where the real datasets are on this machine, for tests that want them and skip by name when they are absent.

Order: `$FEDCOHORT_DATA` where it holds any of them; else `../shared/data`, unpacked once into a cache of this
machine: into a private folder first, from which whole files are renamed, so that test processes may race for it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
CACHE = Path(tempfile.gettempdir()) / "fedcohort-data"
NAMES = ("cifar10", "mnist", "femnist", "har", "mobifall")


@cache
def root() -> Path | None:
    """The folder with the unpacked .npz files, or None when there are no real data here."""
    given = Path(os.environ.get("FEDCOHORT_DATA") or CACHE).expanduser()
    if given != CACHE and any((given / f"{name}.npz").is_file() for name in NAMES):
        return given
    if all((CACHE / f"{name}.npz").is_file() for name in NAMES):
        return CACHE
    return _unpack() if (SHARED / "unpack.py").is_file() else None


def need(name: str) -> Path:
    """The data folder, or skip the calling test by name where this dataset is not in it."""
    folder = root()
    if folder is None or not (folder / f"{name}.npz").is_file():
        pytest.skip(f"real dataset {name} is not on this machine (set FEDCOHORT_DATA)")
    return folder


def _unpack() -> Path | None:
    private = Path(tempfile.mkdtemp(prefix="fedcohort-data-", dir=CACHE.parent))
    try:
        done = subprocess.run([sys.executable, SHARED / "unpack.py", private], capture_output=True, check=False)
        if done.returncode != 0:
            return None
        CACHE.mkdir(exist_ok=True)
        for path in private.glob("*.npz"):
            os.replace(path, CACHE / path.name)
        return CACHE
    finally:
        shutil.rmtree(private, ignore_errors=True)
