"""Lines of docs/threat-model.md that no other test shows: what somebody can do, and what somebody cannot."""

from __future__ import annotations

import hashlib
import stat

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, start, timing

from fedcohort.core.pack import pack, unpack
from fedcohort.experiment.verification import verify
from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.server.recorded_run import replay_folder
from fedcohort.selectors.uniform import Uniform
from fedcohort.storage.run_folder import StateFolder


def make(grid, **keys):
    settings = {"selector": "uniform", "cohort_size": 3, "deadline": 10.0, **timing(grid), **keys}
    return CohortStrategy(FedAvg(fraction_evaluate=0.0), **settings)


AHEAD, AT_ONCE = "2026-11-17T06:40:00.000000+00:00", "2026-11-17T06:45:22.496930+00:00"  # when a key was registered


def keyed(grid, keys, registered=AHEAD):
    """Nodes as Flower lists them: with authentication the operator registers keys, else SuperNodes as they start."""
    started = "2026-11-17T06:45:22.534412+00:00"
    about = {"registered_at": registered, "last_activated_at": started}
    grid.get_nodes = lambda: [NodeInfo(node_id=n, public_key=keys[n], **about) for n in grid.online()]


def test_an_id_cannot_be_taken_over_with_another_key():
    """The thief appears later and answers to "a"; the first holder keeps the id, also while it is away."""
    grid = FakeGrid([FakeClient("a"), FakeClient("b"), FakeClient("c")])
    grid.clients[2001] = FakeClient("a", step=50.0)
    keyed(grid, {1001: b"A", 1002: b"B", 1003: b"C", 2001: b"X"})
    grid.online = lambda: [1001, 1002, 1003] if len(strategy.history) < 1 else [1002, 1003, 2001]
    strategy = make(grid)
    start(strategy, grid, rounds=3)
    ((name, why),) = strategy._backend.clients.refused.values()
    assert (name, why) == ("a", "the id 'a' belongs to a node with another key")
    assert strategy._backend.clients.node[0] == 1001
    assert all(m.metadata.message_type != "train" for m in grid.clients[2001].seen)


@pytest.mark.parametrize("with_keys", [False, True])
def test_without_authentication_whoever_answers_to_an_id_last_has_it(with_keys):
    """What such a deployment cannot know: a restart and a theft look the same. Flower lists keys also there."""
    grid = FakeGrid([FakeClient("a"), FakeClient("b")])
    grid.clients[2001] = FakeClient("a")
    if with_keys:
        keyed(grid, {1001: b"A", 1002: b"B", 2001: b"X"}, registered=AT_ONCE)
    grid.online = lambda: [1001, 1002] if len(strategy.history) < 1 else [1001, 1002, 2001]
    strategy = make(grid, cohort_size=2)
    start(strategy, grid, rounds=4)
    assert strategy._backend.clients.node[0] == 2001


class ByLabels(Uniform):
    needs = frozenset({"label_histogram"})

    def select(self, rnd, rng):
        rows = np.asarray(rnd.profiles["label_histogram"])[rnd.available]
        assert np.allclose(rows.sum(axis=1), 1.0)  # nobody is there of whom it is not known
        return super().select(rnd, rng)


@pytest.mark.parametrize("ahead", [0, 1, 2], ids=["with the others", "before them", "a round before them"])
def test_nobody_has_the_others_refused_by_registering_first(ahead, tmp_path):
    """The length of label histograms is that of most, and those refused before are asked again when it changes."""

    def labelled(name, histogram):
        return FakeClient(name, provides=["label_histogram"], label_histogram=histogram)

    liar, honest = labelled("0", [1.0]), [labelled(f"hospital-{i}", [0.5, 0.5]) for i in range(4)]
    grid = FakeGrid([liar, *honest])
    looks = iter(range(1000))
    grid.online = lambda: list(grid.clients)[: 5 if not ahead else min(1 + next(looks) // ahead, 5)]
    keys = {"selector": ByLabels(), "state_dir": tmp_path, "max_privacy": "P3"}
    strategy = make(grid, **keys)
    start(strategy, grid, rounds=9)
    clients = strategy._backend.clients
    assert sorted(clients.roster.name(slot) for slot in clients.node) == [f"hospital-{i}" for i in range(4)]
    assert clients.refused == {1001: ("0", "its label_histogram has another length than that of most")}
    assert strategy.history[-1]["ok"] == 3.0
    assert len(replay_folder(tmp_path, ByLabels())) == 9
    again = make(FakeGrid([liar, *honest]), **{**keys, **timing(grid)})
    start(again, FakeGrid([liar, *honest]), rounds=10)
    assert again._backend.clients.length.holds == 2
    assert [name for name, _ in again._backend.clients.refused.values()] == ["0"]


def test_a_client_is_told_the_model_and_its_work_and_nothing_of_the_others():
    grid = FakeGrid([FakeClient(f"hospital-{i}", provides=["utility", "samples"], utility=1.0) for i in range(3)])
    start(make(grid, selector="oort"), grid, rounds=2)
    for message in grid.pushed:
        assert set(message.content) <= {"arrays", "config", wire.REQUEST}
        assert set(message.content[wire.REQUEST]) <= {"wire", "round", "measure", "profiles", "max-privacy"}
        plain = [dict(r) for r in message.content.values() if isinstance(r, ConfigRecord | MetricRecord)]
        assert "hospital" not in str(plain)


@pytest.mark.parametrize(("selector", "declared"), [("uniform", set()), ("oort", {"utility"})])
def test_the_state_folder_holds_only_the_signals_that_the_selector_declares(tmp_path, selector, declared):
    """Also where clients send more than they were asked for."""

    class Talkative(FakeClient):
        def measured(self, message):
            return dict(self.signals)

    more = {"utility": 1.0, "train_loss": 77.25, "val_loss": 77.25}
    grid = FakeGrid([Talkative(str(i), provides=[*more, "samples"], **more) for i in range(3)])
    start(make(grid, selector=selector, state_dir=tmp_path), grid, rounds=2)
    kept = set()
    for record in StateFolder(tmp_path).reader().records():
        kept |= {name.partition(".")[2] for name in record.unpack()[0] if name.startswith(("signal.", "probe."))}
    assert kept == declared
    needle = np.float64(77.25).tobytes()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 3
    assert not [p.name for p in files if needle in p.read_bytes()]


def test_the_state_folder_is_closed_to_other_accounts(tmp_path):
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid, state_dir=tmp_path / "state"), grid, rounds=1)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_whoever_can_write_the_folder_can_change_the_model_unseen(tmp_path):
    """Digests find damage, not somebody who computes them again: the model needs a signature of the operator's own."""
    grid = FakeGrid([FakeClient(str(i)) for i in range(3)])
    start(make(grid, state_dir=tmp_path), grid, rounds=2)
    newest = sorted((tmp_path / "snapshots").iterdir())[-1]
    arrays, meta = unpack(newest.read_bytes()[:-32])
    arrays["model.params"] += 1000.0
    data = pack(arrays, meta)
    newest.write_bytes(data + hashlib.sha256(data).digest())
    assert verify(tmp_path).rounds == 2  # choices are replayed; training cannot be
