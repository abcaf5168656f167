"""Fill what is missing in an archive: `python -m fedcohort.arena.fill --seeds 0-4 --tier quick`.

Every finished run is in the archive at once, so this can be stopped and started again at any time. Runs are done by
worker processes with a low priority; one that dies costs its own run only.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from fedcohort.arena.archive import Archive, Row
from fedcohort.arena.cells import Entry, entry, play, play_by_name
from fedcohort.arena.oracle import ORACLE
from fedcohort.arena.problem_set import Problem, missing_data, parse_seeds, problem, tier_problems
from fedcohort.experiment.runner import ONE_THREAD
from fedcohort.registry.lookup import entries as catalogue

NICE = 10
EXACT, LOOSE = 1e-6, 0.05  # how far a repeated score may be off, with the same versions and with others
PRESETS = (  # wrappers say nothing by themselves, so they are shown around a selector; and other readings
    "explore(inner='oort')",
    "probability-cap(inner='oort')",
    "quota(inner='oort')",
    "cool-down(inner='power-of-choice')",
    "warm-up(inner='flash')",
    "flash(preset='robust')",  # its reward is the fall of a client's own loss, not that of the server's
    "ledger(without=('expected_seconds',))",  # speeds learnt from replies alone: a simulation's profile is exact
)
Cell = tuple[str, str, int]  # selector, problem, seed
OnRow = Callable[[Row, int, int], None]  # row, how many are done, of how many


def archive_entries() -> list[str]:
    """Everybody in the archive: uniform, the oracle, every shipped selector with its defaults, and the presets.

    >>> archive_entries()[:3]
    ['uniform', 'oracle', 'proportional']
    """
    shipped = [name for name, known in catalogue("selector").items() if known.family not in ("wrapper", "third party")]
    return ["uniform", ORACLE, *(name for name in shipped if name != "uniform"), *PRESETS]


def missing_cells(
    archive: Archive,
    names: Sequence[str],
    on: Sequence[Problem],
    seeds: Sequence[int],
    *,
    retry: bool = False,
    force: bool = False,
) -> list[Cell]:
    """What the archive lacks: seed by seed, so that an unfinished archive has all entries on few seeds.

    With `retry`, runs that failed are done again; with `force`, all are, which is needed after the code of a selector
    has changed and its parameters have not. A newer row replaces the older one.
    """
    made = [entry(name) for name in names]
    rows = archive.current(made)
    done = {(row["selector"], row["problem"], row["seed"]) for row in rows if not (retry and "error" in row)}
    wanted = [(who.name, p.name, seed) for seed in seeds for p in on for who in made]
    return [cell for cell in wanted if force or cell not in done]


def fill(archive: Archive, cells: Sequence[Cell], *, workers: int = 1, on_row: OnRow | None = None) -> None:
    """Run these cells and add each to the archive as soon as it is done; 0 workers means in this process."""
    rows = _here(cells, archive.version) if workers == 0 else _pool(list(cells), archive.version, workers)
    for at, row in enumerate(rows):
        archive.add(row)
        if on_row is not None:
            on_row(row, at + 1, len(cells))


def _here(cells: Sequence[Cell], version: str) -> Iterator[Row]:
    for cell in cells:
        yield play_by_name(*cell, version)


def _pool(cells: list[Cell], version: str, workers: int) -> Iterator[Row]:
    """Rows from worker processes. When a worker dies, each of the cells that were under way is tried alone."""
    while cells:
        batch, cells = cells[: 500 * workers], cells[500 * workers :]
        with _executor(workers) as pool:
            under_way = [(cell, pool.submit(play_by_name, *cell, version)) for cell in batch]
            left = []
            for cell, future in under_way:
                try:
                    yield future.result()
                except BrokenProcessPool:
                    left.append(cell)
        if len(left) == 1 or (left and len(left) == len(batch)):
            yield from _alone(left.pop(0), version)
        cells = left + cells


def _alone(cell: Cell, version: str) -> Iterator[Row]:
    with _executor(1) as pool:
        try:
            yield pool.submit(play_by_name, *cell, version).result()
        except BrokenProcessPool:
            name, on, seed = cell
            row = {"selector": name, "problem": on, "seed": seed}
            yield {**row, "digest": entry(name).digest(problem(on, version), seed), "error": "its process died"}


def _executor(workers: int) -> ProcessPoolExecutor:
    os.environ.update({k: os.environ.get(k, v) for k, v in ONE_THREAD.items()})  # before a worker imports NumPy
    return ProcessPoolExecutor(workers, get_context("spawn"), initializer=os.nice, initargs=(NICE,))


def play_all(who: Entry, on: Sequence[Problem], seeds: Sequence[int], on_row: OnRow | None = None) -> list[Row]:
    """All runs of one competitor in this process; nothing is written."""
    cells = [(p, seed) for p in on for seed in seeds]
    rows = []
    for at, (p, seed) in enumerate(cells):
        rows.append(play(who, p, seed))
        if on_row is not None:
            on_row(rows[-1], at + 1, len(cells))
    return rows


def check_cells(archive: Archive, count: int, *, tier: str = "quick", seed: int | None = None) -> list[tuple[Row, Row]]:
    """Run random cells of the archive again: (the row of the archive, the row of now)."""
    on = {p.name: p for p in tier_problems(tier, archive.version) if p.available}
    rows = sorted(
        (row for row in archive.current() if row["problem"] in on and "scores" in row),
        key=lambda row: (row["selector"], row["problem"], row["seed"]),
    )
    chosen = random.Random(seed).sample(rows, min(count, len(rows)))
    return [(row, play(entry(row["selector"]), on[row["problem"]], row["seed"])) for row in chosen]


def same_versions(old: Row, new: Row) -> bool:
    """Whether two rows were made by the same versions on the same kind of processor."""
    return bool(old.get("versions") == new.get("versions"))


def differs(old: Row, new: Row) -> str:
    """What two rows of the same cell disagree in; empty where they agree.

    Rows of the same versions and processor must be equal; another processor or another NumPy or Numba may round
    differently, and training amplifies that, so there the accuracies may differ by a few points.
    """
    if "scores" not in new:
        return f"it fails now: {new.get('error')}"
    same = same_versions(old, new)
    limit = EXACT if same else LOOSE
    for name in ("anytime", "final"):
        was, now = old["scores"][name], new["scores"][name]
        if abs(was - now) > limit:
            return f"{name} was {was:.6g} and is {now:.6g}" + ("" if same else " (other versions or processor)")
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m fedcohort.arena.fill", description=__doc__)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--tier", default="full")
    parser.add_argument("--problems", nargs="*", default=None, help="only these of the tier")
    parser.add_argument("--selectors", nargs="*", default=None)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--retry", action="store_true", help="also what failed")
    parser.add_argument("--force", action="store_true", help="also what is there already")
    parser.add_argument("--archive", type=Path, default=None)
    given = parser.parse_args(arguments)
    chosen = [problem(name) for name in given.problems] if given.problems else tier_problems(given.tier)
    if said := missing_data(chosen):
        print(said, flush=True)
    archive = Archive(given.archive)
    on = [p for p in chosen if p.available]
    names, seeds = given.selectors or archive_entries(), parse_seeds(given.seeds)
    cells = missing_cells(archive, names, on, seeds, retry=given.retry, force=given.force)
    fill(archive, cells, workers=given.workers, on_row=_print)
    archive.rewrite()


def _print(row: Row, done: int, total: int) -> None:
    said = row.get("error") or f"anytime {row['scores']['anytime']:.4f}"
    print(
        f"{done}/{total} {row['problem']} {row['selector']} seed {row['seed']}: {said} ({row.get('wall')} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
