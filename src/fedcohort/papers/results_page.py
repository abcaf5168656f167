"""Results of reproductions as Markdown: a table of our numbers and the published ones, and the claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcohort.experiment.metrics.paired import spread_name
from fedcohort.papers.paper_summaries import SUMMARIES, half_page
from fedcohort.papers.reproduce import rows_and_columns
from fedcohort.papers.verdicts import FAILS, HOLDS, LEAST_SEEDS, NOISE, UNDECIDED

INTRO = """# The papers' tables, reproduced

Each cell is **ours** (mean over seeds; in brackets their range, from five seeds on the 95 % bootstrap interval) and,
after the stroke, the published number. Scales: `laptop` has smaller networks, fewer samples and fewer rounds than the
papers; `desk` has their clients, samples and local epochs and as many rounds as a plateau needs; both are listed under
each table, so absolute numbers are not comparable, and what is checked are orderings and differences. The row
*perfect choice* is a selector that is told every client's true labels: what choosing could gain. Claims are judged by
the rule of `fedcohort compare`: differences are averaged over columns within each seed, and a claim *holds* or *does
not hold* when the interval over seeds leaves zero out and the exact Wilcoxon test, corrected for the claims of the
table (Holm), says so too. With fewer than six seeds, or too few for so many claims, it is *undecided*.

Made by `fedcohort reproduce all --scale laptop` (or `desk`), with the data, configurations and digests of every run in
`results/`; this page by `fedcohort reproduce --page docs/papers.md`. A study that is half done says so: the same
command continues it, and keeps what is known of runs whose digests are still the same.
"""
NOT_RUN = "Not run yet at any scale but `smoke`"


def page(results: Iterable[Mapping[str, Any]], not_run: Sequence[str] = (), pictures: Path | None = None) -> str:
    """The page of all results, with a summary of what holds; `pictures` is the folder of pictures beside the tables."""
    found = list(results)
    parts = [INTRO, _summary(found)]
    for paper in dict.fromkeys(result["study"].partition(":")[0] for result in found):
        mine = [result for result in found if result["study"].partition(":")[0] == paper]
        if paper in SUMMARIES:
            parts.append(half_page(paper, mine))
        parts += [markdown(result, pictures) for result in mine]
    if not_run:
        parts.append(f"# {NOT_RUN}\n\n" + "\n".join(f"* `fedcohort reproduce {study}`" for study in not_run) + "\n")
    return "\n".join(parts)


def markdown(result: Mapping[str, Any], pictures: Path | None = None) -> str:
    """One result, with its picture where there is one."""
    cost = result.get("cost", {})
    seeds = seeds_of(result)
    made = f"scale `{result['scale']}`, {seeds} seed{'s' * (seeds > 1)}, made {result['made']}"
    if cost:
        minutes = cost["wall_seconds"] / 60
        made += f", {cost['runs']} runs ({cost['run_now']} done in {minutes:.0f} min, the others read from the store)"
    if result.get("done", 0) < result.get("wanted", 0):
        made += f"; **half done: {result['done']} of {result['wanted']} runs**, the same command continues"
    lines = [f"## {result['title']}", f"`fedcohort reproduce {result['study']} --scale {result['scale']}`; {made}.", ""]
    lines += [*_table(result), "", *_picture(result, pictures), *_claims(result["claims"])]
    if result["departures"]:
        lines += ["", "Departures from the paper: " + "; ".join(result["departures"]) + "."]
    lines += [f"\n{note}" for note in result["notes"]]
    if result["failed"]:
        lines += ["", "Failed runs:"] + [f"* `{name}`: {why}" for name, why in result["failed"].items()]
    return "\n".join(lines) + "\n"


def seeds_of(result: Mapping[str, Any]) -> int:
    """How many seeds have a number in some cell."""
    return len({seed for cell in result["cells"] for seed in cell["values"]})


def _picture(result: Mapping[str, Any], pictures: Path | None) -> list[str]:
    """A link to the picture of a study, `<study-id>.svg` of the smaller scale or `<study-id>-desk.svg`."""
    if pictures is None:
        return []
    name = result["study"].replace(":", "-") + ("" if result["scale"] == "laptop" else f"-{result['scale']}")
    there = (pictures / f"{name}.svg").exists()
    return [f"![{result['title']}](pictures/papers/{name}.svg)", ""] if there else []


def cell_text(cell: Mapping[str, Any]) -> str:
    """ "61.3 [60.9, 61.9] / 64.8": ours, its range or interval, and the published number."""
    digits = int(cell["digits"])
    known = [v for v in cell["values"].values() if v is not None]
    if cell["mean"] is None:
        ours = str(cell["missing"])
    else:
        ours = f"**{cell['mean']:.{digits}f}**"
        if cell["low"] is not None and len(known) > 1:
            ours += f" [{cell['low']:.{digits}f}, {cell['high']:.{digits}f}]"
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
    if len(cells) < 2 or any(c["mean"] is None for c in cells):
        return "-"
    ours = f"**{sum(c['mean'] for c in cells) / len(cells):.{cells[0]['digits']}f}**"
    if any(c["published"] is None for c in cells):
        return ours
    return f"{ours} / {sum(c['published'] for c in cells) / len(cells):.{cells[0]['digits']}f}"


def _claims(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    if not claims:
        return []
    name = spread_name(max(claim["seeds"] for claim in claims)) or "one seed"
    lines = [
        f"| the paper's claim | published difference | ours ({name}) | seeds won-lost | |",
        "|---|---|---|---|---|",
    ]
    for claim in claims:
        published = "" if claim["published"] is None else f"{claim['published']:+.4g}"
        ours = "" if claim["difference"] is None else f"{claim['difference']:+.2f}"
        if claim["low"] is not None:
            ours += f" ({claim['low']:+.2f} to {claim['high']:+.2f})"
        score = f"{claim['wins']}-{claim['losses']} of {claim['seeds']}"
        lines.append(f"| {claim['words']} | {published} | {ours} | {score} | **{claim['verdict']}** |")
    return lines


def _scale(result: Mapping[str, Any]) -> str:
    half = result.get("done", 0) < result.get("wanted", 0)
    named = "" if result["scale"] == "laptop" else f", scale {result['scale']}"
    return named + (" *(half done)*" if half else "")


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    heads = {
        HOLDS: "hold",
        FAILS: "do not hold",
        NOISE: "inside the noise",
        UNDECIDED: f"undecided (under {LEAST_SEEDS} seeds)",
    }
    lines = ["| table | seeds | claims | " + " | ".join(heads.values()) + " |", "|---" * (len(heads) + 3) + "|"]
    for result in results:
        verdicts = [claim["verdict"] for claim in result["claims"]]
        counts = [str(verdicts.count(verdict)) for verdict in heads]
        lines.append(
            f"| {result['title']}{_scale(result)} | {seeds_of(result)} | {len(verdicts)} | " + " | ".join(counts) + " |"
        )
    return "\n".join(lines) + "\n"
