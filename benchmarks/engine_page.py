"""The measured part of docs/engine.md: tables and sentences, both made from the same figures."""

from __future__ import annotations

FLOWER, PFL, TWO = "Flower simulation", "pfl-research", "PyTorch processes"
LAST = f"{TWO}, channels-last"
OURS, WORKERS, RAY = "fedcohort fused", "fedcohort torch_workers", "fedcohort ray"
PEERS = (FLOWER, f"{PFL}, one process", f"{PFL}, processes")
LOOPS = (TWO, LAST)
SAID = {PEERS: "the faster of Flower and pfl-research", LOOPS: "two-process PyTorch, the faster layout", (OURS,): OURS}
GOALS = (  # workload, whose speed, over the fastest of whom, and by how much
    ("W1", OURS, PEERS, 5.5),
    ("W2", OURS, PEERS, 2.5),
    ("W3", OURS, PEERS, 6.0),
    ("W3", OURS, LOOPS, 4.0),
    ("W4", OURS, LOOPS, 2.0),
    ("W1", WORKERS, LOOPS, 1.0),
    ("W2", WORKERS, LOOPS, 1.0),
    ("W4", WORKERS, LOOPS, 1.0),
    ("GRU", WORKERS, LOOPS, 2.0),
    ("W3", RAY, (OURS,), 0.9),
)
TABLE = ((OURS, PEERS), (OURS, LOOPS), (WORKERS, LOOPS), (RAY, (OURS,)))
LONG = 120.0  # seconds that 200 rounds of W1 may take
ORDER = ("W1", "W2", "W3", "W4", "GRU")
NARROW = 1.1  # a goal passed by less than this factor is called narrow


def ratio(found, ours, others, kind):
    """One contender's median or best over that of the fastest of some others; None where either was not measured."""
    fastest = max((found[c][kind] for c in others if c in found), default=None)
    return found[ours][kind] / fastest if ours in found and fastest else None


def columns(results):
    """The workloads that were measured, in the order of the page."""
    return [w for w in ORDER if results["workloads"].get(w)]


def complete(results):
    """Whether every goal was measured by the wall's clock, so that no older figures are needed beside these."""
    pairs = [ratio(results["workloads"].get(w, {}), ours, others, "median") for w, ours, others, _ in GOALS]
    return results.get("clock", "wall") == "wall" and None not in pairs


def repetitions(results):
    """How often each workload was measured: "three interleaved repetitions", or what was less."""
    often = {w: {c: len(v["all"]) for c, v in results["workloads"][w].items()} for w in columns(results)}
    counts = {w: max(found.values()) for w, found in often.items()}
    fewer = sorted({c for w, found in often.items() for c, n in found.items() if n < counts[w]})
    end = f" ({', '.join(fewer)} less often)" if fewer else ""
    if len(set(counts.values())) == 1:
        n = next(iter(counts.values()))
        return (f"{n} interleaved repetitions" if n > 1 else "one repetition, so the median is the best") + end
    return "interleaved repetitions: " + ", ".join(f"{w} {n}" for w, n in counts.items()) + end


def speeds(results):
    """The table of speeds."""
    names = columns(results)
    rows = list(dict.fromkeys(c for w in names for c in results["workloads"][w]))
    out = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for c in rows:
        cells = [results["workloads"][w].get(c) for w in names]
        out.append(f"| {c} | " + " | ".join(f"{v['median']:.1f} ({v['best']:.1f})" if v else "-" for v in cells) + " |")
    return out


def table_of_ratios(results):
    """The table of ratios, medians (best)."""
    names = columns(results)
    out = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for ours, others in TABLE:
        pairs = [[ratio(results["workloads"][w], ours, others, kind) for kind in ("median", "best")] for w in names]
        if any(m is not None for m, _ in pairs):
            cells = [f"{m:.2f} ({b:.2f})" if m is not None else "-" for m, b in pairs]
            out.append(f"| {ours} over {SAID[others]} | " + " | ".join(cells) + " |")
    return out


def verdict(found, goal, what):
    """One sentence about one goal."""
    if found is None:
        return f"{what}: not measured; the goal is {goal:g}."
    if found < goal:
        return f"**{what}: {found:.2f}, below the goal of {goal:g}.**"
    return f"{what}: {found:.2f}; the goal is {goal:g}{' (narrowly reached)' if found < NARROW * goal else ''}."


def verdicts(results):
    """Every goal as a sentence, by the medians."""
    out = []
    for w, ours, others, goal in GOALS:
        if results.get("clock") == "cpu" and w not in results["workloads"]:
            continue
        found = ratio(results["workloads"].get(w, {}), ours, others, "median")
        out.append("- " + verdict(found, goal, f"{w}, {ours} over {SAID[others]}"))
    if "long" in results:
        took = results["long"]
        said = f"- 200 rounds of W1 (2.5 million client-samples): {took:.0f} s; the goal is at most {LONG:.0f} s"
        out.append(said + ("." if took <= LONG else ": **not reached**."))
    return out


def growth(results):
    """How cost grows with the cohort and with the population."""
    grown = ", ".join(f"{m}: {1e3 * s:.0f} ms" for m, s in results["cohort"].items())
    out = ["", f"Clients per round (W3's network, 60 samples each): {grown}."]
    counts = [int(n) for n in results["population"]]
    held = [n * v["bytes_per_client"] for n, v in zip(counts, results["population"].values(), strict=True)]
    each = [(held[i] - held[i - 1]) / (counts[i] - counts[i - 1]) for i in range(1, len(held))]
    grown = ", ".join(f"{int(n):,}: {1e3 * v['seconds']:.1f} ms" for n, v in results["population"].items())
    return [
        *out,
        "",
        f"Registered clients (10 train, 250 samples each; the others own one sample and are not selected): {grown}; "
        f"every further one takes {max(each):.0f} bytes, its sample included (goal: at most 100).",
    ]


def page(results):
    """The measured part of docs/engine.md."""
    m = results["machine"]
    unit = "thousand client-samples per second"
    if results.get("clock") == "cpu":
        unit = f"thousand client-samples per {m['cores']} seconds of CPU of all processes of a contender"
    out = [
        f"{m['date']}, {m['processor']}, {m['cores']} cores, load before the run {m['load_before']:.1f}; {unit}, "
        f"median (best); {repetitions(results)}.",
        "",
        *speeds(results),
        "",
        *table_of_ratios(results),
        "",
        *verdicts(results),
    ]
    if "cohort" in results:
        out += growth(results)
    return "\n".join(out) + "\n"
