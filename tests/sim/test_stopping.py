"""Ending early: the rule by hand, and runs that stop, resume and verify."""

from __future__ import annotations

import math

import pytest

from fedcohort.errors import RunWarning
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import read, resume, run
from fedcohort.experiment.verification import verify
from fedcohort.sim.stopping import Stopping

NAN = math.nan
SMALL = {"task": "quadratic", "world": "mixed-v1(clients=12)", "cohort_size": 3, "rounds": 12}


@pytest.mark.parametrize(
    ("rule", "scores", "said"),
    [
        (Stopping(), [0.9, 0.9, 0.9], ""),
        (Stopping(0.8), [], ""),
        (Stopping(0.8), [0.9, 0.7], ""),
        (Stopping(0.8), [0.7, 0.8], "target: validation accuracy 0.8000 reached 0.8 after 2 rounds"),
        (Stopping(patience=2), [0.5, 0.5], ""),
        (
            Stopping(patience=2),
            [0.5, 0.5, 0.5],
            "patience: no better validation accuracy than 0.5000 (round 0) in 2 rounds",
        ),
        (Stopping(patience=2), [0.5, 0.4, 0.6, 0.5], ""),
        (Stopping(patience=2), [0.5, NAN, 0.4], ""),
        (Stopping(patience=2), [0.5, NAN, 0.4, 0.3], "patience: no better"),
        (Stopping(patience=1), [0.5, 0.4, NAN], ""),
    ],
)
def test_the_rule_by_hand(rule, scores, said):
    assert rule.reason(scores).startswith(said)
    assert bool(rule.reason(scores)) == bool(said)


def test_rounds_are_numbered_as_in_the_journal():
    said = Stopping(patience=1).reason([0.5, 0.6, 0.4])
    assert said == "patience: no better validation accuracy than 0.6000 (round 1) in 1 round"
    assert Stopping(0.8).reason([0.9]) == "target: validation accuracy 0.9000 reached 0.8 after 1 round"


def test_a_run_ends_at_its_target_and_is_measured_there(tmp_path):
    whole = run(RunConfig(**SMALL)).history
    goal = float(whole.column("score")[5])
    config = RunConfig(**SMALL, stop_at=goal, evaluate_every=50, snapshot_every=50)
    short = run(config, tmp_path / "run").history
    first = int((whole.column("score") >= goal).argmax())
    assert len(short.rows) == first + 1
    assert short.column("score").tolist() == whole.column("score")[: first + 1].tolist()
    assert short.rows[-1]["accuracy"] == whole.rows[first]["accuracy"]  # the last round is evaluated
    assert short.ended.startswith("target:")
    assert read(tmp_path / "run").history.ended == short.ended
    assert read(tmp_path / "run").config == config
    assert verify(tmp_path / "run").rounds == first + 1
    assert (tmp_path / "run" / "config.toml").read_text().count("stop_at") == 1
    assert list((tmp_path / "run" / "snapshots").iterdir())  # and can be taken from there


def test_patience_survives_an_interruption(tmp_path):
    config = RunConfig(**{**SMALL, "task": "quadratic(lr=1.9)"}, patience=3)
    whole = run(config).history
    assert whole.ended.startswith("patience:")
    assert len(whole.rows) < config.rounds

    def interrupt(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt)
    assert read(tmp_path / "run").history.ended == ""
    again = resume(tmp_path / "run").history
    assert (again.rows, again.ended, again.notes) == (whole.rows, whole.ended, whole.notes)
    assert resume(tmp_path / "run").history.rows == whole.rows  # finished: nothing more happens
    assert verify(tmp_path / "run").rounds == len(whole.rows)


def test_unused_keys_leave_the_digest_as_it_was():
    plain = RunConfig(**SMALL)
    assert not {"stop_at", "patience"} & set(plain.to_dict())
    assert RunConfig(**SMALL, patience=3).digest() != plain.digest() != RunConfig(**SMALL, stop_at=0.5).digest()
    # as it was before there were such keys
    assert RunConfig().digest().startswith("aef461ce39dfa454")


def test_a_warning_reaches_python_the_history_and_the_journal(tmp_path):
    with pytest.warns(RunWarning, match="fedbuff without asynchronous rounds"):
        made = run(RunConfig(**SMALL, method="fedbuff"), tmp_path / "run").history
    assert any(note.startswith("fedbuff") for note in made.notes)
    assert read(tmp_path / "run").history.notes == made.notes
    with pytest.warns(RunWarning):
        assert resume(tmp_path / "run").history.notes == made.notes


@pytest.mark.parametrize("selector", ["flash", "flash-rl"])
def test_what_the_first_round_lacks_is_kept_also_over_an_interruption(tmp_path, selector):
    """No validation data, so nothing for FLASH's reward and no score; told of round 0 whoever finishes the run."""
    config = RunConfig(selector=selector, task="digits-softmax(validation=0.0)", rounds=6, cohort_size=3)
    with pytest.warns(RunWarning, match="round 0 "):
        whole = run(config).history

    def interrupt(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.warns(RunWarning, match="round 0 "), pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt)
    again = resume(tmp_path / "run").history
    assert again.rows == whole.rows
    assert again.notes == whole.notes == read(tmp_path / "run").history.notes
    assert [text[:8] for text in whole.notes] == ["round 0 "]
