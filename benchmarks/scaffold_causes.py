"""Which part of SCAFFOLD's correction costs selectors their accuracy: one part changed at a time.

    python benchmarks/scaffold_causes.py flash "as it is" 1        # one run, 10 to 25 seconds; needs CIFAR-10
    python benchmarks/scaffold_causes.py --grid                    # all of GRID, into results/; continues where it stopped
    python benchmarks/scaffold_causes.py --show                    # the tables of docs/methods/scaffold.md, from results/

FLASH's Table I with 30 % skewed clients at scale laptop: CIFAR-10, 50 clients, 10 asked, 30 rounds, Adam, option I. With
K the clients that have a variate, the corrected mean gradient of a cohort S differs from g, that of all clients, by

    mean_S (g_k - c_k)  -  1/N sum_K (g_k - c_k)  -  1/N sum_{not K} g_k
    variates of the cohort    variates in c             zeros in c

A change does away with one of them, by what only an onlooker knows: the gradients of all clients at the broadcast model.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import Objects, build
from fedcohort.methods.scaffold import Scaffold
from fedcohort.papers import result_files
from fedcohort.papers.flash import flash_setting as flash
from fedcohort.papers.paper_evidence import difference
from fedcohort.protocols import Aggregation
from fedcohort.types import Index, Model, Plan, Updates

RESULT = Path(__file__).parents[1] / "results" / "scaffold_causes.json"
WORLD, NOTED = "flash-noniid30-v1", ("as it is", "all renewed", "c renewed")  # of the last, errors are noted too
N, FIRST, EVERY = 50, 8, 3  # clients; the first round in which errors are noted, and every how many rounds
CHANGES = {
    "fedavg": "FedAvg on the same world",
    "as it is": "the paper's correction",
    "cohort": "reference='cohort'",
    "left out": "clients without a variate are left out of c and are not corrected (unknown='left out')",
    "scaled": "clients without a variate are left out of c",
    "zeros filled": "the zeros in c are replaced by those clients' gradients of now",
    "c renewed": "the variates in c are of now, and the zeros stay",
    "c true": "c is the mean gradient of all clients, of now",
    "cohort renewed": "the variates taken off are of now; c stays",
    "all renewed": "both",
    "skewed plain": "clients that hold one class mostly are not corrected",
}
PLAIN = {"fedavg", "as it is", "left out", "scaled", "cohort", "skewed plain"}  # needs no gradients of all clients
UNIFORM, FLASH, OORT, FEEL = SELECTORS = ("uniform", "flash", "oort", "feel(probe='sample:15')")
SEEDS = (0, 1, 2)
GRID = {  # by change: whom it is tried on
    **dict.fromkeys(("as it is", "fedavg", "all renewed", "cohort", "left out", "scaled", "skewed plain"), SELECTORS),
    "zeros filled": (FLASH,),
    "c renewed": (FLASH,),
    "c true": (FLASH, OORT, FEEL),
    "cohort renewed": (FLASH, OORT, FEEL),
}
ADAM, SGD = {"solver": "adam", "lr": 0.004, "epochs": 2}, {"solver": "sgd", "lr": 0.1, "epochs": 2}
TASK = (
    "cifar10-cnn(batch_size=32, epochs={}, lr={}, momentum=0.0, optimiser={!r}, recut=True, test=0.08, "
    "unlabelled=0.004, unused=0.84, validation=0.005, weight_decay=0.0)"
)


class Changed(Scaffold):
    """SCAFFOLD with one part of its correction changed, which notes the errors of the cohort's mean gradient."""

    name = "scaffold"

    def __init__(self, change: str, *, note: bool) -> None:
        super().__init__(option="I", unknown="left out" if change == "left out" else "zero")
        self.change, self.note, self.round, self.noting = change, note, 0, False
        self.gradients: Callable[[Model, Index], Any] = lambda model, clients: np.zeros((1, 1))
        self.skewed = np.zeros(N, np.bool_)
        self.errors: list[dict[str, float]] = []
        self.paths: list[dict[str, float]] = []

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """The correction, with the change."""
        ready, width, who = super().prepare(plan, model, clients), model.params.size, np.asarray(clients)
        self.noting = self.note and self.round >= FIRST and self.round % EVERY == 0
        self.round += 1
        if self.round == 1:
            return ready
        ck, has = self.state.read(np.arange(N), width).astype(np.float64), self.state.written(np.arange(N))
        now = ck
        if self.noting or self.change not in PLAIN:
            now = np.asarray(self.gradients(model, np.arange(N)), np.float64)
        fix = self._changed(np.asarray(ready.correction, np.float64), ck, has, now, who)
        if self.noting:
            self.errors.append(errors(fix, ck, has, now, who))
        return replace(ready, correction=fix.astype(np.float32))

    def _changed(self, fix: Any, ck: Any, has: Any, now: Any, who: Index) -> Any:
        """One of CHANGES; `now` holds the gradients of all clients at the broadcast model."""
        c = self.state.mean(ck.shape[1])
        if self.change == "scaled":
            fix = fix - c + ck[has].mean(axis=0)
        if self.change == "zeros filled":
            fix = fix + now[~has].sum(axis=0) / N
        if self.change == "c renewed":
            fix = fix + (now[has] - ck[has]).sum(axis=0) / N
        if self.change == "c true":
            fix = fix - c + now.mean(axis=0)
        if self.change == "cohort renewed":
            fix = fix + ck[who] - now[who]
        if self.change == "all renewed":
            fix = now.mean(axis=0) - now[who]
        if self.change == "skewed plain":
            fix[self.skewed[who]] = 0.0
        return fix

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Any:
        """Note how much of c_k is left in each client's gradient where its local path begins and ends."""
        for k, delta, begin in zip(updates.clients, updates.delta, updates.extras["full_gradient"], strict=True):
            c = self.state.read(np.array([k]), delta.size)[0].astype(np.float64)
            if self.noting and c.any():
                end = self.gradients(Model(model.params + delta, model.buffers), np.array([k]))[0]
                left = {"begin": float(begin @ c / (c @ c)), "end": float(end @ c / (c @ c))}
                self.paths.append({"skewed": float(self.skewed[k]), **left, "size": float(np.linalg.norm(c))})
        return super().combine(model, updates, context)


def errors(fix: Any, ck: Any, has: Any, now: Any, who: Index) -> dict[str, float]:
    """The cohort's mean gradient without and with the correction, and its three errors, against that of all clients."""
    g = now.mean(axis=0)
    size = float(np.linalg.norm(g))
    plain = now[who].mean(axis=0)
    x = plain + fix.mean(axis=0)
    parts = {
        "cohort": plain - ck[who].mean(axis=0),
        "c": -(now[has] - ck[has]).sum(axis=0) / N,
        "zeros": -now[~has].sum(axis=0) / N,
    }
    found = {f"along g: {name}": float(part @ g) / size**2 for name, part in parts.items()}
    found |= {"plain": float(np.linalg.norm(plain - g)) / size, "corrected": float(np.linalg.norm(x - g)) / size}
    found["cosine plain"] = float(plain @ g / np.linalg.norm(plain)) / size
    found["cosine corrected"] = float(x @ g / np.linalg.norm(x)) / size
    return {**found, "along g": float((x - g) @ g) / size**2, "no variate": 1.0 - float(has.mean())}


def play(selector: str, change: str, seed: int, *, solver: str, lr: float, epochs: int, note: bool) -> dict[str, Any]:
    """One run: best and last accuracy (%), and what was noted."""
    keys: dict[str, Any] = {"selector": selector, "world": WORLD, "rounds": 30, "cohort_size": 10}
    keys |= {"task": TASK.format(epochs, lr, solver), "seed": seed, "workers": 1, "evaluate_every": 3}
    own = None if change == "fedavg" else Changed(change, note=note)
    method = Scaffold(option="I", reference="cohort") if change == "cohort" else own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulation = build(from_mapping(keys), Objects(method=method))
        engine = simulation.task.engine  # type: ignore[attr-defined]
        train = engine._data.train
        top = [np.bincount(train.label[train.of(k)]).max() / train.sizes[k] for k in range(N)]
        if own is not None:
            own.gradients, own.skewed = engine.gradients, np.array(top) > 0.5
        history = simulation.run()
    accuracy = np.asarray(history.accuracy, float)
    accuracy = 100 * accuracy[~np.isnan(accuracy)]
    asked = float(np.mean([np.mean(np.array(top)[np.asarray(c)] > 0.5) for c in history.cohorts]))
    run = {"selector": selector, "change": change, "seed": seed, "solver": solver, "lr": lr, "epochs": epochs}
    run |= {"best": float(accuracy.max()), "last": float(accuracy[-1]), "skewed asked": asked}
    if own is not None and own.errors:
        run["errors"] = {k: float(np.mean([e[k] for e in own.errors])) for k in own.errors[0]}
        run["paths"] = [
            {k: float(np.median([p[k] for p in own.paths if p["skewed"] == s])) for k in own.paths[0]} for s in (0, 1)
        ]
    return run


def grid() -> None:
    """Every run of GRID that is not stored, seed by seed, then SCAFFOLD and FedAvg with SGD."""
    wanted = [(who, change, ADAM) for change, whom in GRID.items() for who in whom]
    wanted += [(who, change, SGD) for change in ("as it is", "fedavg") for who in SELECTORS]
    for seed in SEEDS:
        for who, change, how in wanted:
            stored = json.loads(RESULT.read_text()) if RESULT.exists() else {"world": WORLD, "rounds": 30, "runs": []}
            asked = {"selector": who, "change": change, "seed": seed, **how}
            if any(asked.items() <= run.items() for run in stored["runs"]):
                continue
            stored["runs"].append(play(who, change, seed, **how, note=how is ADAM and change in NOTED))
            RESULT.write_text(json.dumps(stored, indent=1) + "\n")
            print(f"{who} {change} {seed} {how['solver']}: {stored['runs'][-1]['best']:.1f}", flush=True)


def differences() -> None:
    """Selectors of FLASH's Table I minus random choice, over the seeds that both have, under SCAFFOLD and FedAvg."""
    blocks = {"both": "skewed and noise", "noniid": "skewed only", "noise": "noise only"}
    columns = ("SCAFFOLD", "FedAvg")
    heads = (f"{name}, {column}" for name in blocks.values() for column in columns)
    print(f"| points against random choice (seeds) | {' | '.join(heads)} |")
    print("|---" * (1 + len(blocks) * len(columns)) + "|")
    found: dict[str, list[str]] = {}
    for block in blocks:
        result = result_files.load(result_files.file_of(f"flash:table1-{block}", "laptop", RESULT.parent))
        rows = [c["row"] for c in result["cells"] if c["column"] == "SCAFFOLD" and c["row"] != flash.RANDOM]
        for row in rows:
            gaps = (difference(result, row, flash.RANDOM, (column,)) for column in columns)
            found.setdefault(row, []).extend(f"{gap.mean:+.1f} ({gap.seeds})" if gap else "-" for gap in gaps)
    for row, texts in found.items():
        print(f"| {row} | {' | '.join(texts)} |")


def table(solver: str) -> None:
    """Best accuracy by change and selector: the mean over the seeds, and their range."""
    runs = [run for run in json.loads(RESULT.read_text())["runs"] if run["solver"] == solver]
    print(f"| {solver} | " + " | ".join(f"`{who.partition('(')[0]}`" for who in SELECTORS) + " |")
    print("|---" * (1 + len(SELECTORS)) + "|")
    for change, words in CHANGES.items():
        best = [[run["best"] for run in runs if (run["selector"], run["change"]) == (who, change)] for who in SELECTORS]
        texts = [f"**{np.mean(b):.1f}** ({min(b):.1f} to {max(b):.1f})" if b else "-" for b in best]
        if any(best):
            print(f"| {words} | {' | '.join(texts)} |")
    noted = [[run for run in runs if run["change"] == "as it is" and run["selector"] == who] for who in SELECTORS]
    for name in ("cosine plain", "cosine corrected", "along g: cohort", "along g: c", "along g: zeros", "no variate"):
        if solver == "adam":
            means = (f"{np.mean([run['errors'][name] for run in of]):.2f}" for of in noted)
            print(f"| {name} | {' | '.join(means)} |")
    shares = (f"{np.mean([run['skewed asked'] for run in of]):.0%}" for of in noted)
    print(f"| skewed clients among those asked | {' | '.join(shares)} |")


def main() -> None:
    """One run, the grid, or those that were stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("selector", nargs="?", default="uniform")
    parser.add_argument("change", nargs="?", default="as it is", choices=CHANGES)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--solver", default="adam")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--note", action="store_true", help="note errors in every third round from round 8 on")
    parser.add_argument("--grid", action="store_true", help="all runs of the grid that are not stored")
    parser.add_argument("--show", action="store_true", help="print the tables of the page")
    args = parser.parse_args()
    if args.grid:
        grid()
        return
    if args.show:
        differences()
        table("adam")
        table("sgd")
        return
    keys = {"solver": args.solver, "lr": args.lr, "epochs": args.epochs, "note": args.note}
    print(json.dumps(play(args.selector, args.change, args.seed, **keys), indent=1))


if __name__ == "__main__":
    main()
