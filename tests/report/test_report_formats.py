"""Markdown, LaTeX and figures, the command, and the one sentence of each mistake."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from unittest import mock
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.cli.main import main
from fedcohort.report.export import latex
from fedcohort.report.export import markdown as md
from fedcohort.report.plots import figures

EVIL = "a|b_c*<script>$x$ %&#{}~^\\[1]"


def fedcohort(*args, code=0):
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["fedcohort", *map(str, args)]),
    ):
        try:
            main()
            left = 0
        except SystemExit as done:
            left = done.code or 0
    assert left == code, out.getvalue() + err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


def test_markdown_with_figures_beside_it(few, tmp_path):
    out = tmp_path / "my report.md"
    fedcohort("report", few, "-o", out, "--title", EVIL)
    text = out.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| oort |")]
    assert "3:0" in rows[0]
    assert "0.71" in rows[0]
    for place in re.findall(r"\]\(([^)]*)\)", text):
        assert (tmp_path / place.replace("%20", " ")).read_bytes().startswith(b"\x89PNG")
    assert "my%20report_figures/rounds-1.png" in text
    assert "<script" not in text
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    for table in tables:  # every row of a table has as many cells as its head
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_latex_tables(few, made, tmp_path):
    made("evil", [0.1, 0.2, 0.3, 0.4], config={"selector": EVIL})
    out = tmp_path / "report.tex"
    fedcohort("report", few, "-o", out)
    text = out.read_text()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") >= 3
    assert "usepackage" not in text
    for part in re.findall(r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        columns = len(re.sub(r"\{.*?\}", "", part[0]))
        for line in part[1].splitlines():
            if line != r"\hline":
                assert line.endswith(r" \\")
                assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
    assert latex.escape(EVIL) in text
    assert EVIL not in text


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=40))
def test_latex_has_no_live_character(text):
    """After the known escapes are taken away, nothing that LaTeX acts on is left."""
    found = latex.escape(text)
    for known in (
        r"\textbackslash{}",
        r"\textasciicircum{}",
        r"\textasciitilde{}",
        "$<$",
        "$>$",
        "$|$",
        "{[}",
        "{]}",
        "{*}",
    ):
        found = found.replace(known, "")
    found = re.sub(r"\\[{}$&#_%]", "", found)
    assert not set(found) & set("\\{}$&#_%^~\n\r[]*")


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=40))
def test_markdown_cells_stay_cells(text):
    found = md.escape(text)
    assert "\n" not in found
    assert not re.search(r"(?<!\\)(\\\\)*\|", found)
    assert "<" not in found


def test_pictures(few, made, tmp_path):
    made("evil", [0.1, 0.2, 0.3, 0.4], config={"selector": EVIL})
    svg = tmp_path / "figure.svg"
    fedcohort("report", few, "-o", svg)
    root = ElementTree.fromstring(svg.read_text())  # well-formed in spite of the name
    words = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "oort (3 seeds)" in words  # one of the others has one seed
    assert "mean and range over seeds" in words
    assert EVIL in words
    assert "virtual time (s)" in words
    first = svg.read_bytes()
    fedcohort("report", few, "-o", svg)
    assert svg.read_bytes() == first


def test_figures_into_a_folder(few, tmp_path):
    told = fedcohort("report", few / "oort-0", "--figures", tmp_path / "figures")
    names = {p.name for p in (tmp_path / "figures").iterdir()}
    kinds = ("rounds-1", "time-1", "asked-1", "cohorts-1-1")
    assert names == {f"{kind}{ending}" for kind in kinds for ending in (".png", ".svg")}
    assert "4 figures" in told
    assert not (tmp_path / "report.html").exists()


def test_figures_of_a_paper(few, tmp_path):
    """In the wanted width, formats, order and names; nothing of a title is cut off."""
    names = "uniform=Random, oort=Oort et al."
    where = tmp_path / "figures"
    args = ("--format", "pdf,svg", "--width", "3.3", "--labels", names, "--order", "uniform", "--metric", "accuracy")
    assert "as PDF and SVG" in fedcohort("report", few, "--figures", where, *args)
    kinds = ("rounds-1", "time-1", "asked-1", "metric-terminal-1", "cohorts-1-1", "cohorts-1-2")
    assert {p.name for p in where.iterdir()} == {f"{kind}{ending}" for kind in kinds for ending in (".pdf", ".svg")}
    assert b"/Type3" not in (where / "rounds-1.pdf").read_bytes()
    root = ElementTree.fromstring((where / "rounds-1.svg").read_text())
    assert root.get("width") == f"{3.3 * 72}pt"
    words = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.index("Random") < words.index("Oort et al.")
    assert "mean and range of 3 seeds" in words
    assert "mixed-v1(clients=6), digits-mlp" in words
    assert max(len(w) for w in words) <= 3.3 * 15
    fedcohort("report", few, "--figures", where, "--no-titles", "--format", "svg")
    assert "digits-mlp" not in (where / "rounds-1.svg").read_text()
    fedcohort("report", few, "-o", tmp_path / "r.md", "--labels", names, "--order", "uniform")
    text = (tmp_path / "r.md").read_text()
    assert text.index("| Random |") < text.index("| Oort et al. |")
    assert "minus Random" in text


def test_a_long_title_is_wrapped():
    title = "x" * 30 + " " + "a setting with many words " * 12
    lines = figures.wrapped(title, 3.3).split("\n")
    assert max(map(len, lines)) <= 3.3 * 15
    assert " ".join(lines).split() == title.split()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("{tmp}/runs", "--figures", "{tmp}/f", "--format", "gif"), "formats are png, svg, pdf"),
        (("{tmp}/runs", "--figures", "{tmp}/f", "--width", "330"), "1 to 40 inches"),
        (("{tmp}/runs", "--labels", "Random", "-o", "{tmp}/r.html"), "a label is ENTRY=TEXT"),
        (("{tmp}/runs", "--labels", "unifrom=Random", "-o", "{tmp}/r.html"), "did you mean uniform"),
        (("{tmp}/runs", "--order", "ort", "-o", "{tmp}/r.html"), "did you mean oort"),
        (("{tmp}/nowhere",), "there is no such run or folder"),
        (("{tmp}/empty",), "it holds no runs"),
        (("{tmp}/runs", "-o", "{tmp}/report.doc"), "its name must end in .html"),
        (("{tmp}/runs", "-o", "{tmp}/empty"), "this is a folder"),
        (("{tmp}/runs", "-o", "{tmp}/nowhere/report.html"), "its folder does not exist"),
        (("{tmp}/runs", "--metric", "terminl"), "did you mean terminal"),
        (("{tmp}/runs", "--by", "world"), "no key to compare by"),
        (("{tmp}/runs", "--baseline", "ort", "-o", "{tmp}/r.html"), "did you mean oort"),
        (("{tmp}/runs", "--target", "80"), "between 0 and 1"),
        (("{tmp}/runs", "--figures", "{tmp}/file"), "there is a file of this name"),
        (("{tmp}/none.toml",), "none.toml"),
        (("{tmp}/file.json",), "file.json"),
    ],
)
def test_mistakes_are_one_sentence(few, tmp_path, args, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "file.json").write_text("{}")
    err = fedcohort("report", *(a.format(tmp=tmp_path) for a in args), code=2)
    assert words in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_deployment_has_no_configuration_of_a_run(tmp_path):
    from fedcohort import __version__
    from fedcohort.storage.journal import Journal

    (tmp_path / "state").mkdir()
    Journal.create(tmp_path / "state" / "journal.db", {"selector": "oort", "seed": 1, "version": __version__}).close()
    assert "it belongs to a deployment" in fedcohort("report", tmp_path / "state", code=2)
