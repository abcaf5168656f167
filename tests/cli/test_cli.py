"""The command line as a newcomer types it, likely mistakes included: one readable line, exit code 2, no traceback."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from unittest import mock

import pytest

from fedcohort.cli.main import main
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build

FEW = ["--task", "digits-softmax", "--rounds", "3", "--cohort-size", "5"]


def fedcohort(*args, cwd=None, code=0):
    """Run the command in this process: the same entry point, without the price of a new interpreter each time."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd or "."),
        mock.patch.object(sys, "argv", ["fedcohort", *args]),
    ):
        try:
            main()
            left = 0
        except SystemExit as done:
            left = done.code or 0
    assert left == code, out.getvalue() + err.getvalue()
    assert "Traceback" not in err.getvalue()
    return out.getvalue(), err.getvalue()


def mistake(*args, cwd=None):
    """The one line of an error."""
    _, err = fedcohort(*args, cwd=cwd, code=2)
    lines = [x for x in err.strip().splitlines() if x.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


def test_run_writes_a_folder_that_list_finds(tmp_path):
    out, _ = fedcohort("run", "--selector", "oort", *FEW, "--seed", "2", cwd=tmp_path)
    assert "3 rounds, accuracy" in out
    folder = next((tmp_path / "runs").iterdir())
    assert folder.name.startswith("oort-")
    assert {"config.toml", "versions.json", "journal.db", "metrics.jsonl"} <= {p.name for p in folder.iterdir()}
    out, _ = fedcohort("list", "runs", cwd=tmp_path)
    assert folder.name in out
    assert "3/3" in out
    assert "OK" in fedcohort("journal", "show", str(folder), "--round", "1", cwd=tmp_path)[0]
    assert "no such round" in mistake("journal", "show", str(folder), "--round", "99", cwd=tmp_path)
    before = {n: (folder / n).stat().st_mtime_ns for n in ("journal.db", "metrics.jsonl", "snapshots")}
    again, err = fedcohort("run", "--selector", "oort()", *FEW, "--seed", "2", cwd=tmp_path)  # the same run
    assert "read from the store" in again
    assert "3 rounds, accuracy" in again
    assert err == ""  # no progress bar: nothing was run
    assert before == {n: (folder / n).stat().st_mtime_ns for n in before}
    assert "resume" in mistake("run", *FEW, "--seed", "2", "--out", str(folder), cwd=tmp_path)  # another run's folder
    out, _ = fedcohort("resume", str(folder), cwd=tmp_path)
    assert "3 rounds" in out
    out, _ = fedcohort("run", "--selector", "oort", *FEW, "--seed", "2", "--force", cwd=tmp_path)
    assert "read from the store" not in out
    assert (folder.parent / f"{folder.name}.old1" / "metrics.jsonl").read_bytes() == (
        folder / "metrics.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    "way",
    [
        ["--world", "mixed-v1(latency__factors=[1.0, 2.0], latency__shares=[0.5, 0.5])"],
        ["--set", "world.latency.factors=[1.0, 2.0]", "--set", "world.latency.shares=[0.5, 0.5]"],
    ],
)
def test_fields_of_a_world_that_fit_only_together(tmp_path, way):
    out, _ = fedcohort("run", *FEW, *way, cwd=tmp_path)
    assert "3 rounds, accuracy" in out


def test_an_unfinished_run_is_resumed_by_running_it_again(tmp_path):
    fedcohort("run", *FEW, cwd=tmp_path)
    folder = next((tmp_path / "runs").iterdir())
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").unlink()  # as if killed before the end
    out, _ = fedcohort("run", *FEW, cwd=tmp_path)
    assert "resumed" in out
    assert (folder / "metrics.jsonl").read_bytes() == whole


def test_dotted_sets_and_tables(tmp_path):
    (tmp_path / "a.toml").write_text(
        'task = "digits-softmax"\nrounds = 1\ncohort_size = 4\n'
        '[selector]\nname = "oort"\nexplore = 0.8\n[world]\nclients = 20\n'
    )
    sets = ["--set", "selector.explore=0.5", "--set", "task.lr=0.2", "--set", "method.server_lr=0.5"]
    fedcohort("run", "a.toml", *sets, "--set", "world.noise.a=0.3", "--out", "r", cwd=tmp_path)
    config = (tmp_path / "r" / "config.toml").read_text()
    for text in (
        "oort(explore=0.5)",
        "digits-softmax(lr=0.2)",
        "fedavg(server_lr=0.5)",
        "mixed-v1(clients=20, noise__a=0.3)",
    ):
        assert text in config


def test_the_engine_is_named_with_its_device_and_why(tmp_path):
    pytest.importorskip("torch")
    few = ["--task", "digits-softmax", "--rounds", "1", "--cohort-size", "3", "--device", "cpu"]
    _, err = fedcohort("run", *few, "--set", "engine=torch_reference", cwd=tmp_path)
    assert "engine: torch_reference on cpu (as requested)" in err
    _, err = fedcohort("run", *few, cwd=tmp_path)
    assert "engine: fused (every layer is one that it knows)" in err


def test_run_from_toml_with_changes(tmp_path):
    (tmp_path / "a.toml").write_text('selector = "uniform"\ntask = "digits-softmax"\nrounds = 2\ncohort_size = 4\n')
    fedcohort("run", "a.toml", "--seed", "7", "--set", "deadline=500", "--out", "r", cwd=tmp_path)
    config = (tmp_path / "r" / "config.toml").read_text()
    assert "deadline = 500" in config
    assert "seed = 7" in config
    rows = [json.loads(x) for x in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    fedcohort("run", "r/config.toml", "--out", "again", cwd=tmp_path)  # what was written can be read
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == (tmp_path / "again" / "metrics.jsonl").read_bytes()


def test_broken_toml_names_the_place(tmp_path):
    (tmp_path / "b.toml").write_text("selector = \n")
    assert "line 1" in mistake("run", "b.toml", cwd=tmp_path)
    (tmp_path / "c.toml").write_text("selektor = 'x'\n")
    assert "selector" in mistake("run", "c.toml", cwd=tmp_path)


@pytest.mark.parametrize("what", ["selectors", "methods", "worlds", "tasks", "signals"])
def test_lists(what):
    out, _ = fedcohort("list", what)
    assert len(out.splitlines()) > 3


def test_show_tells_paper_formulas_signals_and_departures():
    out, _ = fedcohort("show", "oort")
    for word in ("OSDI 2021", "(1)", "Departures from the paper", "utility", "P1", "explore_decay", "0.9"):
        assert word in out
    assert "McMahan" in fedcohort("show", "fedavg")[0]
    assert "mixed-v1" in fedcohort("show", "mixed-v1")[0]
    assert "digits-mlp" in fedcohort("show", "digits-mlp")[0]
    assert "P2" in fedcohort("show", "insight")[0]


def test_demo_runs_without_torch(tmp_path):
    """The default install has no torch: block its import and run the demo, picture included."""
    code = """if True:
        import sys

        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    raise ImportError("torch is blocked")

        sys.meta_path.insert(0, Block())
        sys.argv = ["fedcohort", "demo", "--seeds", "2", "--rounds", "6"]
        from fedcohort.cli.main import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "uniform" in done.stdout
    assert "s to 80%" in done.stdout
    assert (tmp_path / "fedcohort-demo.png").stat().st_size > 10_000


def test_what_typer_refuses_is_one_line_too(tmp_path):
    assert "'abc' is not a valid integer; see `fedcohort run --help`" in mistake("run", "--rounds", "abc")
    assert "no such option" in mistake("run", "--bogus")
    assert "no such command" in mistake("bogus")
    assert "missing argument" in mistake("show")
    assert "x>=1" in mistake("demo", "--seeds", "0")
    assert "x>=0" in mistake("world", "show", "mixed-v1", "--rows", "-3")


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").touch()
    assert "file: this is a file" in mistake("run", *FEW, "--out", "file", cwd=tmp_path)
    assert "file/run: not a directory" in mistake("run", *FEW, "--out", "file/run", cwd=tmp_path)
    assert "its folder does not exist" in mistake("demo", "--out", "no/such.png", cwd=tmp_path)  # before anything runs
    assert "must end in .png" in mistake("demo", "--out", "picture", cwd=tmp_path)


def test_an_interrupted_run_names_its_folder_and_how_to_go_on(tmp_path, monkeypatch):
    """Ctrl-C after two rounds: code 130, one line with the command, which then finishes the run."""

    def interrupted(bar, row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    command = ("run", "--task", "quadratic", "--rounds", "4", "--cohort-size", "2", "--out", "my run")
    with monkeypatch.context() as patch:
        patch.setattr("fedcohort.cli.run_command._Bar.show", interrupted)
        _, err = fedcohort(*command, cwd=tmp_path, code=130)
    assert err.strip() == "stopped; nothing is lost: the run is in my run; continue with `fedcohort resume 'my run'`"
    out, _ = fedcohort("resume", "my run", cwd=tmp_path)
    assert out.startswith("4 rounds")


def test_what_is_wrong_with_a_run_is_said_once_and_kept(tmp_path):
    command = ("run", "--method", "fedbuff", "--set", "deadline=4", *FEW, "--out", "run")
    for _ in range(2):  # run, and read from the store
        _, err = fedcohort(*command, cwd=tmp_path)
        assert err.count("warning: fedbuff without asynchronous rounds") == 1
        assert err.count("warning: most replies did not count") == 1
    out, _ = fedcohort("run", *FEW, "--set", "stop_at=0.1", cwd=tmp_path)
    assert "ended early: target: validation accuracy" in out


def test_a_round_in_the_journal_lists_every_client(tmp_path):
    fedcohort("run", "--selector", "oort", "--set", "deadline=6", *FEW, "--out", "run", cwd=tmp_path)
    out, _ = fedcohort("journal", "show", "run", "--round", "1", cwd=tmp_path)
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("client"))
    assert lines[head].split() == ["client", "outcome", "seconds", "utility", "reason"]
    assert len(lines[head + 1 :]) == 5
    assert {line.split()[1] for line in lines[head + 1 :]} <= {"OK", "LATE", "FAILED"}
    assert "rounds 0 to 2" in mistake("journal", "show", "run", "--round", "7", cwd=tmp_path)


def test_the_installed_command_and_the_module_are_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "fedcohort.cli.main", "run", "--cohort-size", "0"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_the_world_that_is_shown_is_that_of_a_run(tmp_path):
    """Without --task it is the world of a run that names no task: the samples are its pool, and it says so."""
    first, _ = fedcohort("world", "show", "mixed-v1", "--rows", "2")
    named, _ = fedcohort("world", "show", "mixed-v1", "--rows", "2", "--task", "digits-mlp")
    told = json.loads(fedcohort("world", "show", "mixed-v1", "--json")[0])
    digest = build(RunConfig()).world.digest
    assert told["task"] == RunConfig().task == "digits-mlp"
    assert told["summary"]["digest"] == digest
    assert digest in first
    assert "over the samples of digits-mlp, the task of a run that names none, as a run of seed 0 has it" in first
    assert first.replace(", the task of a run that names none", "") == named


def test_version():
    assert fedcohort("--version")[0].startswith("fedcohort 0.")
