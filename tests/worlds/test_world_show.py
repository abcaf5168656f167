"""describe(), the picture, and `fedcohort world`."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcohort.cli.world_command import app
from fedcohort.errors import BadParameter, DataError
from fedcohort.report.plots.world_picture import draw_world
from fedcohort.worlds import catalogue
from fedcohort.worlds.built_world import build_world
from fedcohort.worlds.describe import describe
from fedcohort.worlds.world_spec import WorldSpec

LABELS = np.arange(1000) % 10


def test_describe_tells_the_numbers_of_a_world_made_by_hand():
    """Four clients, two with one class each and two with both: 1, 1, 2, 2 effective classes.

    JS of a pure client to the even mix: the middle is (3/4, 1/4), so 1/2 log2(4/3) + 1/2 (1/2 log2(2/3) + 1/2 log2 2)
    = 0.3113 bits.
    """
    owners = np.repeat([0, 1, 2, 3], 100)
    labels = np.concatenate([np.zeros(100), np.ones(100), np.arange(200) % 2]).astype(int)
    spec = WorldSpec.from_dict(
        {
            "name": "four",
            "clients": 0,
            "partition": {"kind": "natural"},
            "validation": {"held_out": 0.0},
        }
    )
    told = describe(build_world(spec, labels, seed=0, owners=owners))
    assert told.columns["effective"].tolist() == [1.0, 1.0, 2.0, 2.0]
    pure = 0.5 * np.log2(1 / 0.75) + 0.5 * (0.5 * np.log2(0.5 / 0.75) + 0.5 * np.log2(0.5 / 0.25))
    assert told.columns["js"] == pytest.approx([pure, pure, 0.0, 0.0], abs=1e-4)
    assert [row["client"] for row in told.rows()] == [2, 3, 0, 1]
    assert told.summary["clients"] == 4
    assert "400 (400 different), 100 to 100" in told.summary["samples handed out"]


def test_the_table_has_noise_and_speed():
    told = describe(build_world(catalogue.get("mixed-v1"), LABELS, seed=0))
    lines = str(told).splitlines()
    assert lines[0] == "mixed-v1"
    head = next(line for line in lines if line.startswith("client "))
    for column in ("samples", "effective", "js", "noise", "wrong", "seconds", "slowness"):
        assert column in head
    assert len(told.rows(7)) == 7
    assert np.allclose(told.columns["noise"], told.columns["wrong"], atol=0.06)


@pytest.mark.parametrize("name", ["mixed-v1", "liars-v1", "flashrl-shards-v1"])
def test_the_table_fits_a_terminal_when_told_its_width(name):
    told = describe(build_world(catalogue.get(name), LABELS, seed=0))
    assert max(map(len, told.text().splitlines())) > 100
    narrow = told.text(width=80).splitlines()
    assert [len(line) for line in narrow if len(line) > 80 and told.summary["digest"] not in line] == []
    assert any(told.summary["digest"] in line for line in narrow)  # in one piece, to be copied
    head = next(line for line in narrow if line.startswith("client "))
    for column in ("samples", "effective", "js", "noise", "wrong", "seconds"):
        assert column in head
    assert len(told.text(0).splitlines()) == len(told.text(5).splitlines()) - 5


@pytest.mark.parametrize("name", ["mixed-v1", "fedacs-fewclass-v1", "liars-v1", "flashrl-shards-v1"])
def test_the_picture_is_written(name, tmp_path):
    world = build_world(catalogue.get(name), LABELS, seed=0)
    file = draw_world(world, tmp_path / "w.png")
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert file.stat().st_size > 20_000


def test_the_picture_of_many_clients_and_one_client(tmp_path):
    many = build_world(catalogue.get("dirichlet-0.1-v1", clients=900), np.arange(5000) % 10, seed=0)
    one = build_world(catalogue.get("iid-v1", clients=1), LABELS, seed=0)
    for world in (many, one):
        assert draw_world(world, tmp_path / "w.svg").exists()


def test_bad_picture_files_are_named(tmp_path):
    world = build_world(catalogue.get("iid-v1"), LABELS, seed=0)
    with pytest.raises(BadParameter, match=r"must end in \.png"):
        draw_world(world, tmp_path / "w.gif")
    with pytest.raises(BadParameter, match="its folder does not exist"):
        draw_world(world, tmp_path / "no" / "w.png")


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_list_names_every_world():
    done = run("list")
    assert done.exit_code == 0
    for name in catalogue.names():
        assert name in done.output


def test_show_prints_and_draws(tmp_path):
    done = run("show", "mixed-v1(alpha=0.2)", "--clients", "12", "--seed", "3", "--png", str(tmp_path / "w.png"))
    assert done.exit_code == 0, done.output
    assert "JS to the global mix" in done.output
    assert "(12 of 12)" in done.output
    assert (tmp_path / "w.png").exists()


def test_show_json_is_a_specification_that_builds_the_same_world(tmp_path):
    first = json.loads(run("show", "flash-noise15-v1", "--json").output)
    (tmp_path / "copy.json").write_text(json.dumps(first["spec"]))
    second = json.loads(run("show", str(tmp_path / "copy.json"), "--json").output)
    assert first["summary"]["digest"] == second["summary"]["digest"]


def test_show_refuses_readably():
    assert isinstance(run("show", "volunteers-v1").exception, BadParameter)
    assert isinstance(run("show", "no-such-file.toml").exception, DataError)
    assert "alpha" in str(run("show", "mixed-v1(alpha=0)").exception)
