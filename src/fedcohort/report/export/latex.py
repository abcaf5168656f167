"""A report's tables as LaTeX, to be \\input into a paper. Needs no package: lines are \\hline."""

from __future__ import annotations

from collections.abc import Sequence

from fedcohort.report.collected import Gathered
from fedcohort.report.tables import ReportSection, ReportTable, TableCell

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "[": "{[}",  # after a line break these would be arguments
    "]": "{]}",
    "*": "{*}",
}
MAX_COLUMNS = 4  # columns of numbers, not counting the first
_WIDE = ("words", "better", "worse")


def latex(gathered: Gathered, sections: Sequence[ReportSection]) -> str:
    """All tables, each in an environment of its own with caption and label."""
    lines = [
        "% Tables made by fedcohort report; \\input this file. No package is needed.",
    ]
    lines += [f"% {' '.join(note.split())}" for note in gathered.notes]
    for at, section in enumerate(sections):
        for number, table in enumerate(p for t in section.tables for p in _narrow(t)):
            caption = f"{section.title}. {table.title}{', ' + table.remark if table.remark else ''}. {section.about}"
            lines += ["", *_table(table, caption, f"tab:fedcohort-{at + 1}-{number + 1}")]
        lines += [f"% {' '.join(note.split())}" for note in section.notes]
    if not sections:
        lines.append("% no run is finished yet: there is nothing to compare")
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; line breaks and control characters become spaces."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return "".join(_SPECIAL.get(c, c) for c in clean)


def _narrow(table: ReportTable) -> list[ReportTable]:
    """A table that is too wide for a page in several, each with the first column."""
    if table.headers[-1] == "verdict" or len(table.headers) <= MAX_COLUMNS + 1:
        return [table]
    out = []
    for first in range(1, len(table.headers), MAX_COLUMNS):
        part = slice(first, first + MAX_COLUMNS)
        rows = tuple((row[0], *row[part]) for row in table.rows)
        out.append(ReportTable(table.title, (table.headers[0], *table.headers[part]), rows, table.remark))
    return out


def _table(table: ReportTable, caption: str, label: str) -> list[str]:
    columns = "".join(_column(table, at) for at in range(len(table.headers)))
    head = " & ".join(escape(h) for h in table.headers)
    body = [" & ".join(_cell(c) for c in row) + r" \\" for row in table.rows]
    return [
        r"\begin{table}[htbp]",
        r"\centering\footnotesize",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        rf"{head} \\",
        r"\hline",
        *body,
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]


def _column(table: ReportTable, at: int) -> str:
    """Numbers to the right, verdicts in a paragraph, everything else to the left."""
    looks = {row[at].look for row in table.rows}
    if table.headers[at] == "verdict":
        return "p{3.6cm}"
    return "r" if looks and looks <= {"number", *_WIDE[1:]} else "l"


def _cell(cell: TableCell) -> str:
    text = escape(cell.text)
    return rf"\textbf{{{text}}}" if cell.look in _WIDE[1:] else text
