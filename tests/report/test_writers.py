"""Writers: what was written is read back with other code, and every value compared."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from tests.cli.test_cli import fedcohort, mistake

from fedcohort.experiment.runs import read
from fedcohort.report.export.writers import MLflow, TensorBoard

RUN = ["run", "--task", "digits-softmax", "--rounds", "4", "--cohort-size", "5", "--selector", "uniform"]
ROWS = [{"round": float(t), "clock": 2.0 * t, "accuracy": 0.1 * t, "method.a<b": 1e-9 * t} for t in range(5)]


def events(folder):
    """{name: {step: value}} of the event files, read by hand: each record is length, check sum, message, check sum."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(folder.glob("events.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            if event.session_log.status == 1:  # START: what came before at or after this step is void
                found = {n: {s: v for s, v in steps.items() if s < event.step} for n, steps in found.items()}
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    return {name: steps for name, steps in found.items() if steps}


def tracked(folder):
    """{run name: ({name: {step: value}}, parameters, status)} of the database, read with SQL and not with MLflow."""
    import sqlite3

    db = sqlite3.connect(folder / "mlflow.db")
    out = {}
    for uuid, name, status in db.execute("SELECT run_uuid, name, status FROM runs").fetchall():
        columns = {}
        for key, step, value in db.execute("SELECT key, step, value FROM metrics WHERE run_uuid = ?", (uuid,)):
            assert step not in columns.setdefault(key, {}), "written twice"
            columns[key][step] = value
        params = dict(db.execute("SELECT key, value FROM params WHERE run_uuid = ?", (uuid,)).fetchall())
        assert name not in out
        out[name] = (columns, params, status)
    db.close()
    return out


def columns(rows, kind=float):
    """{name: {round: value}} as it should be."""
    found = {}
    for row in rows:
        for name, value in row.items():
            if name != "round":
                found.setdefault(name.replace("<", "_"), {})[int(row["round"])] = float(kind(value))
    return found


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboardX", reason="the extra 'tensorboard' is not installed")


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """MLflow's tables without a run of ours: it takes MLflow seconds to make them, so they are made once."""
    for module in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(module, reason="the extra 'mlflow' is not installed")
    folder = tmp_path_factory.mktemp("mlflow")
    with MLflow(folder, "first") as writer:
        writer(ROWS[0])
    return folder / "mlflow.db"


@pytest.fixture
def mlflow(empty):
    """Lays the tables into a folder."""

    def lay(folder):
        folder.mkdir(exist_ok=True)
        shutil.copy(empty, folder / "mlflow.db")
        return folder

    return lay


def test_tensorboard_takes_each_round_once(tensorboard, tmp_path):
    with TensorBoard(tmp_path, "../a/run", {"selector": "oort"}) as writer:
        writer.take(ROWS[:3])
        writer.take(ROWS)
    assert [p.name for p in tmp_path.iterdir()] == ["_a_run"]
    assert events(tmp_path / "_a_run") == columns(ROWS, np.float32)
    with TensorBoard(tmp_path, "../a/run") as writer:  # written again: the old values are void
        writer.take(ROWS[:2])
    assert events(tmp_path / "_a_run") == columns(ROWS[:2], np.float32)


def test_mlflow_goes_on_where_it_stopped(mlflow, tmp_path):
    mlflow(tmp_path)

    def interrupted():
        with MLflow(tmp_path, "a 'run'", {"selector": "oort(explore=0.5)"}) as writer:
            writer.take(ROWS[:3])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert tracked(tmp_path)["a 'run'"][2] == "KILLED"
    with MLflow(tmp_path, "a 'run'") as writer:
        writer.take(ROWS)
    found = tracked(tmp_path)
    assert found["a 'run'"] == (columns(ROWS), {"selector": "oort(explore=0.5)"}, "FINISHED")
    assert found["first"] == (columns(ROWS[:1]), {}, "FINISHED")


def test_a_run_and_its_export_are_the_same_numbers(tensorboard, mlflow, tmp_path):
    for name in ("ml", "ml2"):
        mlflow(tmp_path / name)
    fedcohort(*RUN, "--tensorboard", "tb", "--mlflow", "ml", cwd=tmp_path)
    folder = next((tmp_path / "runs").iterdir())
    rows = read(folder).history.rows
    assert len(rows) == 4
    out, _ = fedcohort("export", "runs", "--tensorboard", "tb2", "--mlflow", "ml2", cwd=tmp_path)
    assert out.startswith("1 runs, 4 rounds")
    fedcohort("export", "runs", "--tensorboard", "tb2", "--mlflow", "ml2", cwd=tmp_path)
    fedcohort(*RUN, "--tensorboard", "tb3", cwd=tmp_path)  # read from the store
    for name in ("tb", "tb2", "tb3"):
        assert events(tmp_path / name / folder.name) == columns(rows, np.float32)
    for name in ("ml", "ml2"):
        numbers, params, status = tracked(tmp_path / name)[folder.name]
        assert numbers == columns(rows)
        assert status == "FINISHED"
        assert (params["selector"], params["rounds"]) == ("uniform", "4")


def test_mistakes_are_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "no destination was given" in mistake("export", str(tmp_path))
    assert "not a folder" in mistake(*RUN, "--tensorboard", "file", cwd=tmp_path)
    assert "not a folder" in mistake(*RUN, "--mlflow", "file", cwd=tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("module", "option"), [("tensorboardX", "tensorboard"), ("mlflow", "mlflow")])
def test_without_the_extra(module, option, tmp_path):
    hidden = "import importlib.util, sys; own = importlib.util.find_spec\n"
    hidden += f"importlib.util.find_spec = lambda name, *more: None if name == {module!r} else own(name, *more)\n"
    code = f"{hidden}sys.argv = ['fedcohort', 'run', '--rounds', '1', '--{option}', 'x']\n"
    code += "from fedcohort.cli.main import main\nmain()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 2
    assert f"pip install 'fedcohort[{option}]'" in run.stderr
    assert list(tmp_path.iterdir()) == []
