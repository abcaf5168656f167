"""FAVOR: contract in its other shapes (the default one is in tests/testing), reward, state, pre-training."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from fedcohort.core.rng import generator
from fedcohort.errors import BadParameter
from fedcohort.selectors._parts import weight_embedding as ws
from fedcohort.selectors.favor import Favor, pretrain
from fedcohort.testing import SelectorContract
from fedcohort.testing.synthetic_federation import SyntheticFederation


class TestFlashRLVersionContract(SelectorContract):
    runs = 30
    exempt: ClassVar = {
        "learns": "stores one action a round and draws with odds exp(Q): the agent barely learns (its page)"
    }

    def make(self):
        return Favor(preset="flash-rl", hidden=16)


class TestSharedContract(SelectorContract):
    runs = 30
    exempt: ClassVar = {"learns": "one reward for all: a network that does not know who is who has little to go by"}

    def make(self):
        return Favor(network="shared", warmup="none")


def test_reward_by_hand():
    """64^0 - 1 = 0 at the target; 64^(-1/2) - 1 = -7/8 half a point below; 64^(1/6) - 1 = 1 a sixth above."""
    favor = Favor(target=0.5)
    assert favor.reward(0.5) == 0.0
    assert favor.reward(0.0) == pytest.approx(-7 / 8)
    assert favor.reward(0.5 + 1 / 6) == pytest.approx(1.0)


def test_all_members_share_the_reward_and_the_failed_teach_nothing():
    fed, favor = SyntheticFederation(20, failure=0.4), Favor(hidden=8, steps=1)
    (rnd, cohort), *_ = fed.play(favor, 1, 10)
    result = fed.result(rnd, cohort, favor.needs)
    np.testing.assert_array_equal(favor.state.act_client, result.clients[result.replied])
    np.testing.assert_allclose(favor.state.act_reward, favor.reward(result.score), rtol=1e-5)


def test_the_flash_rl_version_stores_one_action():
    fed, favor = SyntheticFederation(20, failure=0.0), Favor(preset="flash-rl", hidden=8)
    for index, (_, cohort) in enumerate(fed.play(favor, 5, 6)):
        assert favor.state.act_client[index] in cohort.clients
    np.testing.assert_array_equal(favor.state.act_step, np.arange(5))


def test_blocks_of_clients_stand_behind_the_global_models():
    """The published code wrote client k's block over row k of (global, client 0, client 1, ...): one row too early."""
    fed, favor = SyntheticFederation(10, failure=0.0), Favor(hidden=8, components=3)
    (rnd, cohort), *_ = fed.play(favor, 1, 4)
    s = favor.state
    x = favor.learner._joint(s, ws.standard(s, s.now)[None], favor.learner._now_common(s))[0].reshape(11, 4)
    result = fed.result(rnd, cohort, favor.needs)
    np.testing.assert_allclose(x[0], ws.standard(s, ws.block(s, result.model[None], s.centre))[0], atol=1e-5)
    for client in result.clients:
        row = result.signals["weights"][result.clients == client]
        np.testing.assert_allclose(x[1 + client], ws.standard(s, ws.block(s, row, result.model))[0], atol=1e-4)


def test_online_draws_by_odds_and_pretrained_takes_the_best():
    favor, fed = Favor(hidden=8), SyntheticFederation(12, failure=0.0)
    fed.play(favor, 6, 4)
    frozen = Favor(mode="pretrained", hidden=8)
    frozen.load_state_dict(favor.state_dict())
    rnd = fed.round(6, 4, favor.needs)
    q = favor.learner.q(favor.state, rnd.available)
    best = np.sort(np.argsort(-q)[:4])
    np.testing.assert_array_equal(np.sort(frozen.select(rnd, generator(0, "x")).clients), best)
    drawn = {tuple(np.sort(favor.select(rnd, generator(k, "x")).clients)) for k in range(20)}
    assert len(drawn) > 3


def test_training_takes_one_client_a_round():
    fed = SyntheticFederation(12)
    sizes = {cohort.clients.size for _, cohort in fed.play(Favor(mode="train", hidden=8), 10, 4)}
    assert sizes == {1}


def test_a_pretrained_agent_prefers_the_better_half_from_the_second_round_on():
    """Trained one client a round over episodes of the same federation, then deployed without learning."""

    def play(favor, episode):
        SyntheticFederation(12, seed=1, failure=0.0).play(favor, 50, 1, seed=episode)

    options = {"hidden": 32, "target": 0.5, "explore": 0.5, "steps": 1}
    state = pretrain(play, 4, **options)
    favor = Favor(mode="pretrained", **options)
    favor.load_state_dict(state)
    fed = SyntheticFederation(12, seed=1, failure=0.0)
    assert favor.probe(fed.round(0, 4, favor.needs), generator(0, "x")).size == 12, "a new federation: warm-up again"
    steps = fed.play(favor, 8, 4, seed=99)
    late = np.concatenate([cohort.clients for _, cohort in steps[1:]])
    assert fed.good[late].mean() > 0.8
    np.testing.assert_array_equal(favor.state.w1, state["w1"], err_msg="a deployed agent does not learn")


def test_episodes_do_not_leak_into_each_other():
    """The last step of an episode is terminal, and its blocks are forgotten at the start of the next."""
    fed, favor = SyntheticFederation(8, failure=0.0), Favor(mode="train", hidden=8)
    fed.play(favor, 5, 1)
    favor.end_episode()
    assert favor.state.ends.tolist() == [4]
    assert not favor.state.started
    assert (favor.state.now == 0).all()
    assert (ws.past(favor.state, np.array([4]), np.arange(8)) != 0).any()


@pytest.mark.parametrize("options", [{"mode": "offline"}, {"base": 1.0}, {"temperature": 0.0}, {"preset": "x"}])
def test_bad_options_are_refused(options):
    with pytest.raises(BadParameter):
        Favor(**options)
