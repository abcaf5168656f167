"""The board as text, records, data frame, pictures and page; names of others are escaped."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_standings import PROBLEMS, rows

from fedcohort.arena.advice import advise
from fedcohort.arena.archive import Archive
from fedcohort.arena.guide import MARKS, PAGES, guide_text, put_table
from fedcohort.arena.leaderboard import make_board
from fedcohort.arena.problem_set import tier_problems
from fedcohort.errors import BadParameter, FedcohortError, MissingExtra, UnknownName

EVIL = "<script>alert(1)</script>"


def board(**more):
    table = rows(
        {
            "uniform": lambda p, s: 0.5 + 0.01 * s,
            "oracle": lambda p, s: 0.8,
            "good": lambda p, s: 0.6 + 0.01 * s + 0.002 * p,
            EVIL: lambda p, s: 0.45,
        },
        seeds=(0, 1),
    )
    return make_board(table, tier_problems("quick"), mine=["good"], **more)


def test_the_order_and_the_numbers():
    made = board()
    assert [s.entry for s in made.standings] == ["oracle", "good", "uniform", EVIL]
    good = made.standings[1]
    assert good.place == 2
    assert good.rank == 2.0
    assert good.difference == pytest.approx(0.107)
    assert (good.won, good.lost, good.mine) == (8, 0, True)
    assert good.verdict == "better than uniform"
    assert made.standings[2].verdict == "the reference"
    assert made.standings[0].privacy is None
    assert made.by_kind()["skew"][1] == pytest.approx(0.1)
    assert made.pairwise().wins[1, 2] == 8
    assert [s.entry for s, _ in made.leaders(made.heat().mean(axis=1))] == ["good", EVIL]


def test_text_names_everything():
    said = board().text()
    assert "good <- yours" in said
    assert "4 selectors on 8 problems, seeds 0, 1." in said
    assert "cannot be told apart" in said


def test_privacy_limit():
    made = board(max_privacy="P0")
    assert {s.entry for s in made.standings} == {"uniform", "good"}
    assert any("read more than P0" in n for n in made.notes)
    with pytest.raises(UnknownName, match="P1"):
        board(max_privacy="P9")


def test_pandas_or_one_clear_sentence(monkeypatch):
    made = board()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pandas is not installed; install it with: pip install pandas"):
        made.to_pandas()

    class Frame(list):
        def set_index(self, name):
            return {row[name]: row for row in self}

    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=Frame))
    frame = made.to_pandas()
    assert frame["good"]["rank"] == 2.0
    assert frame["good"][PROBLEMS[0]] == pytest.approx(0.1)


def test_pictures_are_well_formed_and_escaped(tmp_path):
    made = board()
    picture = made.plot(tmp_path / "board.svg")
    text = (tmp_path / "board.svg").read_text()
    ElementTree.fromstring(text)
    assert text == str(picture) == picture._repr_svg_()
    assert "<script" not in text
    assert "critical difference" in text
    assert str(board().plot()) == text


@pytest.mark.parametrize("name", ["board.png", "missing/board.svg"])
def test_where_a_picture_cannot_go(tmp_path, name):
    with pytest.raises(BadParameter, match="file"):
        board().plot(tmp_path / name)


def test_the_page_needs_nothing_and_runs_nothing(tmp_path):
    path = board().page(tmp_path / "page.html")
    text = path.read_text()
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "good, problem by problem" in text
    assert "range over seeds" in text
    assert "Pairwise wins" in text
    assert board()._repr_html_() in text
    with pytest.raises(BadParameter, match="its folder does not exist"):
        board().page(tmp_path / "missing" / "page.html")


def test_other_scores_make_boards_too(tmp_path):
    for score in ("final", "time_to_target", "worst_tenth", "traffic", "own_ms"):
        made = board(score=score)
        ElementTree.fromstring(str(made.plot()))
        made.page(tmp_path / "page.html")
    assert board(score="time_to_target").standings[0].difference == 0.0  # nobody reached it


def test_advice_finds_the_nearest_problem():
    found = advise("mixed-v1", board())
    assert found.near[0][0].name == "digits-mixed"
    assert found.near[0][1] < 1.0
    assert found.suggestions[0].standing.entry == "good"
    assert "who wins there" in found.text()


def test_advice_far_from_everything():
    said = advise("liars-v1(nan=0.6)", board()).text()
    assert "no problem is near this world" in said


def test_tables_go_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    put_table(page, board(), "docs/selectors/", most=1)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "[`uniform`](docs/selectors/uniform.md)" in text
    assert "`oracle`" in text
    assert "`good`" not in text  # second place
    put_table(page, board(), "docs/selectors/", most=1)
    assert page.read_text() == text
    page.write_text("no marks")
    with pytest.raises(FedcohortError, match="it lacks"):
        put_table(page, board(), "")


@pytest.mark.parametrize(("page", "link", "most"), PAGES)
def test_the_pages_show_the_shipped_archive(page, link, most, tmp_path):
    """They are what `fedcohort arena guide` would write now."""
    text = (Path(__file__).parents[2] / page).read_text()
    (copy := tmp_path / "page.md").write_text(text)
    put_table(copy, make_board(Archive().current(), tier_problems("full")), link, most)
    assert copy.read_text() == text


def test_the_guide_gives_the_cost_of_a_selector_with_arguments(tmp_path):
    """That of its name; only wrappers have the cost of an inner selector."""
    ours, wrapped = "ledger(without=('expected_seconds',))", "quota(inner='oort')"
    table = rows({"uniform": lambda p, s: 0.5, ours: lambda p, s: 0.7, wrapped: lambda p, s: 0.6}, seeds=(0, 1))
    text = guide_text(make_board(table, tier_problems("quick")), Archive(tmp_path / "none.gz"), "picture.svg")
    (cost,) = {line.split("|")[6].split(";")[0].strip() for line in text.splitlines() if line.startswith(f"| `{ours}`")}
    assert cost == "8 bytes a reply"
    assert "| that of the inner selector; " in next(x for x in text.splitlines() if x.startswith(f"| `{wrapped}`"))


def test_the_guide_says_how_complete_the_archive_is(tmp_path):
    text = guide_text(board(), Archive(tmp_path / "none.gz"), "picture.svg")
    assert "holds 0 of" in text
    assert "## Some clients have wrong labels" in text
    assert "| [Some clients have wrong labels](#some-clients-have-wrong-labels) | `good` +" in text
    assert "Ahead of uniform in every run: `good`" in text
