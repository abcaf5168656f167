"""One result of a reproduction as Markdown: a table of our numbers and the published ones, and the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcohort.experiment.metrics.paired import spread_name
from fedcohort.papers.paper_evidence import is_half_done, seeds_of, seeds_text
from fedcohort.papers.paper_summaries import REMARKS
from fedcohort.papers.result_files import rows_and_columns
from fedcohort.papers.verdicts import UNDECIDED, UNKNOWN


def markdown(result: Mapping[str, Any]) -> str:
    """One result with everything that is known of it, as the command prints it."""
    lines = [f"## {result['title']}", *told(result), ""]
    return "\n".join([*lines, *departures_list(result["departures"])])


def departures_list(departures: Sequence[str]) -> list[str]:
    """How runs depart from the paper, one a line."""
    return ["Departures from the paper:", "", *(f"* {one}" for one in departures), ""] if departures else []


def told(result: Mapping[str, Any], picture: str = "") -> list[str]:
    """The command, table, picture (its Markdown) and claims of a result, and what has to be known to read it."""
    command = f"fedcohort reproduce {result['study']} --scale {result['scale']}"
    command += f" --seeds {result['goal']}" if "goal" in result else ""
    made = f"scale `{result['scale']}`, {seeds_text(seeds_of(result))}, made {result['made']}"
    if is_half_done(result):
        made += f"; **incomplete: {result['done']} of {result['wanted']} runs**, the same command continues"
    lines = [f"`{command}`; {made}.", ""]
    lines += [*_table(result), "", *([picture, ""] if picture else []), *_claims(result["claims"])]
    if result["failed"]:
        lines += ["", "Failed runs:", "", *_failures(result["failed"])]
    return [*lines, "", REMARKS[result["study"]]] if result["study"] in REMARKS else lines


def _failures(failed: Mapping[str, str]) -> list[str]:
    """A line for every reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in failed.items():
        reasons.setdefault(why, []).append(f"`{name}`")
    return [
        f"* {', '.join(names[:3])}{f' and {len(names) - 3} more' * (len(names) > 3)}: {why}"
        for why, names in reasons.items()
    ]


def cell_text(cell: Mapping[str, Any], most: int = 0) -> str:
    """ "61.3 [60.9, 61.9] / 64.8": ours, its range or interval, and the published number.

    With fewer seeds than `most`, as other cells of the table have, it says how many.
    """
    digits = int(cell["digits"])
    known = [v for v in cell["values"].values() if v is not None]
    if cell["mean"] is None:
        ours = str(cell["missing"]) if cell["values"] else "-"
    else:
        ours = f"**{cell['mean']:.{digits}f}**"
        if cell["low"] is not None and len(known) > 1:
            ours += f" [{cell['low']:.{digits}f}, {cell['high']:.{digits}f}]"
        if len(known) < len(cell["values"]):
            ours += f" ({len(known)} of {len(cell['values'])})"
        elif len(known) < most:
            ours += f" (n = {len(known)})"
    return ours if cell["published"] is None else f"{ours} / {cell['published']:g}"


def _table(result: Mapping[str, Any]) -> list[str]:
    rows, columns = rows_and_columns(result["cells"])
    at = {(c["row"], c["column"]): c for c in result["cells"]}
    most = max((len(c["values"]) for c in result["cells"]), default=0)
    averages = [_average([at[row, c] for c in columns if (row, c) in at]) if result["average"] else "-" for row in rows]
    shown = any(text != "-" for text in averages)
    heads = [*columns, *([result["average"]] if shown else [])]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row, average in zip(rows, averages, strict=True):
        cells = [at.get((row, c)) for c in columns]
        texts = ["" if c is None else cell_text(c, most) for c in cells]
        if shown:
            texts.append(average)
        lines.append(f"| {row} | " + " | ".join(texts) + " |")
    return lines


def _average(cells: Sequence[Mapping[str, Any]]) -> str:
    if len(cells) < 2 or any(c["mean"] is None or c["quantity"] != cells[0]["quantity"] for c in cells):
        return "-"
    ours = f"**{sum(c['mean'] for c in cells) / len(cells):.{cells[0]['digits']}f}**"
    if any(c["published"] is None for c in cells):
        return ours
    return f"{ours} / {sum(c['published'] for c in cells) / len(cells):.{cells[0]['digits']}f}"


def _claims(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of the claims that were measured, and a line with the others."""
    measured = [claim for claim in claims if claim["verdict"] != UNKNOWN]
    lines: list[str] = []
    if measured:
        name = " or ".join(sorted({spread_name(claim["seeds"]) for claim in measured} - {""})) or "one seed"
        lines += [
            f"| claim | published difference | ours ({name}) | seeds won-lost | |",
            "|---|---|---|---|---|",
        ]
    for claim in measured:
        published = "" if claim["published"] is None else f"{claim['published']:+.4g}"
        ours = "" if claim["difference"] is None else f"{claim['difference']:+.2f}"
        if claim["low"] is not None:
            ours += f" ({claim['low']:+.2f} to {claim['high']:+.2f})"
        score = f"{claim['wins']}-{claim['losses']} of {claim['seeds']}"
        words = f"**main claim**: {claim['words']}" if claim["main"] else claim["words"]
        verdict = f"**{claim['verdict']}**"
        if claim["verdict"] == UNDECIDED:
            verdict += f", needs {claim['needs']} seeds"
        lines.append(f"| {words} | {published} | {ours} | {score} | {verdict} |")
    others = [claim["words"] for claim in claims if claim["verdict"] == UNKNOWN]
    if others:
        lines += [""] * bool(measured) + [f"Claims that were **{UNKNOWN}**: {'; '.join(others)}."]
    return lines
