"""The table of commands: every entry exists, and the help says what the command itself says."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from fedcohort.cli import command_table
from fedcohort.cli.main import app, main


@pytest.mark.parametrize("name", command_table.COMMANDS)
def test_the_text_in_the_help_is_that_of_the_command(name):
    command = command_table.loaded(name)
    assert command.name == name
    assert " ".join(command_table.summary(*command_table.COMMANDS[name]).split()) == " ".join(command.help.split())


def test_every_command_module_is_in_the_table():
    folder = command_table.Path(command_table.__file__).parent
    assert {m for m, _ in command_table.COMMANDS.values()} == {f.stem for f in folder.glob("*_command.py")}


def test_the_help_imports_no_command(monkeypatch):
    loaded = [m for m in sys.modules if m.startswith("fedcohort.cli.") and m.endswith("_command")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(name in shown for name in command_table.COMMANDS)
    assert not [m for m in sys.modules if m.startswith("fedcohort.cli.") and m.endswith("_command")]


def test_a_typing_error_is_met_with_the_right_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedcohort", "rnu"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.count("Did you mean 'run'") == 1
