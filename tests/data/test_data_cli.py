"""`fedcohort data`: what it prints and how it exits."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcohort.cli.data_command import app
from fedcohort.errors import FedcohortError

RUN = CliRunner()


@pytest.fixture
def root(tmp_path):
    x = np.zeros((4, 128, 6), np.int16)
    np.savez(tmp_path / "har.npz", x=x, y=[0, 1, 5, 3], client=[0, 0, 1, 1], scale=np.ones(6))
    np.savez(tmp_path / "clinic.npz", x=np.eye(3), y=[0, 1, 2])
    return tmp_path


def rows(output):
    cells = ([cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line)
    return {first: rest for first, *rest in cells}


def test_list(root):
    done = RUN.invoke(app, ["list", "--root", str(root)])
    assert done.exit_code == 0
    table = rows(done.output)
    assert table["digits"][1] == "embedded"
    assert table["har"][1] == "npz"
    assert table["clinic"][1] == "npz"
    assert table["cifar10"][1:] == ["-", "-", "fedcohort data get cifar10"]


def test_list_reads_the_environment_and_an_absent_folder(root, monkeypatch):
    monkeypatch.setenv("FEDCOHORT_DATA", str(root))
    assert rows(RUN.invoke(app, ["list"]).output)["har"][1] == "npz"
    monkeypatch.setenv("FEDCOHORT_DATA", str(root / "absent"))
    assert rows(RUN.invoke(app, ["list"]).output)["har"][1] == "-"


def test_check_right_and_damaged(root):
    done = RUN.invoke(app, ["check", "--root", str(root)])
    assert done.exit_code == 0, done.output
    table = rows(done.output)
    assert set(table) == {"digits", "har", "clinic"}
    assert table["har"][1] == "4 + 0 of (128, 6), 2 owners"
    assert {row[-1] for row in table.values()} == {"ok"}
    path = root / "har.npz"
    path.write_bytes(path.read_bytes()[:900])
    done = RUN.invoke(app, ["check", "--root", str(root)])
    assert done.exit_code == 1
    assert "damaged" in done.output


def test_check_by_name(root):
    assert RUN.invoke(app, ["check", "har", "--root", str(root)]).exit_code == 0
    done = RUN.invoke(app, ["check", "mnist", "--root", str(root)])
    assert done.exit_code == 1
    assert "data get mnist" in done.output
    assert isinstance(RUN.invoke(app, ["check", "nist", "--root", str(root)]).exception, FedcohortError)


def test_get_from_a_folder(root, tmp_path):
    done = RUN.invoke(app, ["get", "har", "digits", "--from", str(root), "--root", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "har: copied from" in done.output
    assert "CC BY 4.0" in done.output
    assert (tmp_path / "new" / "har.npz").is_file()


def test_get_from_a_server_with_progress(root, tmp_path, mirror):
    mirror.files["femnist.npz"] = b"nothing"
    done = RUN.invoke(app, ["get", "femnist", "--from", mirror.url, "--root", str(tmp_path / "new")])
    assert isinstance(done.exception, FedcohortError)
    assert "femnist.npz" in str(done.exception)
    assert "\n" not in str(done.exception)
