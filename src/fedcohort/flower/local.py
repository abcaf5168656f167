"""A Flower deployment on this machine: a SuperLink and SuperNodes on loopback, each in a process group of its own.

Nothing is found by name: `deployment.json` holds the process ids that were started, with the time each was started,
and only those are ended, group by group.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedcohort.errors import MissingExtra, RunExists, StoreError, check

FOLDER = ".fedcohort-flower"
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_TICKS = 22  # field of /proc/PID/stat: when the process was started
CONNECTION = "loopback"


@dataclass(frozen=True)
class Process:
    """One process that was started here: leader of its own group."""

    name: str
    pid: int
    started: str  # kernel's start time, so that a re-used id is not mistaken for ours
    log: str


@dataclass
class Deployment:
    """What is running, and where its files are."""

    folder: Path
    port: int
    secure: bool = False
    processes: list[Process] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The environment for `flwr` commands against this deployment."""
        return {**os.environ, **OFFLINE, "FLWR_HOME": str(self.folder / "flwr"), "PATH": _path()}

    def save(self) -> None:
        """Note what runs, after every change."""
        body = {"port": self.port, "secure": self.secure, "processes": [asdict(p) for p in self.processes]}
        (self.folder / "deployment.json").write_text(json.dumps(body, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Deployment:
        """The deployment of a folder."""
        path = folder / "deployment.json"
        if not path.exists():
            raise StoreError(f"{folder}", "no deployment was started here", "start one with `fedcohort flower up`")
        body = json.loads(path.read_text(encoding="utf-8"))
        return cls(folder, body["port"], body["secure"], [Process(**p) for p in body["processes"]])

    def alive(self) -> list[Process]:
        """Those that still run."""
        return [p for p in self.processes if _started(p.pid) == p.started]

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start a process as leader of its own group and note it."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment or self.environment),
                start_new_session=True,
                cwd=self.folder,
            )
        process = Process(name, child.pid, _started(child.pid) or "", str(log))
        _CHILDREN[child.pid] = child
        self.processes.append(process)
        self.save()
        return process

    def down(self, seconds: float = 10.0) -> int:
        """End every group that was started here: politely, then for good. Returns how many were ended."""
        ended = sum(bool(members(p.pid)) and _ours(p) for p in self.processes)
        nodes = [p for p in self.processes if p.name != "superlink"]  # they take leave of the SuperLink first
        end_groups(nodes, seconds)
        end_groups([p for p in self.processes if p.name == "superlink"], seconds)
        self.processes = []
        (self.folder / "deployment.json").unlink(missing_ok=True)
        return ended


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def up(folder: Path, clients: int, *, keys: bool = False, seconds: float = 90.0) -> Deployment:
    """Start a SuperLink and `clients` SuperNodes; with `keys`, over TLS and with registered node keys."""
    check(clients >= 1, f"clients = {clients}", "a deployment needs at least one client", "use --clients 3")
    if (folder / "deployment.json").exists() and Deployment.load(folder).alive():
        raise RunExists(f"{folder}", "a deployment is running here", "end it with `fedcohort flower down`")
    folder = folder.resolve()
    (folder / "flwr").mkdir(parents=True, exist_ok=True)
    deployment = Deployment(folder, free_port(), keys)
    try:
        start_superlink(deployment, seconds)
        for index in range(clients):
            start_supernode(deployment, index, clients)
    except BaseException:
        deployment.down()
        raise
    return deployment


def start_superlink(deployment: Deployment, seconds: float = 90.0) -> Process:
    """Start the SuperLink and wait until it answers."""
    folder, port = deployment.folder, deployment.port
    command = [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    address = f'address = "127.0.0.1:{port}"\n'
    if deployment.secure:
        from fedcohort.flower.certificates import write_certificates

        write_certificates(folder / "certificates")
        ca = folder / "certificates" / "ca.crt"
        command += ["--ssl-ca-certfile", str(ca), "--ssl-certfile", str(ca.with_name("server.pem"))]
        command += ["--ssl-keyfile", str(ca.with_name("server.key")), "--enable-supernode-auth"]
        trust = f'root-certificates = "{ca}"\n'
    else:
        command, trust = [*command, "--insecure"], "insecure = true\n"
    config = folder / "flwr" / "config.toml"
    config.write_text(f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{address}{trust}')
    process = deployment.launch("superlink", command)
    until = time.monotonic() + seconds
    while not _listens(port):
        if _started(process.pid) != process.started or time.monotonic() > until:
            raise StoreError("SuperLink", "it did not come up", f"see {process.log}")
        time.sleep(0.2)
    return process


def start_supernode(deployment: Deployment, index: int, clients: int, extra: str = "") -> Process:
    """Start one SuperNode with a partition, and with a registered key where the deployment is secure."""
    folder = deployment.folder
    stated = f"partition-id={index} num-partitions={clients} {extra}".strip()
    command = [program("flower-supernode"), "--superlink", f"127.0.0.1:{deployment.port}", "--host", "127.0.0.1"]
    command += ["--port", str(free_port()), "--node-config", stated]
    if deployment.secure:
        from fedcohort.flower.certificates import write_node_key

        key = write_node_key(folder / "keys" / f"client-{index}")
        run_flwr(deployment, ["supernode", "register", "--name", f"client-{index}", f"{key}.pub", CONNECTION])
        command += ["--root-certificates", str(folder / "certificates" / "ca.crt")]
        command += ["--auth-supernode-private-key", str(key)]
    else:
        command += ["--insecure"]
    return deployment.launch(f"supernode-{index}", command)


def run_flwr(deployment: Deployment, arguments: Sequence[str], seconds: float = 90.0) -> str:
    """Run a `flwr` command to its end; its output, or the error that it gave."""
    done = subprocess.run(
        [program("flwr"), *arguments],
        env=deployment.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise StoreError(f"flwr {' '.join(arguments[:2])}", " ".join(said) or "it failed", "see its message")
    return done.stdout


def program(name: str) -> str:
    """The path of one of Flower's commands."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise MissingExtra.of(f"the command {name}", "flower")
    return str(path)


def members(group: int) -> list[int]:
    """Ids of the processes in a group, zombies not counted."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and int(stat[2]) == group and stat[0] != "Z":
                out.append(int(entry.name))
    return out


def end_groups(processes: Sequence[Process], seconds: float = 10.0) -> None:
    """End groups of ours: SIGTERM to all, and SIGKILL to what is left."""
    ours = [p for p in processes if _ours(p)]
    for kind, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in ours:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
        until = time.monotonic() + wait
        while any(members(p.pid) for p in ours) and time.monotonic() < until:
            time.sleep(0.1)
    for process in processes:
        child = _CHILDREN.pop(process.pid, None)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5.0)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _ours(process: Process) -> bool:
    """The leader still runs, or it is gone and its group can only be the one it led."""
    now = _started(process.pid)
    return now is None or now == process.started


def _stat(pid: int) -> list[str] | None:
    """State, parent, group, ... of a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, IndexError):
        return None


def _started(pid: int) -> str | None:
    stat = _stat(pid)
    return None if stat is None or stat[0] == "Z" else stat[_TICKS - 3]


def _listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(0.5)
        return s.connect_ex(("127.0.0.1", port)) == 0


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
