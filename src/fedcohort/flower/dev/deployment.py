"""A Flower deployment on this machine: one SuperLink and some SuperNodes on loopback.

Flower starts further processes, some in their own sessions. Each process tree that is started here has a unique mark in
its environment; processes are found by that mark and ended by their ids, never by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedcohort.errors import MissingExtra, RunExists, StoreError, check

FOLDER = ".flwr/fedcohort"  # Flower never packs what is below .flwr into an app
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
BRISK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # seconds between looks for a task, if not set; Flower has 1
MARK = "FEDCOHORT_FLOWER_MARK"
CONNECTION = "loopback"
DATABASE = "superlink.db"
_FRAME = re.compile(r"[\u2500-\u257f]|\x1b\[[0-9;]*m")  # boxes and colours


@dataclass(frozen=True)
class Process:
    """One process that was started here, and everything it starts in turn."""

    name: str
    pid: int
    mark: str  # in the environment of the process and of everything it starts
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
        return {**BRISK, **os.environ, **OFFLINE, "FLWR_HOME": str(self.folder / "flwr"), "PATH": _path()}

    def save(self) -> None:
        """Write down what is running; called after every change."""
        body = {"port": self.port, "secure": self.secure, "processes": [asdict(p) for p in self.processes]}
        (self.folder / "deployment.json").write_text(json.dumps(body, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Deployment:
        """The deployment that was started in a folder."""
        path = folder / "deployment.json"
        if not path.exists():
            raise StoreError(f"{folder}", "no deployment was started here", "start one with `fedcohort flower up`")
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            return cls(folder, body["port"], body["secure"], [Process(**p) for p in body["processes"]])
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{path}", "it cannot be read", "end what it lists, and delete it") from None

    def alive(self) -> list[Process]:
        """Processes that are still running."""
        return [p for p in self.processes if p.pid in marked(p.mark)]

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start a process with its own mark and write it down.

        One that replaces a dead process of the same name takes over its mark: what the dead one had started and what
        outlived it, such as a ServerApp, still belongs to it.
        """
        log, mark = self.folder / f"{name}.log", f"{name}-{uuid.uuid4().hex}"
        for old in [p for p in self.processes if p.name == name]:
            self.processes.remove(old)
            mark = old.mark
        with log.open("ab") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**(environment or self.environment), MARK: mark},
                start_new_session=True,
                cwd=self.folder,
            )
        process = Process(name, child.pid, mark, str(log))
        _CHILDREN[child.pid] = child
        self.processes.append(process)
        self.save()
        return process

    def down(self, seconds: float = 10.0) -> int:
        """End everything that was started here: SIGTERM, then SIGKILL. Returns how many trees were still alive."""
        ended = sum(bool(marked(p.mark)) for p in self.processes)
        end([p for p in self.processes if p.name != "superlink"], seconds)  # while the SuperLink still answers
        end([p for p in self.processes if p.name == "superlink"], seconds)
        self.processes = []
        (self.folder / "deployment.json").unlink(missing_ok=True)
        return ended


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def up(
    folder: Path, clients: int, *, keys: bool = False, simulation: bool = False, seconds: float = 90.0
) -> Deployment:
    """Start a SuperLink and `clients` SuperNodes; with `keys`, over TLS and with registered node keys.

    With `simulation` there are no SuperNodes: the SuperLink simulates them (Ray), as many as a run asks for.
    Where a deployment is running with dead processes in it, those are started again, and nothing else changes.
    """
    check(clients >= 1, f"clients = {clients}", "a deployment needs at least one client", "use --clients 3")
    folder = folder.resolve()
    if (folder / "deployment.json").exists() and (running := Deployment.load(folder)).alive():
        if not revive(running, seconds):
            raise RunExists(f"{folder}", "a deployment is running here", "end it with `fedcohort flower down`")
        return running
    (folder / "flwr").mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob(f"{DATABASE}*"), *folder.glob("certificates/*")):
        old.unlink()  # of a deployment that has ended: its nodes would be listed as online
    deployment = Deployment(folder, free_port(), keys)
    try:
        start_superlink(deployment, seconds, simulation=simulation)
        if not simulation:
            start_supernodes(deployment, clients)
        _write_environment(deployment)
    except BaseException:
        deployment.down()
        raise
    return deployment


def revive(deployment: Deployment, seconds: float = 90.0) -> list[str]:
    """Start what has died in this deployment again, the SuperLink from its database; returns the names."""
    dead = sorted({p.name for p in deployment.processes} - {p.name for p in deployment.alive()})
    nodes = sum(p.name.startswith("supernode-") for p in deployment.processes)
    for name in dead:  # the SuperLink first
        if name == "superlink":
            start_superlink(deployment, seconds, simulation=nodes == 0)
        else:
            start_supernode(deployment, int(name.removeprefix("supernode-")), nodes)
    return dead


def _write_environment(deployment: Deployment) -> None:
    """Write a file for `source`: what `flwr` needs to find this deployment, with everything online switched off."""
    lines = {**OFFLINE, "FLWR_HOME": str(deployment.folder / "flwr")}
    if shutil.which("flwr") is None:
        lines["PATH"] = _path()
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items())
    (deployment.folder / "env").write_text(text, encoding="utf-8")


def start_superlink(deployment: Deployment, seconds: float = 90.0, *, simulation: bool = False) -> Process:
    """Start the SuperLink and wait until it answers; with `simulation`, it simulates the SuperNodes (Ray).

    It keeps runs, nodes and messages in a database: without one, a SuperLink that was killed knows nothing when it is
    started again, and neither the ServerApp nor the SuperNodes ever reach it.
    """
    folder, port = deployment.folder, deployment.port
    command = [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    command += ["--simulation"] if simulation else ["--database", str(folder / DATABASE)]
    address = f'address = "127.0.0.1:{port}"\n'
    if deployment.secure:
        from fedcohort.flower.dev.certificates import write_certificates

        ca = folder / "certificates" / "ca.crt"
        if not ca.exists():
            write_certificates(ca.parent)
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
        ended = _CHILDREN[process.pid].poll() is not None  # not by its mark, which shows only after its start
        if ended or time.monotonic() > until:
            why = f"it ended at once: {_last_words(process)}" if ended else f"it did not answer within {seconds:.0f} s"
            raise StoreError("SuperLink", why, f"see {process.log}")
        time.sleep(0.2)
    return process


def _last_words(process: Process) -> str:
    """The end of a process's log, on one line."""
    return " ".join(_FRAME.sub(" ", Path(process.log).read_text(encoding="utf-8", errors="replace")).split())[-200:]


def start_supernodes(deployment: Deployment, clients: int, extra: str = "") -> None:
    """Start `clients` SuperNodes with one partition each, and with registered keys if the deployment is secure."""
    if deployment.secure:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda index: _register_key(deployment, index), range(clients)))
    for index in range(clients):
        start_supernode(deployment, index, clients, extra)


def start_supernode(deployment: Deployment, index: int, clients: int, extra: str = "") -> Process:
    """Start one SuperNode; if the deployment is secure, its key must be registered."""
    node_config = f"partition-id={index} num-partitions={clients} {extra}".strip()
    command = [program("flower-supernode"), "--superlink", f"127.0.0.1:{deployment.port}", "--host", "127.0.0.1"]
    command += ["--port", str(free_port()), "--node-config", node_config]
    if deployment.secure:
        command += ["--root-certificates", str(deployment.folder / "certificates" / "ca.crt")]
        command += ["--auth-supernode-private-key", str(_key(deployment, index))]
    else:
        command += ["--insecure"]
    return deployment.launch(f"supernode-{index}", command)


def _key(deployment: Deployment, index: int) -> Path:
    return deployment.folder / "keys" / f"client-{index}"


def _register_key(deployment: Deployment, index: int) -> None:
    from fedcohort.flower.dev.certificates import write_node_key

    key = write_node_key(_key(deployment, index))
    run_flwr(deployment, ["supernode", "register", "--name", f"client-{index}", f"{key}.pub", CONNECTION])


def run_flwr(deployment: Deployment, arguments: Sequence[str], seconds: float = 90.0) -> str:
    """Run a `flwr` command to its end and return its output; an error if it fails."""
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
        said = " ".join(_FRAME.sub(" ", done.stdout + done.stderr).split())
        raise StoreError(f"flwr {arguments[0]}", f"it failed: {said[-400:]}", "see its message")
    return done.stdout


def program(name: str) -> str:
    """The path of one of Flower's commands."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise MissingExtra.of(f"the command {name}", "flower")
    return str(path)


def marked(mark: str) -> list[int]:
    """Ids of the running processes with this mark."""
    wanted, out = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    out.append(int(entry.name))
    return out


def end(processes: Sequence[Process], seconds: float = 10.0) -> None:
    """End these process trees: SIGTERM to the first of each, and SIGKILL to what is left, each by its id."""
    for process in processes:
        if process.pid in marked(process.mark):
            _signal(process.pid, signal.SIGTERM)
    until = time.monotonic() + seconds
    while any(marked(p.mark) for p in processes) and time.monotonic() < until:
        time.sleep(0.1)
    for process in processes:
        kill(process)


def kill(process: Process, seconds: float = 5.0) -> None:
    """kill -9 of a whole process tree, as in a power cut."""
    until = time.monotonic() + seconds
    while (ids := marked(process.mark)) and time.monotonic() < until:
        for pid in ids:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)
    reap(process)


def reap(process: Process) -> None:
    """Take note of the end of a process that was started from here; until then, others see it as alive."""
    child = _CHILDREN.pop(process.pid, None)
    if child is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5.0)


def _signal(pid: int, kind: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, kind)


def free_port() -> int:
    """A port on loopback that nobody listens on.

    It lies below those that systems give to outgoing connections (from 32768 on): one of these may be taken before the
    program that is to listen has started, even by the attempt to reach that program.
    """
    for port in random.SystemRandom().sample(range(10_000, 32_768), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise StoreError("127.0.0.1", "no port was free among a hundred that were tried", "end what listens there")


def _listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(0.5)
        return s.connect_ex(("127.0.0.1", port)) == 0


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
