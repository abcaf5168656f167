"""Rounds for other programs: TensorBoard event files and MLflow runs.

A writer is called with each round's row, so it can be `on_round` of `fedcohort.simulate` and of every run::

    with TensorBoard("tb", "my-run", {"selector": "oort"}) as writer:
        fedcohort.simulate("oort", on_round=writer)

It opens with the first row and takes each round once, whatever comes twice. Step is the round; the virtual time is the
metric "clock". What was not measured in a round is not written.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from fedcohort.errors import BadParameter, MissingExtra, check

EXPERIMENT = "fedcohort"  # of MLflow
TAG = "fedcohort.run"  # of an MLflow run: which run folder it shows
AT_ONCE = 900  # metrics in one message to MLflow, which takes at most 1,000
_LONGEST = 500  # letters of a parameter


class Sink(Protocol):
    """Where rows go."""

    def begin(self) -> int:
        """Open it; the first round that it does not have yet."""

    def put(self, index: int, values: dict[str, float]) -> None:
        """One round."""

    def end(self, status: str) -> None:
        """Close it: FINISHED, KILLED (Ctrl-C) or FAILED."""


class Writer:
    """Rows of one run to one place, each round once."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._next = sink, -1

    def __call__(self, row: Mapping[str, float]) -> None:
        """Take one round; a round that was taken before is ignored."""
        if self._next < 0:
            self._next = self._sink.begin()
        index = int(row["round"])
        if index >= self._next:
            self._sink.put(index, {k: float(v) for k, v in row.items() if k != "round"})
            self._next = index + 1

    def take(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Several rounds in order."""
        for row in rows:
            self(row)

    def close(self, status: str = "FINISHED") -> None:
        """Nothing more comes."""
        if self._next >= 0:
            self._sink.end(status)
        self._next = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close("FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED")


class TensorBoard(Writer):
    """One folder of event files per run, below `folder`: `tensorboard --logdir folder` shows them together."""

    def __init__(self, folder: str | Path, run: str, config: Mapping[str, Any] | None = None) -> None:
        _need("tensorboardX", "writing TensorBoard files", "tensorboard")
        super().__init__(_Events(_folder(folder, "--tensorboard") / _plain(run), dict(config or {})))


class MLflow(Writer):
    """One MLflow run per run, in the experiment "fedcohort"; it continues where an earlier process stopped.

    `where` is a tracking URI (http://..., sqlite:///...), or a folder, in which `mlflow.db` is kept without a server:
    `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows it.
    """

    def __init__(self, where: str | Path, run: str, config: Mapping[str, Any] | None = None) -> None:
        for module in ("mlflow", "sqlalchemy", "alembic"):
            _need(module, "writing to MLflow", "mlflow")
        super().__init__(_Tracking(_uri(str(where)), run, dict(config or {})))


class Writers:
    """Several writers as one."""

    def __init__(
        self, run: str, config: Mapping[str, Any], tensorboard: str | Path | None = None, mlflow: str | None = None
    ) -> None:
        self._all: list[Writer] = [TensorBoard(tensorboard, run, config)] if tensorboard is not None else []
        self._all += [MLflow(mlflow, run, config)] if mlflow is not None else []

    def __call__(self, row: Mapping[str, float]) -> None:
        """Take one round."""
        for writer in self._all:
            writer(row)

    def take(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Several rounds in order."""
        for row in rows:
            self(row)

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *how: Any) -> None:
        for writer in self._all:
            writer.__exit__(*how)


class _Events:
    """TensorBoard's event files. A new writer makes what an earlier one wrote of the same run void (purge_step)."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.writer: Any = None

    def begin(self) -> int:
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(self.folder), purge_step=0)
        if self.config:
            lines = "\n".join(f"    {k} = {v}" for k, v in self.config.items())
            self.writer.add_text("configuration", lines, 0)
        return 0

    def put(self, index: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(_name(name), value, index)

    def end(self, status: str) -> None:
        self.writer.close()


class _Tracking:
    """An MLflow run, by its tag; found again where it exists."""

    def __init__(self, uri: str, run: str, config: dict[str, Any]) -> None:
        self.uri, self.run, self.config = uri, run, config
        self.client: Any = None
        self.id = ""
        self.waiting: list[Any] = []
        self.sent = 0.0

    def begin(self) -> int:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            self.client = MlflowClient(tracking_uri=self.uri)
            known = self.client.get_experiment_by_name(EXPERIMENT)
            place = known.experiment_id if known is not None else self.client.create_experiment(EXPERIMENT)
            found = self.client.search_runs([place], f"tags.`{TAG}` = '{_plain(self.run)}'", max_results=1)
            if found:
                self.id = found[0].info.run_id
                self.client.update_run(self.id, status="RUNNING")
                return 1 + max((m.step for m in self.client.get_metric_history(self.id, "clock")), default=-1)
            self.id = self.client.create_run(place, run_name=self.run, tags={TAG: _plain(self.run)}).info.run_id
            params = [Param(_name(k), str(v)[:_LONGEST]) for k, v in self.config.items()]
            self.client.log_batch(self.id, params=params)
        except MlflowException as error:
            raise BadParameter(
                f"--mlflow {self.uri}", str(error).splitlines()[0][:300], "name a folder or a URI"
            ) from None
        return 0

    def put(self, index: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        if len(self.waiting) + len(values) > AT_ONCE:
            self.send()
        self.waiting += [Metric(_name(name), value, now, index) for name, value in values.items()]
        if time.monotonic() - self.sent > 1.0:  # live, without a message for each of many short rounds
            self.send()

    def send(self) -> None:
        """Everything that waits, in order."""
        for at in range(0, len(self.waiting), AT_ONCE):
            self.client.log_batch(self.id, metrics=self.waiting[at : at + AT_ONCE])
        self.waiting, self.sent = [], time.monotonic()

    def end(self, status: str) -> None:
        self.send()
        self.client.set_terminated(self.id, status)


def _need(module: str, what: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtra.of(what, extra)


def _folder(given: str | Path, option: str) -> Path:
    folder = Path(given)
    fine = folder.is_dir() or not folder.exists()
    check(
        fine and str(given) != "",
        f"{option} {given}",
        "this is not a folder",
        "name another; it is created",
    )
    return folder


def _uri(where: str) -> str:
    """A tracking URI as it is; a folder becomes a database in it."""
    if re.match(r"[a-z][a-z0-9+]*:", where) and not where.startswith("file:"):
        return where
    folder = _folder(where.removeprefix("file://").removeprefix("file:"), "--mlflow")
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder.absolute() / 'mlflow.db'}"


def _name(name: str) -> str:
    """A metric's name in letters that both programs take."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)


def _plain(run: str) -> str:
    """A run's name as the name of a folder, and without quotes."""
    return re.sub(r"[^\w.-]", "_", run).lstrip(".") or "run"
