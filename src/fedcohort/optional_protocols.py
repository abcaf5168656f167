"""What some selectors and methods promise beside their protocol. Import the names from `fedcohort.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from fedcohort.types import Index, Round


@runtime_checkable
class Prober(Protocol):
    """A selector that asks some clients a cheap question before it chooses, and pays for it.

    >>> from fedcohort.selectors import PowerOfChoice, Uniform
    >>> isinstance(PowerOfChoice(), Prober), isinstance(Uniform(), Prober)
    (True, False)
    """

    def probe(self, rnd: Round, rng: np.random.Generator, /) -> Index:
        """Whom to probe this round; the answers arrive in `Round.probed`."""
        ...


@runtime_checkable
class ScoreReader(Protocol):
    """Optional, for selectors: learns from `RoundResult.score`. A session warns once where a round has none.

    >>> from fedcohort.selectors import FlashRL, Uniform
    >>> FlashRL().reads_score, Uniform().reads_score
    (True, False)
    """

    @property
    def reads_score(self) -> bool:
        """Whether it does. Usually a class attribute."""
        ...


@runtime_checkable
class SignalLearner(Protocol):
    """Optional, for selectors: learns otherwise, or nothing, without these signals. A session says so once.

    >>> from fedcohort.selectors import Flash
    >>> Flash(refresh="none").learns_from["model_gain"]
    "learns from nothing else: give the server validation data, or probe clients with refresh='selected'"
    """

    @property
    def learns_from(self) -> Mapping[str, str]:
        """Signal -> what the selector does where there is none of it, and the remedy: the rest of a sentence."""
        ...


@runtime_checkable
class Frugal(Protocol):
    """Optional, for selectors: other arguments read less. A session that refuses a signal names them as a remedy.

    >>> from fedcohort.selectors import Flash
    >>> Flash().does_without
    {'model_gain': "preset='robust'"}
    """

    @property
    def does_without(self) -> Mapping[str, str]:
        """Signal -> the arguments with which the selector does not read it."""
        ...


@runtime_checkable
class Exempting(Protocol):
    """Optional, for selectors and methods: names the clauses of the contract kit that cannot hold for it."""

    @property
    def exempt(self) -> Mapping[str, str]:
        """Clause -> why it does not apply."""
        ...


@runtime_checkable
class ModelReader(Protocol):
    """Optional, for methods: looks at the clients' own models, not only at their updates.

    In asynchronous rounds such a method finds the parameters that each update was computed on in
    `Updates.extras["sent"]` (m, p): the model that it is given has moved since. In synchronous rounds it is that model.

    >>> from fedcohort.methods import FedAvg, FedCA
    >>> FedCA().reads_models, FedAvg().reads_models
    (True, False)
    """

    @property
    def reads_models(self) -> bool:
        """Whether it does. Usually a class attribute."""
        ...


@runtime_checkable
class ProfileReader(Protocol):
    """Optional, for methods: reads profile signals of all clients in `aggregate`, such as how many samples they have.

    >>> from fedcohort.methods import FedAvg
    >>> sorted(FedAvg(form="original").needs)
    ['samples']
    """

    @property
    def needs(self) -> frozenset[str]:
        """Which. Usually a class attribute."""
        ...
