"""Static gates over src: nothing that runs foreign code, no finding of the dependency audit (bandit is in ruff)."""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {"torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "np.fromfile", "pd.read_pickle"}


def findings(source: str) -> list[str]:
    """What must not be in a file, with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            found += [f"{line}: import {a.name}" for a in node.names if a.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{a.name}" for a in node.names}
            bad = (node.module or "").partition(".")[0] in MODULES or names & ATTRIBUTES
            found += [f"{line}: from {node.module} import"] if bad else []
        elif isinstance(node, ast.Call):
            found += [f"{line}: {what}" for what in _call(node)]
    return found


def _call(node: ast.Call) -> list[str]:
    name = ast.unparse(node.func)
    keywords = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg}
    found = [name] if name in CALLS or name in ATTRIBUTES else []
    found += ["shell=True"] if keywords.get("shell", "False") != "False" else []
    pickles = keywords.get("allow_pickle")
    loads = name.rpartition(".")[2] in ("load", "save", "savez", "read_array") and name.startswith(("np.", "numpy."))
    if pickles not in (None, "False") or (loads and pickles != "False" and "savez" not in name):
        found.append(f"{name} without allow_pickle=False")
    return found


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_nothing_in_src_runs_foreign_code(path):
    assert findings(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "torch.load(f)",
        "from torch import load",
        "yaml.load(text)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=flag)",
        "np.load(f)",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
        "os.system(x)",
    ],
)
def test_the_gate_sees_it(line):
    assert findings(f"def f():\n    {line}\n")


def test_the_gate_lets_honest_code_pass():
    assert findings("model.eval()\nnp.load(f, allow_pickle=False)\nsubprocess.run([x])\nre.compile(x)\n") == []


def flawed(report: dict, direct: set[str]) -> list[str] | None:
    """Flaws that have a remedy, in dependencies that we name ourselves; None where nothing could be looked up."""
    looked_up = [d for d in report["dependencies"] if "vulns" in d]
    if not looked_up:
        return None
    ours = [d for d in looked_up if d["name"].lower().replace("_", "-") in direct]
    return [f"{d['name']} {d['version']}: {v['id']}" for d in ours for v in d["vulns"] if v["fix_versions"]]


def test_flaws_are_read_off_an_audit():
    fixed, open_end = {"id": "A", "fix_versions": ["2"]}, {"id": "B", "fix_versions": []}
    report = {
        "dependencies": [
            {"name": "NumPy", "version": "1", "vulns": [fixed, open_end]},
            {"name": "other", "version": "1", "vulns": [fixed]},
            {"name": "torch", "skip_reason": "not found"},
        ]
    }
    assert flawed(report, {"numpy", "torch"}) == ["NumPy 1: A"]
    assert flawed({"dependencies": report["dependencies"][2:]}, {"torch"}) is None


def test_dependency_audit():
    """pip-audit asks the network; where it does not get there this test is skipped by name."""
    pytest.importorskip("pip_audit", reason="dependency audit: pip-audit is not installed here")
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--timeout", "5", "-f", "json"]
    try:
        run = subprocess.run([*command, "--skip-editable"], capture_output=True, text=True, timeout=90, check=False)
        report = json.loads(run.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        pytest.skip("dependency audit: no answer from the network")
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    found = flawed(report, {re.split(r"[^A-Za-z0-9-]", name)[0].lower() for name in named})
    if found is None:
        pytest.skip("dependency audit: the network has no list of flaws")
    assert found == []
