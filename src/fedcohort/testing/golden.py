"""Golden recordings: the first twenty cohorts of a selector on the synthetic federation, kept as small JSON files.

A recording changes only on purpose, with a *Behaviour* line in the changelog. Record again with::

    python -m fedcohort.testing.golden oort flash          # without names: every selector of the catalogue
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcohort.protocols import Selector
from fedcohort.testing.synthetic_federation import SyntheticFederation

ROUNDS = 20
SETTING: dict[str, Any] = {"population": 30, "size": 5, "seed": 2024, "availability": 0.8}
FOLDER = Path("tests") / "testing" / "golden"
# Recorded with other arguments than the default ones. A thousand steps of Adam make visible that processors round
# differently (OpenBLAS has kernels for each); a hundred choose the same on all of them.
TEXTS = {"fedcor": "fedcor(first=100)"}


def record(selector: Selector) -> list[list[int]]:
    """The cohorts of twenty rounds, each in the selector's own order.

    >>> from fedcohort.selectors.uniform import Uniform
    >>> record(Uniform())[0]
    [21, 15, 10, 1, 29]
    """
    federation = SyntheticFederation(
        SETTING["population"], seed=SETTING["seed"], availability=SETTING["availability"], failure=0.15
    )
    steps = federation.play(selector, ROUNDS, SETTING["size"], SETTING["seed"])
    return [[int(client) for client in cohort.clients] for _, cohort in steps]


def selector_of(name: str) -> Selector:
    """The selector of the catalogue that is recorded under this name."""
    from fedcohort.registry import lookup as registry

    return registry.make_selector(TEXTS.get(name, name))


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """The file of a selector's recording."""
    return folder / f"{name}.json"


def write(name: str, selector: Selector, folder: Path = FOLDER) -> Path:
    """Record a selector, replacing what was recorded before. One line per round."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n    ".join(json.dumps(row) for row in record(selector))
    text = f'{{\n  "selector": {json.dumps(name)},\n  "setting": {json.dumps(SETTING)},\n'
    text += f'  "cohorts": [\n    {rows}\n  ]\n}}\n'
    target = path_of(name, folder)
    target.write_text(text, encoding="utf-8")
    return target


def compare(name: str, selector: Selector, folder: Path = FOLDER) -> None:
    """Raise AssertionError, with what to do, unless the selector still chooses what was recorded."""
    target = path_of(name, folder)
    again = f"python -m fedcohort.testing.golden {name}"
    assert target.exists(), f"{name} has no recording; make one with: {again}"
    kept = json.loads(target.read_text(encoding="utf-8"))
    assert kept["setting"] == SETTING, f"the recording of {name} was made in another setting; record it with: {again}"
    for index, (old, new) in enumerate(zip(kept["cohorts"], record(selector), strict=True)):
        assert old == new, (
            f"{name} chooses differently from round {index} on: recorded {old}, now {new}. If this is on purpose, add "
            f"a line under *Behaviour* in CHANGELOG.md that says what changed and why, and record it with: {again}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the recordings of these selectors (default: all of the catalogue)."""
    from fedcohort.registry import lookup as registry

    parser = argparse.ArgumentParser(prog="python -m fedcohort.testing.golden", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="selectors; omit for all")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    for name in options.names or registry.names("selector"):
        print(write(name, selector_of(name), options.folder))


if __name__ == "__main__":
    main()
