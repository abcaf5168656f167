"""The runs of a sweep on a Ray cluster: one task of one CPU and one thread per run.

Where a cluster's machines see the same folder as the driver, a run is written there as it proceeds, and a run whose
worker is killed resumes from its last snapshot. Where they do not, a run is done in a temporary folder and its files
are sent back when it is finished. Machines need fedcohort installed, in the same version.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedcohort.engines.ray_cluster import connected, ray_package
from fedcohort.errors import ConfigError
from fedcohort.experiment.runner import ATTEMPTS, ONE_THREAD, Event, Job, OnEvent
from fedcohort.experiment.store import put_aside
from fedcohort.experiment.sweep_worker import perform
from fedcohort.storage.disk import DISK
from fedcohort.storage.run_folder import LOCAL
from fedcohort.storage.snapshots import write_durably

Files = dict[str, bytes]


def run_ray(jobs: Sequence[Job], on_event: OnEvent, address: str | None = None) -> None:
    """Do all jobs on the cluster at this address (None: the one in RAY_ADDRESS, or a local one made for this)."""
    ray = ray_package()
    with connected(ray, address), _token(Path(jobs[0].folder).parent) as token:
        remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1, runtime_env={"env_vars": ONE_THREAD})(carry_out)
        here = {"cwd": os.getcwd(), "path": own_path()}
        waiting = {remote.remote(json.dumps({"config": j.config, "folder": j.folder, **here}), *token): j for j in jobs}
        try:
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
                for reference in ready:
                    on_event(_collect(ray, reference, waiting.pop(reference)))
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)


def carry_out(job: str, place: str, token: str) -> tuple[dict[str, Any], Files]:
    """On a machine of the cluster: do the job in the store if it can be seen from here, else send the files."""
    todo = json.loads(job)
    _go_to(str(todo.pop("cwd", "")), todo.pop("path", []))
    if _read(Path(place)) == token.encode():
        return perform(todo), {}
    with tempfile.TemporaryDirectory(prefix="fedcohort-") as scratch:
        folder = Path(scratch) / Path(todo["folder"]).name
        result = perform({**todo, "folder": str(folder)})
        return result, pack_folder(folder) if result["event"] == "done" else {}


def own_path() -> list[str]:
    """Where Python looks for modules of your own: what is on the path and not installed."""
    installed = {Path(sys.prefix), Path(sys.base_prefix)}
    return [p for p in sys.path if p and not any(root in Path(p).absolute().parents for root in installed)]


def _go_to(cwd: str, path: list[str]) -> None:
    """Files and modules of your own are found as at the driver, where this machine has the same folders."""
    if cwd and Path(cwd).is_dir():
        os.chdir(cwd)
    sys.path.extend(p for p in [cwd, *path] if p not in sys.path and Path(p).is_dir())


def pack_folder(folder: Path) -> Files:
    """The files of a finished run by their path in its folder."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in LOCAL)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def unpack_folder(files: Files, folder: Path) -> None:
    """Write a run that was done elsewhere, complete or not at all. An unfinished one in its place is put aside."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        put_aside(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".coming-") as scratch:
        whole = Path(scratch) / folder.name
        for name, data in files.items():
            target = whole / name
            if not target.resolve().is_relative_to(whole.resolve()):
                raise ConfigError(f"file {name!r}", "it is outside the run's folder", "do not trust this cluster")
            target.parent.mkdir(parents=True, exist_ok=True)
            write_durably(target, data)
        whole.rename(folder)
    DISK.sync_folder(folder.parent)


def _collect(ray: Any, reference: Any, job: Job) -> Event:
    try:
        result, files = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Event(job, "failed", text=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    if files:
        unpack_folder(files, Path(job.folder))
    text = result.get("error") or result.get("how", "")
    return Event(job, result["event"], job.rounds, text, tuple(result.get("notes", ())))


@contextlib.contextmanager
def _token(root: Path) -> Iterator[tuple[str, str]]:
    """A file with a secret in the store: a machine that can read it sees the same folder."""
    root.mkdir(parents=True, exist_ok=True)
    text = secrets.token_hex(16)
    path = root / f".shared-{text[:8]}"
    path.write_bytes(text.encode())
    try:
        yield str(path.absolute()), text
    finally:
        path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
