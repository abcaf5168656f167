"""Numbers on pages that come from committed results: `python docs/_site/fill_numbers.py` writes them into the Markdown.

A page marks a place with `<!-- made: NAME -->` ... `<!-- /made -->`, in a line or around a table; what stands between
is replaced. A test fails where a page and the results differ. Pages stay readable without the site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/asynchronous.md",
    "docs/experiments.md",
    "docs/flower.md",
    "docs/reliability.md",
    "docs/design/flower.md",
    "docs/design/reliability.md",
    "docs/selectors/README.md",
    "docs/selectors/speed.md",
    "docs/methods/README.md",
)
PLACE = re.compile(r"(<!-- made: ([\w-]+) -->)(.*?)(<!-- /made -->)", re.DOTALL)


def results(path: str) -> Any:
    """A committed file of results."""
    return json.loads((ROOT / path).read_text("utf-8"))


def demo_table() -> str:
    """The demo: mean and 95 % bootstrap interval over seeds."""
    from fedcohort.experiment.demo import TAIL
    from fedcohort.experiment.metrics.paired import spread
    from fedcohort.experiment.metrics.run_metrics import reached

    kept = results("docs/pictures/runs.json")
    lines = [
        "| selector | accuracy | virtual min to 80 % | rounds to 80 % | fairness (Jain) |",
        "|---|---|---|---|---|",
    ]

    def cell(values: list[float], form: str) -> str:
        if len(values) < kept["seeds"]:
            return f"not reached by {kept['seeds'] - len(values)} of {kept['seeds']} seeds"
        return f"{form} ({form}-{form})".format(float(np.mean(values)), *spread(values))

    for name, curves in kept["demo"].items():
        found = [reached(accuracy, kept["target"], clock) for clock, accuracy in curves]
        there = [one for one in found if one is not None]
        ends = cell([float(np.mean(accuracy[-TAIL:])) for _, accuracy in curves], "{:.3f}")
        minutes = cell([one.seconds / 60 for one in there], "{:.3g}")
        rounds = cell([float(one.rounds) for one in there], "{:.1f}")
        lines.append(f"| `{name}` | {ends} | {minutes} | {rounds} | {np.mean(kept['fairness'][name]):.2f} |")
    return "\n" + "\n".join(lines) + "\n"


def selection_table() -> str:
    """Milliseconds to choose 100 clients."""
    found = results("benchmarks/results/selection.json")
    lines = ["| selector | " + " | ".join(f"{n:,}" for n in found["clients"]) + " |", "|---" * 4 + "|"]
    for name, times in found["ms"].items():
        cells = ["-" if t is None else f"{t[0]:.2f} ({t[1]:.2f})" for t in times]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    reference = " | ".join(f"{t:,.0f}" for t in found["dict_oort_ms"])
    lines.append(f"| dict per client (Oort's rule, written for the benchmark) | {reference} |")
    return "\n" + "\n".join(lines) + "\n"


def selection_ratio() -> str:
    """Oort at the largest population: ours, a dict per client, and how many times as long."""
    found = results("benchmarks/results/selection.json")
    ours, other = found["ms"]["oort"][-1][1], found["dict_oort_ms"][-1]
    longer = f"{other / 1000:.1f} s in the same run: {other / ours:.0f} times as long"
    return f"{ours:.0f} ms, the dict-per-client version {longer}"


def asynchronous_table() -> str:
    """Rounds and buffers until the same virtual time."""
    found = results("benchmarks/results/asynchronous.json")
    head = f"| | virtual seconds to {found['target']:.0%} (every seed) | accuracy after {found['horizon']:.0f} s "
    lines = [f"{head}| updates used | mean age |", "|---" * 5 + "|"]
    for name, runs in found["runs"].items():
        times = [r["seconds_to_target"] for r in runs]
        told = ", ".join("not reached" if t is None else f"{t:.0f}" for t in times)
        mean = {k: float(np.mean([r[k] for r in runs])) for k in ("accuracy", "updates", "staleness")}
        lines.append(f"| {name} | {told} | {mean['accuracy']:.1%} | {mean['updates']:.0f} | {mean['staleness']:.1f} |")
    return "\n" + "\n".join(lines) + "\n"


def asynchronous_ratios(against: str) -> str:
    """How many times sooner the buffered variants reach the target, seed by seed."""
    found = results("benchmarks/results/asynchronous.json")
    base = [r["seconds_to_target"] for r in found["runs"][against]]
    buffered = [runs for name, runs in found["runs"].items() if "buffer" in name]
    every = [b / r["seconds_to_target"] for runs in buffered for b, r in zip(base, runs, strict=True)]
    low, high = min(every), max(every)
    return f"{low:.1f} to {high:.1f}" if low < 2 else f"{low:.0f} to {high:.0f}"


def engine_range(*others: str) -> str:
    """How many times as fast as the fastest of these the fused engine is, over the workloads of the engine page."""
    found = []
    for speeds in results("benchmarks/results/engine.json")["workloads"].values():
        peers = [v["median"] for who, v in speeds.items() if who.startswith(others)]
        found += [speeds["fedcohort fused"]["median"] / max(peers)] if peers and "fedcohort fused" in speeds else []
    return f"{min(found):.1f} to {max(found):.1f}"


def printed(program: str, path: str) -> str:
    """The table that a program of ours prints from its committed results."""
    spec = spec_from_file_location("program", ROOT / program)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return f"\n{module.markdown(ROOT / path)}\n"


def torture_count() -> str:
    """How many rows there are, and which of them are below their goal."""
    rows = results("benchmarks/results/torture.json")["rows"]
    missed = [r["what"] for r in rows if not r["reached"]]
    return f"{len(rows)} rows; below their goal: {', '.join(missed) or 'none'}"


def flower_kills() -> str:
    """How many of the kills of real Flower processes were done, by process."""
    rows = results("benchmarks/results/torture.json")["rows"]
    found = next(r["figures"] for r in rows if r["what"] == "kill -9 of real Flower processes")
    done = {kind: found[f"{kind} killed"] for kind in ("SuperLink", "SuperNode", "ServerApp")}
    each = ", ".join(f"{n} of {kind}s" for kind, n in done.items())
    told = f"{sum(done.values())} of {len(done) * found['wanted of each']} kills were done: {each}"
    secure, lost = found["of these with TLS and keys"], found["records lost"]
    return f"{told}, {secure} of them with TLS and node keys; records lost: {lost}"


def over_selection_table(place: str = "") -> str:
    """Who is used under each policy; of one place (`"Flower"`) or of both."""
    heads = ["policy", "used, fast to slow", "never used", "weight, fast to slow", "bias", "seconds per round"]
    lines = ["| " + " | ".join(heads if place else ["place", *heads]) + " |"]
    lines.append("|---" * (len(heads) + (not place)) + "|")
    for row in results("benchmarks/results/over_selection.json")["rows"]:
        used, weight = ", ".join(f"{v:.0f}" for v in row["used"]), ", ".join(f"{v:.2f}" for v in row["weight"])
        cells = [row["policy"], used, f"{row['never']:.1f}", weight, f"{row['bias']:.2f}", f"{row['seconds']:.0f}"]
        if place in ("", row["place"]):
            lines.append("| " + " | ".join(cells if place else [row["place"], *cells]) + " |")
    return "\n" + "\n".join(lines) + "\n"


def key_table() -> str:
    """Every key of a run."""
    from fedcohort.experiment.config import markdown

    return f"\n{markdown()}"


def metric_table() -> str:
    """Every metric of a run."""
    from fedcohort.experiment.metrics.stored_metrics import METRICS

    lines = ["| name | meaning |", "|---|---|"]
    for metric in METRICS.values():
        lines.append(f"| `{metric.name}` | {metric.about}; {'higher' if metric.better > 0 else 'lower'} is better |")
    return "\n" + "\n".join(lines) + "\n"


def privacy_table() -> str:
    """The privacy levels, and the signals of each."""
    from fedcohort.signals import PRIVACY, SIGNALS

    lines = ["| level | what the server learns of a client | signals |", "|---|---|---|"]
    for level, (name, about) in enumerate(PRIVACY.items()):
        names = ", ".join(f"`{s.name}`" for s in SIGNALS.values() if s.privacy == level)
        lines.append(f"| {name} | {about} | {names} |")
    return "\n" + "\n".join(lines) + "\n"


def _count(kind: str, family: str = "") -> str:
    from fedcohort.registry.catalogue import ENTRIES

    return str(sum(e.kind == kind and (e.family == "wrapper") == (family == "wrapper") for e in ENTRIES))


MADE: dict[str, Callable[[], str]] = {
    "demo": demo_table,
    "selection": selection_table,
    "selection-ratio": selection_ratio,
    "asynchronous": asynchronous_table,
    "asynchronous-rounds": lambda: asynchronous_ratios("rounds of 10"),
    "asynchronous-over": lambda: asynchronous_ratios("rounds of 10, 13 asked"),
    "engine-range": lambda: engine_range("Flower", "pfl-research"),
    "engine-over-torch": lambda: engine_range("PyTorch processes"),
    "torture": lambda: printed("tests/stress/torture/table.py", "benchmarks/results/torture.json"),
    "torture-count": torture_count,
    "flower-kills": flower_kills,
    "load": lambda: printed("benchmarks/load.py", "benchmarks/results/load.json"),
    "over-selection": over_selection_table,
    "over-selection-flower": lambda: over_selection_table("Flower"),
    "run-keys": key_table,
    "metrics": metric_table,
    "privacy-levels": privacy_table,
    "selectors": lambda: _count("selector"),
    "wrappers": lambda: _count("selector", "wrapper"),
    "methods": lambda: _count("method"),
}


def filled(text: str) -> str:
    """A page with its numbers as the results have them now."""
    return PLACE.sub(lambda m: f"{m[1]}{MADE[m[2]]()}{m[4]}", text)


def main() -> None:
    """All pages."""
    for name in PAGES:
        page = ROOT / name
        before = page.read_text("utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main()
