"""Published numbers and committed results: they belong to the studies as they are now, and make up the pages."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcohort import papers
from fedcohort.cli.main import app
from fedcohort.errors import UnknownName
from fedcohort.papers import reproduce, result_files
from fedcohort.papers.paper_evidence import fingerprint
from fedcohort.papers.paper_summaries import SUMMARIES
from fedcohort.papers.published import published
from fedcohort.papers.study import PERFECT_ROW

ROOT = Path(__file__).parents[2]
PAPERS = ("fedacs", "fedcm", "flash", "flash_rl", "hetero_select")
RUN = {  # by study: the scales with committed results
    study: [s for s in ("laptop", "desk", "paper") if result_files.file_of(study, s, ROOT / "results").exists()]
    for study in papers.studies()
}


def rows(group):
    """The lists of numbers in a table, at any depth."""
    for row in group.values():
        yield from rows(row) if isinstance(row, dict) else [row]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_says_what_it_is_and_has_a_number_per_column(paper):
    tables = json.loads((files(f"fedcohort.papers.{paper}") / f"{paper}_published.json").read_text())
    for name, table in tables.items():
        assert set(table) == {"about", "columns", "rows"}
        assert len(table["about"]) > 20
        assert {len(row) for row in rows(table["rows"])} == {len(table["columns"])}
        assert all(isinstance(v, (int, float, type(None))) for row in rows(table["rows"]) for v in row)
        assert published(paper, name).keys() == table["rows"].keys()


def test_an_unknown_table_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="table1"):
        published("flash", "table9")


def test_a_study_that_was_not_run_says_so_on_its_page():
    for study in [papers.studies()[name] for name, scales in RUN.items() if not scales]:
        assert f"* `fedcohort reproduce {study.id}`" in (ROOT / "docs" / "papers" / f"{study.paper}.md").read_text()


@pytest.mark.parametrize(("study", "scale"), [(study, scale) for study, scales in RUN.items() for scale in scales])
def test_results_are_those_of_the_study(study, scale):
    """Configurations, published numbers and claims of the committed result are what the study says today."""
    found = result_files.load(result_files.file_of(study, scale, ROOT / "results"))
    study = papers.studies()[study]
    cells = study.cells(scale)
    assert [(c["row"], c["column"], c["published"]) for c in found["cells"]] == [(*c.place, c.published) for c in cells]
    for cell, kept in zip(cells, found["cells"], strict=True):
        if cell.quantity.sources:
            assert (kept["config"], kept["digests"]) == ({}, {})
            continue
        config = reproduce.from_mapping({**cell.run, "seed": 0}).canonical()
        assert kept["config"] == {k: v for k, v in config.to_dict().items() if k != "seed"}
        assert kept["digests"]["0"] == config.digest()  # a new parameter counts only where it is used
        assert set(kept["digests"]) == {str(seed) for seed in found["seeds"]}
    assert [(c["words"], c["published"]) for c in found["claims"]] == [
        (c.words, c.published) for c in study.claims(scale)
    ]
    assert (found["title"], found["departures"]) == (study.title, list(study.departures[scale]))


def test_a_run_has_one_number_in_all_tables():
    """Tables share runs; where two results knew different numbers of one, one of them would be nobody's."""
    known, several = {}, []
    for path in sorted((ROOT / "results").glob("*-*.json")):
        found, here = result_files.load(path), {}
        for cell in found["cells"]:
            for seed, value in cell["values"].items():
                here.setdefault((cell["digests"].get(seed), cell["quantity"]), set()).add(value)
        for run, values in here.items():
            if len(values) == 1 and run[1] in ("best", "terminal", "stable", "early_stop"):
                several += [(path.name, *run)] if known.setdefault(run, values) != values else []
    assert known
    assert not several


def test_the_pages_are_made_of_the_results(tmp_path):
    """`fedcohort reproduce --page docs/papers.md`, as the index itself says: every page, and no other."""
    (tmp_path / "pictures").symlink_to(ROOT / "docs" / "pictures")  # it links those that are there
    done = CliRunner().invoke(app, ["reproduce", "--out", str(ROOT / "results"), "--page", str(tmp_path / "papers.md")])
    assert done.exit_code == 0, done.output
    made = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.glob("papers/*.md")}
    kept = {p.relative_to(ROOT / "docs"): p.read_text() for p in (ROOT / "docs").glob("papers/*.md")}
    assert {p.stem for p in made} == {study.paper for study in papers.studies().values()}
    assert made == kept
    assert (tmp_path / "papers.md").read_text() == (ROOT / "docs" / "papers.md").read_text()


@pytest.mark.parametrize("paper", SUMMARIES)
def test_the_words_were_written_for_these_verdicts(paper):
    """Where a main verdict has changed: read `found` and `why` of this paper again, then set `written_for`."""
    mine = [result_files.load(path) for path in sorted((ROOT / "results").glob("*-*.json"))]
    mine = [found for found in mine if found["study"].partition(":")[0] == paper]
    assert SUMMARIES[paper].written_for == fingerprint(mine)


CHOICE_IS_GIVEN = {  # studies of something else than who is asked
    "flash:fig5": "the parameters of the loss",
    "flash-rl:latency": "the clock of random choice",
    "hetero-select:misalignment": "the score of one selector, against chance",
    "fedcm:table2": "averaging",
    "fedcm:table3": "averaging",
    "fedcm:fig5": "epochs and skew",
    "fedcm:fig6": "skew",
    "fedacs:fig2": "skew",
    "fedacs:fig4": "rewards of groups of clients",
    "fedacs:fig5": "shares of even clients",
}


@pytest.mark.parametrize("study", papers.studies())
def test_every_study_of_selection_has_a_perfect_choice(study):
    cells = papers.studies()[study].cells("laptop")
    names = {name for cell in cells for name in cell.place}
    assert any(PERFECT_ROW in name for name in names) == (study not in CHOICE_IS_GIVEN)


@pytest.mark.parametrize(
    ("name", "left_out", "words"),
    [
        ("hetero-select:participation", {("HeteRo-Select", "75 %"), ("random", "75 %")}, "75 % of the clients"),
        ("fedcm:table4", {("class heterogeneity, CA, Dirac delta", "FedProx")}, "without FedProx with CA"),
        ("fedcm:table5", {("client heterogeneity, CA, classification loss", "FedProx")}, "without FedProx with CA"),
    ],
)
def test_what_is_left_out_at_scale_desk_is_told_and_no_claim_of_the_paper_needs_it(name, left_out, words):
    study = papers.studies()[name]
    desk, laptop = ({cell.place for cell in study.cells(scale)} for scale in ("desk", "laptop"))
    assert left_out <= laptop - desk
    assert any(words in told for told in study.departures["desk"])
    claims = [{claim.words for claim in study.claims(scale) if not claim.ours} for scale in ("desk", "laptop")]
    assert claims[0] == claims[1]
