"""`CohortApp`: a Flower ClientApp that also sends what a selector reads. An existing app changes by one line.

::

    app = CohortApp(outputs=outputs)          # was: app = ClientApp()

Training functions stay as they are. Their replies get the signals that the server asked for. Two queries are answered:
registration (who this client is) and probes of the current model. Nothing above `max_privacy` is ever sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcohort import __version__
from fedcohort import signals as catalogue
from fedcohort.errors import check
from fedcohort.flower import wire
from fedcohort.flower.client.measurement import GradientFn, Meter, OutputsFn
from fedcohort.flower.model_layout import ModelLayout
from fedcohort.signals import PRIVACY_LEVELS

Handler = Callable[[Message, Context], Message]
_ACTION = "default"


class CohortApp(ClientApp):  # type: ignore[misc]
    """A ClientApp whose replies carry the declared signals.

    `outputs` and `gradient` are described in :mod:`fedcohort.flower.client.measurement`; `version` is
    compared with the server's `app_version`; `applies` names what the training function does on request
    (:mod:`fedcohort.flower.train_instructions`).
    """

    def __init__(
        self,
        client_fn: Any = None,
        mods: list[Any] | None = None,
        *,
        outputs: OutputsFn | None = None,
        gradient: GradientFn | None = None,
        version: str = "",
        applies: Iterable[str] = (),
        max_privacy: str = "P2",
    ) -> None:
        known = max_privacy in PRIVACY_LEVELS
        check(known, f"max_privacy = {max_privacy!r}", "it is not a privacy level", "use P0 to P3")
        super().__init__(client_fn, mods)
        self._meter, self._version, self._applies = Meter(outputs, gradient), version, sorted(applies)
        self._level = PRIVACY_LEVELS.index(max_privacy)
        self._trainer: Handler | None = None
        if client_fn is None:
            self.query("fedcohort_register")(self._register)
            self.query("fedcohort_probe")(self._probe)

    def train(self, action: str = _ACTION, *, mods: list[Any] | None = None) -> Callable[[Handler], Handler]:
        """As in Flower; the reply also carries the signals that were asked for."""
        register = super().train(action, mods=[self._signals, *(mods or [])])

        def decorator(function: Handler) -> Handler:
            if action == _ACTION:
                self._trainer = function
            return register(function)  # type: ignore[no-any-return]

        return decorator

    def _signals(self, message: Message, context: Context, call: Handler) -> Message:
        """The mod around a training function."""
        wanted = self._allowed(message.content.get(wire.REQUEST))
        if not wanted:
            return call(message, context)
        broadcast = _only_arrays(message.content)
        found = self._meter.before(wanted, broadcast, context)
        reply = call(message, context)
        if not reply.has_content():
            return reply
        found.update(self._meter.after(wanted, _only_arrays(reply.content), context))
        for record in reply.content.metric_records.values():  # the app's own report of the first epoch is preferred
            found.update({n: record[n] for n in wanted & {"train_loss", "train_loss_sq"} if n in record})
        _attach(reply.content, found)
        return reply

    def _register(self, message: Message, context: Context) -> Message:
        """Answer who this client is and what it can measure."""
        request = message.content.get(wire.REQUEST, ConfigRecord())
        able = {n for n in self._provides(context) if catalogue.get(n).privacy <= self._level}
        asked = frozenset(str(n) for n in request.get("profiles", []) if n in able)
        body: dict[str, Any] = {
            "wire": wire.WIRE,
            "id": identity(context),
            "app-version": self._version,
            "fedcohort": __version__,
            "provides": sorted(able),
            "abilities": self._applies,
        }
        content = RecordDict({wire.REQUEST: ConfigRecord(body)})
        arrays = _only_arrays(message.content) if message.content.array_records else None
        _attach(content, self._meter.profile(asked, arrays, context))
        return Message(content, reply_to=message)

    def _probe(self, message: Message, context: Context) -> Message:
        """Answer with probe signals of the broadcast model."""
        wanted = self._allowed(message.content.get(wire.REQUEST))
        arrays = _only_arrays(message.content)
        found = self._meter.before(wanted - {"probe_weights"}, arrays, context)
        if "probe_weights" in wanted and self._trainer is not None:
            trained = self._trainer(message, context)  # the probe carries the same arrays and config as training
            named = {str(k): a.numpy() for k, a in _only_arrays(trained.content).items()}
            found["probe_weights"] = ModelLayout.of(arrays).model(named).params
        content = RecordDict()
        _attach(content, found)
        return Message(content, reply_to=message)

    def _provides(self, context: Context) -> frozenset[str]:
        return self._meter.provides(context, self._trainer is not None)

    def _allowed(self, request: Any) -> frozenset[str]:
        """The requested signals that the privacy level of this client permits."""
        asked = request.get("measure", []) if isinstance(request, ConfigRecord) else []
        return frozenset(
            str(n) for n in asked if n in catalogue.SIGNALS and catalogue.get(str(n)).privacy <= self._level
        )


def identity(context: Context) -> str:
    """The stable id of the client on a node: node config ``client-id``, else ``partition-id``, else its node id."""
    for key in ("client-id", "partition-id"):
        if key in context.node_config:
            return str(context.node_config[key])
    return f"node-{context.node_id}"


def _only_arrays(content: RecordDict) -> ArrayRecord:
    """The model in a message: its only array record that is not ours."""
    records = [r for k, r in content.array_records.items() if not str(k).startswith("fedcohort.")]
    check(len(records) == 1, f"{len(records)} array records", "a message carries one model", "send one ArrayRecord")
    return records[0]


def _attach(content: RecordDict, found: dict[str, Any]) -> None:
    scalars = {n: v for n, v in found.items() if not isinstance(v, np.ndarray)}
    vectors = {n: Array(v) for n, v in found.items() if isinstance(v, np.ndarray)}
    if scalars:
        content[wire.SIGNALS] = MetricRecord(scalars)
    if vectors:
        content[wire.VECTORS] = ArrayRecord(vectors)
