"""The one-line way in: names or objects, mixed as you like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcohort.errors import BadParameter
from fedcohort.experiment.config import from_mapping
from fedcohort.experiment.run import build, run
from fedcohort.protocols import Method, Selector
from fedcohort.sim.history import History
from fedcohort.sim.loop import Simulation


def simulate(
    selector: str | Selector = "uniform",
    *,
    method: str | Method = "fedavg",
    world: str = "mixed-v1",
    task: str = "digits-mlp",
    rounds: int = 50,
    size: int = 10,
    seed: int = 0,
    out: str | Path | None = None,
    on_round: Callable[[dict[str, float]], None] | None = None,
    **more: Any,
) -> History:
    """Run a selector and a method on a task in a world, and return what happened.

    `selector` and `method` may be names ("oort(explore=0.8)") or objects of your own. `more` takes every other
    key of a run's configuration, e.g. deadline=300. With `out`, the run is kept in that folder and can be resumed.
    """
    texts = {
        "selector": selector if isinstance(selector, str) else "uniform",
        "method": method if isinstance(method, str) else "fedavg",
    }
    config = from_mapping({**texts, "world": world, "task": task, "rounds": rounds, "size": size, "seed": seed, **more})
    if isinstance(selector, str) and isinstance(method, str):
        return run(config, Path(out) if out is not None else None, on_round).history
    if out is not None:
        raise BadParameter(
            "out with an object", "a run that can be resumed is made from names", "register it as an entry point"
        )
    base = build(config)
    chosen = selector if not isinstance(selector, str) else base.session.selector
    combined = method if not isinstance(method, str) else base.method
    return Simulation(chosen, combined, base.world, base.task, config.settings()).run(on_round)
