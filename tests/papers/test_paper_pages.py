"""The pages of the papers: what stands in the index and in the half page comes from the results."""

from dataclasses import replace

import pytest

from fedcohort import papers
from fedcohort.papers import paper_evidence, paper_pages
from fedcohort.papers.paper_summaries import REMARKS, SUMMARIES
from fedcohort.papers.results_page import cell_text
from fedcohort.papers.verdicts import FAILS, HOLDS, NOISE, UNDECIDED, UNKNOWN


def cell(row, column, values, quantity="best", **more):
    known = [v for v in values if v is not None]
    return {
        "row": row,
        "column": column,
        "quantity": quantity,
        "digits": 1,
        "missing": "-",
        "better": 1,
        "published": None,
        "mean": sum(known) / len(known) if known else None,
        "low": min(known) if known else None,
        "high": max(known) if known else None,
        "values": {str(seed): value for seed, value in enumerate(values)},
    } | more


def claim(words, verdict, seeds=2, main=False):
    row = {"words": words, "verdict": verdict, "seeds": seeds, "published": None, "difference": 1.0}
    row |= {"main": main, "needs": 6, "ours": False}
    return row | {"low": None, "high": None, "wins": seeds, "losses": 0}


def result(study="flash:table1-both", title="FLASH, Table I: both", cells=(), claims=(), departures=(), **more):
    if not cells:
        cells = [cell("FLASH", "FedAvg", [41.0, 43.0]), cell("Random", "FedAvg", [40.0, 40.0])]
        cells += [cell("perfect choice", "FedAvg", [44.0, 46.0])]
    found = {"study": study, "title": title, "scale": "laptop", "made": "2026-01-01", "done": 3, "wanted": 9}
    lists = {"cells": list(cells), "claims": list(claims), "departures": list(departures)}
    return found | lists | {"average": "", "failed": {}} | more


def test_every_paper_has_its_words_and_every_word_a_study_and_rows():
    known = papers.studies()
    assert set(SUMMARIES) == {study.paper for study in known.values()}
    assert set(REMARKS) <= set(known)
    for told in SUMMARIES.values():
        for rows in told.comparisons:
            both = [known[rows.study].cells(scale) for scale in ("laptop", "desk")]
            wanted = {rows.left, rows.right, *rows.columns}
            cells = next(cells for cells in both if wanted <= {name for c in cells for name in c.place})
            places = {c.place for c in cells}
            columns = rows.columns or [c for row, c in places if row == rows.left and (rows.right, c) in places]
            used = [c for c in cells if c.row in (rows.left, rows.right) and c.column in columns]
            assert len(used) == 2 * len(columns) > 0, rows
            assert len({c.quantity.name for c in used}) == 1, f"{rows} mixes quantities"


def test_the_index_has_one_row_per_paper():
    claims = [claim("a", UNDECIDED, main=True), claim("b", UNKNOWN, 0)]
    text = paper_pages.index_page([result(claims=claims)], ["flash:lambda", "fedcm:fig5"])
    (row,) = [line for line in text.splitlines() if line.startswith("| [")]
    assert row.startswith("| [FLASH](papers/flash.md) |")
    assert "of 1 main claims: 1 undecided. So far" in row
    assert "So far FLASH - Random: +2.00 points (`flash:table1-both`, laptop, FedAvg, 2 seeds)" in row
    assert "`laptop`; 1 table, 1 incomplete, 1 not run yet | 2 | +5.00 points (2 seeds) |" in row


def test_the_page_of_a_paper_begins_with_its_verdict(tmp_path):
    (tmp_path / "flash-table1-both.svg").touch()
    claims = [claim("it wins", HOLDS, 6, main=True), claim("it is fast", FAILS, 6), claim("it is new", UNDECIDED, 3)]
    claims += [claim("it is small", UNKNOWN, 0)]
    text = paper_pages.paper_page("flash", [result(claims=claims)], ["flash:lambda", "fedcm:fig5"], tmp_path, "p.md")
    verdict, _, tables = text.partition("## All tables")
    assert "Of 1 main claims: 1 holds; of all its 4: 1 holds, 1 does not hold, 1 undecided, 1 not measured." in verdict
    assert "* **holds**: it wins (`flash:table1-both`, laptop, +1.00, 6 seeds)" in verdict
    assert "* **does not hold**: it is fast" in verdict
    assert "FLASH - Random: **+2.00** points (`flash:table1-both`, laptop, FedAvg, 2 seeds)" in verdict
    assert "over Random: +5.00 points (2 seeds)" in verdict
    assert "(../p.md)" in verdict
    assert "## Table I: both\n" in tables
    assert "](../pictures/papers/flash-table1-both.svg)" in tables
    assert "| **main claim**: it wins |" in tables
    assert "| it is new |  | +1.00 | 3-0 of 3 | **undecided**, needs 6 seeds |" in tables
    assert "Claims that were **not measured**: it is small." in tables
    assert "* `fedcohort reproduce flash:lambda`" in tables
    assert "fedcm:fig5" not in text


def test_a_cell_says_what_it_is_a_mean_of():
    assert cell_text(cell("a", "x", [1.0, 3.0])) == "**2.0** [1.0, 3.0]"
    assert cell_text(cell("a", "x", [1.0, 3.0]), most=6) == "**2.0** [1.0, 3.0] (n = 2)"
    assert cell_text(cell("a", "x", [1.0, None, None]), most=3) == "**1.0** (1 of 3)"  # two did not reach it
    assert cell_text(cell("a", "x", [None], missing="not reached")) == "not reached"
    assert cell_text(cell("a", "x", [], missing="not reached"), most=3) == "-"  # nobody has looked


def test_without_a_picture_or_a_perfect_choice_none_is_promised(tmp_path):
    only = [cell("FLASH", "FedAvg", [41.0])]
    text = paper_pages.paper_page("flash", [result(cells=only)], (), tmp_path)
    assert "![" not in text
    assert "then its tables, without pictures." in text
    assert "**What a perfect choice would gain** is not measured yet." in text


def test_words_stand_by_results_they_were_written_for_only(monkeypatch):
    """Another main verdict, or one that is decided, takes the words away; a further seed of another claim does not."""
    mine = [result(claims=[claim("it wins", HOLDS, 6, main=True), claim("it is fast", UNDECIDED)])]
    about = replace(SUMMARIES["flash"], written_for=paper_evidence.fingerprint(mine))
    monkeypatch.setitem(SUMMARIES, "flash", about)
    text = paper_pages.paper_page("flash", mine)
    assert all(f"* {point}\n" in text for point in about.found)
    assert about.why in text
    mine[0]["claims"][1]["seeds"] = 5
    assert about.found[0] in paper_pages.paper_page("flash", mine)
    for which, verdict in ((0, NOISE), (1, HOLDS)):
        claims = [{**one, "verdict": verdict} if at == which else one for at, one in enumerate(mine[0]["claims"])]
        other = paper_pages.paper_page("flash", [{**mine[0], "claims": claims}])
        assert about.found[0] not in other
    assert "Not said: the words were written for results with other verdicts." in other


def test_departures_are_told_once():
    first = result(departures=("short", "noisy"))
    later = result("flash:fig3", "FLASH, Fig. 3", departures=("short", "noisy", "few clients"))
    other = result("flash:fig5", "FLASH, Fig. 5", departures=("short",))
    text = paper_pages.paper_page("flash", [first, later, other])
    assert "Departures from the paper:\n\n* short\n* noisy\n" in text
    assert "Departures from the paper:\n\n* as in *Table I: both* above\n* few clients\n" in text
    assert "Departures from the paper:\n\n* short\n" in text


def test_a_difference_is_over_seeds_that_have_every_column():
    cells = [cell("a", "x", [1.0, 2.0, 9.0]), cell("b", "x", [0.0, 0.0, 0.0])]
    cells += [cell("a", "y", [3.0, 4.0, None]), cell("b", "y", [0.0, 0.0, 0.0])]
    found = paper_evidence.difference(result(cells=cells), "a", "b")
    assert (found.mean, found.seeds) == (pytest.approx(2.5), 2)
    assert paper_evidence.difference(result(cells=cells), "a", "b", ("x",)).mean == pytest.approx(4.0)
    assert paper_evidence.difference(result(cells=cells), "a", "c") is None
    assert paper_evidence.difference(result(cells=[cell("a", "x", [None]), *cells[1:2]]), "a", "b") is None


def test_a_perfect_choice_is_measured_in_accuracy_only_and_may_be_a_column():
    rows = [cell("perfect choice", "c", [5.0]), cell("baseline", "c", [3.0])]
    rows += [cell("perfect choice", "gap", [90.0], "relative improvement"), cell("baseline", "gap", [0.0])]
    assert [f.mean for f in paper_evidence.gains(SUMMARIES["fedacs"], [result(cells=rows)])] == [2.0]
    columns = [cell("skewed", "perfect choice", [5.0]), cell("skewed", "FedPdp", [4.0])]
    (found,) = paper_evidence.gains(SUMMARIES["fedcm"], [result(cells=columns)])
    assert (found.mean, found.where) == (1.0, "skewed")
