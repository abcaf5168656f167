"""The page: one HTML file that needs nothing else. Script and style are named by their hashes; nothing else may run.

Names of runs, selectors and worlds are other people's texts: they go into the page through `html.escape`, or as JSON in
which `<`, `>` and `&` are written as escapes, and from there into the document as text nodes only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from fedcohort import __version__
from fedcohort.experiment.metrics.paired import spread_words
from fedcohort.looks import DASHES, Look, looks
from fedcohort.report.collected import Gathered, Run
from fedcohort.report.plots import bands
from fedcohort.report.run_detail import chosen, details
from fedcohort.report.tables import ReportSection, ReportTable, runs_table
from fedcohort.report.traits import ABOUT
from fedcohort.report.views import plain

POINTS = 45_000  # of all curves together
ALONE = 12  # unfinished runs of a setting that are drawn
OPEN = 4  # tables of a section that are shown without a click
_SCRIPTS = ("charts.js", "maps.js", "report.js")


def page(gathered: Gathered, sections: Sequence[ReportSection], title: str) -> str:
    """The whole page as text."""
    style, script = web("style.css"), "\n".join(web(name) for name in _SCRIPTS)
    data: dict[str, Any] = {"by": gathered.by, "settings": _settings(gathered), "about": ABOUT}
    data["runs"] = details(chosen(gathered.runs))
    parts = {
        "TITLE": escape(title),
        "POLICY": f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; base-uri 'none'; "
        "form-action 'none'",
        "STYLE": style,
        "SUMMARY": escape(_summary(gathered)),
        "NOTES": _list(gathered.notes),
        "TABLES": "\n".join(_section(s) for s in sections)
        or "<p>No run is finished yet: there is nothing to compare.</p>",
        "RUNS": _table(runs_table(gathered.runs)),
        "COUNT": str(len(gathered.runs)),
        "SHOWN": escape(_shown(gathered, data["runs"])),
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    return re.sub(r"%%([A-Z]+)%%", lambda m: parts[m.group(1)], web("report.html"))


def web(name: str) -> str:
    """One of the scripts, styles or pages in `web/`."""
    return files("fedcohort.report").joinpath("web", name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda m: f"\\u{ord(m.group()):04x}", text)


def _settings(gathered: Gathered) -> list[dict[str, Any]]:
    """Curves of every setting: bands of finished runs, unfinished ones on their own."""
    lines = sum(len(gathered.entries(s)) for s in gathered.settings)
    points = max(40, min(bands.POINTS, POINTS // max(lines, 1)))
    own = looks(r.entry for r in gathered.runs)
    out = []
    for setting in gathered.settings:
        entries = gathered.entries(setting)
        done = {entry: seeds for entry, runs in entries.items() if (seeds := [r for r in runs if r.finished])}
        told = f"Lines are means over seeds, bands the {spread_words(map(len, done.values()))}."
        found: dict[str, Any] = {"name": setting, "band": told, "rounds": [], "time": [], "asked": []}
        for entry, runs in done.items():
            _add(found, gathered.label(entry), own[entry], runs, points)
        alone = [r for runs in entries.values() for r in runs if not r.finished and r.history.length]
        for at, run in enumerate(alone[:ALONE]):
            far = f"{run.state} ({run.history.length} of {run.config.rounds})"
            name = f"{gathered.label(run.entry)}, seed {run.config.seed}, {far}"
            like = own[run.entry]
            _add(found, name, Look(like.index, (like.row + 1 + at) % len(DASHES)), [run], points)
        out.append(found)
    return out


def _add(found: dict[str, Any], name: str, own: Look, runs: Sequence[Run], points: int) -> None:
    accuracy = [r.history.accuracy for r in runs]
    clocks = [r.history.clock for r in runs]
    found["rounds"].append(_line(name, own, bands.by_round(accuracy, points)))
    found["time"].append(_line(name, own, bands.by_time(clocks, accuracy, points)))
    found["asked"].append(_line(name, own, bands.by_rank([r.history.participation() for r in runs], min(points, 200))))


def _line(name: str, own: Look, band: bands.Band) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": name,
        **own.data(),
        "seeds": band.seeds,
        "x": plain(band.x, 5),
        "y": plain(band.y, 5),
    }
    if band.low is not None and band.high is not None:
        out |= {"low": plain(band.low, 5), "high": plain(band.high, 5)}
    return out


def _summary(gathered: Gathered) -> str:
    runs = gathered.runs
    seeds = {r.config.seed for r in runs}
    entries = {r.entry for r in runs}
    done = sum(r.finished for r in runs)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{_count(len(runs), 'run')} ({done} finished), {_count(len(entries), gathered.by)}, "
        f"{_count(len(gathered.settings), 'setting')}, {_count(len(seeds), 'seed')}. "
        f"Made {made} by fedcohort {__version__}."
    )


def _shown(gathered: Gathered, inside: Sequence[dict[str, Any]]) -> str:
    if len(inside) == len(gathered.runs):
        return ""
    return (
        f"The inside of {len(inside)} of {len(gathered.runs)} runs is in this file, to keep it small; "
        "name fewer runs to see others."
    )


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _section(section: ReportSection) -> str:
    tables = [_titled(t, len(section.tables) <= OPEN) for t in section.tables]
    about = f"<p class='pale'>{escape(section.about)}</p>" if section.about else ""
    words = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in section.columns)
    words = f"<details><summary>What the columns mean</summary><dl>{words}</dl></details>" if words else ""
    head = f"<h2>{escape(section.title)}</h2>{about}"
    return f"<section>{head}{''.join(tables)}{words}{_list(section.notes)}</section>"


def _titled(table: ReportTable, shown: bool) -> str:
    title = escape(f"{table.title}, {table.remark}" if table.remark else table.title)
    if shown:
        return f"<h3>{title}</h3>{_table(table)}"
    return f"<details><summary>{title}</summary>{_table(table)}</details>"


def _table(table: ReportTable) -> str:
    head = "".join(f"<th scope='col'>{escape(h.replace('_', ' '))}</th>" for h in table.headers)
    rows = []
    for row in table.rows:
        cells = "".join(
            f"<td class='{c.look}'>{escape(c.text)}{_mark(c.look) if c.text != c.look else ''}</td>" for c in row
        )
        rows.append(f"<tr>{cells}</tr>")
    body = "".join(rows)
    return f"<div class='scroll' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _mark(look: str) -> str:
    """Colour is never the only sign."""
    return {"better": " <span aria-label='better'>▲</span>", "worse": " <span aria-label='worse'>▼</span>"}.get(
        look, ""
    )


def _list(notes: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(n)}</li>' for n in notes)}</ul>" if notes else ""
