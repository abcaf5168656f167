"""Results of reproductions as Markdown: a table of our numbers and the published ones, and the claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedcohort.papers.reproduce import FAILS, HOLDS, UNKNOWN, rows_and_columns

INTRO = """# The papers' tables, reproduced

Each cell is **ours** (mean over seeds, ± half the width of its 95 % bootstrap interval) and, after the stroke, the
published number. The scale is `laptop`: smaller networks, fewer samples and fewer rounds than the papers, as listed
under each table, so absolute numbers are not comparable; what is checked are orderings and differences. A claim *holds*
when the interval of its paired difference leaves zero out, and is *inside the noise* otherwise.

Made by `fedcohort reproduce all --scale laptop` with the data, configurations and digests of every run in
`results/*-laptop.json`; this page by `fedcohort reproduce --page docs/papers.md`.
"""


def page(results: Iterable[Mapping[str, Any]]) -> str:
    """The page of all results, with a summary of what holds."""
    found = list(results)
    parts = [INTRO, _summary(found)]
    parts += [markdown(result) for result in found]
    return "\n".join(parts)


def markdown(result: Mapping[str, Any]) -> str:
    """One result."""
    cost = result.get("cost", {})
    seeds = len(result["seeds"])
    made = f"scale `{result['scale']}`, {seeds} seed{'s' * (seeds > 1)}, made {result['made']}"
    if cost:
        minutes = cost["wall_seconds"] / 60
        made += f", {cost['runs']} runs ({cost['run_now']} done in {minutes:.0f} min, the others read from the store)"
    lines = [f"## {result['title']}", f"`fedcohort reproduce {result['study']} --scale {result['scale']}`; {made}.", ""]
    lines += [*_table(result), "", *_claims(result["claims"])]
    if result["departures"]:
        lines += ["", "Departures from the paper: " + "; ".join(result["departures"]) + "."]
    lines += [f"\n{note}" for note in result["notes"]]
    if result["failed"]:
        lines += ["", "Failed runs:"] + [f"* `{name}`: {why}" for name, why in result["failed"].items()]
    return "\n".join(lines) + "\n"


def cell_text(cell: Mapping[str, Any]) -> str:
    """ "61.3 ± 1.2 / 64.8": ours, the half-width of its interval, and the published number."""
    digits = int(cell["digits"])
    known = [v for v in cell["values"].values() if v is not None]
    if cell["mean"] is None:
        ours = str(cell["missing"])
    else:
        ours = f"**{cell['mean']:.{digits}f}**"
        if cell["low"] is not None and len(known) > 1:
            ours += f" ± {(cell['high'] - cell['low']) / 2:.{digits}f}"
        if len(known) < len(cell["values"]):
            ours += f" ({len(known)} of {len(cell['values'])})"
    return ours if cell["published"] is None else f"{ours} / {cell['published']:g}"


def _table(result: Mapping[str, Any]) -> list[str]:
    rows, columns = rows_and_columns(result["cells"])
    at = {(c["row"], c["column"]): c for c in result["cells"]}
    heads = [*columns, *([result["average"]] if result["average"] else [])]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in rows:
        cells = [at.get((row, c)) for c in columns]
        texts = ["" if c is None else cell_text(c) for c in cells]
        if result["average"]:
            texts.append(_average([c for c in cells if c is not None]))
        lines.append(f"| {row} | " + " | ".join(texts) + " |")
    return lines


def _average(cells: Sequence[Mapping[str, Any]]) -> str:
    if any(c["mean"] is None for c in cells):
        return "-"
    ours = f"**{sum(c['mean'] for c in cells) / len(cells):.{cells[0]['digits']}f}**"
    if any(c["published"] is None for c in cells):
        return ours
    return f"{ours} / {sum(c['published'] for c in cells) / len(cells):.{cells[0]['digits']}f}"


def _claims(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    if not claims:
        return []
    lines = [
        "| the paper's claim | published difference | ours (95 % interval) | pairs won-lost | |",
        "|---|---|---|---|---|",
    ]
    for claim in claims:
        published = "" if claim["published"] is None else f"{claim['published']:+.4g}"
        ours = "" if claim["difference"] is None else f"{claim['difference']:+.2f}"
        if claim["low"] is not None:
            ours += f" ({claim['low']:+.2f} to {claim['high']:+.2f})"
        score = f"{claim['wins']}-{claim['losses']} of {claim['pairs']}"
        lines.append(f"| {claim['words']} | {published} | {ours} | {score} | **{claim['verdict']}** |")
    return lines


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| table | claims | hold | hold, inside the noise | do not hold, inside the noise | do not hold |",
        "|---" * 6 + "|",
    ]
    for result in results:
        verdicts = [c["verdict"] for c in result["claims"] if c["verdict"] != UNKNOWN]
        noise = [v for v in verdicts if "inside the noise" in v]
        sure = [v for v in verdicts if v not in noise]
        counts = [
            sum(v.startswith(HOLDS) for v in sure),
            sum(v.startswith(HOLDS) for v in noise),
            sum(v.startswith(FAILS) for v in noise),
            sum(v.startswith(FAILS) for v in sure),
        ]
        lines.append(f"| {result['title']} | {len(result['claims'])} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"
