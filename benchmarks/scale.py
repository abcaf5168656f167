"""A million clients: state, selection, learning, snapshot and resume, for one selector of each family; ten million for
uniform, Oort and FedACS (fast).

    python benchmarks/scale.py [NAME ...] [--clients 1000000] [--large 10000000] [--json FILE]

Every selector is first told about every client, in rounds of 50,000 (so nothing is unexplored), then asked for 100.
State is the sum of the arrays of `state_dict`; snapshot and resume go through `Snapshots` (digest, sync, rename) on the
disk of the temporary folder. Best of three, milliseconds: of the processor for select and observe (so that a busy
machine does not count), of the clock for snapshot and resume. Goal: at most 100 MiB of state, selection in tens of ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

from fedcohort.errors import FedcohortError
from fedcohort.registry import lookup as registry
from fedcohort.signals import SIGNALS
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Round, Signals
from selection import SKIP_ABOVE, _probed, result, signal

FAMILIES = {
    "uniform": "baseline",
    "proportional": "baseline",
    "round-robin": "baseline",
    "oort": "utility",
    "pyramidfl": "utility",
    "afl": "utility",
    "power-of-choice": "utility",
    "hetero-select": "utility",
    "flash": "linear bandit",
    "linucb": "linear bandit",
    "restless-bandit": "linear bandit",
    "neural-bandit": "neural bandit",
    "fedacs": "analytics",
    "rexp3": "bandit",
    "ucb1": "bandit",
    "epsilon-greedy": "bandit",
    "fedcm-ucb": "bandit",
    "probability-cap(inner='oort')": "wrapper",
}
LARGE = ("uniform", "oort", "fedacs(fast=True)")
CHUNK, K = 50_000, 100


def measure(name: str, n: int) -> dict[str, float | str]:
    """State in MiB and milliseconds of select, observe, snapshot and resume."""
    rng, selector = np.random.default_rng(0), registry.make_selector(name)
    profiles = {s: signal(s, n, rng) for s in selector.needs if SIGNALS[s].side == "profile"}
    everybody = np.arange(n)

    def ask(index: int, size: int) -> Round:
        return Round(index, size, everybody, n, 0.0, Signals(profiles, selector.needs))

    index = 0
    for start in range(0, n, CHUNK):
        if start == 0:
            selector.select(_probed(selector, ask(0, K), rng), np.random.default_rng(0))
        selector.observe(result(index, everybody[start : start + CHUNK], selector.needs, rng))
        index += 1
    select, observe = [], []
    for _ in range(3):
        rnd = _probed(selector, ask(index, K), rng)
        begun = time.process_time()
        cohort = selector.select(rnd, np.random.default_rng(index))
        select.append(time.process_time() - begun)
        told = result(index, np.sort(cohort.clients), selector.needs, rng)
        begun = time.process_time()
        selector.observe(told)
        observe.append(time.process_time() - begun)
        index += 1
    state = selector.state_dict()
    out = {"state MiB": sum(a.nbytes for a in state.values()) / 2**20}
    out |= {"select ms": 1e3 * min(select), "observe ms": 1e3 * min(observe), **_stored(name, state)}
    return {k: round(v, 2) for k, v in out.items()}


def _stored(name: str, state: dict[str, np.ndarray]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        Snapshots(Path(folder)).save(1, state, {})
        saved = time.perf_counter()
        found = Snapshots(Path(folder)).latest()
        assert found is not None
        registry.make_selector(name).load_state_dict(found[1])
        return {"snapshot ms": 1e3 * (saved - begun), "resume ms": 1e3 * (time.perf_counter() - saved)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000_000, help="0: skip it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    work = [(name, args.clients) for name in args.names or FAMILIES]
    work += [(name, args.large) for name in LARGE if args.large and not args.names]
    print(f"{date.today()}, {os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}, ", end="")
    print(f"NumPy {np.__version__}, load {os.getloadavg()[0]:.1f}\n")
    columns = ("state MiB", "select ms", "observe ms", "snapshot ms", "resume ms")
    print(f"| selector | family | clients | {' | '.join(columns)} |\n|---|---|---|{'---|' * len(columns)}", flush=True)
    kept = []
    for name, n in work:
        family = FAMILIES.get(name, FAMILIES.get(name.partition("(")[0], ""))
        if n > SKIP_ABOVE.get(name, n):
            continue
        try:
            row = measure(name, n)
        except FedcohortError as error:
            print(f"| {name} | {family} | {n:,} | {error} |", flush=True)
            continue
        print(f"| {name} | {family} | {n:,} | {' | '.join(f'{row[c]:,}' for c in columns)} |", flush=True)
        kept.append({"selector": name, "clients": n, **row})
    if args.json:
        args.json.write_text(json.dumps({"when": str(date.today()), "rows": kept}, indent=1))


if __name__ == "__main__":
    main()
