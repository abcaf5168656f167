"""FedBuff: the buffer by hand."""

import numpy as np

from fedcohort.methods.fedbuff import FedBuff
from fedcohort.protocols import Aggregated, Aggregation
from fedcohort.types import Model, Plan, Updates


def feed(method: FedBuff, model: Model, moves: list[float], **more) -> Aggregated:
    m = len(moves)
    weight = more.pop("weight", np.ones(m))
    buffers = more.pop("buffers", None)
    counters = more.pop("counters", None)
    extras = {name: np.array(value) for name, value in more.items()}
    delta = np.array(moves, np.float32)[:, None]
    updates = Updates(np.arange(m), delta, weight, np.ones(m, np.int64), buffers, counters, extras)
    return method.aggregate(model, updates, Aggregation(0, Plan(), 9, np.ones(9, int), np.arange(m)))


ZERO = Model(np.zeros(1, np.float32))


def test_waits_until_it_is_full():
    """K = 3: two updates wait, the third moves the model by the mean of all three."""
    method = FedBuff(size=3)
    first = feed(method, ZERO, [3.0, 6.0])
    assert first.accepted.all()
    assert first.model.params[0] == 0.0
    assert first.info == {"moves": 0.0, "waiting": 2.0}
    second = feed(method, first.model, [9.0])
    assert second.model.params[0] == 6.0
    assert method.state.count == 0


def test_stale_updates_weigh_less():
    """Ages 0, 3, 8 weigh 1, 1/2, 1/3: (6 + 3 + 2) / 3; normalised by the weights (6 + 3 + 2) / (11/6) = 6."""
    ages = [0.0, 3.0, 8.0]
    assert np.isclose(feed(FedBuff(size=3), ZERO, [6.0] * 3, staleness=ages).model.params[0], 11 / 3)
    assert np.isclose(feed(FedBuff(size=3, normalise=True), ZERO, [6.0] * 3, staleness=ages).model.params[0], 6.0)


def test_fills_several_times_in_a_round():
    """K = 2, five rows: the second pair is one version old (weight 2^-1/2), the fifth waits, two versions old."""
    method = FedBuff(size=2, server_lr=0.5)
    made = feed(method, ZERO, [2.0, 4.0, 2.0, 4.0, 10.0])
    assert np.isclose(made.model.params[0], 0.5 * 3 + 0.5 * 3 / np.sqrt(2))
    assert made.info == {"moves": 2.0, "waiting": 1.0}
    assert np.isclose(method.state.sum[0], 10 / np.sqrt(3))


def test_too_old_and_of_unknown_age():
    made = feed(FedBuff(size=2, max_staleness=4), ZERO, [1.0, 50.0, 50.0, 3.0], staleness=[-1.0, 5.0, np.nan, 0.0])
    assert made.accepted.tolist() == [True, False, False, True]
    assert made.model.params[0] == 2.0


def test_by_samples():
    made = feed(FedBuff(size=2, weighting="data"), ZERO, [1.0, 5.0], weight=np.array([3.0, 1.0]))
    assert made.model.params[0] == 2.0


def test_buffers_wait_with_the_updates():
    model = Model(np.zeros(1, np.float32), np.array([10.0], np.float32), np.array([4]))
    method = FedBuff(size=3)
    first = feed(method, model, [1.0, 1.0], buffers=np.array([[1.0], [3.0]], np.float32), counters=np.array([[5], [9]]))
    assert first.model.buffers[0] == 10.0
    assert first.model.counters[0] == 4
    second = feed(method, first.model, [1.0], buffers=np.array([[8.0]], np.float32), counters=np.array([[6]]))
    assert second.model.buffers[0] == 4.0
    assert second.model.counters[0] == 9
    third = feed(method, second.model, [1.0], buffers=np.array([[8.0]], np.float32), counters=np.array([[6]]))
    assert third.model.buffers[0] == 4.0
    assert method.state.buffer_rows == 1


def test_full_cohorts_of_the_right_size_are_plain_averaging():
    rng = np.random.default_rng(0)
    method, model, want = FedBuff(size=4), ZERO, 0.0
    for _ in range(5):
        moves = rng.normal(size=4)
        model = feed(method, model, list(moves)).model
        want += moves.mean()
    assert np.isclose(model.params[0], want, atol=1e-6)
