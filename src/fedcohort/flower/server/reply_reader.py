"""What is believed of a reply. Each on its own first; then against what the others of this deployment usually send.

On its own (`ReplyValidator.read`): content there, one model of the right names, shapes and types, one metric record of
finite numbers, the declared signals; whether the numbers are sane is the round engine's to judge, as everywhere.
Against the rest (`ReplyValidator.agree`): the metric keys that most clients send (one vote each), and a weight, a norm,
statistics and counters within `ratio` of the usual ones, so that one client can neither end the run nor own the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcohort import signals as catalogue
from fedcohort.core.columns import as_bytes, from_bytes
from fedcohort.flower import wire
from fedcohort.flower.model_layout import ModelLayout
from fedcohort.flower.server.driver import Arrival
from fedcohort.flower.wire import Refused
from fedcohort.types import Arrays, Model

RATIO = 100.0  # how far above the usual weight or norm a reply may be
MOST_ARRAYS = 10_000  # of a model whose shapes are free
REMEMBERED = 50  # accepted weights and norms kept for the comparison


@dataclass(frozen=True)
class ValidReply:
    """A reply that could be read: the right records, names, shapes and types. Its numbers are the engine's to judge."""

    slot: int
    arrival: Arrival
    arrays: Mapping[str, NDArray[np.generic]]
    model: Model
    delta: NDArray[np.float32]
    metrics: Mapping[str, float | list[float]]
    weight: float
    steps: int
    signals: Mapping[str, float | NDArray[np.float32]]
    rest: RecordDict = field(default_factory=RecordDict)  # config records, for strategies that read them
    extents: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # as in StatisticsCheck

    @property
    def norm(self) -> float:
        """Length of the update."""
        return float(np.sqrt(np.einsum("ij,ij->i", self.delta[None], self.delta[None], dtype=np.float64))[0])

    def content(self, arrays_key: str, metrics_key: str) -> RecordDict:
        """A clean message body: nothing in it but what was checked."""
        from fedcohort.flower.model_layout import record

        body: dict[str, Any] = {arrays_key: record(self.arrays), metrics_key: MetricRecord(dict(self.metrics))}
        return RecordDict({**self.rest, **body})


Metrics = Mapping[str, float | list[float]]


class MetricKeyVote:
    """Which metric keys a reply has: what most clients sent last, one vote each; ties stay with what held before.

    Whether a metric is a number or a list is voted on as well, and so is the length of lists, where most agree on one.
    """

    def __init__(self, fixed: Iterable[str] | None = None) -> None:
        self.fixed = None if fixed is None else tuple(sorted(fixed))
        self.votes: dict[int, tuple[str, ...]] = {}
        self.holds: tuple[str, ...] | None = self.fixed
        self.forms: dict[int, dict[str, int]] = {}  # slot -> length of each list, -1 for a number

    def judge(self, replies: Mapping[int, Metrics]) -> dict[int, str]:
        """Count these clients' votes; reasons against those that send something else than most."""
        keys = set(self.vote(replies))
        self.forms.update({s: {k: _length(v) for k, v in m.items()} for s, m in replies.items() if set(m) == keys})
        usual = {k: _usual_form([f[k] for f in self.forms.values() if k in f]) for k in keys}
        reasons: dict[int, str] = {}
        for slot, metrics in replies.items():
            for key in sorted(set(metrics) ^ keys):
                reasons.setdefault(slot, f"metric-{'unknown' if key in metrics else 'missing'}:{key}")
            for key in sorted(keys & set(metrics)):
                if _length(metrics[key]) not in usual[key]:
                    reasons.setdefault(slot, f"metric-form:{key}")
        return reasons

    def vote(self, replies: Mapping[int, Metrics]) -> tuple[str, ...]:
        """Count these clients' keys; the keys that hold now."""
        self.votes.update({slot: tuple(sorted(metrics)) for slot, metrics in replies.items()})
        if self.fixed is None and self.votes:
            counts = Counter(self.votes.values())
            most = max(counts.values())
            tied = sorted((keys for keys, n in counts.items() if n == most), key=lambda k: (len(k), k))
            if self.holds is None or counts[self.holds] < most:
                self.holds = tied[0]
        return self.holds or ()


class StatisticsCheck:
    """How large the arrays are that no gradient changes: statistics by layer, then integer arrays.

    Of a layer's running mean and variance it is the root of the sum of mean^2 + variance, the size of its activations:
    a mean alone is near zero on most data. Of an integer array it is the largest step from the model that was sent.
    """

    def __init__(self, layout: ModelLayout) -> None:
        layer = {name: name.rpartition("running_")[0] for name in layout.buffers}
        names = list(dict.fromkeys(layer.values()))
        sizes = {name: math.prod(shape) for name, shape in layout.shapes.items()}
        self.at = np.array([names.index(layer[k]) for k in layer for _ in range(sizes[k])], np.int64)
        self.variance = np.array([k.endswith("running_var") for k in layer for _ in range(sizes[k])], np.bool_)
        places = enumerate(layout.counters, len(names))
        self.counter = np.array([at for at, k in places for _ in range(sizes[k])], np.int64)
        self.reasons = [f"statistics-too-large:{name.rstrip('.')}" for name in names]
        self.reasons += [f"counter-too-large:{name}" for name in layout.counters]

    def extents(self, theirs: Model, sent: Model) -> NDArray[np.float64]:
        """One number per layer and per integer array; what is negative and was not before is refused."""
        if (self.variance & (theirs.buffers < np.minimum(sent.buffers, 0.0))).any():
            raise Refused("variance-negative")
        if (theirs.counters < np.minimum(sent.counters, 0)).any():
            raise Refused("counter-negative")
        out, values = np.zeros(len(self.reasons)), theirs.buffers.astype(np.float64)
        np.add.at(out, self.at, np.where(self.variance, np.abs(values), values**2))
        np.sqrt(out, out=out)
        np.maximum.at(out, self.counter, np.abs(theirs.counters.astype(np.float64) - sent.counters))
        return out


class ReplyValidator:
    """Reads and judges the replies of one deployment."""

    def __init__(
        self,
        layout: ModelLayout,
        *,
        weight_key: str,
        weight_needed: bool,
        metrics: Iterable[str] | None = None,
        check_shapes: bool = True,
        metric_signals: Mapping[str, str] | None = None,
        ratio: float = RATIO,
    ) -> None:
        self.layout, self.ratio, self.check_shapes = layout, ratio, check_shapes
        self.weight_key, self.weight_needed = weight_key, weight_needed
        self.metric_signals = dict(metric_signals or {})
        also = {weight_key} if weight_needed else set()
        self.vote = MetricKeyVote(None if metrics is None else {*metrics, *also})
        self.weights: list[float] = []
        self.norms: list[float] = []
        self.statistics = StatisticsCheck(layout)
        self.measured = len(self.statistics.reasons) if check_shapes else 0
        self.extents: list[list[float]] = []  # of accepted replies, each so many numbers
        whole = layout.last_layer.size
        self.widths = {"insight": int(layout.last_layer.sum()), "network_insight": whole, "probe_weights": whole}

    def read(self, arrival: Arrival, model: Model, wanted: frozenset[str]) -> ValidReply:
        """The reply, if it stands on its own; raises Refused with a reason otherwise."""
        try:
            return self._read(arrival, model, wanted)
        except Refused:
            raise
        except Exception as error:  # whatever a hostile reply can set off, it ends here
            raise Refused(f"malformed: {type(error).__name__}") from None

    def _read(self, arrival: Arrival, model: Model, wanted: frozenset[str]) -> ValidReply:
        content = _content(arrival)
        named, free = self._arrays(content)
        metrics = self._metrics(content)
        weight = metrics.get(self.weight_key, 1.0)
        if isinstance(weight, list):
            raise Refused(f"metric-not-scalar:{self.weight_key}")
        theirs = Model(np.empty(0, np.float32)) if free else self.layout.model(named)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = np.asarray(theirs.params - (theirs.params if free else model.params), np.float32)
        extents = np.empty(0) if free else self.statistics.extents(theirs, model)
        signals = read_signals(content, wanted, metrics, self.metric_signals, self.widths)
        taken = _steps(metrics.get("num-steps", 0))
        rest = RecordDict(dict(wire.foreign(content).config_records))
        slot = arrival.sent.slot
        return ValidReply(slot, arrival, named, theirs, delta, metrics, float(weight), taken, signals, rest, extents)

    def _arrays(self, content: RecordDict) -> tuple[dict[str, NDArray[np.generic]], bool]:
        records = wire.foreign(content).array_records
        if len(records) != 1:
            raise Refused(f"arrays-{len(records)}-records")
        given: ArrayRecord = next(iter(records.values()))
        if self.check_shapes:
            return self.layout.read(given), False
        if len(given) > MOST_ARRAYS or not all(wire.fit_name(str(k)) for k in given):
            raise Refused("array-names")
        named = {str(k): wire.read_array(a, str(k)) for k, a in given.items()}
        if not named or not all(np.isfinite(v).all() for v in named.values() if v.dtype.kind == "f"):
            raise Refused("update-not-finite" if named else "arrays-empty")
        return named, True

    def _metrics(self, content: RecordDict) -> dict[str, float | list[float]]:
        records = wire.foreign(content).metric_records
        if len(records) != 1:
            raise Refused(f"metrics-{len(records)}-records")
        metrics = wire.numbers(next(iter(records.values())))
        if self.weight_needed and self.weight_key not in metrics:
            raise Refused(f"metric-missing:{self.weight_key}")
        return metrics

    def agree(self, replies: Mapping[int, ValidReply]) -> dict[int, str]:
        """Reasons against those that do not fit what the others send. `replies` stood every test of their own."""
        odd = self.vote.judge({slot: r.metrics for slot, r in replies.items()})
        usual = (
            usual_size([r.weight for r in replies.values()], self.weights),
            usual_size([r.norm for r in replies.values()], self.norms),
        )
        most = self.ratio * np.array(
            [usual_size(list(c), []) for c in zip(*self._extents(replies.values()), strict=True)]
        )
        reasons = {} if self.check_shapes else self._other_names(replies)
        for slot, reply in replies.items():
            if slot in reasons:
                continue
            if slot in odd:
                reasons[slot] = odd[slot]
            elif reply.weight > self.ratio * usual[0]:
                reasons[slot] = "weight-out-of-range"
            elif reply.norm > self.ratio * usual[1]:
                reasons[slot] = "update-too-large"
            elif (reply.extents > most).any():
                reasons[slot] = self.statistics.reasons[int(np.argmax(reply.extents > most))]
        return reasons

    def _extents(self, replies: Iterable[ValidReply]) -> list[list[float]]:
        """Those remembered and these; the newest last."""
        return self.extents + [r.extents.tolist() for r in replies]

    def _other_names(self, replies: Mapping[int, ValidReply]) -> dict[int, str]:
        """Where shapes are free: reasons against those whose arrays have other names than those of most."""
        counts = Counter(frozenset(r.arrays) for r in replies.values())
        most = max(counts, key=lambda names: (counts[names], names == set(self.layout.shapes)), default=frozenset())
        return {slot: "array-names" for slot, reply in replies.items() if set(reply.arrays) != most}

    def too_heavy(self, weights: Mapping[int, float]) -> set[int]:
        """Clients whose weight in an evaluation is too far above the usual one for the others to count."""
        usual = usual_size(list(weights.values()), [])  # what training is weighted by may be counted otherwise
        return {slot for slot, weight in weights.items() if weight > self.ratio * usual}

    def remember(self, used: Iterable[ValidReply]) -> None:
        """What is usual, for later rounds: the weights and norms of replies that were accepted in this one."""
        good = list(used)
        self.weights = (self.weights + [r.weight for r in good])[-REMEMBERED:]
        self.norms = (self.norms + [r.norm for r in good if r.norm > 0])[-REMEMBERED:]
        self.extents = self._extents(good)[-REMEMBERED:]

    def state_dict(self) -> Arrays:
        """What was learned of the deployment."""
        votes = {str(k): list(v) for k, v in self.vote.votes.items()}
        forms = {str(k): v for k, v in self.vote.forms.items()}
        holds = None if self.vote.holds is None else list(self.vote.holds)
        return {
            "weights": np.array(self.weights, np.float64),
            "norms": np.array(self.norms, np.float64),
            "extents": np.array(self.extents, np.float64).reshape(len(self.extents), self.measured),
            "keys": as_bytes({"votes": votes, "holds": holds, "forms": forms}),
        }

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.weights, self.norms = arrays["weights"].tolist(), arrays["norms"].tolist()
        known = arrays.get("extents", np.empty((0, 0)))  # older folders have none
        self.extents = known.tolist() if known.shape[1] == self.measured else []
        keys = from_bytes(arrays["keys"])
        self.vote.votes = {int(k): tuple(v) for k, v in keys["votes"].items()}
        self.vote.forms = {int(k): dict(v) for k, v in keys.get("forms", {}).items()}  # older folders have none
        self.vote.holds = None if keys["holds"] is None else tuple(keys["holds"])


def read_signals(
    content: RecordDict,
    wanted: frozenset[str],
    metrics: Mapping[str, float | list[float]],
    metric_signals: Mapping[str, str],
    widths: Mapping[str, int],
) -> dict[str, float | NDArray[np.float32]]:
    """The wanted signals of a reply: from our records, or from a metric that was declared to carry it."""
    scalars, vectors = wire.own(content)
    out: dict[str, float | NDArray[np.float32]] = {}
    for name in sorted(wanted):
        if name in vectors:
            if name not in widths:
                raise Refused(f"signal-not-scalar:{name}")
            out[name] = wire.read_array(vectors[name], name, shape=(widths[name],)).astype(np.float32)
            continue
        value = scalars.get(name, metrics.get(metric_signals.get(name, ""), None))
        if value is None and not catalogue.get(name).optional:
            raise Refused(f"signal-missing:{name}")
        if isinstance(value, list | str | bytes) or (name in widths and value is not None):
            raise Refused(f"signal-not-sane:{name}")
        out[name] = math.nan if value is None else float(value)
    return out


def read_evaluation(arrival: Arrival) -> dict[str, float | list[float]]:
    """The metrics of an evaluation reply; raises Refused."""
    try:
        records = wire.foreign(_content(arrival)).metric_records
        if len(records) != 1:
            raise Refused(f"metrics-{len(records)}-records")
        return wire.numbers(next(iter(records.values())))
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"malformed: {type(error).__name__}") from None


def _steps(said: float | list[float]) -> int:
    """Local steps as a client counts them; -1, which the engine refuses, where they do not fit into 64 bits."""
    return int(said) if not isinstance(said, list) and 0 <= said < 2**63 else -1


def _content(arrival: Arrival) -> RecordDict:
    message = arrival.message
    if message.metadata.src_node_id != arrival.sent.node:
        raise Refused("sender-is-not-the-one-asked")
    if not message.has_content():
        raise Refused("no-content")
    return message.content


def _length(value: float | list[float]) -> int:
    return len(value) if isinstance(value, list) else -1


def _usual_form(forms: list[int]) -> Container[int]:
    """Which lengths are believed: -1 (a number) unless most send lists; then the one of most, or any."""
    counts = Counter(forms)
    if 2 * counts[-1] >= len(forms):
        return {-1}
    length, count = counts.most_common(1)[0]
    return {length} if 2 * count > len(forms) else range(wire.MAX_METRICS + 1)


def usual_size(now: list[float], before: list[float]) -> float:
    """The lower median of the positive values, so that one of two cannot be the measure of both; none: no limit."""
    known = sorted(v for v in [*before, *now] if v > 0)
    return known[(len(known) - 1) // 2] if known else math.inf
