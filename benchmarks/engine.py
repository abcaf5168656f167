"""How fast a cohort trains: fedcohort's engines against PyTorch, Flower's simulation and pfl-research, in one run.

    python benchmarks/engine.py --quick              what the goals are about, W1 to W4, a GRU and ray, in a quarter of
                                                     an hour on two quiet cores, and how cost grows
    python benchmarks/engine.py --long               every contender three times, interleaved; then also 200 rounds of W1
    python benchmarks/engine.py --device cuda        the same with torch_vmap and a PyTorch loop on the device
    python benchmarks/engine.py --page               only rewrite the page from the stored results

Every contender runs in a process of its own, trains the same networks on data of the same shape, and reports the
seconds of every round but the first. Start-up, compilation and warm-up are thus left out for all of them. Nothing
is evaluated: a round is local training of the cohort and the mean of what comes back. Results go to
benchmarks/results/engine.json and into docs/engine.md, after every workload, so that an interruption loses little.
The page's sentences about goals are made from the same figures as its tables; a run of everything also removes the
older figures beside them. See benchmarks/README.md for the peers'
environment.
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
FILES = {"wall": "engine.json", "cpu": "engine_cpu.json"}  # results by clock
OLDER = tuple(f"<!-- older figures: {word} -->" for word in ("begin", "end"))
sys.path[:0] = [str(PEERS), str(HERE)]
import workloads  # noqa: E402

from engine_page import FLOWER, GOALS, LAST, OURS, PFL, RAY, TWO, WORKERS, complete, page  # noqa: E402

ONE = ("PyTorch loop", f"{PFL}, one process")  # in one process: never the fastest, left out of a quick run
LENGTHY = ("W2", "W4")  # a quick run has one repetition of these, and two of the others


def contenders(peer_python, device):
    here, cores = sys.executable, str(os.cpu_count())
    peer = str(peer_python)
    found = {
        OURS: [here, "ours.py", "{w}", "{fast}", "fused"],
        WORKERS: [here, "ours.py", "{w}", "{slow}", "torch_workers"],
        RAY: [here, "ours.py", "{w}", "{fast}", "ray"],
        "PyTorch loop": [here, "pytorch_loop.py", "{w}", "{slow}"],
        TWO: [here, "pytorch_processes.py", "{w}", "{slow}"],
        LAST: [here, "pytorch_processes.py", "{w}", "{slow}", "last"],
        FLOWER: [here, "flower_simulation.py", "{w}", "{slow}"],
        f"{PFL}, one process": [peer, "pfl_research.py", "{w}", "{slow}"],
        f"{PFL}, processes": [
            peer, "-m", "torch.distributed.run", "--nproc_per_node", cores, "pfl_research.py", "{w}", "{slow}"
        ],
    }  # fmt: skip
    if device != "cpu":
        found[f"fedcohort torch_vmap on {device}"] = [here, "ours.py", "{w}", "{slow}", "torch_vmap", device]
        found[f"PyTorch loop on {device}"] = [here, "pytorch_loop.py", "{w}", "{slow}", device]
    if not Path(peer_python).exists():
        print(f"{peer_python} is missing: no pfl-research (see benchmarks/README.md)")
        found = {name: command for name, command in found.items() if not name.startswith(PFL)}
    return found


def takes_part(contender, workload):
    """Whether a contender can train a workload: `fused` has no GRU, and ray is measured where cohorts are large."""
    return not ((workload == "GRU" and contender in (OURS, FLOWER)) or (contender == RAY and workload != "W3"))


def matters(contender, workload):
    """Whether a quick run has this contender: it is compared in a goal of this workload."""
    asked = [(ours, *others) for w, ours, others, _ in GOALS if w == workload]
    return contender not in ONE and any(contender in names for names in asked)


def run(command, workload, rounds, clock="wall"):
    """Seconds of the rounds after the first, or None if the contender failed."""
    root = ["sh", "-c", 'FEDCOHORT_ROOT=$$ exec "$@"', "contender"] if clock == "cpu" else []
    filled = root + [part.format(w=workload, fast=3 * rounds + 1, slow=rounds + 1) for part in command]
    try:
        done = subprocess.run(filled, cwd=PEERS, capture_output=True, text=True, timeout=1800, check=False)
    except subprocess.TimeoutExpired:
        print(f"{workload}: {' '.join(filled)} took more than half an hour")
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROUNDS ")]
    if not lines:
        print(done.stderr[-1500:])
        return None
    return json.loads(lines[-1][7:])


def compare(name, table, given):
    """Thousand client-samples per second of every contender: best and median over the repetitions."""
    passes, rounds, clock = workloads.WORKLOADS[name].passes, given.rounds, given.clock
    wanted = [c for c in table if takes_part(c, name) and (not given.quick or matters(c, name))]
    repeats = 1 if given.quick and name in LENGTHY else given.repeats
    speeds = {contender: [] for contender in wanted}
    for repeat in range(repeats):
        for contender in wanted:
            if given.quick and repeat and contender == FLOWER:  # a third of the time, for the slowest of all
                continue
            command = table[contender]
            seconds = run(command, name, rounds, clock)
            if seconds:
                speeds[contender].append(passes / statistics.median(seconds) / 1e3)
                print(f"{name} {repeat + 1}/{repeats} {contender:34s} {speeds[contender][-1]:8.2f} k/s", flush=True)
    return {c: {"best": max(s), "median": statistics.median(s), "all": s} for c, s in speeds.items() if s}


def cohort_growth():
    """Seconds of a round with 10 .. 1,000 clients of W3's kind."""
    from ours import setting

    from fedcohort.engines.fused import FusedEngine
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
    from fedcohort.engines.fused import FusedEngine
    from fedcohort.engines.interface import ClientData
    from fedcohort.engines.networks import mlp
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


def write(results):
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    clock = results.get("clock", "wall")
    (folder / FILES[clock]).write_text(json.dumps(results, indent=1) + "\n")
    document = HERE.parent / "docs" / "engine.md"
    begin, end = (f"<!-- measured{' by CPU' * (clock == 'cpu')}: {word} -->" for word in ("begin", "end"))
    begin += "\n"
    text = document.read_text() if document.exists() else ""
    if begin in text:
        head, rest = text.split(begin)
        text = head + begin + page(results) + end + rest.split(end)[1]
        if complete(results) and OLDER[0] in text:
            text = text.split(OLDER[0])[0].rstrip("\n") + "\n" + text.split(OLDER[1])[1]
        document.write_text(text)


def arguments():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--workloads", nargs="*", default=list(workloads.WORKLOADS), choices=list(workloads.WORKLOADS))
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=2, help="counted rounds of each repetition (fused: three times)")
    ask.add_argument("--only", nargs="*", help="contenders whose names contain one of these")
    ask.add_argument("--peers-python", default=HERE / "peers-venv" / "bin" / "python")
    ask.add_argument("--device", default="cpu", help="also time torch_vmap and a PyTorch loop there, e.g. on cuda")
    ask.add_argument("--quick", action="store_true", help="only what the goals compare, and less often")
    ask.add_argument("--long", action="store_true", help="also time 200 rounds of W1")
    ask.add_argument("--clock", default="wall", choices=list(FILES), help="cpu: on a machine that is busy, by CPU time")
    ask.add_argument("--dry", action="store_true", help="write no files")
    ask.add_argument(
        "--page", action="store_true", help="measure nothing; rewrite docs/engine.md from the stored results"
    )
    given = ask.parse_args()
    if given.quick:
        given.repeats, given.rounds = 2, 1
    return given


def main():
    given = arguments()
    if given.page:
        for file in FILES.values():
            write(json.loads((HERE / "results" / file).read_text()))
        return
    table = contenders(given.peers_python, given.device)
    if given.only:
        table = {name: c for name, c in table.items() if any(part in name for part in given.only)}
    results = {"machine": machine(), "repeats": given.repeats, "clock": given.clock, "workloads": {}}
    for name in given.workloads:
        results["workloads"][name] = compare(name, table, given)
        results["machine"]["load_after"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
        if not given.dry:
            write(results)
    if given.clock == "cpu":  # growth and long runs are seconds of the wall
        return
    if given.long:
        results["long"] = sum(run([sys.executable, "ours.py", "{w}", "201", "fused"], "W1", 200))
    results["cohort"], results["population"] = cohort_growth(), population_growth()
    print("\n" + page(results))
    if not given.dry:
        write(results)


if __name__ == "__main__":
    main()
