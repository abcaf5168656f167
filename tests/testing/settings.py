"""What the shipped contracts need to know about catalogue entries beyond their names.

A selector's exemptions stand in its own class (`exempt`). Here are only the knobs of the kit: `flipped`, `runs`,
`horizon`, `may_be_nan`, ... by name. An exemption always has a reason.
"""

from __future__ import annotations

from typing import Any

from fedcohort.registry import lookup as registry

# A third of the kit's own number of runs, for there are many selectors; a fifth for those that train in every round.
SELECTORS: dict[str, dict[str, Any]] = {name: {"runs": 40} for name in registry.names("selector")}
SELECTORS |= {name: {"runs": 25} for name in ("neural-bandit", "flash-rl", "favor", "fedcor")}
# High losses speak for wrong labels. The slow are the bad ones here; grouped by speed, they are seldom compared.
SELECTORS["ledger"] |= {"flipped": frozenset({"loss_before", "loss_after"}), "preference": 0.54}
METHODS: dict[str, dict[str, Any]] = {}

_REUSE = {"one_owner": "as in the paper, clients re-use samples of a common pool"}
WORLDS: dict[str, dict[str, Any]] = {
    "fedacs-uniform-v1": {"exempt": _REUSE, "noisy": False},
    "fedacs-pareto-v1": {"exempt": _REUSE, "noisy": False},
    "fedacs-dirichlet-v1": {"exempt": _REUSE, "noisy": False},
    "fedacs-fewclass-v1": {"exempt": _REUSE, "noisy": False},
    "iid-v1": {"noisy": False},
    "flash-noise15-v1": {"noisy": True},
    "flash-noniid30-noise15-v1": {"noisy": True},
    "flash-noise15-v2": {"noisy": True},
    "flash-noniid30-noise15-v2": {"noisy": True},
    "mixed-v1": {"noisy": True},
}

_FIRST_STEP = {"improves": "one step on 42 images, at a rate for whole clients, goes too far"}
TASKS: dict[str, dict[str, Any]] = {
    "cifar10-vgg11": {"exempt": _FIRST_STEP},
    "cifar10-resnet18": {"exempt": _FIRST_STEP},
}
# With the data at hand: networks of millions of parameters look at a few hundred images instead of thousands.
FEW_IMAGES = {name: f"{name}(recut=True, test=0.003, validation=0.003)" for name in TASKS}
