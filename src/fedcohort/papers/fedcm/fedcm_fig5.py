"""FedCM, Figs. 5 and 6: accuracy differs between clients, and training is slower, where data are not IID.

Fig. 5 shows FedPdp's accuracy on each client's data by alpha and E in both kinds of heterogeneity; here it is the
standard deviation over the clients. Fig. 6 (and the text on it) shows conventional sampling by alpha.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcohort.experiment.metrics.stored_metrics import RunRecord
from fedcohort.papers.fedcm.fedcm_setting import AVG, CLASS, CLIENT, DEPARTURES, PDP, PROX, run
from fedcohort.papers.study import (
    SEEDS,
    Cell,
    Claim,
    Lookup,
    Quantity,
    Study,
    Value,
    and_also,
    beats,
    our_own,
    quantity,
    share_of_terminal,
    until,
)

ALPHAS = (0.1, 5.0)
EPOCHS = (1, 5)
NAMES = {CLIENT: "fedcm-client-0.1-v1", CLASS: "fedcm-class-0.1-v1"}
CURVE = (0.1, 0.5, 5.0)
SAMPLERS = (AVG, PROX, PDP)


def keys_of(scale: str, kind: str, alpha: float, algorithm: str = PDP, epochs: int | None = None) -> Mapping[str, Any]:
    """The keys of a run with another alpha, and another E."""
    keys = dict(run(scale, f"{NAMES[kind]}(alpha={alpha}, held_out=0.0)", algorithm))
    if epochs is not None:
        before = "epochs=2" if scale == "smoke" else "epochs=5"
        keys["task"] = keys["task"].replace(before, f"epochs={epochs}")
    return keys


def _spread(record: RunRecord, _: Lookup) -> Value:
    each = record.clients
    return None if each is None or not np.isfinite(each).any() else float(np.nanstd(each))


def place(kind: str, epochs: int) -> str:
    """The heading of a row of Fig. 5."""
    return f"{kind}, E = {epochs}"


def spread_cells(scale: str) -> Sequence[Cell]:
    """Both kinds x E x alpha."""
    what = Quantity("deviation over clients", _spread, -1, 100.0, alone=True)
    return [
        Cell(place(kind, e), f"alpha {a:g}", keys_of(scale, kind, a, epochs=e), what)
        for kind in NAMES
        for e in EPOCHS
        for a in ALPHAS
    ]


def spread_claims(scale: str) -> Sequence[Claim]:
    """Accuracy varies over clients where data are not IID."""
    del scale
    low, high = (f"alpha {a:g}" for a in ALPHAS)
    return [
        beats(
            f"{place(kind, e)}: accuracy varies less with {high} than with {low}",
            (place(kind, e), high),
            (place(kind, e), low),
        )
        for kind in NAMES
        for e in EPOCHS
    ]


def accuracy_at(alpha: float) -> str:
    """The heading of a column of Fig. 6."""
    return f"alpha {alpha:g}: accuracy"


def rounds_at(alpha: float) -> str:
    """The heading of a column of Fig. 6."""
    return f"alpha {alpha:g}: rounds"


def curve_cells(scale: str) -> Sequence[Cell]:
    """Conventional sampling in class heterogeneity of three strengths: accuracy, and rounds to a common target."""
    found = []
    rounds = until(share_of_terminal((AVG, accuracy_at(CURVE[0])), 0.9))
    for who in SAMPLERS:
        for alpha in CURVE:
            keys = keys_of(scale, CLASS, alpha, who)
            found.append(Cell(who, accuracy_at(alpha), keys, quantity("terminal")))
            found.append(Cell(who, rounds_at(alpha), keys, rounds))
    return found


def curve_claims(scale: str) -> Sequence[Claim]:
    """IID clients are better and faster than those that are not; our own question is whether it is so in between."""
    del scale
    found, between = list[Claim](), list[Claim]()
    for who in SAMPLERS:
        for less, more in ((CURVE[0], CURVE[2]), (CURVE[0], CURVE[1]), (CURVE[1], CURVE[2])):
            claim = beats(f"{who}: alpha {more:g} beats {less:g}", (who, accuracy_at(more)), (who, accuracy_at(less)))
            (between if CURVE[1] in (less, more) else found).append(claim)
    faster = "over the three: alpha 5 reaches the target before 0.1"
    left, right = (tuple((who, rounds_at(a)) for who in SAMPLERS) for a in (CURVE[2], CURVE[0]))
    return [*found, Claim(faster, left, right), *our_own(between)]


_OWN = (
    "accuracy on the samples a client trains with (nothing is held out), over all of them instead of per class; with "
    "alpha 0.1 and client heterogeneity some clients own a handful, which alone makes accuracies vary"
)
STUDIES = (
    Study(
        "fedcm:fig5",
        "FedCM, Fig. 5: deviation of the final model's accuracy over the clients, FedPdp (points)",
        spread_cells,
        spread_claims,
        {**SEEDS, "laptop": 8},
        and_also(DEPARTURES, _OWN),
    ),
    Study(
        "fedcm:fig6",
        "FedCM, Fig. 6: conventional sampling by alpha, class heterogeneity (accuracy, %, and rounds)",
        curve_cells,
        curve_claims,
        {**SEEDS, "laptop": 9},
        and_also(DEPARTURES, "the target is 90 % of FedAvg's end with alpha 0.1, same seed"),
    ),
)
