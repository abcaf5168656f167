"""What must not break, broken on purpose. Prints a table of figures; exits with 1 when a goal is missed.

python tests/stress/torture                     everything (about three hours)
python tests/stress/torture --quick             a small share of everything (about a minute; part of `make test`)
python tests/stress/torture --only kill flips   rows whose name contains one of these words
python tests/stress/torture --only fuzz --minutes 60
python tests/stress/torture --only "real Flower" --deployments 1 --minutes 60    on a busy machine, or for an hour
python tests/stress/torture --json FILE         keep the figures in this file, row by row
python tests/stress/torture --table FILE        print what is in such a file
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # the tests' own grid and clients

import dropout
import files
import fuzzed
import liars
import replies
import soak
import state_folder
import table
import web
from tests.stress import fuzz_targets

import flower
import storage

SEED = 20
SHARE = 1.0  # of the full numbers; set by --share
MINUTES = 60.0  # of fuzzing; set by --minutes
KILL_MINUTES = 600.0  # of killing real processes at most; set by --minutes
DEPLOYMENTS = flower.SIDE_BY_SIDE  # of these processes; set by --deployments
KILLS: Path | None = None  # where the kills of real processes are kept; set by --json


@dataclass(frozen=True)
class Row:
    """One line of the table: a measurement, its goal in words, and whether the figures reach it."""

    name: str
    goal: str
    run: Callable[[bool], dict]  # quick? -> figures
    good: Callable[[dict], bool]


def _many(quick: bool, few: int, full: int) -> int:
    """How many are tried: a few, all, or the share that was asked for."""
    return few if quick else max(int(full * SHARE), min(few, full))


def _doubt(rounds: int) -> float:
    """Three standard errors of a share of 99.9 % in a short run; none in a full one."""
    return 3 * math.sqrt(0.999 * 0.001 / rounds) if rounds < 10_000 else 0.0


def _reach(rate: float) -> Row:
    return Row(
        f"drop-out {rate:.0%}, 100 wanted",
        ">= 99.9 % of rounds reach it, <= 1.05x the optimum asked",
        lambda q: dropout.reach(rate, _many(q, 400, 20_000), SEED),
        lambda f: f["reached"] >= 0.999 - _doubt(f["rounds"]) and f["asked"] <= 1.05 * f["optimum"],
    )


def _liars(name: str) -> Row:
    return Row(
        f"20 % liars against {name}",
        "capped: <= 1.5x their share of the population",
        lambda q: liars.worst(name, 60 if q else 150, SEED),
        lambda f: max(f["capped"], f["capped, Sybils"]) <= 1.5,
    )


def _hostile(where: str, run: Callable[[bool], dict]) -> Row:
    bad = ("exceptions", "accepted by mistake", "honest lost", "rounds that differ from the twin")
    return Row(
        f"hostile replies, {where}",
        "0 exceptions, 0 accepted, 0 honest replies lost, every round equal to the twin without them",
        run,
        lambda f: not any(f[name] for name in bad),
    )


def _soak(what: str, run: Callable[[bool], dict]) -> Row:
    return Row(
        f"{what}: drop-out, restarts, slow disks, clock jumps" if "Flower" in what else f"{what}, resumed nine times",
        "a round costs the same at the end (+ 25 %), memory grows by < 5 kB per round, no file but the journal grows",
        run,
        lambda f: (
            f["ms per round, last tenth"]
            <= 1.25 * f["ms per round, second tenth"] + (2.0 if f["rounds"] > 1e3 else 20.0)
            and f["MB of memory at the end"] - f["MB of memory after a tenth"] <= 5.0 + 0.005 * f["rounds"]
            and f["journal bytes per round, last tenth"] <= 1.25 * f["journal bytes per round, second tenth"] + 1000
            and f["bytes of other files at the end"] <= 2 * f["bytes of other files after a tenth"] + 10_000
        ),
    )


def _fuzz(group: str) -> Row:
    return Row(
        f"fuzzing, {group}: {', '.join(target.name for target in fuzz_targets.GROUPS[group])}",
        "only our own errors, no hang, no more memory than the bound",
        lambda q: fuzzed.group(group, 200 if q else 0, 60 * MINUTES / len(fuzz_targets.GROUPS), SEED),
        lambda f: not f["findings"],
    )


def _hangs(where: str, run: Callable[[bool], dict]) -> Row:
    return Row(
        f"rounds under drop-out of 10 to 100 %, {where}",
        "every round ends, in time",
        run,
        lambda f: not (f["hung"] or f["longer than the deadline"]),
    )


ROWS = (
    Row(
        "kill -9 of `fedcohort run` at random moments",
        "100 % bit-identical, 0 rounds lost",
        lambda q: storage.kills(_many(q, 1, 100), SEED),
        lambda f: f["identical"] == f["tried"],
    ),
    Row(
        "kill -9 of real Flower processes",
        "50 of each; 0 records lost, the run finishes and replays, 0 processes left",
        lambda q: flower.kills(_many(q, 1, 50), SEED, KILLS, DEPLOYMENTS, KILL_MINUTES),
        lambda f: (
            all(f[f"{kind} killed"] >= f["wanted of each"] for kind in flower.KINDS)
            and not (f["records lost"] or f["runs not finished"] or f["processes left"])
        ),
    ),
    Row(
        "every SuperNode restarted in turn, real Flower processes",
        "3 of 3 clients are used again in the second round at the latest, 0 processes left",
        lambda q: flower.storms(_many(q, 1, 3)),
        lambda f: f["rounds until all are usable, worst"] <= 2 and not (f["never usable again"] or f["processes left"]),
    ),
    Row(
        "crash behind every write, or in the middle of one",
        "100 % bit-identical, 0 acknowledged records lost",
        lambda q: storage.crash_points(_many(q, 60, 10_000), SEED),
        lambda f: f["identical"] == f["tried"] and f["lost"] == 0,
    ),
    Row(
        "simulated power cuts (WAL, FULL)",
        "0 acknowledged records lost",
        lambda q: storage.power_cuts(_many(q, 40, 2_000), SEED),
        lambda f: f["lost"] == 0 and f["identical"] == f["tried"],
    ),
    Row(
        "crash behind every write of a Flower deployment, or in the middle of one",
        "same cohorts, outcomes and model; 0 acknowledged records lost",
        lambda q: state_folder.crashes(_many(q, 20, 1_000), SEED),
        lambda f: f["same end"] == f["tried"] and f["lost"] == 0,
    ),
    Row(
        "simulated power cuts of a Flower deployment",
        "same cohorts, outcomes and model; 0 acknowledged records lost",
        lambda q: state_folder.power_cuts(_many(q, 20, 1_000), SEED),
        lambda f: f["same end"] == f["tried"] and f["lost"] == 0,
    ),
    Row(
        "simulated power cuts with synchronous=NORMAL (control: the harness sees losses)",
        "more than 0 lost",
        lambda q: storage.power_cuts(_many(q, 40, 500), SEED, normal=True),
        lambda f: f["lost"] > 0,
    ),
    Row(
        "bit flips in a closed journal and in snapshots",
        "100 % noticed; without the seal none changes a record unnoticed",
        lambda q: storage.flips(_many(q, 200, 10_000), SEED),
        lambda f: (
            f["journal noticed"] == f["journal"]
            and f["snapshots passed over"] == f["snapshots"]
            and f["unsealed, record changed unnoticed"] == 0
        ),
    ),
    Row(
        "bit flips in the WAL of a killed run",
        "no acknowledged record lost unnoticed",
        lambda q: storage.wal_flips(_many(q, 60, 2_000), SEED),
        lambda f: f["last ask lost unnoticed"] == 0 and f["tell lost unnoticed"] == 0,
    ),
    Row(
        "truncated journals and snapshots",
        "100 % noticed, bytes untouched",
        lambda q: storage.truncations(_many(q, 60, 2_000), SEED),
        lambda f: f["journal refused untouched"] == f["journal"] and f["healed"] == f["snapshots"],
    ),
    Row(
        "disk full (RLIMIT_FSIZE) at random sizes",
        "said in one sentence; afterwards bit-identical",
        lambda q: storage.full_disks(_many(q, 6, 200), SEED),
        lambda f: f["identical afterwards"] == f["tried"] and f["other ends"] == 0,
    ),
    Row(
        "disk full (RLIMIT_FSIZE) in the middle of a round of a Flower deployment",
        "said in one sentence, 0 records lost; with space again the same end",
        lambda q: state_folder.full_disks(_many(q, 6, 200), SEED),
        lambda f: f["same end afterwards"] == f["tried"] and not (f["other ends"] or f["records lost"]),
    ),
    _soak("a day of a Flower deployment", lambda q: soak.deployment(_many(q, 100, 10_000), SEED)),
    _soak("10,000 rounds of the simulator", lambda q: soak.simulator(_many(q, 100, 10_000), SEED)),
    Row(
        "second servers on one folder",
        "all turned away, 0 bytes touched",
        lambda q: storage.second_servers(_many(q, 20, 1_000), SEED),
        lambda f: f["turned away"] == f["tried"] and f["bytes touched"] == 0,
    ),
    Row(
        "newer schema (in the file, in the WAL), foreign file",
        "refused, bytes untouched",
        lambda q: storage.newer_and_foreign(SEED),
        lambda f: f["refused"] == f["bytes untouched"] == f["tried"],
    ),
    _hostile("simulator", lambda q: replies.rows(_many(q, 15_000, 4_000_000), SEED)),
    _hostile("Flower messages", lambda q: replies.messages(_many(q, 250, 100_000), SEED)),
    Row(
        "microseconds to judge one reply",
        "below 2,000 where it is small",
        lambda q: replies.cost(),
        lambda f: f["a row of a matrix"] < 2000 and f["a Flower message of 8 numbers"] < 2000,
    ),
    _reach(0.1),
    _reach(0.3),
    _reach(0.5),
    Row(
        "a fixed factor of 1.3 at 30 % (control)",
        "fails most rounds",
        lambda q: dropout.reach(0.3, _many(q, 500, 5_000), SEED, 1.3),
        lambda f: f["reached"] < 0.1,
    ),
    Row(
        "the drop-out jumps to 50 % and back",
        "made good within 5 rounds",
        lambda q: dropout.change(SEED),
        lambda f: f["after the jump to 50 %"] <= 5,
    ),
    _hangs("simulator", lambda q: dropout.simulated_hangs(_many(q, 500, 100_000), SEED)),
    _hangs("simulator, asynchronous", lambda q: dropout.simulated_hangs(_many(q, 250, 20_000), SEED, 4)),
    _hangs("Flower", lambda q: dropout.flower_hangs(_many(q, 60, 2_000), SEED)),
    _hangs("Flower, asynchronous", lambda q: dropout.flower_hangs(_many(q, 60, 2_000), SEED, 4)),
    *(_liars(name) for name in liars.BELIEVERS),
    Row(
        "malicious files as checkpoints, configurations, data",
        "all refused in one sentence, 0 payloads run",
        lambda q: files.malicious(),
        lambda f: f["refused"] == f["files"] and f["payloads run"] == 0,
    ),
    *map(_fuzz, fuzz_targets.GROUPS),
    Row(
        "dashboard: ways out of its folder",
        "0 answered wrongly",
        lambda q: web.traversal(_many(q, 250, 10_000), SEED),
        lambda f: f["answered wrongly"] == 0,
    ),
    Row(
        "dashboard: markup in names, contents and requests",
        "0 answered wrongly",
        lambda q: web.markup(_many(q, 15, 1_000), SEED),
        lambda f: f["answered wrongly"] == 0,
    ),
    Row(
        "dashboard: foreign hosts, methods, origins, no or wrong token",
        "0 bytes said, 0 answered wrongly",
        lambda q: web.strangers(),
        lambda f: f["answered wrongly"] == 0,
    ),
    Row(
        "the dashboard without its guard (control: the harness sees it)",
        "more than 0 answered wrongly",
        lambda q: web.strangers(guarded=False),
        lambda f: f["answered wrongly"] > 0,
    ),
)
SLOW = (
    "fedcor",
    "neural-bandit",
    "flash",
    "restless-bandit",
    "feel",
    "divfl",
    "linucb",
    "ledger",
    "processes",
)  # left out of --quick


def main() -> int:
    global SHARE, KILLS, MINUTES, KILL_MINUTES, DEPLOYMENTS
    parser = argparse.ArgumentParser(prog="torture", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the full numbers, for a busy machine")
    parser.add_argument("--minutes", type=float, help="of fuzzing, over all its rows (60); of killing Flower (600)")
    parser.add_argument("--deployments", type=int, default=DEPLOYMENTS, help="of Flower, side by side")
    parser.add_argument("--table", type=Path, help="print the table of a file made with --json, and run nothing")
    args = parser.parse_args()
    if args.table:
        print(table.markdown(args.table))
        return 0
    SHARE, MINUTES, KILL_MINUTES = args.share, args.minutes or MINUTES, args.minutes or KILL_MINUTES
    DEPLOYMENTS = args.deployments
    KILLS = args.json and args.json.with_name("flower_kills.json")
    chosen = [r for r in ROWS if not args.only or any(word in r.name for word in args.only)]
    if args.quick and not args.only:
        chosen = [r for r in chosen if not r.name.startswith("fuzzing")]  # tests/stress/test_fuzzing.py
        chosen = [r for r in chosen if not any(r.name.endswith(f" {name}") for name in SLOW)]
    started, missed = time.monotonic(), 0
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {table.machine()}, load {os.getloadavg()[0]:.1f}\n\n{table.HEAD}")
    for row in chosen:
        begun = time.monotonic()
        figures = row.run(args.quick)
        done = table.made(row.name, row.goal, figures, time.monotonic() - begun, row.good(figures))
        missed += not done["reached"]
        print(table.line(done), flush=True)
        if args.json:
            table.keep(args.json, done, [r.name for r in ROWS])
    print(f"\n{len(chosen)} rows in {time.monotonic() - started:.0f} s, {missed} below their goal.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
