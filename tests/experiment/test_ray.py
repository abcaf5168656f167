"""The same sweep on a two-node Ray cluster on this machine, a worker killed in the middle: equal to the local one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.ray_sweep import carry_out, pack_folder, unpack_folder
from fedcohort.experiment.runner import Job
from fedcohort.experiment.runs import read, run
from fedcohort.experiment.store import Store, identity
from fedcohort.experiment.sweep import from_mapping, run_sweep

SWEEP = from_mapping(
    {"selectors": ["uniform", "oort"], "task": "digits-softmax", "seeds": [0, 1], "rounds": 30, "cohort_size": 8}
)


def metrics(store):
    return {p.parent.name: p.read_bytes() for p in sorted(store.root.glob("*/metrics.jsonl"))}


def kill_first(store, killed, over):
    """Kill -9 the first worker that is some rounds into a run, by the process id in the run's lock."""
    while not killed and not over.is_set():
        for lock in store.root.glob("*/lock"):
            owner = lock.read_text().strip()
            if owner and list(lock.parent.glob("snapshots/*")) and not (lock.parent / "metrics.jsonl").exists():
                os.kill(int(owner), signal.SIGKILL)
                killed.append(int(owner))
                break
        time.sleep(0.005)


@pytest.mark.deployment
def test_two_nodes_and_a_killed_worker_equal_the_local_sweep(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # at Ray's own 15 a busy machine starves the workers
    local, remote, killed, over = Store(tmp_path / "local"), Store(tmp_path / "ray"), [], threading.Event()
    killer = threading.Thread(target=kill_first, args=(remote, killed, over))
    for config in SWEEP.runs():
        local.obtain(config)  # test_sweep shows that a local sweep gives these bytes
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        killer.start()
        outcome = run_sweep(SWEEP, remote, backend="ray", address=cluster.address)
    finally:
        over.set()
        cluster.shutdown()
    assert killed
    assert outcome.errors == {}
    assert sorted(outcome.states.values()).count("resumed") == 1  # by another worker, from the last snapshot
    assert metrics(remote) == metrics(local)
    assert len(metrics(local)) == 4


@pytest.mark.deployment
def test_a_machine_that_does_not_see_the_store_sends_the_run_back(tmp_path):
    config = RunConfig(task="digits-softmax", rounds=4, cohort_size=5)
    run(config, tmp_path / "here" / identity(config))
    job = Job(identity(config), config.to_dict(), str(tmp_path / "driver" / identity(config)), 4)
    message = json.dumps({"config": job.config, "folder": job.folder})
    result, files = carry_out(message, str(tmp_path / "no-such-token"), "secret")
    assert result == {"event": "done", "how": "run", "notes": []}
    assert not (tmp_path / "driver").exists()  # nothing was written where the driver's store would be
    unpack_folder(files, tmp_path / "driver" / identity(config))
    assert metrics(Store(tmp_path / "driver")) == metrics(Store(tmp_path / "here"))
    assert len(read(tmp_path / "driver" / identity(config)).history.rows) == 4
    assert not list((tmp_path / "driver").glob(".coming-*"))

    token = tmp_path / "token"
    token.write_text("secret")
    result, files = carry_out(message, str(token), "secret")  # now it is seen: read where it is
    assert (result["how"], files) == ("read", {})


def test_files_that_leave_the_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="outside"):
        unpack_folder({"../../evil": b"x"}, tmp_path / "store" / "run")
    assert not (tmp_path / "evil").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("1")
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert pack_folder(tmp_path / "run") == {"metrics.jsonl": b"{}\n"}


def test_without_ray_the_extra_is_named(tmp_path):
    code = """if True:
        import sys

        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "ray":
                    raise ImportError("ray is blocked")

        sys.meta_path.insert(0, Block())
        sys.argv = ["fedcohort", "sweep", "--backend", "ray", "--rounds", "1", "--seeds", "1"]
        from fedcohort.cli.main import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2
    assert "fedcohort[ray]" in done.stderr
    assert "Traceback" not in done.stderr
