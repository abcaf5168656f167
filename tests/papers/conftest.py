"""The tiny study, run once for each file of tests."""

import pytest

from fedcohort.experiment.store import Store
from fedcohort.papers import reproduce

from .tiny_study import tiny


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("reproduce"))
    work = reproduce.plan(tiny(), "smoke")
    return work, store, reproduce.perform(work, store, workers=1)
