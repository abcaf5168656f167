"""The command `fedcohort reproduce`: what it lists, shows, writes and refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcohort.cli import reproduce_command
from fedcohort.cli.main import app
from fedcohort.papers import result_files

from .tiny_study import tiny


def test_the_command_lists_shows_and_refuses(tmp_path):
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "--out", str(tmp_path)])
    assert listed.exit_code == 0
    assert "fedcm:table3" in listed.output
    shown = runner.invoke(app, ["reproduce", "fedcm:table3", "--show", "--out", str(tmp_path)])
    assert "it holds no result of fedcm:table3; run" in str(shown.exception)
    (tmp_path / "fedcm-table3-smoke.json").write_text("[]")
    shown = runner.invoke(app, ["reproduce", "fedcm:table3", "--scale", "Desk", "--show", "--out", str(tmp_path)])
    assert "it holds no result of fedcm:table3 at scale desk; take smoke" in str(shown.exception)
    shown = runner.invoke(app, ["reproduce", "fedcm:table3", "--show", "--out", str(tmp_path)])
    assert "not the result of its reproduction" in str(shown.exception)
    paged = runner.invoke(app, ["reproduce", "--page", str(tmp_path / "p.md"), "--out", str(tmp_path)])
    assert "holds no results" in str(paged.exception)
    scaled = runner.invoke(app, ["reproduce", "fedcm:table3", "--scale", "labtop", "--out", str(tmp_path)])
    assert "did you mean laptop" in str(scaled.exception)
    bare = runner.invoke(app, ["reproduce", "--page", str(tmp_path / "papers"), "--out", str(tmp_path)])
    assert "it is a Markdown file" in str(bare.exception)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--show"], "--show without a table"),
        (["--main"], "--main without a table"),
        (["--scale", "laptop"], "--scale laptop without a table"),
        (["flash:fig5", "--seeds", "0", "--show"], "--seeds 0 with --show"),
        (["flash:fig5", "--show", "--no-run"], "--show with --no-run"),
        (["flash:regret", "--scale", "laptop"], "dataset 'cifar10': neither"),
        (["fedacs:fig2", "--store", "FILE"], "it is a file, and runs go to a folder"),
        (["fedacs:fig2", "--store", "FILE/below"], "it is a file, and runs go to a folder"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_writes_nothing(tmp_path, monkeypatch, given, words):
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path / "no data"))
    (tmp_path / "file").touch()
    given = [one.replace("FILE", str(tmp_path / "file")) for one in given]
    store = [] if "--store" in given else ["--store", str(tmp_path / "runs")]
    said = CliRunner().invoke(app, ["reproduce", *given, *store, "--out", str(tmp_path / "out")])
    assert words in str(said.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_list_tells_what_is_incomplete_or_damaged(tmp_path, done):
    _, _, found = done
    result_files.save({**found, "study": "flash:fig5", "done": 3}, tmp_path)
    result_files.save({**found, "study": "fedcm:fig5"}, tmp_path)
    (tmp_path / "fedacs-fig2-smoke.json").write_text("{}")
    listed = CliRunner().invoke(app, ["reproduce", "--out", str(tmp_path)], env={"COLUMNS": "200"}).output
    lines = {line.split()[0]: line for line in listed.splitlines()}
    assert " smoke 3/8        FLASH, Fig. 5" in lines["flash:fig5"]
    assert " smoke            FedCM, Fig. 5" in lines["fedcm:fig5"]
    assert " smoke (damaged)  FedACS, Fig. 2" in lines["fedacs:fig2"]
    assert " -  " in lines["fedacs:fig5"]


def test_a_failed_run_is_told_by_the_exit_code_and_keeps_nothing_from_being_shown(tmp_path, done):
    for study, failed in (("fedcm:table2", {"fedcs-x": "it fell over"}), ("fedcm:table3", {})):
        result_files.save({**done[2], "study": study, "scale": "laptop", "failed": failed}, tmp_path)
    page_file = tmp_path / "papers.md"
    shown = CliRunner().invoke(app, ["reproduce", "fedcm", "--show", "--out", str(tmp_path), "--page", str(page_file)])
    assert shown.exit_code == 1
    assert all(f"fedcohort reproduce fedcm:{table}" in shown.output for table in ("table2", "table3"))
    assert page_file.exists()


def test_what_is_there_is_measured_whatever_an_earlier_version_wrote_of_claims(tmp_path, done):
    _, store, found = done
    result_files.save({**found, "claims": [{"words": "of an earlier version"}]}, tmp_path)
    again = reproduce_command._run(tiny(), "smoke", None, store, tmp_path, workers=1, main=False, no_run=True)
    assert again["claims"] == found["claims"]
    assert again["cost"] == found["cost"]


def test_all_that_is_stored_is_shown_whatever_its_scale():
    folder = str(Path(__file__).parents[2] / "results")
    shown = CliRunner().invoke(app, ["reproduce", "FLASH:table1", "--show", "--out", folder])
    assert shown.exit_code == 0
    for world in ("noniid", "noise", "both"):
        for scale in ("laptop", "desk"):
            assert f"fedcohort reproduce flash:table1-{world} --scale {scale}" in shown.output
