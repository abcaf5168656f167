"""The closed-form task: quadratic clients, exact gradients, a known optimum.

Client i owns samples s with a centre mu_s (its label's centre) and has curvature a_i:

    F_i(w) = mean_s 1/2 sum_j a_ij (w_j - mu_sj)^2 = 1/2 sum_j a_ij (w_j - c_ij)^2 + spread_i,   c_i = mean_s mu_s
    grad F_i(w) = a_i (w - c_i)
    w* = sum_i n_i a_i c_i / sum_i n_i a_i          (per coordinate; minimises sum_i n_i F_i)

So label skew moves a client's optimum c_i, and label noise moves it away from where it should be: clients train
on the labels they see, `evaluate` uses the clean ones. One local epoch is one exact gradient step, whatever the
batch size. The plan's objective has no meaning here and is ignored; everything else of the plan holds.
Quadratics with exact gradients prove algebra, not the behaviour of deep networks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero, Interval, Positive
from fedcohort.core.rng import generator, uniform_at
from fedcohort.engines.steps import Stepper
from fedcohort.errors import UnknownName, check, check_fields
from fedcohort.protocols import ClientEvaluator, ServerEvaluator, Trained, World
from fedcohort.signals import SIGNALS, of_side
from fedcohort.types import Array, Arrays, Index, Mask, Model, Part, Plan, Updates

Double = NDArray[np.float64]

PROVIDES = of_side(SIGNALS, "client") | of_side(SIGNALS, "probe")
_LOSS_PROBES = ("probe_loss", "probe_batch_loss", "probe_val_loss", "probe_robust_loss")


class Quadratic:
    """N quadratic clients, ready to train. Make it with :meth:`from_arrays` or by binding the spec to a world.

    >>> task = Quadratic.from_arrays(a=np.ones(2), c=np.array([0.0, 4.0]), weight=np.array([3, 1]))
    >>> task.optimum
    array([1.])
    """

    name = "quadratic"
    provides = PROVIDES

    def __init__(
        self,
        curvature: Double,
        centre: Double,
        share: Double,
        samples: Index,
        *,
        clean: Double | None = None,
        part: Part | None = None,
        default: Plan | None = None,
    ) -> None:
        """`curvature` (N, d); `centre` (N, K, d) or (K, d); `share` (N, K) of each centre; `clean` the true share."""
        self._a = curvature
        self._centre = centre
        self._share = share
        self._clean = share if clean is None else clean
        self._n = samples
        self._part = part
        self._default = default or Plan(epochs=5, lr=0.1)
        self.classes = share.shape[1]
        self.last_layer = slice(0, curvature.shape[1])
        self.layout = (self.last_layer,)
        true, square = self._means(self._clean), self._means(self._clean, power=2)
        heavy = self._n[:, None] / max(int(self._n.sum()), 1) * self._a
        self._bend = heavy.sum(axis=0)
        self.optimum: Double = (heavy * true).sum(axis=0) / np.where(self._bend > 0.0, self._bend, 1.0)
        self.minimum = 0.5 * float((heavy * (square - 2.0 * self.optimum * true + self.optimum**2)).sum())

    @classmethod
    def from_arrays(cls, a: Array, c: Array, weight: Array, *, default: Plan | None = None) -> Quadratic:
        """Clients F_i(w) = 1/2 sum_j a_ij (w_j - c_ij)^2 with `weight[i]` samples; a and c are (N, d) or (N,)."""
        curvature, optimum = _matrix(a), _matrix(c)
        curvature = np.broadcast_to(curvature, optimum.shape).copy()
        samples = np.asarray(weight, np.int64)
        fits = samples.shape == optimum.shape[:1]
        check(fits, f"weight of shape {samples.shape}", "one number of samples per client", f"give {len(optimum)}")
        check(bool(np.all(curvature > 0)), "curvature a", "quadratic clients are convex: a > 0", "raise it")
        return cls(curvature, optimum[:, None], np.ones((samples.size, 1)), samples, default=default)

    def initial(self, rng: np.random.Generator) -> Model:
        """A standard normal start."""
        return Model(rng.standard_normal((self._a.shape[1],)).astype(np.float32))

    def plan(self) -> Plan:
        """The default local training: 5 exact gradient steps with rate 0.1."""
        return self._default

    def optima(self) -> Double:
        """Local optima c_i (N, d), as the clients' own labels place them."""
        return self._means(self._share)

    def objective(self, params: Array) -> float:
        """sum_i n_i F_i(w) / sum_i n_i with clean labels."""
        away = np.asarray(params, np.float64) - self.optimum
        return self.minimum + 0.5 * float((self._bend * away * away).sum())

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """One exact gradient step per epoch at each client."""
        epochs = plan.epochs_of(clients.size)
        n = self._n[clients]
        taken = np.where(n > 0, epochs, 0)
        order = np.argsort(-taken, kind="stable")
        start = model.params.astype(np.float64)
        stepper = Stepper(start, plan, order, clients.size)
        scale, pull = (v[order] for v in self._linear(clients, plan))
        with np.errstate(over="ignore", invalid="ignore"):
            for s in range(int(taken.max(initial=0))):
                active = int(np.count_nonzero(taken[order] > s))
                w = stepper.weights[:active]
                stepper.step(scale[:active] * w - pull[:active], active)
            weights = np.empty_like(stepper.weights)
            weights[order] = stepper.weights
            delta = (weights - start).astype(np.float32)
        broken = ~np.isfinite(delta).all(axis=1)
        failed = broken | (n == 0)
        delta[failed] = 0.0
        reasons = {int(k): "training became non-finite" for k in clients[broken]}
        reasons |= {int(k): "owns no samples" for k in clients[n == 0]}
        signals, extras = self._measure(model, clients, plan, weights, failed)
        updates = Updates(clients, delta, n.astype(np.float64), taken, extras=extras)
        return Trained(updates, signals, failed, reasons)

    def probe(self, model: Model, clients: Index, signals: frozenset[str], plan: Plan) -> Arrays:
        """Exact losses and gradients of this model; `probe_weights` is one local epoch away."""
        start = model.params.astype(np.float64)
        mean, _ = self._losses(start, clients)
        out: Arrays = {name: mean.copy() for name in _LOSS_PROBES if name in signals}
        if "probe_grad_norm" in signals:
            out["probe_grad_norm"] = np.linalg.norm(self._gradient(start, clients), axis=1)
        if "probe_accuracy" in signals:
            out["probe_accuracy"] = 1.0 / (1.0 + self._gap(start, clients))
        if "probe_weights" in signals:
            once = replace(plan, epochs=1, correction=None, measure=frozenset())
            out["probe_weights"] = model.params + self.train(model, clients, once).updates.delta
        return out

    def evaluate(self, model: Model, split: str) -> dict[str, float]:
        """Loss, gap to the weighted optimum, squared distance to it, and the score 1 / (1 + gap) as "accuracy"."""
        if split not in ("test", "validation"):
            raise UnknownName.among("split", split, ("test", "validation"))
        loss = self.objective(model.params)
        gap = loss - self.minimum
        away = float(np.sum((model.params - self.optimum) ** 2))
        return {"accuracy": 1.0 / (1.0 + gap), "loss": loss, "gap": gap, "distance": away}

    def client_accuracy(self, model: Model) -> Double:
        """1 / (1 + gap of each client to its own clean optimum): (N,)."""
        everybody = np.arange(self._n.size)
        return 1.0 / (1.0 + self._gap(model.params.astype(np.float64), everybody, self._clean))

    def server_evaluator(self) -> ServerEvaluator | None:
        """None: there are no samples to classify at the server."""
        return None

    def client_evaluator(self) -> ClientEvaluator | None:
        """None: there are no samples at the clients either."""
        return None

    def _means(self, share: Double, clients: Index | None = None, power: int = 1) -> Double:
        """Mean of the centres (to this power) under `share`, whose rows are these clients (None: everybody)."""
        if self._centre.ndim == 2:
            return np.asarray(share @ self._centre**power, np.float64)
        centre = self._centre if clients is None else self._centre[clients]
        return np.asarray(np.einsum("mk,mkd->md", share, centre**power), np.float64)

    def _losses(self, w: Array, clients: Index) -> tuple[Double, Double]:
        """Mean loss and mean squared loss over the samples; w is (d,) or (m, d)."""
        centre = self._centre if self._centre.ndim == 2 else self._centre[clients]
        away = np.atleast_2d(w)[:, None, :] - centre
        each = 0.5 * np.einsum(
            "md,mkd->mk", self._a[clients], np.broadcast_to(away * away, (clients.size, *away.shape[1:]))
        )
        share = self._share[clients]
        mean, square = (share * each).sum(axis=1), (share * each * each).sum(axis=1)
        none = self._n[clients] == 0
        mean[none] = square[none] = np.nan
        return mean, square

    def _gap(self, w: Double, clients: Index, share: Double | None = None) -> Double:
        share = self._share if share is None else share
        away = w - self._means(share[clients], clients)
        return np.where(self._n[clients] > 0, 0.5 * (self._a[clients] * away * away).sum(axis=1), np.nan)

    def _gradient(self, w: Double, clients: Index) -> Double:
        return self._a[clients] * (w - self._means(self._share[clients], clients))

    def _linear(self, clients: Index, plan: Plan) -> tuple[Double, Double]:
        """(scale, pull) with gradient = scale * w - pull; sample weights v make it mean_s v_s a (w - mu_s)."""
        a, share = self._a[clients], self._share[clients].copy()
        for row, k in enumerate(clients) if plan.sample_weight else ():
            v = (plan.sample_weight or {}).get(int(k))
            if v is None:
                continue
            seen = np.zeros(len(v), np.int64) if self._part is None else self._part.label[self._part.of(int(k))]
            share[row] = np.bincount(seen, weights=v, minlength=self.classes) / max(len(v), 1)
        return a * share.sum(axis=1, keepdims=True), a * self._means(share, clients)

    def _measure(self, model: Model, clients: Index, plan: Plan, weights: Array, failed: Mask) -> tuple[Arrays, Arrays]:
        start, want = model.params.astype(np.float64), plan.measure
        mean, square = self._losses(start, clients)
        n = self._n[clients].astype(np.float64)
        known: Arrays = {"train_loss": mean, "train_loss_sq": square, "loss_count": n, "utility": n * np.sqrt(square)}
        known |= {"loss_before": mean, "val_loss": mean, "robust_loss": mean}
        if "loss_after" in want:
            known["loss_after"], _ = self._losses(np.where(failed[:, None], 0.0, weights), clients)
        if want & {"grad_norm", "insight", "network_insight", "full_gradient"}:
            gradient = self._gradient(start, clients)
            known |= {"grad_norm": np.linalg.norm(gradient, axis=1), "insight": -0.1 * gradient}
            known["network_insight"] = known["insight"]
        signals = {name: np.array(value, np.float64) for name, value in known.items() if name in want}
        for value in signals.values():
            value[failed] = np.nan
        extras = {"full_gradient": gradient.astype(np.float32)} if "full_gradient" in want else {}
        return signals, extras


def _matrix(values: Array) -> Double:
    """(N, d) from (N, d) or (N,)."""
    given = np.asarray(values, np.float64)
    return given[:, None] if given.ndim == 1 else given


def _shares(label: Index, part: Part, classes: int) -> Double:
    """Share of each class at each client; zeros where it owns nothing."""
    owner = np.repeat(np.arange(part.sizes.size), part.sizes)
    counts = np.bincount(owner * classes + label, minlength=part.sizes.size * classes)
    table: Double = counts.reshape(-1, classes).astype(np.float64)
    return table / np.maximum(part.sizes, 1)[:, None]


@dataclass(frozen=True)
class QuadraticSpec:
    """The catalogue's quadratic task: class centres and a pool of labels that a world can hand out.

    `classes` centres of `dimension` coordinates, with standard deviation `spread`, and a `pool` of so many labels; each
    client's curvature is uniform between the two numbers of `curvature`; `default` is the local training.

    >>> QuadraticSpec(classes=4, pool=8).labels().size
    8
    """

    name: str = "quadratic"
    classes: Annotated[int, Interval(1, 100_000)] = 10
    dimension: Annotated[int, Interval(1, 1_000_000)] = 20
    pool: Annotated[int, Interval(1, 100_000_000)] = 20_000
    curvature: tuple[Positive, Positive] = (0.5, 2.0)
    spread: Annotated[float, Interval(-1e9, 1e9)] = 1.0
    seed: CountOrZero = 0
    default: Plan = field(default_factory=lambda: Plan(epochs=5, lr=0.1))
    about: ClassVar[str] = "closed-form quadratic clients: exact gradients and a known optimum, no data"

    def __post_init__(self) -> None:
        check_fields(self)
        numbers = self.classes * self.dimension
        check(numbers <= 10**9, f"{numbers:,} coordinates", "at most 1,000,000,000 are held here", "use fewer classes")
        low, high = self.curvature
        check(low <= high, f"curvature = {self.curvature}", "the first must not exceed the second", "use (0.5, 2.0)")

    def labels(self) -> Index:
        """A balanced pool, shuffled."""
        return generator(self.seed, "quadratic-labels").permutation(np.arange(self.pool) % self.classes)

    def owners(self) -> Index | None:
        """None: nobody owns these samples by nature."""
        return None

    def activities(self) -> Index | None:
        """None: there are no activities."""
        return None

    def bind(
        self, world: World, *, engine: str = "auto", workers: int = 0, device: str = "auto", precision: str = "float32"
    ) -> Quadratic:
        """Quadratic clients whose optima follow their label mix. There is one engine; the options are ignored."""
        centre = self.spread * generator(self.seed, "quadratic-centres").standard_normal((self.classes, self.dimension))
        low, high = self.curvature
        slots = np.arange(world.population, dtype=np.int64)
        columns = [uniform_at(self.seed, "quadratic-curvature", 0, slots, draw=j) for j in range(self.dimension)]
        return Quadratic(
            low + (high - low) * np.stack(columns, axis=1),
            centre,
            _shares(world.train.label, world.train, self.classes),
            world.train.sizes,
            clean=_shares(world.train.clean, world.train, self.classes),
            part=world.train,
            default=self.default,
        )
