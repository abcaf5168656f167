"""`fedcohort verify` and `journal show` on the state_dir of a Flower run: honest ones pass, forged ones do not."""

from __future__ import annotations

import contextlib
import sqlite3

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, start, timing
from tests.flower.test_state_folder import killed_in
from typer.testing import CliRunner

from fedcohort.cli.main import app
from fedcohort.core.pack import pack, unpack
from fedcohort.errors import JournalDamaged, StoreError
from fedcohort.experiment.verification import verify
from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.server.recorded_run import replay_folder as replay
from fedcohort.registry.lookup import make_selector
from fedcohort.storage.journal import GENESIS, chain


def made(folder, selector="oort", rounds=6, strategy=None, **keys):
    provides = ["utility", "samples", "train_loss"]
    names = [f"hospital-{i}" for i in range(7)]
    told = [{"seconds": 1.0 + i, "utility": 9.0 - i, "train_loss": 1.0 + i} for i in range(7)]
    grid = FakeGrid([FakeClient(n, provides=provides, **keys) for n, keys in zip(names, told, strict=True)])
    settings = {"cohort_size": 2, "over_select": 1.5, "deadline": 5.0, "state_dir": folder, **timing(grid), **keys}
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), selector=selector, **settings)
    start(strategy, grid, rounds=rounds)
    return folder


def forge(folder, change):
    """Change records and recompute every hash after them, and the seal, as somebody with time would."""
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as db, db:
        hash_ = GENESIS
        for seq, kind, index, body in db.execute("SELECT seq, kind, round, body FROM record ORDER BY seq").fetchall():
            body = pack(*change(kind, index, *unpack(body)))
            hash_ = chain(hash_, kind, index, body)
            db.execute("UPDATE record SET body = ?, hash = ? WHERE seq = ?", (body, hash_, seq))


@pytest.mark.parametrize("selector", ["uniform", "oort", "fedcm-ucb"])
def test_an_honest_run_passes_also_after_a_restart(tmp_path, selector):
    made(tmp_path, selector, rounds=3)
    made(tmp_path, selector, rounds=6)  # another process, the same state_dir
    found = verify(tmp_path)
    assert (found.rounds, found.how) == (6, "replayed from the journal")
    assert found.snapshots >= 2


def test_a_selector_of_whole_updates_passes_where_they_were_kept_and_only_there(tmp_path):
    assert verify(made(tmp_path / "kept", "hetero-select", keep_updates=True)).rounds == 6
    with pytest.raises(StoreError, match="keep_updates=True"):
        verify(made(tmp_path / "not", "hetero-select"))


class ToldOf(FakeClient):
    """Answers a probe with weights of its own."""

    def reply(self, message):
        if message.metadata.message_type != wire.PROBE:
            return super().reply(message)
        weights = np.arange(8, dtype=np.float32) + len(self.name)
        return RecordDict({wire.VECTORS: ArrayRecord({"probe_weights": Array(weights)})})


@pytest.mark.parametrize("index", [0, 2])
def test_a_run_that_died_in_a_probed_round_passes_too(tmp_path, index):
    """The answers to the probe are those of the process that died; they are kept with the round."""

    def run():
        provides = ["probe_weights", "samples", "train_loss"]
        grid = FakeGrid([ToldOf("c" * (i + 1), provides=provides) for i in range(6)])
        settings = {"cohort_size": 2, "deadline": 5.0, "state_dir": tmp_path, "keep_updates": True, **timing(grid)}
        settings["evaluate_fn"] = lambda server_round, arrays: MetricRecord({"accuracy": 0.1 * server_round})
        return CohortStrategy(FedAvg(fraction_evaluate=0.0), selector="favor", **settings), grid

    killed_in(index, *run(), 4)
    start(*run(), rounds=4)
    assert verify(tmp_path).rounds == 4


def test_an_altered_update_is_found_by_its_digest(tmp_path):
    folder = made(tmp_path, "hetero-select", keep_updates=True)
    path = sorted((folder / "vectors").iterdir())[2]
    arrays, meta = unpack(path.read_bytes())
    name = next(iter(arrays))
    path.write_bytes(pack({**arrays, name: arrays[name] + 1}, meta))
    with pytest.raises(JournalDamaged, match=r"round 2.*digest"):
        verify(folder)


def test_a_forged_cohort_is_found_even_when_every_hash_fits(tmp_path):
    def other(kind, index, arrays, meta):
        if kind == "ask" and index == 3:
            clients = arrays["clients"].copy()
            clients[0] = next(c for c in range(7) if c not in clients)
            arrays = {**arrays, "clients": clients}
        return arrays, meta

    forge(made(tmp_path), other)
    with pytest.raises(JournalDamaged, match="round 3"):
        verify(tmp_path)


def test_a_forged_seed_is_found(tmp_path):
    forge(made(tmp_path), lambda kind, i, a, meta: (a, {**meta, "seed": 1} if kind == "open" else meta))
    with pytest.raises(JournalDamaged, match="seed and journal give the cohort"):
        verify(tmp_path)


@pytest.mark.parametrize("table", ["body = zeroblob(20)", "round = 77", "kind = 'again'"])
def test_a_plain_edit_is_found_by_the_chain(tmp_path, table):
    made(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute(f"UPDATE record SET {table} WHERE seq = 5")
    with pytest.raises(JournalDamaged, match="record 5"):
        verify(tmp_path)


@pytest.mark.parametrize("place", ["snapshots"])
def test_a_damaged_file_of_the_state_is_named(tmp_path, place):
    made(tmp_path)
    file = sorted((tmp_path / place).iterdir())[-1]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match=file.name):
        verify(tmp_path)


def test_a_selector_of_ones_own_is_replayed_by_its_program(tmp_path):
    made(tmp_path, make_selector("uniform"))
    with pytest.raises(StoreError, match="object of the program"):
        verify(tmp_path)
    assert len(replay(tmp_path, make_selector("uniform"))) == 6


def test_the_command_line_reads_a_state_dir(tmp_path):
    made(tmp_path, "uniform")
    run = CliRunner()
    said = run.invoke(app, ["verify", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "6 rounds replayed from the journal: identical" in said.output
    shown = run.invoke(app, ["journal", "show", str(tmp_path)]).output
    assert "kind flower, selector uniform, model FedAvg, seed 0" in shown
    assert "7 new clients: hospital-0" in shown
    assert np.sum(["2 OK" in line for line in shown.splitlines()]) == 6


def test_verify_needs_no_flwr(tmp_path):
    import subprocess
    import sys

    made(tmp_path, "uniform")
    code = """if True:
        import sys
        from pathlib import Path
        sys.modules["flwr"] = None
        from fedcohort.experiment.verification import verify
        print(verify(Path(sys.argv[1])).rounds)
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.stdout.strip() == "6", done.stderr


@pytest.mark.parametrize("command", [["resume"], ["export", "--csv", "tables"]])
def test_commands_for_simulated_runs_say_that_this_is_a_deployment(tmp_path, command):
    made(tmp_path / "state", "uniform", rounds=2)
    done = CliRunner().invoke(app, [command[0], str(tmp_path / "state"), *command[1:]])
    assert isinstance(done.exception, StoreError)
    assert "it belongs to a deployment" in str(done.exception)
