"""What is gained by not waiting for slow clients, and what is lost?

The same selector on the same clients, until the same virtual time: rounds of ten that wait for everybody, rounds that
ask 13 and take the first ten, and ten clients that train all the time while the server updates the model after every
fifth reply.

    python examples/asynchronous_rounds.py
    fedcohort run --selector oort --method "fedbuff(size=5)" --cohort-size 10 --set buffer_size=5
"""

from __future__ import annotations

import fedcohort as fc

WAYS = {
    "rounds of 10": {"rounds": 20},
    "first 10 of 13": {"rounds": 40, "over_select": 1.3},
    "buffer of 5": {"rounds": 90, "buffer_size": 5, "method": "fedbuff(size=5)"},
}


def main() -> None:
    """Accuracy at the same virtual time, and what it cost."""
    fixed = {"world": "mixed-v1", "task": "digits-mlp", "cohort_size": 10, "seed": 2}
    runs = {name: fc.simulate("uniform", **fixed, **keys) for name, keys in WAYS.items()}
    end = min(run.clock[-1] for run in runs.values())
    print(f"after {end:.0f} virtual seconds")
    for name, run in runs.items():
        steps = int((run.clock <= end).sum())
        used = sum(map(len, run.used[:steps]))
        reached = run.reached(0.7)
        sooner = "not reached" if reached is None else f"after {reached[1]:.0f} s"
        print(f"{name:15} accuracy {run.accuracy[steps - 1]:.3f}, {steps} steps, {used} updates; 70 % {sooner}")


if __name__ == "__main__":
    main()
