"""The measured part of docs/engine.md: tables and sentences, both made from the same figures."""

from __future__ import annotations

FLOWER, PFL, TWO = "Flower simulation", "pfl-research", "PyTorch processes"
OURS = "fedcohort fused"
GOALS = {"W1": {"peers": 4.0, TWO: 3.0}, "W2": {"peers": 1.5}, "W3": {"peers": 3.0}}
AGAINST = {"peers": "the faster of Flower and pfl-research", TWO: "two-process PyTorch"}
LONG = 120.0  # seconds that 200 rounds of W1 may take
NARROW = 1.1  # a goal passed by less than this factor is called narrow


def ratios(name, result):
    """Our median and best over the fastest peer's, and over two-process PyTorch, with the goal where there is one."""
    out = {}
    for kind in ("median", "best"):
        ours = result.get(OURS, {}).get(kind, float("nan"))
        peers = [v[kind] for c, v in result.items() if c == FLOWER or c.startswith(PFL)]
        out[kind] = {"peers": ours / max(peers)} if peers else {}
        out[kind] |= {c: ours / v[kind] for c, v in result.items() if c != OURS}
    out["goals"] = GOALS[name]
    return out


def repetitions(results):
    """How often each workload was measured: "three interleaved repetitions", or what was less."""
    counts = {w: min(len(v["all"]) for v in found.values()) for w, found in results["workloads"].items() if found}
    if len(set(counts.values())) == 1:
        n = next(iter(counts.values()))
        return f"{n} interleaved repetitions" if n > 1 else "one repetition, so the median is the best"
    return "repetitions: " + ", ".join(f"{w} {n}" for w, n in counts.items())


def speeds(results):
    """The table of speeds."""
    names = sorted(results["workloads"])
    rows = list(dict.fromkeys(c for w in names for c in results["workloads"][w]))
    out = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for c in rows:
        cells = [results["workloads"][w].get(c) for w in names]
        out.append(f"| {c} | " + " | ".join(f"{v['median']:.1f} ({v['best']:.1f})" if v else "-" for v in cells) + " |")
    return out


def table_of_ratios(results):
    """The table of ratios, medians (best)."""
    names = sorted(results["workloads"])
    out = ["| fused over | " + " | ".join(names) + " | goal |", "|---|" + "---|" * len(names) + "---|"]
    for c, label in AGAINST.items():
        pairs = [[results["ratios"][w][kind].get(c) for kind in ("median", "best")] for w in names]
        cells = [f"{m:.2f} ({b:.2f})" if m is not None else "-" for m, b in pairs]
        goals = ", ".join(f"{w} {GOALS[w][c]:g}" for w in names if c in GOALS[w]) or "-"
        out.append(f"| {label} | " + " | ".join(cells) + f" | {goals} |")
    return out


def verdict(found, goal, what):
    """One sentence about one goal."""
    if found is None or found != found:
        return f"{what}: not measured; the goal is {goal:g}."
    if found < goal:
        return f"**{what}: {found:.2f}, below the goal of {goal:g}.**"
    return f"{what}: {found:.2f}; the goal is {goal:g}{' (narrowly reached)' if found < NARROW * goal else ''}."


def verdicts(results):
    """Every goal as a sentence, by the medians."""
    out = []
    for w in sorted(results["workloads"]):
        for c, goal in GOALS[w].items():
            out.append("- " + verdict(results["ratios"][w]["median"].get(c), goal, f"{w} against {AGAINST[c]}"))
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
    out = [
        f"{m['date']}, {m['processor']}, {m['cores']} cores, load before the run {m['load_before']:.1f}; thousand "
        f"client-samples per second, median (best); {repetitions(results)}.",
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
