"""Let Optuna look for good settings: exploration, cohort size and learning rate, judged on validation data.

Needs the extra: pip install 'fedcohort[optuna]'.

    python examples/tune_with_optuna.py --trials 30
"""

from __future__ import annotations

import argparse

import optuna

import fedcohort as fc


def main(trials: int, rounds: int) -> None:
    """Search, then measure the best on the test set, with another seed than the search has seen."""
    space = {"selector.explore": (0.1, 0.9), "cohort_size": [5, 10, 15], "task.lr": (0.02, 0.3)}
    fixed = {"selector": "oort", "task": "digits-softmax", "rounds": rounds}
    sampler, pruner = optuna.samplers.TPESampler(seed=0), optuna.pruners.MedianPruner(n_warmup_steps=5)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.optimize(fc.optuna_objective(space, seeds=2, **fixed), n_trials=trials)
    best = study.best_params
    print(f"best of {len(study.trials)} trials: {best}, validation accuracy {study.best_value:.3f}")
    config = dict(fixed, seed=100, cohort_size=best["cohort_size"])
    config["selector"] = f"oort(explore={best['selector.explore']})"
    config["task"] = f"digits-softmax(lr={best['task.lr']})"
    print(f"test accuracy with another seed: {fc.simulate(**config).accuracy[-1]:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    main(given.trials, given.rounds)
