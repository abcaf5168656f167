"""What worlds cost: `python benchmarks/worlds.py` prints seconds, megabytes and bytes per client.

Each world is built in a process of its own, so that the peak memory is its own. The pool has two samples per client
(eight for the FedACS worlds, which use every sample eight times).
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np

WORLDS = ("iid-v1", "dirichlet-0.1-v1", "mixed-v1", "diurnal-v1", "flash-noniid30-noise15-v1", "fedacs-uniform-v1")


def measure(name: str, clients: int) -> dict[str, float]:
    """Build one world here and measure it."""
    import resource

    from fedcohort.types import Work
    from fedcohort.worlds import catalogue
    from fedcohort.worlds.built_world import build_world

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    per_client = 1 if name.startswith("fedacs") else 2
    labels = np.arange(clients * per_client) % 10
    build_world(catalogue.get(name, clients=20), labels[:2000], seed=0)  # imports and first calls
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    world = build_world(catalogue.get(name, clients=clients), labels, seed=0)
    wall, cpu, memory = time.perf_counter() - wall, time.process_time() - cpu, peak() - before
    columns = [world.train.start, world.validation.start, world.noise_rate, world.skew, *world.fixed.values()]
    cohort = np.arange(0, clients, max(1, clients // 1000))[:1000]
    one = np.ones(cohort.size)
    work = Work(world.train.sizes[cohort], one, one, one, 10_000)
    at = time.perf_counter()
    for index in range(20):
        world.seconds(index, cohort, work)
    seconds = (time.perf_counter() - at) / 20
    at = time.perf_counter()
    world.available(50, 50.0)
    return {
        "wall": wall,
        "cpu": cpu,
        "mb": memory,
        "bytes": sum(c.nbytes for c in columns) / clients,
        "seconds_ms": 1e3 * seconds,
        "available_ms": 1e3 * (time.perf_counter() - at),
    }


def main() -> None:
    """Measure every world, each in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.clients)))
        return
    print(f"{asked.clients:,} clients")
    print(
        f"{'world':<28}{'build s':>9}{'cpu s':>8}{'peak MB':>9}{'B/client':>10}{'seconds of 1000':>17}{'available':>12}"
    )
    for name in WORLDS:
        command = [sys.executable, __file__, "--clients", str(asked.clients), "--one", name]
        got = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{name:<28}{got['wall']:>9.2f}{got['cpu']:>8.2f}{got['mb']:>9.0f}{got['bytes']:>10.0f}"
            f"{got['seconds_ms']:>14.2f} ms{got['available_ms']:>9.1f} ms"
        )


if __name__ == "__main__":
    main()
