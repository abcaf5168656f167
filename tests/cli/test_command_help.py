"""Help texts with every description, `show` with every parameter, and what the shell completes."""

from __future__ import annotations

import contextlib
import io
import sys
from unittest import mock

import pytest

from fedcohort.cli.command_table import COMMANDS, loaded
from fedcohort.cli.main import main
from fedcohort.cli.parameter_table import parameter_rows
from fedcohort.registry import lookup as registry


def said(*args):
    """What the command prints."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        mock.patch.object(sys, "argv", ["fedcohort", *args]),
        contextlib.suppress(SystemExit),
    ):
        main()
    return out.getvalue()


def every(command, path):
    inner = getattr(command, "commands", {})
    if not inner:
        yield path, command
    for name, one in inner.items():
        yield from every(one, f"{path} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_has_a_description(name):
    for path, command in every(loaded(name), name):
        for parameter in command.params:
            assert parameter.help, f"{path}: {parameter.name}"


def test_the_help_shows_descriptions_of_arguments():
    assert "Run folders, folders that hold runs" in said("report", "--help")
    assert "A selector, method, world" in said("show", "--help")


@pytest.mark.parametrize("kind", ["selector", "method"])
def test_every_parameter_of_the_catalogue_has_a_meaning(kind):
    bare = [
        f"{name}({row.name})"
        for name in registry.names(kind)
        for row in parameter_rows(registry.load(kind, name))
        if not row.meaning or (not row.range and row.name not in ("inner", "clients"))
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("oort", ("explore", "0.9", "between 0 and 1", "eps", "never-tried clients")),
        ("fedyogi", ("beta_2", "0.99", "between 0 and 1 (1 is not allowed)", "second moment")),  # described in its base
        ("mixed-v1", ("alpha", "0.3", "positive and finite", "class-dirichlet")),
        ("digits-mlp", ("lr", "0.3", "validation", "between 0 and 1 (1 is not allowed)")),
        ("uniform", ("Parameters: none",)),
    ],
)
def test_show_lists_parameters(name, words):
    found = said("show", name)
    for word in words:
        assert word in found


@pytest.mark.parametrize(
    ("line", "first", "absent"),
    [
        ("run --selector oo", "oort", "uniform"),
        ("run --task DI", "digits-softmax", "quadratic"),
        ("sweep --worlds mi", "mixed-v1", "iid-v1"),
        ("show fedpr", "fedprox", "oort"),
        ("list s", "selectors", "worlds"),
        ("compare runs --metric ja", "jain", "terminal"),
        ("rep", "report", "run"),
        ("arena ad", "advise", "run"),
    ],
)
def test_the_shell_completes_names(line, first, absent, monkeypatch):
    monkeypatch.setenv("_FEDCOHORT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fedcohort {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    found = said().split()
    assert found[0] == first
    assert absent not in found
