"""Crashes, power cuts, flipped bits, truncations, full disks, second servers: what is left, and whether a run goes on.

The run: a simulated federation (quadratic task, Oort, five rounds) with a journal and a snapshot after every round.
"Bit-identical" compares every hash of the journal (hence every cohort, report and metric) and the final model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from recorder import RecordingDisk, image_after_crash, image_after_power_cut, lay_out

from fedcohort.errors import FedcohortError, JournalDamaged, RunLocked, StoreError
from fedcohort.experiment import RunConfig, build
from fedcohort.registry.lookup import make_method, make_selector
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.disk import DISK, Disk
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots

FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None  # images are laid out here: no real disk is needed
KILLED = ["--selector", "oort", "--task", "quadratic", "--rounds", "60", "--cohort-size", "6", "--seed", "4"]
KILLED += ["--set", "engine=numpy"]


@functools.cache
def _objects(seed: int):
    config = RunConfig(selector="oort", task="quadratic", rounds=5, cohort_size=4, seed=seed, engine="numpy")
    return config, build(config)


@contextlib.contextmanager
def scratch():
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=FAST))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def simulate(folder: Path, seed: int, disk: Disk = DISK) -> tuple[str, str]:
    """Start the run, or go on with it; fingerprints of the journal and of the final model."""
    config, objects = _objects(seed)
    path = folder / "journal.db"
    journal = Journal.open(path, disk) if path.exists() else Journal.create(path, {"config": config.to_dict()}, disk)
    if isinstance(disk, RecordingDisk):
        append = journal.append

        def acknowledged(kind, index, arrays, meta=None):
            append(kind, index, arrays, meta)
            disk.ack(str(journal.length))

        journal.append = acknowledged
    try:
        simulation = Simulation(
            make_selector(config.selector),
            make_method(config.method),
            objects.world,
            objects.task,
            config,
            journal=journal,
            snapshots=Snapshots(folder / "snapshots", disk),
        )
        simulation.resume()
        simulation.run()
        model = hashlib.sha256(simulation.model.params.tobytes()).hexdigest()
        return journal.head.hex(), model
    finally:
        journal.close()


def recorded(seed: int, *, normal: bool = False):
    """The log of one run and its fingerprints."""
    with scratch() as folder:
        disk = RecordingDisk(folder, normal=normal)
        return disk.log, simulate(folder, seed, disk)


def crash_points(many: int, seed: int) -> dict:
    """A crash behind every line of the log, and in the middle of writes, until `many` points were tried."""
    rng, tried, same, lost, lines = np.random.default_rng(seed), 0, 0, 0, 0
    run = 0
    while tried < many:
        log, whole = recorded(seed + run)
        lines += len(log)
        points = [(at, None) for at in range(len(log) + 1)]
        points += [(at, int(rng.integers(1, max(len(line.data), 2)))) for at, line in enumerate(log) if line.data]
        if many - tried < len(points):
            points = [points[i] for i in rng.choice(len(points), many - tried, replace=False)]
        for at, torn in points:
            with scratch() as folder:
                lay_out(image_after_crash(log, at, torn), folder)
                lost += acknowledged(log, at) > length(folder)
                same += simulate(folder, seed + run) == whole
            tried += 1
        run += 1
    return {"tried": tried, "identical": same, "lost": lost, "runs": run, "lines": lines}


def power_cuts(many: int, seed: int, *, normal: bool = False) -> dict:
    """Power cuts at random lines; how many lost an acknowledged record, and how many could not go on."""
    rng, lost, stuck, same = np.random.default_rng(seed), 0, 0, 0
    log, whole = recorded(seed, normal=normal)
    for _ in range(many):
        at = int(rng.integers(1, len(log) + 1))
        with scratch() as folder:
            lay_out(image_after_power_cut(log, at, rng), folder)
            try:
                lost += acknowledged(log, at) > length(folder)
                same += simulate(folder, seed) == whole
            except FedcohortError:
                stuck += 1
    return {"tried": many, "lost": lost, "identical": same, "refused": stuck}


def acknowledged(log, at: int) -> int:
    return max((int(line.name) for line in log[:at] if line.what == "ack"), default=0)


def length(folder: Path) -> int:
    """Records that can be read; 0 without a journal."""
    if not (folder / "journal.db").exists():
        return 0
    journal = Journal.read(folder / "journal.db")
    try:
        return journal.length
    finally:
        journal.close()


def flips(many: int, seed: int) -> dict:
    """One flipped bit in the journal of a closed run, or in its newest snapshot: noticed?"""
    rng, noticed, harmless, missed = random.Random(seed), 0, 0, 0
    snapshots = healed = 0
    with scratch() as folder:
        whole = simulate(folder, seed)
        path = folder / "journal.db"
        newest = sorted((folder / "snapshots").glob("*.snapshot"))[-1]
        good = {p: p.read_bytes() for p in (path, newest)}
        for number in range(many):
            victim = path if number % 2 else newest
            _flip(victim, good[victim], rng)
            try:
                if victim == newest:
                    snapshots += 1
                    found = Snapshots(folder / "snapshots").latest()
                    healed += found is not None and found[0] == 4  # the one before it is taken
                else:
                    noticed += _refused(path)
            finally:
                victim.write_bytes(good[victim])
        harmless = missed = 0
        (folder / "journal.seal").unlink()  # as after a crash: only the chain can notice
        for _ in range(many // 2):
            _flip(path, good[path], rng)
            if not _refused(path, look=True):
                journal = Journal.read(path)
                same = journal.head.hex() == whole[0]
                journal.close()
                harmless, missed = harmless + same, missed + (not same)
            path.write_bytes(good[path])
    return {
        "journal": many // 2,
        "journal noticed": noticed,
        "snapshots": snapshots,
        "snapshots passed over": healed,
        "unsealed": many // 2,
        "unsealed, in bytes that hold no record": harmless,
        "unsealed, record changed unnoticed": missed,
    }


def _flip(path: Path, data: bytes, rng: random.Random) -> None:
    bad, bit = bytearray(data), rng.randrange(len(data) * 8)
    bad[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(bad))


def _refused(path: Path, *, look: bool = False) -> bool:
    try:
        (Journal.read(path) if look else Journal.open(path)).close()
    except FedcohortError:
        return True
    return False


def truncations(many: int, seed: int) -> dict:
    """The journal or the newest snapshot cut off at a random byte."""
    rng, noticed, healed = random.Random(seed), 0, 0
    with scratch() as folder:
        simulate(folder, seed)
        path = folder / "journal.db"
        newest = sorted((folder / "snapshots").glob("*.snapshot"))[-1]
        good = {p: p.read_bytes() for p in (path, newest)}
        for number in range(many):
            victim = path if number % 2 else newest
            victim.write_bytes(good[victim][: rng.randrange(len(good[victim]))])
            before = victim.read_bytes()
            if victim == path:
                noticed += _refused(path) and path.read_bytes() == before
            else:
                found = Snapshots(folder / "snapshots").latest()
                healed += found is not None and found[0] == 4
            victim.write_bytes(good[victim])
    return {"journal": many // 2, "journal refused untouched": noticed, "snapshots": many - many // 2, "healed": healed}


def kills(many: int, seed: int) -> dict:
    """SIGKILL of a real `fedcohort run` at random moments, then `fedcohort resume`."""
    rng, same, late, started = random.Random(seed), 0, 0, time.monotonic()
    with scratch() as folder:
        _command("run", *KILLED, "--out", str(folder / "whole"))
        whole = _fingerprint(folder / "whole")
        clocks = []
        for number in range(many):
            target = folder / f"killed-{number}"
            late += _killed(target, rng, clocks)
            if (target / "journal.db").exists():
                _command("resume", str(target))
            else:
                _command("run", *KILLED, "--out", str(target))
            same += _fingerprint(target) == whole
            shutil.rmtree(target)
    return {"tried": many, "identical": same, "after the end": late, "seconds": round(time.monotonic() - started)}


def _killed(target: Path, rng: random.Random, clocks: list[float]) -> bool:
    """Start a run and kill it: at a random time while it starts, or a random time after its first record."""
    command = [sys.executable, "-m", "fedcohort.cli.main", "run", *KILLED, "--out", str(target)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while not (target / "journal.db").exists() and child.poll() is None and time.monotonic() < limit:
        time.sleep(0.001)
    began = time.monotonic()
    time.sleep(rng.random() * (clocks[len(clocks) // 2] if clocks else 0.3))
    over = child.poll() is not None
    clocks.append((time.monotonic() - began) * (0.8 if over else 1.3))
    clocks.sort()
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    return over


def _command(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "fedcohort.cli.main", *words],
        check=True,
        timeout=300,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _fingerprint(folder: Path) -> tuple[str, str]:
    journal = Journal.read(folder / "journal.db")
    try:
        records = hashlib.sha256(b"".join(r.hash for r in journal.records())).hexdigest()
    finally:
        journal.close()
    return records, hashlib.sha256((folder / "metrics.jsonl").read_bytes()).hexdigest()


def full_disks(many: int, seed: int) -> dict:
    """A limit on the size of files (RLIMIT_FSIZE) in a child process: it says so and ends; the run goes on later."""
    rng, said, same, crashed = random.Random(seed), 0, 0, 0
    with scratch() as folder:
        whole = simulate(folder / "whole", seed)
        for number in range(many):
            target = folder / f"full-{number}"
            answer = limited(lambda at=target: simulate(at, seed), rng.randrange(1000, 40_000))
            said += answer == 3
            crashed += answer not in (0, 3)
            same += simulate(target, seed) == whole
            shutil.rmtree(target)
    return {"tried": many, "said in one sentence": said, "identical afterwards": same, "other ends": crashed}


def limited(call: Callable[[], object], most: int) -> int:
    """In a child whose files may have so many bytes. 0: came through; 3: a StoreError; anything else is a failure."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        call()
        code = 0
    except StoreError:
        code = 3
    finally:
        os._exit(code)


def second_servers(many: int, seed: int) -> dict:
    """Others try to open the folder while it is owned: each is turned away and changes nothing."""
    turned, touched = 0, 0
    with scratch() as folder:
        simulate(folder, seed)
        owner = Journal.open(folder / "journal.db")
        before = _bytes(folder)
        for _ in range(many):
            try:
                Journal.open(folder / "journal.db").close()
            except RunLocked:
                turned += 1
            touched += _bytes(folder) != before
        code = f"from fedcohort.storage.journal import Journal; from pathlib import Path; Journal.open(Path({str(folder)!r}) / 'journal.db')"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        turned += "RunLocked" in other.stderr
        touched += _bytes(folder) != before
        owner.append("ask", 99, {"clients": np.arange(3)})
        owner.close()
    return {"tried": many + 1, "turned away": turned, "bytes touched": touched}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.endswith("-shm")}


def newer_and_foreign(seed: int) -> dict:
    """A newer schema (also one that is only in the WAL) and a foreign file: refused, bytes untouched."""
    import sqlite3

    refused = untouched = 0
    for where in ("file", "wal", "foreign"):
        with scratch() as folder:
            simulate(folder, seed)
            path = folder / "journal.db"
            if where == "foreign":
                path.unlink()
            db = sqlite3.connect(path)
            db.execute("PRAGMA journal_mode = WAL").fetchall()
            db.execute("CREATE TABLE t (x)" if where == "foreign" else "PRAGMA user_version = 99")
            shutil.copytree(folder, copy := folder / "copy", ignore=shutil.ignore_patterns("lock", "*-shm"))
            db.close()
            if where == "file":
                shutil.copy(path, copy / "journal.db")
                (copy / "journal.db-wal").unlink()
            before = _bytes(copy)
            try:
                Journal.open(copy / "journal.db").close()
            except (JournalDamaged, StoreError):
                refused += 1
            after = {k: v for k, v in _bytes(copy).items() if not k.endswith("/lock")}
            untouched += after == before
    return {"tried": 3, "refused": refused, "bytes untouched": untouched}


def wal_flips(many: int, seed: int) -> dict:
    """A bit flips in the WAL that a killed process left. SQLite drops what follows: is it noticed, or made good?

    A lost tell is noticed by the newest snapshot, which knows the length and head of the journal. A lost ask that was
    the very last record has no such witness; a simulated run asks the same cohort again.
    """
    rng = random.Random(seed)
    log, whole = recorded(seed)
    names = {i: line.name for i, line in enumerate(log) if line.what == "ack"}
    points = sorted(names)[2:]
    out = {"tried": many, "noticed": 0, "harmless": 0, "made good by doing it again": 0}
    out |= {"last ask lost unnoticed": 0, "tell lost unnoticed": 0}
    for _ in range(many):
        at = rng.choice(points) + rng.choice((1, 6))
        with scratch() as folder:
            lay_out(image_after_crash(log, min(at, len(log))), folder)
            wal = folder / "journal.db-wal"
            if not wal.exists() or not wal.stat().st_size:
                out["harmless"] += 1
                continue
            before = length(folder)
            for left in folder.glob("*-shm"):
                left.unlink()
            _flip(wal, wal.read_bytes(), rng)
            out[_fate(folder, seed, before, whole)] += 1
    return out


def _fate(folder: Path, seed: int, before: int, whole: tuple[str, str]) -> str:
    try:
        after = length(folder)
        if after == before:
            return "harmless"
        same = simulate(folder, seed) == whole
    except FedcohortError:
        return "noticed"
    if same:
        return "made good by doing it again"
    return "last ask lost unnoticed" if before - after == 1 and before % 2 == 0 else "tell lost unnoticed"
