"""How fast a cohort trains: fedcohort's engines against PyTorch, Flower's simulation and pfl-research, in one run.

    python benchmarks/engine.py                      W1, W2, W3: every contender three times, interleaved; then scaling
    python benchmarks/engine.py --workloads W1 --long    and 200 rounds of W1

Every contender runs in a process of its own, trains the same networks on data of the same shape, and reports the
seconds of every round but the first. Start-up, compilation and warm-up are thus left out for all of them. Results go
to benchmarks/results/engine.json and into docs/engine.md. See benchmarks/README.md for the peers' environment.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PEERS = HERE / "peers"
sys.path.insert(0, str(PEERS))
import workloads  # noqa: E402

FLOWER, PFL, TWO = "Flower simulation", "pfl-research", "PyTorch processes"
BARS = {"W1": {"peers": 4.0, TWO: 3.0}, "W2": {"peers": 1.5}, "W3": {"peers": 3.0}}


def contenders(peer_python):
    here, cores = sys.executable, str(os.cpu_count())
    peer = str(peer_python)
    found = {
        "fedcohort fused": [here, "ours.py", "{w}", "{fast}", "fused"],
        "fedcohort batched": [here, "ours.py", "{w}", "{slow}", "batched"],
        "PyTorch loop": [here, "pytorch_loop.py", "{w}", "{slow}"],
        TWO: [here, "pytorch_processes.py", "{w}", "{slow}"],
        f"{TWO}, channels-last": [here, "pytorch_processes.py", "{w}", "{slow}", "last"],
        FLOWER: [here, "flower_simulation.py", "{w}", "{slow}"],
        f"{PFL}, one process": [peer, "pfl_research.py", "{w}", "{slow}"],
        f"{PFL}, processes": [
            peer, "-m", "torch.distributed.run", "--nproc_per_node", cores, "pfl_research.py", "{w}", "{slow}"
        ],
    }  # fmt: skip
    if not Path(peer_python).exists():
        print(f"{peer_python} is missing: no pfl-research (see benchmarks/README.md)")
        found = {name: command for name, command in found.items() if not name.startswith(PFL)}
    return found


def run(command, workload, rounds):
    """Seconds of the rounds after the first, or None if the contender failed."""
    filled = [part.format(w=workload, fast=3 * rounds + 1, slow=rounds + 1) for part in command]
    done = subprocess.run(filled, cwd=PEERS, capture_output=True, text=True, timeout=1800, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROUNDS ")]
    if not lines:
        print(done.stderr[-1500:])
        return None
    return json.loads(lines[-1][7:])


def compare(name, table, repeats, rounds):
    """Thousand client-samples per second of every contender: best and median over the repetitions."""
    passes = workloads.WORKLOADS[name].passes
    speeds = {contender: [] for contender in table}
    for repeat in range(repeats):
        for contender, command in table.items():
            seconds = run(command, name, rounds)
            if seconds:
                speeds[contender].append(passes / statistics.median(seconds) / 1e3)
                print(f"{name} {repeat + 1}/{repeats} {contender:34s} {speeds[contender][-1]:8.2f} k/s", flush=True)
    return {c: {"best": max(s), "median": statistics.median(s), "all": s} for c, s in speeds.items() if s}


def ratios(name, result):
    """Our median and best over the fastest peer's, and over two-process PyTorch, with the bar where there is one."""
    out = {}
    for kind in ("median", "best"):
        ours = result["fedcohort fused"][kind]
        peers = [v[kind] for c, v in result.items() if c == FLOWER or c.startswith(PFL)]
        out[kind] = {"peers": ours / max(peers)} if peers else {}
        out[kind] |= {c: ours / v[kind] for c, v in result.items() if c != "fedcohort fused"}
    out["bars"] = BARS[name]
    return out


def cohort_growth():
    """Seconds of a round with 10 .. 1,000 clients of W3's kind."""
    from ours import setting

    from fedcohort.tasks.engine.fused import FusedEngine
    from fedcohort.types import Model, Plan

    w = workloads.WORKLOADS["W3"]
    network, data = setting(w)
    engine, out = FusedEngine(network, data), {}
    model, plan = Model(network.initial(np.random.default_rng(0))), Plan(epochs=1, batch_size=w.batch, lr=0.01)
    engine.train(model, np.arange(10), plan)
    for m in (10, 30, 100, 300, 1000):
        start = time.perf_counter()
        engine.train(model, np.arange(m), plan)
        out[str(m)] = time.perf_counter() - start
    engine.close()
    return out


def population_growth():
    """Seconds of a round of 10 clients, and bytes per client, with 10^2 .. 10^6 registered clients."""
    from fedcohort.tasks.engine.fused import FusedEngine
    from fedcohort.tasks.engine.seam import ClientData
    from fedcohort.tasks.models import mlp
    from fedcohort.types import Model, Part, Plan

    network, out = mlp(64, 32, classes=10), {}
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1000, 64), np.float32), rng.integers(10, size=1000)
    model, plan = Model(network.initial(rng)), Plan(epochs=5, batch_size=50, lr=0.01)
    for n in (10**2, 10**3, 10**4, 10**5, 10**6):
        sizes = np.ones(n, np.int64)
        sizes[:10] = 250
        tracemalloc.start()
        index = rng.integers(1000, size=int(sizes.sum()))
        part = Part(np.concatenate([[0], np.cumsum(sizes)]), index, y[index], y[index])
        none = Part(np.zeros(n + 1, np.int64), *(np.empty(0, np.int64),) * 3)
        engine = FusedEngine(network, ClientData(x, part, none, 10))
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        engine.train(model, np.arange(10), plan)
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            engine.train(model, np.arange(10), plan)
            seconds.append(time.perf_counter() - start)
        out[str(n)] = {"seconds": min(seconds), "bytes_per_client": held / n}
        engine.close()
    return out


def machine():
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": datetime.date.today().isoformat(),
    }


def page(results):
    """The measured part of docs/engine.md."""
    m = results["machine"]
    out = [f"{m['date']}, {m['processor']}, {m['cores']} cores, load before the run {m['load_before']:.1f}; "
           "thousand client-samples per second, median (best) of the repetitions.", ""]  # fmt: skip
    names = list(results["workloads"])
    rows = list(dict.fromkeys(c for w in names for c in results["workloads"][w]))
    out += ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for c in rows:
        cells = [results["workloads"][w].get(c) for w in names]
        out.append(f"| {c} | " + " | ".join(f"{v['median']:.1f} ({v['best']:.1f})" if v else "-" for v in cells) + " |")
    out += ["", "| fused over | " + " | ".join(names) + " | bar |", "|---|" + "---|" * len(names) + "---|"]
    for c, label in (("peers", "the fastest of Flower and pfl-research"), (TWO, "two-process PyTorch")):
        cells = [f"{results['ratios'][w]['median'].get(c, float('nan')):.1f}" for w in names]
        bars = ", ".join(f"{w} {BARS[w][c]:g}" for w in names if c in BARS[w]) or "-"
        out.append(f"| {label} | " + " | ".join(cells) + f" | {bars} |")
    if "long" in results:
        out += ["", f"200 rounds of W1 (2.5 million client-samples): {results['long']:.0f} s."]
    if "cohort" in results:
        grown = ", ".join(f"{m}: {1e3 * s:.0f} ms" for m, s in results["cohort"].items())
        out += ["", f"Clients per round (W3's network, 60 samples each): {grown}."]
        grown = ", ".join(
            f"{int(n):,}: {1e3 * v['seconds']:.1f} ms, {v['bytes_per_client']:.0f} bytes each"
            for n, v in results["population"].items()
        )
        out += ["", f"Registered clients (10 train, 250 samples each; the others own one sample): {grown}."]
    return "\n".join(out) + "\n"


def write(results):
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / "engine.json").write_text(json.dumps(results, indent=1) + "\n")
    document = HERE.parent / "docs" / "engine.md"
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    if document.exists():
        head, rest = document.read_text().split(begin)
        document.write_text(head + begin + page(results) + end + rest.split(end)[1])


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--workloads", nargs="*", default=list(workloads.WORKLOADS), choices=list(workloads.WORKLOADS))
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=2, help="counted rounds of each repetition (fused: three times)")
    ask.add_argument("--only", nargs="*", help="contenders whose names contain one of these")
    ask.add_argument("--peers-python", default=HERE / "peers-venv" / "bin" / "python")
    ask.add_argument("--long", action="store_true", help="also time 200 rounds of W1")
    ask.add_argument("--dry", action="store_true", help="write no files")
    given = ask.parse_args()
    table = contenders(given.peers_python)
    if given.only:
        table = {name: c for name, c in table.items() if any(part in name for part in given.only)}
    results = {"machine": machine(), "workloads": {}, "ratios": {}}
    for name in given.workloads:
        results["workloads"][name] = compare(name, table, given.repeats, given.rounds)
        results["ratios"][name] = ratios(name, results["workloads"][name])
    if given.long:
        results["long"] = sum(run([sys.executable, "ours.py", "{w}", "201", "fused"], "W1", 200))
    results["cohort"], results["population"] = cohort_growth(), population_growth()
    print("\n" + page(results))
    if not given.dry:
        write(results)


if __name__ == "__main__":
    main()
