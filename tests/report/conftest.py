"""Run folders with made-up histories, written through the real journal: reports are about numbers, not training."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedcohort import __version__
from fedcohort.experiment.config import RunConfig
from fedcohort.storage.journal import Journal


def write_run(
    folder, accuracy, *, cohorts=None, outcomes=None, why=None, clock=None, reasons=None, finished=True,
    population=6, open_round=None, config=None, keep_open=False,
):  # fmt: skip
    """A run whose round t has accuracy[t] (None: not measured), cohort cohorts[t], score parts why[name][t]."""
    rounds = len(accuracy)
    settings = {"world": "mixed-v1(clients=6)", "cohort_size": 2, "rounds": rounds, **(config or {})}
    folder.mkdir(parents=True)
    known = RunConfig(**settings)
    journal = Journal.create(folder / "journal.db", {"config": known.to_dict(), "version": __version__})
    journal._db.execute("PRAGMA synchronous = OFF")  # made-up runs need not survive a power cut
    rows = []
    for t in range(rounds):
        cohort = np.array([0, 1] if cohorts is None else cohorts[t], np.int64)
        ask(journal, t, cohort, {n: v[t] for n, v in (why or {}).items()}, population)
        outcome = np.zeros(cohort.size, np.int8) if outcomes is None else np.array(outcomes[t], np.int8)
        row = {"round": float(t), "clock": float(10 * (t + 1) if clock is None else clock[t]), "seconds": 10.0}
        row |= {} if accuracy[t] is None else {"accuracy": accuracy[t], "loss": 1.0, "score": accuracy[t]}
        rows.append(row)
        order = np.argsort(cohort)
        columns = {"clients": cohort[order], "outcome": outcome[order], "duration": np.full(cohort.size, 10.0)}
        told = {"score": None, "metrics": row, "reasons": {str(c): w for c, w in (reasons or {}).get(t, {}).items()}}
        journal.append("tell", t, columns, told)
    if open_round is not None:
        ask(journal, rounds, np.array(open_round, np.int64), {}, population)
    if finished:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    if keep_open:
        return journal
    journal.close()
    return folder


def ask(journal, t, cohort, why, population):
    arrays = {"clients": cohort, "available": np.empty(0, np.int64), "everybody": np.array(True)}
    arrays |= {f"why.{n}": np.array(v, np.float64) for n, v in why.items()}
    journal.append("ask", t, arrays, {"clock": 10.0 * t, "size": int(cohort.size), "population": population})


@pytest.fixture
def made(tmp_path):
    """A writer of run folders in a fresh store."""

    def write(name, accuracy, **options):
        return write_run(tmp_path / "runs" / name, accuracy, **options)

    return write


@pytest.fixture
def few(made, tmp_path):
    """Two selectors, three seeds, four rounds: oort is 0.1 better in every seed."""
    for seed in range(3):
        base = [0.1, 0.3, 0.5, 0.6 + 0.01 * seed]
        made(f"uniform-{seed}", base, config={"selector": "uniform", "seed": seed})
        better = [a + 0.1 for a in base]
        made(f"oort-{seed}", better, config={"selector": "oort", "seed": seed}, why={"score": [[1.0, 3.0]] * 4})
    return tmp_path / "runs"
