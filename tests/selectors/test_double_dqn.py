"""The agent of FLASH-RL and FAVOR, and the state of weights it looks at."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import BadParameter, StateMismatch
from fedcohort.selectors._parts import weight_embedding as ws
from fedcohort.selectors._parts.double_dqn import TARGET, AgentState, DoubleDQN
from fedcohort.selectors._parts.dqn_agent import Learner, LearnerState
from fedcohort.selectors._parts.weight_embedding import WeightState
from fedcohort.types import Outcome, RoundResult, Signals


def made(hidden, inputs=5, outputs=4, seed=0, **options):
    agent, s = DoubleDQN(hidden, **options), AgentState()
    agent.build(s, inputs, outputs, generator(seed, "test"))
    rng = generator(seed, "more")
    s.w2[:2] = rng.standard_normal(s.w2.shape[1:])
    s.b2[:2] = rng.standard_normal(outputs)
    return agent, s, rng


@pytest.mark.parametrize("seed", range(4))
def test_an_update_moves_all_selected_actions_and_no_other(seed):
    """Spec 21.4, on a linear net, over several updates in a row (Adam's moments must not drag the others along)."""
    agent, s, rng = made(0, inputs=6, outputs=9, seed=seed)
    x = rng.standard_normal((3, 6)).astype(np.float32)
    for turn in range(5):
        sets = [rng.choice(9, 3, replace=False) for _ in range(3)]
        row, action = np.repeat(np.arange(3), 3), np.concatenate(sets)
        before = agent.q(s, x)
        y = (before[row, action] + np.where(rng.random(9) < 0.5, -1, 1) * 0.5).astype(np.float32)
        agent.fit(s, x, row, action, y)
        moved = np.flatnonzero((agent.q(s, x) != before).any(axis=0))
        np.testing.assert_array_equal(moved, np.unique(action), err_msg=f"update {turn}")


def test_every_sub_action_comes_nearer_to_its_own_target():
    """One state, five sub-actions with five rewards: the published code learned from one of them only."""
    agent, s, rng = made(16, outputs=10)
    x = rng.standard_normal((1, 5)).astype(np.float32)
    action, y = np.array([1, 3, 4, 7, 9]), np.array([1.0, -1.0, 0.5, -0.5, 0.2], np.float32)
    before = np.abs(agent.q(s, x)[0, action] - y)
    for _ in range(300):
        agent.fit(s, x, np.zeros(5, np.int64), action, y)
    after = np.abs(agent.q(s, x)[0, action] - y)
    assert (after < 0.05).all()
    assert (before > 0.05).all()


def test_the_next_action_is_chosen_by_the_network_and_valued_by_its_copy_on_the_next_state():
    """By hand, linear, one input x' = 1: Q = (1, 5, 3), so action 1; its copy says (10, 20, 30): the value is 20.
    The argmax on another state x = -1 would be action 0 (Q = -1), valued 10; the copy's own argmax would give 30."""
    agent, s = DoubleDQN(0), AgentState()
    agent.build(s, 1, 3, generator(0, "test"))
    s.w2[0, :, 0], s.w2[TARGET, :, 0] = (1, 5, 3), (10, 20, 30)
    assert agent.best(s, np.ones((1, 1), np.float32)) == [20.0]


@pytest.mark.parametrize("hidden", [0, 6])
def test_values_with_a_common_part_are_those_of_the_whole_row(hidden):
    agent, s, rng = made(hidden, inputs=7, outputs=1)
    common, own = rng.standard_normal(3).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    whole = np.concatenate([np.tile(common, (5, 1)), own], axis=1)
    np.testing.assert_allclose(agent.values(s, common, own), agent.q(s, whole)[:, 0], rtol=1e-4, atol=1e-5)


def test_the_step_is_adams_on_the_mean_squared_error():
    """Against numerical derivatives of the loss: the first Adam step is lr * sign of the gradient."""
    agent, s, rng = made(3, inputs=4, outputs=3, lr=1e-3)
    x = rng.standard_normal((2, 4)).astype(np.float32)
    row, action, y = np.array([0, 0, 1]), np.array([0, 2, 2]), np.array([0.3, -0.2, 0.8], np.float32)

    def loss(w1):
        h = np.maximum(x @ w1 * 0.5 + s.b1[0], 0)
        q = h @ s.w2[0].astype(np.float64).T / np.sqrt(3) + s.b2[0]
        return np.mean((y - q[row, action]) ** 2)

    w1, slope = s.w1[0].astype(np.float64), np.zeros((4, 3))
    for at in np.ndindex(4, 3):
        bump = np.zeros((4, 3))
        bump[at] = 1e-5
        slope[at] = (loss(w1 + bump) - loss(w1 - bump)) / 2e-5
    agent.fit(s, x, row, action, y)
    live = np.abs(slope) > 1e-4
    np.testing.assert_allclose((s.w1[0] - w1)[live], -1e-3 * np.sign(slope[live]), rtol=2e-2)
    np.testing.assert_allclose(s.w1[2], 0.1 * slope, atol=1e-5)


def test_the_gradient_is_clipped():
    agent, s, rng = made(8, clip=10.0)
    x = rng.standard_normal((2, 5)).astype(np.float32)
    agent.fit(s, x, np.array([0, 1]), np.array([0, 1]), np.full(2, 1e6, np.float32))
    norm = np.sqrt(sum(float((a[2] ** 2).sum()) for a in (s.w1, s.b1, s.w2, s.b2))) / 0.1
    assert norm == pytest.approx(10.0, rel=1e-3)


@pytest.mark.parametrize("hidden", [0, 7])
def test_new_clients_do_not_change_what_was_learned(hidden):
    agent, s, rng = made(hidden)
    x = rng.standard_normal((2, 5)).astype(np.float32)
    before = agent.q(s, x)
    agent.grow(s, 9, 6)
    wide = np.concatenate([x, rng.standard_normal((2, 4)).astype(np.float32)], axis=1)
    after = agent.q(s, wide)
    np.testing.assert_allclose(after[:, :4], before, rtol=1e-5)
    assert (after[:, 4:] == 0).all()


def test_the_copy_rests_until_it_is_renewed():
    agent, s, rng = made(6)
    x = rng.standard_normal((1, 5)).astype(np.float32)
    old = agent.q(s, x, TARGET)
    agent.fit(s, x, np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.float32))
    np.testing.assert_array_equal(agent.q(s, x, TARGET), old)
    agent.copy(s)
    np.testing.assert_array_equal(agent.q(s, x, TARGET), agent.q(s, x))


def test_principal_axes_are_those_of_the_singular_values():
    rng = generator(1, "test")
    x = rng.standard_normal((20, 50)) * np.linspace(3, 0.1, 50)
    basis, centre = ws.principal_axes(x, 5, rng)
    _, _, vt = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(basis @ vt[:5].T), np.eye(5), atol=1e-4)
    np.testing.assert_allclose(centre, x.mean(axis=0), rtol=1e-5)


def test_one_liar_does_not_turn_the_axes():
    rng = generator(2, "test")
    x = rng.standard_normal((40, 30)) * np.linspace(3, 0.1, 30)
    honest, _ = ws.principal_axes(x[1:], 3, rng)
    x[0] *= 1000
    lied, _ = ws.principal_axes(x, 3, rng)
    np.testing.assert_allclose(np.abs(lied @ honest.T), np.eye(3), atol=1e-6)


def test_past_states_are_those_that_were():
    """Against full copies of the state, kept after every step, also after the oldest changes were folded away."""
    rng, s, n = generator(3, "test"), WeightState(), 7
    copies = {}
    for step in range(30):
        copies[step] = s.now.copy()  # the state at the start of the step
        who = np.sort(rng.choice(n, 3, replace=False))
        rows = np.concatenate([rng.standard_normal((3, 2)), np.ones((3, 1))], axis=1).astype(np.float32)
        ws.write(s, who, rows, step, n)
        if step > 12:
            ws.forget(s, step - 10)
    steps = np.array([25, 19, 29, 22, 19])
    found = ws.past(s, steps, np.arange(n))
    for row, step in zip(found, steps, strict=True):
        np.testing.assert_array_equal(row, ws.standard(s, copies[int(step)]))
    some = np.array([[1, 4]] * 5)
    np.testing.assert_array_equal(ws.past(s, steps, some), found[:, [1, 4]])
    assert s.log_step.min() >= 19


def test_blocks_are_standardised_and_the_unknown_are_zero():
    rng, s = generator(4, "test"), WeightState()
    raw = np.concatenate([rng.normal(350, 40, (50, 1)), rng.normal(0, 1e-3, (50, 1)), np.ones((50, 1))], axis=1)
    ws.write(s, np.arange(50), raw.astype(np.float32), 0, 60)
    z = ws.standard(s, s.now)
    assert (z[50:] == 0).all()
    np.testing.assert_allclose(z[:50, :2].mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(z[:50, :2].std(axis=0), 1, atol=0.05)


def test_one_liars_block_does_not_flatten_the_others():
    rng, s = generator(5, "test"), WeightState()
    for step in range(10):
        raw = np.concatenate([rng.normal(0, 1, (10, 1)), np.ones((10, 1))], axis=1).astype(np.float32)
        raw[0, 0] *= 1000
        ws.write(s, np.arange(10), raw, step, 10)
    assert np.sqrt(s.square[0] / s.blocks) < 10


def result(index, clients, weights, score=0.5, model=None):
    ok = np.full(clients.size, Outcome.OK, np.int8)
    model = np.ones(weights.shape[1], np.float32) if model is None else model
    return RoundResult(index, clients, ok, np.ones(clients.size), Signals({"weights": weights}), score, None, model)


@pytest.mark.parametrize("network", ["joint", "shared"])
def test_the_last_round_is_terminal_and_only_that(network):
    """With discount 0.9 and reward 1 for ever, Q -> 10; where every remembered step is the last one, Q -> 1."""
    values = {}
    for horizon in (0, 1):
        learner = Learner(network, "none", hidden=8, copy_every=1, steps=5, centre=False, horizon=horizon)
        s, who = LearnerState(), np.array([0])
        s.grow(1)
        for _ in range(100):
            learner.remember(s, who, np.ones(1))
            learner.refresh(s, result(0, who, np.full((1, 3), 2.0, np.float32)), np.array([0]), ())
            learner.learn(s, 0)
        values[horizon] = float(learner.q(s, who)[0])
    assert values[1] == pytest.approx(1.0, abs=0.1)
    assert values[0] > 4.0


def test_what_cannot_be_is_refused():
    with pytest.raises(BadParameter, match="network"):
        Learner("wide")
    with pytest.raises(BadParameter, match="discount"):
        Learner(discount=1.0)
    s = LearnerState()
    s.grow(60_000)
    learner = Learner("joint", "none", components=2, hidden=512)
    learner.refresh(s, result(0, np.array([0]), np.ones((1, 3), np.float32)), np.array([0]), ())
    with pytest.raises(BadParameter, match="shared"):
        learner.learn(s, 0)


def test_an_agent_of_another_size_is_refused():
    s, who = LearnerState(), np.array([0, 1])
    s.grow(2)
    learner = Learner("joint", "none", hidden=8)
    learner.refresh(s, result(0, who, np.ones((2, 3), np.float32)), who, ())
    learner.learn(s, 0)
    with pytest.raises(StateMismatch, match="hidden"):
        Learner("joint", "none", hidden=16).check_size(s.to_arrays())
