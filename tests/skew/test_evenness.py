"""Are clients' mixes even: what samples can say, and what they cannot."""

from __future__ import annotations

import numpy as np

from fedcohort.skew.evenness import evenness


def test_one_sample_says_nothing_of_a_clients_mix():
    """Each of 300 clients has one class, and one sample: nothing can be said; with two samples it shows."""
    one = np.eye(3, dtype=np.int64)[np.arange(300) % 3]
    found = evenness(one)
    assert (found.verdict, found.most) == ("open", 1.0)
    assert found.text().startswith("Undecided: no skew was found, but with so few samples up to 1.000 bits")
    assert evenness(2 * one).verdict == "skewed"


def test_clients_of_one_sample_change_nothing_for_the_others():
    many = np.array([[500, 500], [510, 490], [495, 505]])
    with_few = np.concatenate([many, np.eye(2, dtype=np.int64)])
    assert evenness(with_few).mean == evenness(many).mean
    assert evenness(with_few).verdict == "even"
    assert evenness(np.array([[5, 5], [1, 0]])).verdict == "open"  # one client cannot differ from the others
