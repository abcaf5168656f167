"""A report as Markdown: the tables, and links to the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from fedcohort.report.collected import Gathered
from fedcohort.report.plots.figures import Figure
from fedcohort.report.tables import ReportSection, ReportTable, runs_table

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")


def markdown(gathered: Gathered, sections: Sequence[ReportSection], figures: Sequence[Figure], title: str) -> str:
    """The whole report as text; figures are named relative to it."""
    lines = [f"# {escape(title)}", ""]
    lines += [f"- {escape(note)}" for note in gathered.notes]
    for section in sections:
        lines += ["", f"## {escape(section.title)}", "", escape(section.about)]
        for table in section.tables:
            name = f"{table.title}, {table.remark}" if table.remark else table.title
            lines += ["", f"### {escape(name)}", "", *rows(table)]
        lines += ["", *(f"- `{name}`: {escape(text)}" for name, text in section.columns)]
        lines += [f"- {escape(note)}" for note in section.notes]
    if not sections:
        lines += ["", "No run is finished yet: there is nothing to compare."]
    lines += ["", "## Figures"] if figures else []
    for figure in figures:
        place = quote(f"{figure.file.parent.name}/{figure.file.name}")
        lines += ["", f"![{escape(figure.title)}]({place})", "", escape(figure.title)]
    lines += ["", "## Runs", "", *rows(runs_table(gathered.runs))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def rows(table: ReportTable) -> list[str]:
    """A table in pipes; what differs from the baseline for sure is bold."""
    out = [_line(table.headers), _line(["---"] * len(table.headers), plain=True)]
    for row in table.rows:
        cells = [f"**{escape(c.text)}**" if c.look in ("better", "worse") else escape(c.text) for c in row]
        out.append(_line(cells, plain=True))
    return out


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    one = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", one)


def _line(cells: Sequence[str], plain: bool = False) -> str:
    return f"| {' | '.join(c if plain else escape(c) for c in cells)} |"
