"""The ray engine: the cohort of a round is spread over the actors of a Ray cluster, one per processor or GPU.

The data of all clients go into the object store once. An actor holds a single-threaded engine of the kind that this
machine would choose by itself, and trains the clients it is given. The order of batches and every other draw is a
function of (seed, round, client, epoch), so it does not matter who trains a client, or how often: what a lost actor was
training is given to another one, and so is what takes suspiciously long. The bits are those of a local run.

Actors of this machine write their updates into memory that it shares with them; those of others send them.

Evaluation stays on this machine. What travels between our own processes is Ray's business; nothing is read from files.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero
from fedcohort.engines.interface import ClientData, Engine, LossStats
from fedcohort.engines.ray_cluster import connect, ray_package
from fedcohort.engines.recipe import Modeled
from fedcohort.engines.shared_buffers import SharedPool
from fedcohort.engines.steps import check_plan
from fedcohort.engines.torch_workers import messages as wire
from fedcohort.errors import TrainingError, checked
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Plan, Real

HALF = 2  # a part is what is left, divided by the actors and by this: large ones first, and at the end
SMALL = 24  # parts of a cohort for each actor if all were of the smallest size, so that all end together
AHEAD = 2  # parts that an actor has at a time, so that it never waits for the next
SLOW = 4.0  # times the longest part so far, and at least
LEAST = 5.0  # so many seconds: then a part is given to another actor as well
PATIENCE = 60.0  # seconds to wait for the first actor, or for a machine when all are lost

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_log = logging.getLogger("fedcohort.engine")

Choose = Callable[..., Engine]  # :func:`fedcohort.engines.factory.choose`


def tapered(work: Index, actors: int) -> list[Index]:
    """Rows of the parts of a cohort, to be given out in this order: the largest clients and parts first.

    >>> [rows.size for rows in tapered(np.ones(32, np.int64), 2)]
    [8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    """
    order = np.argsort(-work, kind="stable")
    cost = np.maximum(work[order], 1).astype(np.float64)
    ends = np.cumsum(cost)
    least = ends[-1] / (SMALL * actors)
    parts, at, done = [], 0, 0.0
    while at < order.size:
        size = max((ends[-1] - done) / (HALF * actors), least)
        stop = max(int(np.searchsorted(ends, done + size, side="right")), at + 1)
        parts.append(np.sort(order[at:stop]))
        at, done = stop, float(ends[stop - 1])
    return parts


def inner_of(local: Any, model: Model, clients: Index, plan: Plan) -> dict[str, Any]:
    """How the engine of an actor is made so that it computes what the local one does."""
    inner: dict[str, Any] = {"kind": local.name}
    if local.name == "torch_workers":
        inner["variant"] = asdict(local.decided(model, clients, plan))
    if local.name in ("torch_reference", "torch_vmap"):
        inner |= {"device": local.device, "precision": local.precision}
    return inner


def inner_engine(
    choose: Choose, model: Modeled, data: ClientData, kind: str, variant: dict[str, bool] | None = None,
    device: str = "cpu", precision: str = "float32",
) -> Engine:  # fmt: skip
    """The engine of an actor."""
    if variant is not None:
        from fedcohort.engines.torch_workers.variant import Variant, VariantEngine

        return VariantEngine(model, data, Variant(**variant))
    return choose(model, data, kind, 1, device=device, precision=precision)


class ClusterTrainer:
    """What an actor runs: an engine with one thread, made once."""

    def __init__(
        self, path: list[str], choose: Choose, model: list[Any], data: list[Any], inner: dict[str, Any]
    ) -> None:
        """The references are in lists, so that they are opened here, where modules are looked for in `path`."""
        import ray

        sys.path.extend(p for p in path if p not in sys.path)
        arrays, classes = ray.get(data[0])
        self._engine = inner_engine(choose, ray.get(model[0]), wire.data_of(arrays, classes), **inner)

    def train(self, order: tuple[dict[str, Any], wire.Arrays], shared: wire.Arrays) -> Any:
        """Train some clients; `shared` is what all parts of a round have in common."""
        text, arrays = order
        return wire.carry_out(self._engine, text, arrays | shared)


class RayEngine:
    """Trains on a cluster as the local engine of the same model would here, to the last bit."""

    name = "ray"

    @checked
    def __init__(
        self,
        model: Modeled,
        data: ClientData,
        local: Engine,
        choose: Choose,
        workers: CountOrZero = 0,
        address: str | None = None,
    ) -> None:
        """`local` evaluates, and says of which kind the engines are that the actors make with `choose`.

        `workers=0` means the whole cluster.
        `address` is that of a running cluster, or None: that of RAY_ADDRESS, or a cluster of this machine alone.
        """
        self._ray, self._choose = ray_package(), choose
        self._local, self._data, self.workers = local, data, workers
        self.n_params, self.last_layer = local.n_params, local.last_layer
        self._ours = connect(self._ray, address)
        self._model, self._held = ([self._ray.put(given)] for given in (model, (wire.data_arrays(data), data.classes)))
        self._actors: list[Any] = []
        self._inner: dict[str, Any] = {}  # what the actors' engines are made with, decided at the first training
        self._buffers = SharedPool()
        self._sent: Real = np.empty(0, np.float32)  # buffers of the model last given for training

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model, somewhere."""
        check_plan(plan, clients.size, self.n_params)
        self._sent = np.array(model.buffers) if model.buffers.size else self._sent
        work = self._data.train.sizes[clients] * plan.epochs_of(clients.size)
        if not clients.size:
            return self._local.train(model, clients, plan)
        self._inner = self._inner or inner_of(self._local, model, clients, plan)
        self.hire()
        delta = self._buffers.take(clients.size, self.n_params)
        place = self._buffers.place_of(delta)
        orders = _Round(self, model, clients, plan, tapered(work, len(self._actors)), place)
        try:
            return wire.merge(clients, orders.answers(), delta)
        finally:
            if orders.unsettled:  # whoever was slow or is lost may still write
                self._buffers.spoil(delta)

    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part, here."""
        return self._local.losses(model, clients, part, objective)

    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client, here."""
        return self._local.gradients(model, clients, last_layer=last_layer, objective=objective)

    def logits(self, params: Real, x: NDArray[np.float32], buffers: Real | None = None) -> Real:
        """Logits of k models, here."""
        rows = self._sent[None] if buffers is None and self._sent.size else buffers
        return self._local.logits(params, x, rows)

    def soft_gradient(
        self, params: Real, x: NDArray[np.float32], target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets, and its gradient, here."""
        own = self._sent if buffers is None and self._sent.size else buffers
        return self._local.soft_gradient(params, x, target, own)

    def close(self) -> None:
        """End the actors, and the connection if it was made here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()
        self._local.close()

    def lose(self, actor: Any) -> None:
        """This actor does not answer any more."""
        if actor in self._actors:
            self._actors.remove(actor)
            _log.warning("engine: ray lost an actor; its clients are trained again (%d left)", len(self._actors))

    @property
    def actors(self) -> tuple[Any, ...]:
        """Who can be given work."""
        return tuple(self._actors)

    def hire(self) -> None:
        """As many actors as are wanted and the cluster has room for; at least one."""
        inner = self._inner
        kind = "GPU" if inner.get("device", "cpu").startswith("cuda") else "CPU"
        start = time.monotonic()
        while True:
            there = int(self._ray.cluster_resources().get(kind, 0))
            missing = min(self.workers or there, there) - len(self._actors)
            if missing > 0:
                need = {"num_gpus": 1} if kind == "GPU" else {"num_cpus": 1}
                remote = self._ray.remote(**need, max_restarts=0, runtime_env={"env_vars": _ONE_THREAD})(ClusterTrainer)
                self._actors += [
                    remote.remote(sys.path, self._choose, self._model, self._held, inner) for _ in range(missing)
                ]
                _log.info("engine: ray, %d actors with %s each", len(self._actors), inner["kind"])
            if self._actors:
                return
            if time.monotonic() - start > PATIENCE:
                raise _deserted(kind)
            time.sleep(0.2)


class _Round:
    """One round on the cluster: parts of the cohort, and who has which."""

    def __init__(
        self, engine: RayEngine, model: Model, clients: Index, plan: Plan, parts: list[Index], place: str | None
    ) -> None:
        self._engine, self._ray = engine, engine._ray
        whole = wire.pack_plan(plan, model, clients, np.empty(0, np.int64))[1]
        common: list[str] = [n for n in ("params", "buffers", "counters") if n in whole]
        common += ["correction"] if plan.correction is not None and plan.correction.ndim == 1 else []
        self._shared = self._ray.put({name: np.array(whole[name]) for name in common})
        self._orders = []
        for rows in parts:
            text, arrays = wire.pack_plan(plan, model, clients, rows, place)
            self._orders.append((text, {name: a for name, a in arrays.items() if name not in common}))
        self._parts = parts
        self._todo = deque(range(len(parts)))
        self._done: set[int] = set()
        self._out: dict[Any, tuple[int, Any, float]] = {}  # answer to come -> part, actor, since when
        self._longest = 0.0
        self._lost = False

    @property
    def unsettled(self) -> bool:
        """Whether somebody may still be training what was asked for."""
        return self._lost or bool(self._out)

    def answers(self) -> Iterator[tuple[Index, dict[str, Any], wire.Arrays]]:
        """Rows, text and arrays of every part, as they arrive."""
        while len(self._done) < len(self._parts):
            self._give()
            ready, _ = self._ray.wait(list(self._out), num_returns=1, timeout=0.5)
            for answer in ready:
                part, actor, since = self._out.pop(answer)
                found = self._open(answer, actor, part)
                if found is not None and part not in self._done:
                    self._done.add(part)
                    self._longest = max(self._longest, time.monotonic() - since)
                    yield self._parts[part], *found

    def _give(self) -> None:
        """Work for everybody who has too little; late parts are given out once more."""
        actors = self._engine.actors
        if not actors:
            self._engine.hire()
            actors = self._engine.actors
        self._todo.extend(self._late())
        for _ in range(AHEAD):
            for actor in actors:
                has = [part for part, who, _ in self._out.values() if who is actor]
                free = next((p for p in self._todo if p not in has), None)
                if len(has) < AHEAD and free is not None:
                    self._todo.remove(free)
                    answer = actor.train.remote(self._orders[free], self._shared)
                    self._out[answer] = (free, actor, time.monotonic())

    def _late(self) -> list[int]:
        """Parts that one actor alone has had for suspiciously long, while others have nothing to do."""
        idle = len({id(who) for _, who, _ in self._out.values()}) < len(self._engine.actors)
        if self._todo or not idle:
            return []
        limit = time.monotonic() - max(LEAST, SLOW * self._longest)
        held = [part for part, _, _ in self._out.values()]
        return [p for p, _, since in self._out.values() if self._done and since < limit and held.count(p) == 1]

    def _open(self, answer: Any, actor: Any, part: int) -> Any:
        """What an actor answered; None if it is lost, and its part is to be done again."""
        failures = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except failures.RayTaskError as error:
            cause = error.cause
            text = " ".join(str(cause).split())[:300]
            raise TrainingError(f"training on the cluster ({type(cause).__name__})", text, "see Ray's logs") from None
        except failures.RayError:
            self._engine.lose(actor)
            self._lost = True
            if part not in self._done and part not in self._todo:
                self._todo.append(part)
            return None


def _deserted(kind: str) -> TrainingError:
    rule = f"no {kind} has joined for {PATIENCE:.0f} s"
    return TrainingError("the Ray cluster", rule, "start its machines (`ray start`) and resume the run")
