"""Runs as tables and models as files: what is written can be read back and says what happened."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcohort import Dataset, simulate, task_from
from fedcohort.cli.main import app
from fedcohort.errors import FedcohortError
from fedcohort.experiment.runs import read
from fedcohort.report.views import client, cohort_map
from fedcohort.storage.run_folder import RunFolder


def invoke(*arguments):
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    if isinstance(result.exception, FedcohortError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    y = np.arange(90) % 3
    x = np.random.default_rng(0).normal(size=(90, 4)) + 3 * np.eye(3, 4)[y]
    data = Dataset.from_arrays(x, np.array(["a", "b", "c"])[y], client=[f"site{i % 5 + 1}" for i in range(90)])
    folder = tmp_path_factory.mktemp("runs") / "mine"
    history = simulate("oort", task=task_from(data, hidden=6), rounds=4, cohort_size=2, evaluate_every=2, out=folder)
    return folder, history, data


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tables_say_what_happened_under_the_names_of_clients(run, tmp_path):
    folder, history, _ = run
    assert "4 rows" in invoke(folder, "--csv", tmp_path)
    rounds, evaluations = rows_of(tmp_path / "rounds.csv"), rows_of(tmp_path / "evaluations.csv")
    assert [float(r["clock"]) for r in rounds] == history.clock.tolist()
    assert {int(r["round"]) for r in evaluations} == {0, 2, 3}
    outcomes, clients = rows_of(tmp_path / "outcomes.csv"), rows_of(tmp_path / "clients.csv")
    assert len(outcomes) == 8
    assert outcomes[0]["name"] == history.name(int(outcomes[0]["client"]))
    assert outcomes[0]["outcome"] == "ok"
    assert float(outcomes[0]["utility"]) > 0
    assert [c["name"] for c in clients] == [f"site{i}" for i in range(1, 6)]
    assert [int(c["asked"]) for c in clients] == history.participation().tolist()
    assert all(0 <= float(c["accuracy"]) <= 1 for c in clients)


def test_parquet_holds_the_same(run, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    invoke(run[0], "--parquet", tmp_path)
    frame = pandas.read_parquet(tmp_path / "rounds.parquet")
    assert frame["clock"].tolist() == run[1].clock.tolist()
    assert frame["accuracy"].isna().tolist() == [False, True, False, False]


def test_the_model_as_arrays_and_as_a_torch_module(run, tmp_path):
    folder, history, data = run
    invoke(folder, "--npz", tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as found:
        assert {k: v.shape for k, v in found.items()} == {
            "0.weight": (6, 4),
            "0.bias": (6,),
            "2.weight": (3, 6),
            "2.bias": (3,),
        }
    assert np.mean(history.model.predict(data.x) == np.array(data.class_names)[data.y]) > 0.6
    assert history.model.predict(data.x[:3]).tolist()[0] in ("a", "b", "c")
    torch = pytest.importorskip("torch")
    invoke(folder, "--torch", tmp_path / "model.pt")
    module = history.model.to_torch()
    module.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    with torch.no_grad():
        said = module(torch.from_numpy(data.features())).argmax(1).numpy()
    assert (np.array(data.class_names)[said] == history.model.predict(data.x)).all()


def test_mistakes_of_export_are_one_sentence(run, tmp_path):
    for arguments, says in (
        ((run[0],), "no destination was given; add --torch model.pt"),
        ((run[0], "--npz", tmp_path / "m.pt"), "must end in .npz"),
        ((run[0], "--torch", tmp_path / "no" / "m.pt"), "there is no folder"),
        ((run[0], run[0], "--npz", tmp_path / "m.npz"), "a file holds one model"),
    ):
        with pytest.raises(FedcohortError) as caught:
            invoke(*arguments)
        assert says in str(caught.value)
    assert read(run[0]).history.names == run[1].names


def test_export_of_a_run_that_is_not_finished_says_so(run, tmp_path):
    half = Path(shutil.copytree(run[0], tmp_path / "half"))
    RunFolder(half).metrics.unlink()
    assert "1 of 2 runs are not finished" in invoke(run[0], half, "--csv", tmp_path)
    assert "not finished" not in invoke(run[0], "--csv", tmp_path)


def test_reports_call_clients_by_their_names(run):
    found = cohort_map(run[0])
    assert found["names"] == list(run[1].names) == [f"site{i}" for i in range(1, 6)]
    assert client(run[0], 3)["name"] == "site4"
