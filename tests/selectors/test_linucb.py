"""LinUCB by hand, its bonus, liars, and the contract."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.linucb import FEATURES, LinUCB
from fedcohort.types import Outcome, Round, RoundResult, Signals


def tell(selector, t, clients, before, after, seconds, count=None):
    columns = {
        "loss_before": before,
        "loss_after": after,
        "loss_count": np.ones(len(clients)) if count is None else count,
    }
    reports = Signals({name: np.asarray(v, np.float32) for name, v in columns.items()}, selector.needs)
    ok = np.full(len(clients), Outcome.OK, np.int8)
    selector.observe(RoundResult(t, np.asarray(clients, np.int64), ok, np.asarray(seconds, np.float64), reports))


def test_six_clients_by_hand():
    """lambda = 1, alpha = 1, nothing trimmed. Clients 0 to 3 are asked in round 0, clients 4 and 5 never.

    Round 0: nobody is known, so the four scaled features are 0 and x = (0, 0, 0, 0, 1). The shares of the loss taken
    away are .5, .5, .1, .1 in 1 s each; standardised 1, 1, -1, -1. V = I + 4 e5 e5' = diag(1, 1, 1, 1, 5), b = 0 (the
    rewards cancel), theta = 0.
    Round 1: the shares have mean .3 and deviation .2, so z = 1, 1, -1, -1, over sqrt(4) (four scaled features) is
    .5, .5, -.5, -.5. Durations, samples and rest are constant: 0. Known clients score |x|_V^-1 = .5;
    the never asked (0, 0, 0, 0, 1): sqrt(1 / 5) = .4472. So 0 to 3 come before 4 and 5.
    Clients 0 to 3 are asked again, with the same shares: y = 1, 1, -1, -1.
    V = diag(1 + 4 * .25, 1, 1, 1, 5) = diag(2, 1, 1, 1, 5), b = (4 * .5, 0, 0, 0, 0), theta = (1, 0, 0, 0, 0).
    Round 2: 0 and 1 score .5 + .5 / sqrt(2) = .8536; 2 and 3 -.5 + .3536 = -.1464; 4 and 5 .4472.
    """
    lin = LinUCB(trim=0.0, explore=1.0)
    tell(lin, 0, [0, 1, 2, 3], [2, 2, 1, 1], [1, 1, 0.9, 0.9], [1, 1, 1, 1])
    assert pytest.approx(np.diag([1.0, 1, 1, 1, 5])) == lin.state.V
    assert lin.state.b == pytest.approx(np.zeros(5), abs=1e-6)
    first = lin.select(Round(1, 4, np.arange(6), 6), generator(0, "by-hand"))
    assert sorted(first.clients) == [0, 1, 2, 3]
    assert first.why["bonus"] == pytest.approx([0.5] * 4, abs=1e-6)

    tell(lin, 1, [0, 1, 2, 3], [2, 2, 1, 1], [1, 1, 0.9, 0.9], [1, 1, 1, 1])
    assert np.diag(lin.state.V) == pytest.approx([2, 1, 1, 1, 5], abs=1e-6)
    everybody = lin.select(Round(2, 6, np.arange(6), 6), generator(0, "by-hand"))
    score = dict(zip(everybody.clients.tolist(), everybody.why["score"].tolist(), strict=True))
    assert [score[i] for i in range(6)] == pytest.approx([0.8536, 0.8536, -0.1464, -0.1464, 0.4472, 0.4472], abs=1e-4)
    assert sorted(lin.select(Round(2, 3, np.arange(6), 6), generator(0, "x")).clients)[:2] == [0, 1]


def test_the_parts_of_the_score_add_up():
    lin, rng = LinUCB(), generator(1, "parts")
    for t in range(6):
        clients = rng.choice(12, 5, replace=False)
        tell(lin, t, clients, rng.uniform(1, 2, 5), rng.uniform(0, 1, 5), rng.uniform(1, 9, 5), rng.integers(5, 50, 5))
    cohort = lin.select(Round(6, 12, np.arange(12), 12), rng)
    total = sum(cohort.why[name] for name in (*FEATURES, "bonus"))
    assert cohort.why["score"] == pytest.approx(total, abs=1e-5)
    assert np.linalg.eigvalsh(lin.state.V).min() >= 1.0 - 1e-9


def _run(seed, liar):
    """30 clients, a share u of the loss is taken away at pace T; how often each was picked, and u / T.

    The losses say something about u. The liar reports a thousand times its losses.
    """
    rng = generator(seed, "liar")
    n, lin = 30, LinUCB()
    useful, pace = rng.uniform(0.05, 0.5, n), rng.uniform(2, 6, n)
    loss, picks, shout = 1 + 4 * useful + rng.uniform(0, 0.2, n), np.zeros(n), np.ones(n)
    if liar:
        shout[0] = 1000.0
    for t in range(150):
        chosen = lin.select(Round(t, 6, np.arange(n), n), generator(seed, "select", t)).clients
        picks[chosen] += 1
        taken = useful[chosen] * generator(seed, "luck", t).lognormal(0, 0.2, n)[chosen]
        before = (shout * loss)[chosen]
        tell(lin, t, chosen, before, before * np.maximum(1 - taken, 0), pace[chosen])
    return picks, useful / pace


def test_a_liar_does_not_move_the_honest():
    plain, lied = [], []
    for seed in range(6):
        for liar, out in ((False, plain), (True, lied)):
            picks, worth = _run(seed, liar)
            out.append(spearman(picks[1:], worth[1:]))
    assert np.mean(plain) > 0.3  # picks are few and tied, so that even a perfect learner stays far below 1
    assert abs(np.mean(plain) - np.mean(lied)) < 0.05


@pytest.mark.parametrize("options", [{"explore": -1.0}, {"ridge": 0.0}, {"forget": 0.0}, {"trim": 0.5}])
def test_bad_values_are_refused(options):
    with pytest.raises(BadParameter):
        LinUCB(**options)
