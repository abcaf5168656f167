"""An engineer's question: which selector for my own data and my own fleet, and where is the model?

A table of readings from twelve machines and a file with the seconds that each machine takes are made first, so that the
script runs anywhere; put your own files in their place. The same on the command line:

    fedcohort advise --data readings.csv --target state --client machine --latency fleet.csv
    fedcohort run --selector ledger --task "csv:readings.csv(target=state, client=machine)" --out run
    fedcohort export run --npz model.npz --csv tables

    python examples/own_data.py                     # about ten seconds
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import fedcohort as fc
from fedcohort.arena.own_trial import compare_on
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.runs import resume


def write_files(folder: Path) -> tuple[Path, Path]:
    """Readings of twelve machines in three states, and how long each machine takes for a round."""
    rng = np.random.default_rng(0)
    readings, fleet = folder / "readings.csv", folder / "fleet.csv"
    with readings.open("w") as file:
        file.write("temperature,vibration,current,machine,state\n")
        for i in range(1800):
            machine = i % 12
            state = int(rng.choice(3, p=[0.7, 0.2, 0.1] if machine < 8 else [0.2, 0.3, 0.5]))
            t, v, c = rng.normal([40 + 8 * state, 0.5 + 0.4 * state, 12 - 2 * state], [6, 0.4, 2])
            file.write(f"{t:.2f},{v:.3f},{c:.2f},press-{machine + 1},{('idle', 'worn', 'fault')[state]}\n")
    with fleet.open("w") as file:
        file.write("client,seconds\n")
        for machine in range(12):
            for _ in range(5):  # five observations of each; one is drawn per round
                file.write(f"press-{machine + 1},{(2 + machine) * rng.lognormal(0, 0.3):.2f}\n")
    return readings, fleet


def main() -> None:
    """Data, advice, a run that is kept, and the model that it trained."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="own-data-"))
    readings, fleet = write_files(folder)

    data = fc.Dataset.from_csv(readings, target="state", client="machine")
    print(data)

    task = f"csv:{readings}(target=state, client=machine)"
    world = f"owners-v1(latency={{'kind': 'given', 'path': {str(fleet)!r}}})"
    config = from_mapping({"task": task, "world": world, "cohort_size": 4})
    trial = compare_on(config, ["ledger", "round-robin"], seeds=options.seeds, rounds=options.rounds)
    print(trial.sentence())

    run = folder / "run"
    history = fc.simulate("ledger", task=task, world=world, rounds=options.rounds, cohort_size=4, out=run)
    asked = history.participation()
    print("most often asked:", ", ".join(history.name(int(c)) for c in np.argsort(-asked, kind="stable")[:3]))
    assert resume(run).history.rows == history.rows  # from the folder alone

    assert history.model is not None
    right = np.mean(history.model.predict(data.x) == np.array(data.class_names)[data.y])
    print(f"the model is right about {right:.0%} of all readings; written to", history.model.save(folder / "model.npz"))


if __name__ == "__main__":
    main()
