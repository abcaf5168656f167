"""Small clients to train, shared with the other room that trains."""

from tests.training_data import _one_thread, make_data, make_world  # noqa: F401
