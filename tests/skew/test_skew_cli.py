"""`fedcohort skew`: the table, the picture, the file, and mistakes in one line each."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fedcohort.cli.skew_command import skew
from fedcohort.errors import BadParameter, DataError, FedcohortError, UnknownName

SMALL = ("--task", "digits-softmax", "--world", "fedacs-uniform-v1(clients=30)", "--rounds", "3")


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(skew)

    def go(*arguments):
        result = CliRunner().invoke(app, list(arguments))
        if isinstance(result.exception, FedcohortError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return go


def test_table_statement_and_picture(run, tmp_path):
    png = tmp_path / "skew.png"
    text = run(*SMALL, "--png", str(png), "--rows", "4")
    for word in ("rank", "client", "samples", "Q", "duels won", "confidence", "...", "Hoeffding", "rank correlation"):
        assert word in text
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert sum(line.split()[0].isdigit() for line in text.splitlines()[2:11]) == 8


def test_everybody_with_rows_zero(run):
    assert "..." not in run(*SMALL, "--rows", "0")


def test_csv_has_one_row_per_client_in_rank_order(run, tmp_path):
    out = tmp_path / "skew.csv"
    run(*SMALL, "--csv", str(out))
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(int(row["client"]) for row in rows) == list(range(30))
    ranks = [float(row["rank"]) for row in rows]
    assert ranks == sorted(ranks)


def test_own_data(run, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, x=rng.normal(size=(90, 5)), y=rng.integers(0, 3, 90), client=np.repeat(np.arange(9), 10))
    text = run("--data", str(path), "--rounds", "2", "--png", str(tmp_path / "mine.svg"))
    assert "mine in owners" in text
    assert "9 of 9 clients" in text


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("--world", "fedacs-unifrom-v1"), UnknownName, "fedacs-uniform-v1"),
        (("--task", "digit-mlp"), UnknownName, "digits-mlp"),
        ((*SMALL, "--png", "skew.bmp"), BadParameter, ".png"),
        ((*SMALL, "--png", "no/such/folder/skew.png"), BadParameter, "folder does not exist"),
        ((*SMALL, "--csv", "no/such/folder/skew.csv"), BadParameter, "no folder"),
        ((*SMALL, "--confidence", "95"), BadParameter, "probability"),
        ((*SMALL, "--rounds", "0"), BadParameter, "rounds"),
        ((*SMALL, "--per-round", "1"), BadParameter, "per_round"),
        ((*SMALL, "--share", "1.5"), BadParameter, "share"),
        ((*SMALL, "--rows", "-1"), BadParameter, "rows"),
        ((*SMALL, "--seed", "-1"), BadParameter, "seed"),
        (("--data", "absent.npz"), DataError, "no such file"),
        (("--data", "absent.npz", "--task", "digits-mlp"), BadParameter, "one of the two"),
        (("--task", "digits-mlp", "--world", "volunteers-v1"), FedcohortError, "owner"),
    ],
)
def test_mistakes_are_one_clear_line(run, arguments, error, said):
    with pytest.raises(error) as raised:
        run(*arguments)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def sites(tmp_path, odd=False):
    """Five sites with even mixes of two classes; with `odd`, site2 has nearly one class only."""
    rng = np.random.default_rng(0)
    owner = np.repeat(["site1", "site2", "site3", "site4", "site9"], 600)
    y = np.array(["healthy", "ill"])[rng.permutation(np.arange(3000) % 2)]
    if odd:
        y[600:1150] = "ill"
    np.savez(tmp_path / "sites.npz", x=rng.normal(size=(3000, 3)) + (y == "ill")[:, None], y=y, client=owner)
    return str(tmp_path / "sites.npz")


def test_own_data_keep_their_names_and_the_odd_site_is_named(run, tmp_path):
    text = run("--data", sites(tmp_path, odd=True), "--rounds", "3", "--csv", str(tmp_path / "t.csv"))
    assert "Not even" in text
    named = next(line for line in text.splitlines() if "Different from everybody" in line)
    assert "beyond chance: site2 (" in named
    assert "healthy" in text
    assert "distance of two mixes" in text
    assert text.index("site2") > text.index("site9")  # the last of the ranking
    rows = (tmp_path / "t.csv").read_text().splitlines()
    assert rows[0].startswith("client,name,")
    assert rows[-1].split(",")[1] == "site2"
    assert "samples of ill" in rows[0]


def test_even_data_are_called_practically_even_with_confidence(run, tmp_path):
    text = run("--data", sites(tmp_path), "--rounds", "2")
    assert "Practically even: with 95% confidence" in text
    assert "more skewed" not in text


def test_a_table_is_given_by_its_columns(run, tmp_path):
    rows = "".join(f"{i % 5},{i % 3},{'ab'[i % 2]},{'no' if i % 4 else 'yes'}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("p,q,site,ill\n" + rows)
    text = run("--data", str(tmp_path / "t.csv"), "--target", "ill", "--client", "site", "--rounds", "2")
    assert "mix of classes" in text
    assert "Practically even" not in text  # 15 and 45 of 60 samples: too few to say
