"""What is proven is what runs: every module of the round path is executed by `fedcohort run` and by a Flower run.

Fails when a second engine grows beside the first one, or when a module of `rounds/` is tested but not used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing
from typer.testing import CliRunner

import fedcohort.rounds
from fedcohort.cli.main import app
from fedcohort.flower import CohortStrategy

ROOM = Path(fedcohort.rounds.__file__).parent
NOT_ON_THE_PATH = ("__init__", "backend", "history_view")  # nothing, declarations, what a notebook shows afterwards
MODULES = sorted(p.stem for p in ROOM.glob("*.py") if p.stem not in NOT_ON_THE_PATH)
ELSEWHERE = {"roster": "simulated clients are their slots; only Flower has external ids"}
ON_FLOWER = {"run_notes": "it compares with the untrained model's test loss; a Flower run logs who was never used"}


def executed(call) -> set[str]:
    """Modules of rounds/ of which a function runs during the call (imports do not count)."""
    found: set[str] = set()

    def watch(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(ROOM)):
            found.add(Path(code.co_filename).stem)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def command_line(folder):
    keys = ["--task", "quadratic", "--rounds", "3", "--cohort-size", "3", "--out", str(folder)]
    for arguments in (["run", "--selector", "oort", *keys], ["resume", str(folder)], ["verify", str(folder)]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output


def deployment(folder):
    for rounds in (2, 3):  # the second process resumes
        grid = FakeGrid([FakeClient(str(i), seconds=1.0 + i) for i in range(5)])
        strategy = CohortStrategy(
            method="fedavg", selector="uniform", cohort_size=3, deadline=30.0, state_dir=folder, **timing(grid)
        )
        strategy.start(grid, as_record({"w": np.zeros(4, np.float32)}), num_rounds=rounds)


@pytest.mark.parametrize(
    ("start", "exempt"), [(command_line, ELSEWHERE), (deployment, ON_FLOWER)], ids=["cli", "flower"]
)
def test_every_module_of_the_round_path_runs(tmp_path, start, exempt):
    missing = set(MODULES) - executed(lambda: start(tmp_path / "run")) - set(exempt)
    assert not missing, f"{sorted(missing)} of rounds/ is not executed by {start.__name__}"


@pytest.mark.parametrize("room", ["sim", "flower"])
def test_backends_leave_the_round_to_the_engine(room):
    """Neither backend closes rounds, judges numbers, calls the method's server half or tells the selector."""
    for path in (ROOM.parent / room).rglob("*.py"):
        text = path.read_text()
        for words in (
            "session.tell(",
            "validate(",
            "OverSelection().learn",
            ".min_replies",
            "BackOff(",
            "Aggregation(",
        ):
            trial = words == "Aggregation(" and path.name == "method_aggregator.py"  # a trial before training
            assert words not in text or trial, f"{path} uses {words!r}"
