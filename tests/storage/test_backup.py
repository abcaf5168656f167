"""The procedures of the runbook that move a state folder: back up, restore, move; while the run goes on."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from tests.rounds.test_recovery import AT, ROUNDS, Crash, OnFlower, dying, records
from typer.testing import CliRunner

from fedcohort.cli.main import app
from fedcohort.errors import RunExists, StoreError
from fedcohort.experiment.verification import verify
from fedcohort.storage.backup import back_up


@pytest.mark.parametrize("where", ["dispatch", "aggregate", "told"])
def test_a_copy_made_in_the_middle_of_a_round_is_resumed_to_the_same_end(tmp_path, monkeypatch, where):
    """`backup` runs while the server has the folder locked and a round open; then the machine is lost."""
    whole = OnFlower(tmp_path / "whole", "power-of-choice(d=6)", 0)
    whole.run()
    lost = OnFlower(tmp_path / "lost", "power-of-choice(d=6)", 0)
    dying(monkeypatch, lost, where)
    close = lost.strategy._backend.memory.close
    lost.strategy._backend.memory.close = lambda: (back_up(tmp_path / "lost", tmp_path / "copy"), close())
    with pytest.raises(Crash):
        lost.run()
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "lost")
    shutil.move(tmp_path / "copy", tmp_path / "elsewhere")  # restored under another path, on another machine
    again = OnFlower(tmp_path / "elsewhere", "power-of-choice(d=6)", 0)
    assert again.engine.session.index in (AT, AT + 1)
    again.run()
    assert records(tmp_path / "elsewhere") == records(tmp_path / "whole")
    np.testing.assert_array_equal(again.model(), whole.model())
    assert verify(tmp_path / "elsewhere").rounds == ROUNDS


def test_the_command_checks_its_folders(tmp_path):
    OnFlower(tmp_path / "run", "uniform", 0).run()
    done = CliRunner().invoke(app, ["flower", "backup", str(tmp_path / "run"), str(tmp_path / "copy")])
    assert done.exit_code == 0
    assert "records and all checkpoints are in" in done.output
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0  # as closed to other accounts as the folder itself
    assert verify(tmp_path / "copy").rounds == ROUNDS
    with pytest.raises(RunExists, match="new or empty"):
        back_up(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(StoreError, match="no such folder"):
        back_up(tmp_path / "nowhere", tmp_path / "other")
