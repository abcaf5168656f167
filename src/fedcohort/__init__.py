"""fedcohort chooses who trains next: client selection for federated learning.

Everything here loads on first use; `import fedcohort` itself needs NumPy only.

    simulate(...)       run any selector x method x world x task on this machine
    sweep(...)          all combinations of lists, in parallel; compare(...) says which differences are real
    Session             a selector at work, for your own loop: ask, tell, close
    make_selector(...)  "oort(explore=0.8)" to an object; also make_method
    Dataset, task_from  your own arrays as a task
    arena               rank a selector of your own against all others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset as Dataset
    from fedcohort.errors import FedcohortError as FedcohortError
    from fedcohort.experiment.api import simulate as simulate
    from fedcohort.experiment.api import sweep as sweep
    from fedcohort.experiment.api import task_from as task_from
    from fedcohort.experiment.config import RunConfig as RunConfig
    from fedcohort.experiment.metrics.comparison import compare as compare
    from fedcohort.experiment.tuning import optuna_objective as optuna_objective
    from fedcohort.protocols import Method as Method
    from fedcohort.protocols import Prober as Prober
    from fedcohort.protocols import Selector as Selector
    from fedcohort.protocols import Task as Task
    from fedcohort.protocols import World as World
    from fedcohort.registry.lookup import make_method as make_method
    from fedcohort.registry.lookup import make_selector as make_selector
    from fedcohort.registry.lookup import make_task_spec as make_task_spec
    from fedcohort.registry.lookup import make_world_spec as make_world_spec
    from fedcohort.rounds.history import History as History
    from fedcohort.rounds.policy import RoundPolicy as RoundPolicy
    from fedcohort.rounds.roster import Roster as Roster
    from fedcohort.rounds.session import Session as Session
    from fedcohort.selectors.base import StatefulSelector as StatefulSelector
    from fedcohort.tasks.torch_task import TorchTask as TorchTask
    from fedcohort.types import Cohort as Cohort
    from fedcohort.types import Model as Model
    from fedcohort.types import Outcome as Outcome
    from fedcohort.types import Plan as Plan
    from fedcohort.types import Round as Round
    from fedcohort.types import RoundResult as RoundResult
    from fedcohort.types import Signals as Signals
    from fedcohort.types import Updates as Updates
    from fedcohort.worlds.world_spec import WorldSpec as WorldSpec
else:
    __getattr__, __dir__, __all__ = exports(__name__, packages=("arena",))
