"""Twenty rounds of every selector of the catalogue, against the recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedcohort.errors import MissingExtra
from fedcohort.registry import lookup as registry
from fedcohort.selectors.uniform import Uniform
from fedcohort.testing import golden

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", registry.names("selector"))
def test_cohorts_are_as_recorded(name):
    try:
        selector = golden.selector_of(name)
    except MissingExtra as error:
        pytest.skip(str(error))
    golden.compare(name, selector, FOLDER)


def test_no_recording_is_left_behind():
    """A recording of a selector that is gone is removed with it."""
    assert {p.stem for p in FOLDER.glob("*.json")} <= set(registry.names("selector"))


def test_a_changed_cohort_is_reported_with_what_to_do(tmp_path):
    golden.write("uniform", Uniform(), tmp_path)
    golden.compare("uniform", Uniform(), tmp_path)
    kept = json.loads((tmp_path / "uniform.json").read_text())
    kept["cohorts"][7][0] += 1
    (tmp_path / "uniform.json").write_text(json.dumps(kept))
    with pytest.raises(AssertionError, match=r"round 7 .*Behaviour.*fedcohort\.testing\.golden uniform"):
        golden.compare("uniform", Uniform(), tmp_path)


def test_a_missing_recording_says_how_to_make_it(tmp_path):
    with pytest.raises(AssertionError, match=r"golden uniform"):
        golden.compare("uniform", Uniform(), tmp_path)


def test_the_command_writes_files(tmp_path, capsys):
    golden.main(["uniform", "round-robin", "--folder", str(tmp_path)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-robin.json", "uniform.json"]
    assert "uniform.json" in capsys.readouterr().out
