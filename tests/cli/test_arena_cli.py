"""`fedcohort arena`: board, run, advise, check, fill and merge from the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedcohort.arena.archive import Archive
from fedcohort.arena.fill import fill, missing_cells
from fedcohort.arena.problem_set import problem, tier_problems
from fedcohort.cli.main import app

run = CliRunner().invoke


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    archive = Archive(tmp_path_factory.mktemp("arena") / "small.jsonl.gz")
    fill(archive, missing_cells(archive, ["uniform", "oort"], [problem("digits-skew")], [0]), workers=0)
    return archive


@pytest.fixture
def one_problem(monkeypatch):
    for place in ("contest", "problem_set", "fill"):
        monkeypatch.setattr(
            f"fedcohort.arena.{place}.tier_problems", lambda tier, version="v1": tier_problems("quick")[:1]
        )


def test_board(tmp_path):
    made = run(app, ["arena", "board", "--tier", "quick", "--page", str(tmp_path / "b.html")], catch_exceptions=False)
    assert made.exit_code == 0
    assert "uniform" in made.output
    assert (tmp_path / "b.html").stat().st_size > 10_000


def test_run_ranks_and_writes_a_page(small, tmp_path, one_problem):
    page = tmp_path / "mine.html"
    arguments = ["arena", "run", "round-robin", "--seeds", "0", "--archive", str(small.path), "--page", str(page)]
    made = run(app, arguments, catch_exceptions=False)
    assert made.exit_code == 0
    assert "round-robin <- yours" in made.output
    assert "round-robin" in page.read_text()


def test_advise():
    made = run(app, ["arena", "advise", "--world", "liars-v1"], catch_exceptions=False)
    assert "digits-liars" in made.output
    assert "oracle:" not in made.output


def test_check_agrees_or_exits_with_one(small, tmp_path):
    made = run(app, ["arena", "check", "--cells", "1", "--archive", str(small.path)], catch_exceptions=False)
    assert made.exit_code == 0
    assert "the same" in made.output
    elsewhere = Archive(tmp_path / "elsewhere.gz")
    for row in small.rows:
        elsewhere.add({**row, "versions": {**row["versions"], "cpu": "another"}})
    made = run(app, ["arena", "check", "--cells", "1", "--archive", str(elsewhere.path)], catch_exceptions=False)
    assert made.exit_code == 0
    assert "close (other versions or another processor)" in made.output
    other = Archive(tmp_path / "other.gz")
    for row in small.rows:
        other.add({**row, "scores": {**row["scores"], "anytime": 0.1}})
    made = run(app, ["arena", "check", "--cells", "1", "--archive", str(other.path)], catch_exceptions=False)
    assert made.exit_code == 1
    assert "anytime was 0.1" in made.output


def test_fill_and_merge(small, tmp_path, one_problem):
    path = tmp_path / "a.gz"
    arguments = ["arena", "fill", "--seeds", "0", "--selector", "round-robin", "--workers", "0", "--archive", str(path)]
    assert "1 runs added" in run(app, arguments, catch_exceptions=False).output
    assert "0 runs added" in run(app, arguments, catch_exceptions=False).output
    made = run(app, ["arena", "merge", str(small.path), "--archive", str(path)], catch_exceptions=False)
    assert "2 rows from" in made.output
    assert len(Archive(path).rows) == 3


def test_guide(small, tmp_path):
    (tmp_path / "pictures").mkdir()
    made = run(
        app, ["arena", "guide", str(tmp_path / "which.md"), "--archive", str(small.path)], catch_exceptions=False
    )
    assert made.exit_code == 0
    assert "# Which selector when?" in (tmp_path / "which.md").read_text()
    assert (tmp_path / "pictures" / "which.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "ort"], "oort"),
        (["run", "oort", "--tier", "quik"], "quick"),
        (["run", "oort", "--seeds", "9"], "the archive has seeds 0 to 4"),
        (["run", "oort", "--page", "no/such/page.html"], "its folder does not exist"),
        (["board", "--max-privacy", "P7"], "did you mean P3"),
        (["board", "--score", "finl"], "final"),
        (["merge", "none.gz"], "there is no such file"),
        (["guide", "none/which.md"], "for its picture"),
        (["advise", "--world", "no.toml"], "does not exist"),
    ],
)
def test_mistakes(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run(app, ["arena", *arguments])
    assert made.exit_code != 0
    assert words in str(made.exception) + made.output
