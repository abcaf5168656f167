"""Advice for one's own data: the sentence for every outcome, the score at equal time, and the command."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcohort.arena.own_trial import SelectorTrial, TrialRow, compare_on, score_until
from fedcohort.cli.main import app
from fedcohort.errors import FedcohortError
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.metrics.paired import wilcoxon
from fedcohort.rounds.history import History

NOISE = np.array([0.1, -0.2, 0.15, -0.1, 0.05, 0.0])


def trial(**gains):
    rows = [TrialRow("uniform", np.zeros(6), np.zeros(6), 30.0)]
    for name, mean in gains.items():
        value = mean + NOISE
        rows.append(TrialRow(name.replace("_", "-"), value / 100, value, 30.0, wilcoxon(value)))
    return SelectorTrial(tuple(rows), 6, 30, 100.0, {})


@pytest.mark.parametrize(
    ("gains", "begins"),
    [
        ({"ledger": 1.2, "oort": 0.4}, "Use ledger: +1.2 points [+"),
        ({"ledger": 1.2, "oort": 1.3}, "Use ledger: "),  # oort is not certainly better than ledger
        ({"ledger": 0.0, "oort": 2.0}, "Use oort: +2.0 points"),
        ({"ledger": -1.0, "oort": 0.0}, "Use uniform: ledger is at -1.0 points"),
        (
            {"ledger": 0.1, "oort": 0.0},
            "Use ledger: nothing speaks against it, and nothing is shown either: +0.1 points",
        ),
        ({"ledger": -0.1, "oort": 0.0}, "Undecided: ledger is at -0.1 points"),
        ({"oort": 0.0}, "Undecided: nothing on the list"),
    ],
)
def test_the_sentence_and_its_interval(gains, begins):
    said = trial(**gains).sentence()
    assert said.startswith(begins)
    assert "at the same time (6 seeds, 95 % interval)" in said


@pytest.mark.parametrize(
    ("ledger", "begins"), [(1.2, "Use ledger: +1.2"), (-1.0, "Use uniform"), (0.1, "Use ledger: no")]
)
def test_it_is_said_where_so_few_seeds_can_decide_only_ledger(ledger, begins):
    """Three others: 3 / 2^5 is more than 0.05 however far ahead they are, 3 / 2^6 is not."""
    said = trial(ledger=ledger, oort=0.0, fedcs=0.0, round_robin=0.0).sentence()
    assert said.startswith(begins)
    assert said.endswith("(6 seeds, 95 % interval); with fewer than 7 seeds nothing but ledger can be decided.") or (
        begins == "Use uniform" and said.endswith("; with fewer than 7 seeds nothing but ledger can be decided.")
    )
    without = trial(oort=0.0, fedcs=0.0).sentence()
    assert without.endswith("; with fewer than 7 seeds nothing on this list can be decided.")


def test_the_default_number_of_seeds_can_recommend_somebody_else(own, monkeypatch):
    """A shortlist of six: with eight seeds the one that is always ahead is recommended."""
    names = ["uniform", "ledger", "oort", "fedcs", "round-robin", "afl"]

    def run(config, until, tell):
        better = 0.2 + 0.001 * config.seed if config.selector == "oort" else 0.0
        return History(1, [{"accuracy": 0.5 + better, "clock": 0.0, "seconds": 1.0}, {"clock": 10.0, "seconds": 1.0}])

    monkeypatch.setattr("fedcohort.arena.own_trial._run", run)
    found = compare_on(from_mapping({"task": "npz:mine.npz"}), names)
    assert (found.seeds, found.needed) == (8, 8)
    assert found.sentence().startswith("Use oort: ")


def test_scores_are_of_the_last_quarter_of_the_time():
    rows = [{"accuracy": 0.1, "clock": 10.0}, {"clock": 40.0}, {"accuracy": 0.5, "clock": 90.0}]
    assert score_until(History(1, rows), 100.0) == pytest.approx((15 * 0.1 + 10 * 0.5) / 25)
    assert score_until(History(1, [{"accuracy": 0.9, "clock": 200.0}]), 100.0) == 0.0


@pytest.fixture
def own(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    y = np.arange(240) % 2
    x = rng.normal(size=(240, 3)) + y[:, None]
    owner = np.array([f"s{i % 6}" for i in range(240)])
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=owner)
    np.savez(tmp_path / "bare.npz", x=x, y=y)
    (tmp_path / "fleet.csv").write_text("client,seconds\n" + "".join(f"s{i},{1 + 5 * i}\n" for i in range(6)))
    monkeypatch.chdir(tmp_path)


def test_everybody_gets_the_time_of_uniform_and_a_broken_entry_is_told(own):
    world = "owners-v1(latency={'kind': 'given', 'path': 'fleet.csv'})"
    config = from_mapping({"task": "npz:mine.npz(hidden=())", "world": world, "cohort_size": 2, "engine": "numpy"})
    found = compare_on(config, ["round-robin", "fedcs", "nobody"], seeds=2, rounds=4)
    assert {r.selector.partition("(")[0] for r in found.rows} == {"uniform", "round-robin", "fedcs"}
    assert found.row("fedcs").rounds > found.row("uniform").rounds  # the fast ones fit more rounds into the time
    assert "nobody" in found.failed
    assert found.sentence().startswith("Undecided: ")
    assert found.sentence().endswith("(2 seeds, range); that decides nothing, and a verdict needs --seeds 7 or more.")


def invoke(*arguments):
    return CliRunner().invoke(app, ["advise", *arguments])


def test_the_command_explains_itself_and_names_what_is_missing(own):
    bare = invoke()
    assert bare.exit_code == 2
    assert "--latency FILE" in bare.output
    for arguments, says in (
        (("--data", "bare.npz"), "do not say who owns which sample"),
        (("--data", "absent.npz"), "there is no such file"),
        (("--data", "mine.npz", "--latency", "absent.csv"), "there is no such file"),
        (("--data", "mine.npz", "--target", "y"), "instead of columns"),
        (("--data", "mine.npz", "--task", "digits-mlp"), "one of the two"),
    ):
        error = invoke(*arguments).exception
        assert isinstance(error, FedcohortError)
        assert says in str(error)


def test_the_command_ends_in_the_sentence(own):
    short = ("--selectors", "ledger", "--seeds", "2", "--rounds", "4", "-k", "2")
    result = invoke("--data", "mine.npz", "--latency", "fleet.csv", *short)
    assert result.exit_code == 0, result.output
    last = result.output.strip().splitlines()[-1]
    assert last.startswith(("Use ", "Undecided"))
    assert "over uniform" in last or "against uniform" in last
    assert "(2 seeds, range)" in last
