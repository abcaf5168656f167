"""FedCA: combinatorial averaging. Only the clients whose models ensemble best go into the average.

    The FedCM paper: federated learning with combinatorial model averaging and multi-armed bandit based client
    sampling, sections 2 and 3.

Of the models w_k that came back (S), with logits g and a labelled validation set X at the server,

    S_opt = argmax over non-empty U of u(X, (1 / |U|) sum_U g(x; w_k))                                   (4)
    w+    = sum_{S_opt} p_k (N / |S_opt|) w_k                                                            (5)

u is the accuracy ("Dirac delta") or the log-likelihood ("classification loss").

Departures from the paper
    * The classification loss is printed as a loss under an argmax, of the logarithm of a logit: taken as the mean
      log-softmax of the averaged logits, maximised.
    * (5) sums to one only where all p_k are equal, and S_opt is adaptive: weights are p_k / sum_{S_opt} p_j by
      default. weights="paper" keeps (5), which rescales the whole model each round and is not idle-invariant.
    * Ties, which the paper leaves open: larger subset, then log-likelihood, then lowest ids.
    * Beyond `exhaustive_up_to` models the search is greedy (see subset_search); `info` says so.
    * S is who returned in time, not who was asked. A model with non-finite logits is left out before the search.
    * Any method can be the inner one: it gets S_opt as its cohort, without inclusion probabilities, which an adaptive
      choice makes meaningless.
    * In asynchronous rounds the w_k of (4) are the clients' own models, each from the model that it was sent; (5) then
      adds the updates of S_opt to the model of now, as any method does: an average of old models would undo progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, Interval
from fedcohort.errors import check, checked
from fedcohort.methods._parts.inner_method import MethodWrapper, local_params
from fedcohort.methods._parts.server_validation import logits_of, validation_evaluator
from fedcohort.methods._parts.subset_search import SCORES, best_subset
from fedcohort.methods.base import MethodBase, Step, multiplicity, total_samples, weighted_sum
from fedcohort.protocols import Aggregation, Method
from fedcohort.types import Mask, Model, Updates


class FedCA(MethodWrapper):
    """Average the subset of the cohort whose models ensemble best on validation data; the rest is FILTERED.

    Args:
        inner: the method that combines the subset; None: FedAvg.
        score: what the ensemble is judged by on validation data [u].
        weights: "normalised", or "paper" (eq. 5 as printed).
        exhaustive_up_to: up to so many models every subset is tried.

    >>> from fedcohort.testing import LinearEvaluator, example_round
    >>> model, updates, context = example_round(np.eye(3, 12), server_evaluator=LinearEvaluator())
    >>> FedCA().aggregate(model, updates, context).info["fedca_subsets"]
    7.0
    """

    name: ClassVar[str] = "fedca"
    reads_models = True

    @checked
    def __init__(
        self,
        *,
        inner: Method | None = None,
        score: Annotated[str, Choice(*SCORES)] = "accuracy",  # [u]
        weights: Annotated[str, Choice("normalised", "paper")] = "normalised",
        exhaustive_up_to: Annotated[int, Interval(0, 16)] = 12,  # 2^n subsets are searched
    ) -> None:
        check(
            weights == "normalised" or inner is None,
            f"weights = {weights!r} with an inner method",
            "the inner method brings its own weights",
            "leave one of the two out",
        )
        super().__init__(inner=PaperWeights() if weights == "paper" else inner)
        self.score, self.weights, self.exhaustive_up_to = score, weights, exhaustive_up_to

    def choose(self, model: Model, updates: Updates, context: Aggregation) -> tuple[Mask, dict[str, float]]:
        """Eq. 4."""
        evaluator = validation_evaluator(context.server_evaluator, self.name)
        logits = logits_of(evaluator, local_params(model, updates), "validation", updates.buffers)
        sound = np.isfinite(logits).all(axis=(1, 2))
        kept = np.zeros(len(updates), np.bool_)
        if not sound.any():
            return kept, {"fedca_size": 0.0}
        found = best_subset(
            logits[sound], evaluator.labels("validation"), score=self.score, exhaustive_up_to=self.exhaustive_up_to
        )
        kept[sound] = found.members
        return kept, {
            "fedca_size": float(kept.sum()),
            "fedca_score": found.accuracy if self.score == "accuracy" else found.log_likelihood,
            "fedca_accuracy": found.accuracy,
            "fedca_log_likelihood": found.log_likelihood,
            "fedca_subsets": float(found.evaluated),
            "fedca_exhaustive": float(found.exhaustive),
        }

    def narrowed(self, context: Aggregation, kept: Updates) -> Aggregation:
        """The inner method sees S_opt instead of S."""
        return replace(context, dispatched=kept.clients, inclusion={})


class PaperWeights(MethodBase):
    """Eq. 5 as printed, on the rows it is given."""

    name: ClassVar[str] = "fedca-paper-weights"
    exempt: Mapping[str, str] = MappingProxyType(
        dict.fromkeys(("idle", "idle_later", "single_client"), "the weights of eq. 5 do not sum to one")
    )

    needs = frozenset({"samples"})

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """sum_k p_k (N / |S_opt|) w_k, written as a change of w."""
        total = total_samples(context)
        times = multiplicity(updates, context)
        weight = np.asarray(updates.weight, np.float64) * times / total * context.population / times.sum()
        scale = float(weight.sum())
        change = (scale - 1.0) * model.params.astype(np.float64) + weighted_sum(weight, updates.delta)
        return Step(change, np.ones(len(updates), np.bool_), {"fedca_weight_sum": scale})
