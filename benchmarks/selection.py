"""How long a selection takes at 10^4, 10^5 and 10^6 clients.

    python benchmarks/selection.py [NAME ...] [--clients 10000 100000 1000000] [--json FILE]

Every selector is first told about every client (so that nothing is unexplored and full scans are full), then asked for
100 clients. Milliseconds: best and median of several selections in this run. Oort is compared with a
dict-per-client version written for this benchmark in the style of the published implementations.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from datetime import date
from pathlib import Path

import numpy as np

from fedcohort.errors import FedcohortError
from fedcohort.registry import lookup as registry
from fedcohort.signals import SIGNALS
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

VECTORS = {"label_histogram": 10, "insight": 8, "delta": 8, "last_layer_delta": 8, "weights": 8, "probe_weights": 8}
SKIP_ABOVE = {"fedcor": 10_000, "clustered": 100_000, "divfl": 10_000, "flash-rl": 10_000, "favor": 10_000}


def signal(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if name in VECTORS:
        return rng.random((n, VECTORS[name]), np.float32)
    return rng.uniform(0.1, 10.0, n)


def result(index: int, clients: np.ndarray, needs: frozenset[str], rng: np.random.Generator) -> RoundResult:
    told = {n: signal(n, clients.size, rng) for n in needs if SIGNALS[n].side in ("client", "server") and n != "model"}
    probes = {n: signal(n, clients.size, rng) for n in needs if SIGNALS[n].side == "probe"}
    return RoundResult(
        index,
        clients,
        np.full(clients.size, Outcome.OK, np.int8),
        rng.uniform(1, 100, clients.size),
        Signals(told, needs),
        score=0.5,
        probed=Probed(clients, Signals(probes, needs)) if probes else None,
        model=rng.random(8, np.float32) if "model" in needs else None,
    )


def measure(name: str, n: int, k: int = 100, repeats: int = 5) -> tuple[float, float]:
    """(best, median) milliseconds of one selection."""
    rng = np.random.default_rng(0)
    selector = registry.make_selector(name)
    everybody = np.arange(n)
    profiles = {s: signal(s, n, rng) for s in selector.needs if SIGNALS[s].side == "profile"}
    rounds = [Round(i, k, everybody, n, 0.0, Signals(profiles, selector.needs)) for i in range(repeats + 3)]
    warm = np.arange(min(n, 1_000_000))
    selector.select(_probed(selector, rounds[0], rng), np.random.default_rng(0))
    selector.observe(result(0, warm if n <= 1_000_000 else everybody, selector.needs, rng))
    times = []
    for i in range(1, repeats + 3):
        asked = _probed(selector, rounds[i], rng)
        start = time.perf_counter()
        cohort = selector.select(asked, np.random.default_rng(i))
        times.append(1e3 * (time.perf_counter() - start))
        selector.observe(result(i, np.sort(cohort.clients), selector.needs, rng))
    return min(times[1:]), statistics.median(times[1:])


def _probed(selector: object, rnd: Round, rng: np.random.Generator) -> Round:
    probe = getattr(selector, "probe", None)
    if probe is None:
        return rnd
    clients = np.unique(probe(rnd, np.random.default_rng(rnd.index)))
    needs = selector.needs  # type: ignore[attr-defined]
    columns = {n: signal(n, clients.size, rng) for n in needs if SIGNALS[n].side == "probe"}
    answers = Probed(clients, Signals(columns, needs))
    return Round(rnd.index, rnd.size, rnd.available, rnd.population, rnd.clock, rnd.profiles, answers)


def dict_oort(n: int, k: int = 100) -> float:
    """Milliseconds of one selection with a dict per client, sorted lists and Python arithmetic."""
    rng = random.Random(0)
    table = {
        i: {"reward": rng.random() * 10, "duration": 1 + rng.random() * 99, "time": 1, "count": 1} for i in range(n)
    }
    start = time.perf_counter()
    rewards = sorted(c["reward"] for c in table.values())
    low, high = rewards[0] * 0.999, rewards[int(0.95 * (n - 1))]
    preferred = sorted(c["duration"] for c in table.values())[int(0.1 * (n - 1))]
    scores = {}
    for i, c in table.items():
        s = (min(c["reward"], high) - low) / max(high - low, 1e-4) + (0.1 * 0.69 / c["time"]) ** 0.5
        if c["duration"] > preferred:
            s *= (preferred / c["duration"]) ** 2
        scores[i] = s
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    cut = 0.95 * scores[ranked[k - 1]]
    pool = [i for i in ranked if scores[i] >= cut]
    total = sum(scores[i] for i in pool)
    np.random.default_rng(0).choice(pool, k, replace=False, p=[scores[i] / total for i in pool])
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=registry.names("selector"))
    parser.add_argument("--clients", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = {}
    print(f"{'selector':<20}" + "".join(f"{n:>16,}" for n in args.clients) + "    ms, best (median), K = 100")
    for name in args.names:
        cells = []
        for n in args.clients:
            if n > SKIP_ABOVE.get(name, n):
                cells.append(None)
                continue
            try:
                cells.append(measure(name, n))
            except FedcohortError as error:
                print(f"{name}: {error}")
                cells.append(None)
        rows[name] = cells
        print(
            f"{name:<20}"
            + "".join(f"{'-':>16}" if c is None else f"{c[0]:>8.2f} ({c[1]:.2f})".rjust(16) for c in cells)
        )
    reference = [dict_oort(n) for n in args.clients]
    print(f"{'dict-per-client oort':<20}" + "".join(f"{t:>16,.0f}" for t in reference))
    if "oort" in rows and rows["oort"][-1]:
        print(f"ratio at {args.clients[-1]:,}: {reference[-1] / rows['oort'][-1][1]:.0f}x (median against one run)")
    if args.json:
        found = {
            "date": str(date.today()),
            "machine": platform.processor() or platform.machine(),
            "clients": args.clients,
        }
        args.json.write_text(json.dumps({**found, "ms": rows, "dict_oort_ms": reference}, indent=1) + "\n")


if __name__ == "__main__":
    main()
