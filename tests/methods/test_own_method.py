"""A method of one's own that breaks its contract is answered in one sentence."""

import numpy as np
import pytest

from fedcohort import simulate
from fedcohort.errors import ContractError
from fedcohort.methods import FedAvg


class Forgetful(FedAvg):
    """Returns whatever it was told to return."""

    def __init__(self, made=None):
        super().__init__()
        self.made = made

    def aggregate(self, model, updates, context):
        super().aggregate(model, updates, context)
        return self.made


@pytest.mark.parametrize(("made", "what"), [(None, "nothing"), (np.zeros((3, 2)), "ndarray array")])
def test_what_is_no_aggregated_is_refused(made, what):
    with pytest.raises(ContractError) as caught:
        simulate(method=Forgetful(made), task="quadratic", rounds=1, cohort_size=2)
    said = str(caught.value)
    assert f"Forgetful.aggregate returned {what}" in said
    assert "write: return Aggregated(model, accepted)" in said
    assert "\n" not in said
