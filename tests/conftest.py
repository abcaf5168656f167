"""What all tests share: the tests that start real deployments run when asked for."""

from __future__ import annotations

import gc
import os

import pytest

# Thousands of short runs of the same code: coverage would cost half of their time again and find nothing new.
UNCOVERED = ("tests/testing/", "tests/stress/", "tests/flower/test_parity.py", "tests/engines/")


def pytest_collection_modifyitems(items):
    """Real SuperLinks, SuperNodes and Ray clusters take minutes: `make test-deployment` runs them."""
    for item in items:
        if item.nodeid.startswith(UNCOVERED):
            item.add_marker(pytest.mark.no_cover)
    if os.environ.get("FEDCOHORT_DEPLOYMENT"):
        return
    skip = pytest.mark.skip(reason="starts a real deployment: run `make test-deployment`")
    for item in items:
        if item.get_closest_marker("deployment"):
            item.add_marker(skip)


def pytest_collection_finish():
    """Thousands of tests and large libraries live to the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
