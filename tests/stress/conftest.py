"""Flower tells a line about every refused reply; here there are thousands."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet():
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)
