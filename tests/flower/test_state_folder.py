"""The state folder of a deployment that was changed, damaged or belongs to another model: refused, or gone on from."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from flwr.serverapp import strategy as stock
from tests.flower.grid import FakeClient, FakeGrid, arrays_of, start, timing
from typer.testing import CliRunner

from fedcohort.cli.main import app
from fedcohort.core.columns import as_bytes
from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.experiment.verification import verify
from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.server import state_dir
from fedcohort.flower.server.aggregator import StrategyAggregator
from fedcohort.flower.server.flower_backend import FlowerBackend
from fedcohort.flower.server.recorded_run import replay_folder
from fedcohort.methods import FedPdp
from fedcohort.rounds.validation import Limits
from fedcohort.storage.run_folder import StateFolder


def make(grid, **keys):
    settings = {"selector": "uniform", "cohort_size": 3, "deadline": 10.0, "over_select": 1.0, **timing(grid), **keys}
    return CohortStrategy(stock.FedAvg(fraction_evaluate=0.0), **settings)


def grid_of(count=6, **keys):
    return FakeGrid([FakeClient(str(i), **keys) for i in range(count)])


def model(**shapes):
    return {k: np.zeros(shape, np.float32) for k, shape in shapes.items()}


def trained(folder, rounds=3, arrays=None, **keys):
    grid = grid_of()
    given = {} if arrays is None else {"arrays": arrays}
    return grid, start(make(grid, state_dir=folder, **keys), grid, rounds=rounds, **given)


@pytest.mark.parametrize(
    "other",
    [{"b": (2,), "w": (2, 3)}, {"w": (2, 4)}, {"w": (3, 2), "b": (2,)}, {"v": (2, 3), "b": (2,)}, {"w": (2, 5)}],
    ids=["order", "same size", "transposed", "renamed", "larger"],
)
def test_a_folder_is_not_gone_on_from_with_another_model(other, tmp_path):
    trained(tmp_path, arrays=model(w=(2, 3), b=(2,)))
    with pytest.raises(StateMismatch, match=r"its model has the arrays w \(2, 3\) <f4, b \(2,\) <f4, this one"):
        trained(tmp_path, rounds=4, arrays=model(**other))
    _, found = trained(tmp_path, rounds=4, arrays=model(w=(2, 3), b=(2,)))
    assert float(arrays_of(found.arrays)["w"].min()) == 4.0


def test_the_model_is_exported_by_name_and_starts_another_run(tmp_path):
    """As the runbook says: another method is another run, in another folder, from this model."""
    given = {"w": np.zeros((2, 3), np.float32), "bn.running_mean": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}
    given["seen"] = np.array(4, np.int64)
    _, found = trained(tmp_path / "old", arrays=given)
    with pytest.raises(StateMismatch):
        trained(tmp_path / "old", rounds=4, arrays=given, selector="round-robin")
    file = tmp_path / "model.npz"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "old"), "--npz", str(file)], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"model: {file}\n")
    with np.load(file) as kept:
        model = dict(kept)
    assert list(model) == list(given)
    for name, value in arrays_of(found.arrays).items():
        np.testing.assert_array_equal(model[name], value)
    _, after = trained(tmp_path / "new", rounds=1, arrays=model, selector="round-robin")
    assert float(arrays_of(after.arrays)["w"].min()) == 4.0


def test_a_model_in_double_precision_is_exported_to_the_last_digit(tmp_path):
    _, found = trained(tmp_path / "run", arrays={"w": np.full((2, 3), 1 / 3), "b": np.zeros(2, np.float32)})
    CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--npz", str(tmp_path / "m.npz")], catch_exceptions=False)
    with np.load(tmp_path / "m.npz") as kept:
        np.testing.assert_array_equal(kept["w"], arrays_of(found.arrays)["w"])


def test_export_names_a_deployment_that_is_not_finished(tmp_path):
    class Stop(Exception):
        pass

    def stop(index, arrays):
        if index == 2:
            raise Stop

    grid = grid_of()
    with pytest.raises(Stop):
        start(make(grid, state_dir=tmp_path / "run"), grid, evaluate_fn=stop)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--npz", str(tmp_path / "model.npz")])
    assert done.exit_code == 0
    assert "1 of 1 runs are not finished: what they have so far is exported" in done.output


@pytest.mark.parametrize("how", ["a flipped bit", "gone"])
def test_a_checkpoint_that_cannot_be_read_costs_its_round(how, tmp_path):
    trained(tmp_path)
    newest = sorted(StateFolder(tmp_path).snapshots.iterdir())[-1]
    if how == "gone":
        newest.unlink()
    else:
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
    grid, found = trained(tmp_path, rounds=5)
    assert float(arrays_of(found.arrays)["w"].min()) == 5.0
    assert sum(m.metadata.message_type == "train" for m in grid.pushed) == 9  # rounds 3, 4 and 5
    assert len(replay_folder(str(tmp_path))) == 5
    reader = StateFolder(tmp_path).reader()
    (cut,) = reader.records(kind="cut")
    assert "the checkpoint of round 3 cannot be read, and rounds from 3 on are done again" in cut.unpack()[1]["why"]
    reader.close()


def test_without_any_checkpoint_or_without_a_journal_nothing_is_overwritten(tmp_path):
    trained(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for file in StateFolder(tmp_path / "a").snapshots.iterdir():
        file.unlink()
    with pytest.raises(StateMismatch, match="3 rounds are done and no checkpoint can be read; restore a backup"):
        trained(tmp_path / "a", rounds=5)
    StateFolder(tmp_path / "b").journal.unlink()
    before = sorted(p.name for p in StateFolder(tmp_path / "b").snapshots.iterdir())
    with pytest.raises(StateMismatch, match="checkpoints of a run whose journal is gone"):
        trained(tmp_path / "b", rounds=5)
    assert sorted(p.name for p in StateFolder(tmp_path / "b").snapshots.iterdir()) == before


def test_a_folder_is_not_gone_on_from_with_other_arguments_of_the_method(tmp_path):
    def go_on(method, rounds, folder=tmp_path / "new"):
        grid = grid_of()
        keys = {"selector": "uniform", "cohort_size": 3, "deadline": 10.0, "state_dir": folder, **timing(grid)}
        return start(CohortStrategy(method=method, **keys), grid, rounds=rounds)

    go_on("fedadam(server_lr=0.5)", 1)
    rule = r"method = 'fedadam\(server_lr=0.5\)', this one has 'fedadam\(server_lr=0.9\)'"
    with pytest.raises(StateMismatch, match=rule):
        go_on("fedadam(server_lr=0.9)", 2)
    with pytest.raises(StateMismatch, match="this one has 'fedadam'"):
        go_on("fedadam", 2)
    go_on("FedAdam( server_lr = .5 )", 2)
    older = tmp_path / "older"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcohort.flower.server.strategy._spelled", lambda text: "")
        go_on("fedadam", 1, older)
    go_on("fedadam(server_lr=0.9)", 2, older)  # only the name is known there


def test_clients_of_an_older_folder_are_asked_for_what_is_needed_now(tmp_path):
    for method, rounds in ((FedPdp(form="normalised"), 1), (FedPdp(), 3)):
        grid = grid_of(provides=["samples"])
        keys = {"selector": "uniform", "cohort_size": 6, "deadline": 10.0, "state_dir": tmp_path, **timing(grid)}
        strategy = CohortStrategy(method=method, **keys)
        found = start(strategy, grid, rounds=rounds)
    assert strategy._backend.samples.tolist() == [10] * 6
    np.testing.assert_allclose(arrays_of(found.arrays)["w"], 3.0, rtol=1e-6)
    assert len(replay_folder(tmp_path)) == 3


def test_asynchronous_and_other_runs_are_told_apart(tmp_path):
    trained(tmp_path / "a", buffer_size=2)
    with pytest.raises(StateMismatch, match=r"it holds an asynchronous run \(buffer_size\), this one is not"):
        trained(tmp_path / "a")
    trained(tmp_path / "s")
    with pytest.raises(StateMismatch, match="it holds no asynchronous run, this one is"):
        trained(tmp_path / "s", buffer_size=2)


class Killed(BaseException):
    pass


def killed_in(index, strategy, grid, rounds):
    """Run until the replies of this round are awaited, and die."""
    inner = FlowerBackend.replies

    def dies(self, *args):
        if self.index == index:
            raise Killed
        return inner(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowerBackend, "replies", dies)
        with pytest.raises(Killed):
            start(strategy, grid, rounds=rounds)


class AtWork(FakeClient):
    """Answers who it is when it is done with what the dead process had sent."""

    until = 0.0

    def delay(self, message):
        return self.until if message.metadata.message_type == wire.REGISTER else super().delay(message)


@pytest.mark.parametrize(("until", "came"), [(15.0, 6), (200.0, 1)])
def test_an_open_round_waits_for_the_cohort_that_it_asks_again(tmp_path, until, came):
    """One of six answers at once, which is enough to begin; the others get `wait` or one deadline."""

    def run(wait):
        clients = [AtWork(str(i)) for i in range(6)]
        for client in clients[1:]:
            client.until = wait
        grid = FakeGrid(clients)
        keys = {"cohort_size": 6, "deadline": 120.0, "poll": 0.5, "state_dir": tmp_path}
        return make(grid, **keys), grid

    killed_in(1, *run(0.0), 3)
    strategy, grid = run(until)
    start(strategy, grid, rounds=2)
    assert [(row["asked"], row["ok"]) for row in strategy.history] == [(6, 6), (6, came)]
    (again,) = StateFolder(tmp_path).reader().records("again")
    assert again.unpack()[1]["connected"] == came


def test_many_that_register_at_once_are_several_records(tmp_path, monkeypatch):
    """A pack holds 16 MiB of texts: 4,500 clients with a histogram of 200 labels have more."""
    monkeypatch.setattr(state_dir, "LONGEST", 60)

    def run(rounds):
        clients = [FakeClient(f"c{i}", provides=["samples", "utility"], samples=10 + i, utility=1.0) for i in range(9)]
        clients += [FakeClient(f"refused-{i}") for i in range(3)]
        grid = FakeGrid(clients)
        strategy = make(grid, selector="oort", state_dir=tmp_path)
        start(strategy, grid, rounds=rounds)
        return strategy._backend.clients

    run(2)
    found = [r.unpack()[1] for r in StateFolder(tmp_path).reader().records("roster")]
    assert [name for meta in found for name in meta["ids"]] == [f"c{i}" for i in range(9)]
    assert sorted(name for meta in found for name in meta["refused"]) == [f"refused-{i}" for i in range(3)]
    assert len(found) >= 6
    again = run(4)
    assert again.roster.ids == tuple(f"c{i}" for i in range(9))
    assert [profile["samples"] for profile in again.profile] == list(range(10, 19))
    assert verify(tmp_path).rounds == 4
    told = {"ids": ["a" * 50, "b" * 50], "profiles": [{}, {}], "refused": {}, "classes": 3}
    assert [part["classes"] for part in state_dir._parts(told)] == [3, 3]


class Mute(FakeClient):
    """Answers no probe."""

    def delay(self, message):
        return None if message.metadata.message_type == wire.PROBE else super().delay(message)


@pytest.mark.parametrize("selector", ["favor", "flash-rl"])
def test_a_first_probe_that_nobody_answers_ends_no_run(selector):
    grid = FakeGrid([Mute(str(i), provides=["probe_weights", "samples", "expected_seconds"]) for i in range(6)])
    found = start(make(grid, selector=selector, max_privacy="P3"), grid, rounds=3)
    assert len(found.train_metrics_clientapp) > 0


def test_the_key_of_the_strategys_weights_need_not_be_listed():
    grid = grid_of()
    strategy = make(grid, metrics=["train_loss"])
    start(strategy, grid, rounds=1)
    assert strategy.history[0]["ok"] == 3.0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"limits": {"max_norm": 1.0}}, "it must be Limits"),
        ({"metric_signals": ["train_loss"]}, "it must map signals to metrics"),
        ({"state_dir": 5}, "it must be the path of a folder"),
        ({"server_evaluator": 5}, "it lacks size"),
    ],
)
def test_settings_of_another_kind_are_refused_before_anything_starts(keys, words):
    with pytest.raises(BadParameter, match=words):
        make(grid_of(), **keys)
    assert make(grid_of(), limits=Limits(max_norm=1.0)) is not None


class Keeping(stock.FedAvg):
    """A strategy of one's own that remembers something of every kind."""

    def __init__(self, **kept):
        super().__init__()
        self.per_node, self.past, self.names, self.odd, self.function = {}, [], {}, [], len
        vars(self).update(kept)


def test_what_a_strategy_of_ones_own_keeps_comes_back_as_it_was(caplog):
    kept = {
        "per_node": {1001: np.ones(2), -7: np.zeros((2, 1), np.int64)},
        "past": [0.5, (1, None, b"tree"), {"a": [True, np.float32(0.25)]}],
        "names": {"x": 3, 4: "y"},
        "odd": [object()],
    }
    saved = StrategyAggregator(Keeping(**kept))
    fresh = StrategyAggregator(Keeping())
    with caplog.at_level("WARNING", logger="flwr"):  # tests of stress, where they were collected, silence it
        arrays = [saved.state_dict() for _ in range(2)][1]
    fresh.load_state_dict(arrays)
    assert repr(fresh.inner.per_node) == repr(kept["per_node"])
    assert repr(fresh.inner.past) == repr(kept["past"])
    assert (fresh.inner.names, fresh.inner.odd) == (kept["names"], [])
    said = [r.getMessage() for r in caplog.records if "cannot be stored" in r.getMessage()]
    assert said == ["Keeping.odd cannot be stored: a resumed run begins without it"]


def test_what_older_folders_hold_of_a_strategy_is_read():
    forms = {"0.past": {"list": 1}, "0.names": {"arrays": ["x"]}}
    fresh = StrategyAggregator(Keeping())
    fresh.load_state_dict({"plain": as_bytes(forms), "0.past/0": np.ones(2), "0.names/0": np.zeros(1)})
    assert repr((fresh.inner.past, fresh.inner.names)) == "([array([1., 1.])], {'x': array([0.])})"


def test_what_evaluate_fn_returns(caplog):
    grid = grid_of()
    with pytest.raises(BadParameter, match="evaluate_fn returned float: it must return metrics by name"):
        start(make(grid, evaluate_fn=lambda *_: 0.5), grid, rounds=1)
    with caplog.at_level("WARNING", logger="flwr"):
        start(make(grid, evaluate_fn=lambda *_: {"acc": 0.5}), grid, rounds=3)
    told = [r.getMessage() for r in caplog.records if "no score" in r.getMessage()]
    assert told == ["no score: 'accuracy' is not a number among acc; set score=NAME"]
