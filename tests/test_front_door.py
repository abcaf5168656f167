"""The front door: what every package exports, that it is documented, and that its examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedcohort.registry.catalogue import ENTRIES

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGES = sorted(
    ".".join(path.parent.relative_to(SRC).parts)
    for path in (SRC / "fedcohort").rglob("__init__.py")
    if "template" not in path.parts
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

NO_EXPORTS = {
    "fedcohort.cli": "used through the command",
    "fedcohort.dashboard": "used through `fedcohort dashboard`",
    "fedcohort.flower.client": "exported by fedcohort.flower",
    "fedcohort.flower.server": "exported by fedcohort.flower",
    "fedcohort.methods._parts": "private",
    "fedcohort.papers.fedacs": "studies are found by id",
    "fedcohort.papers.fedcm": "studies are found by id",
    "fedcohort.papers.flash": "studies are found by id",
    "fedcohort.papers.flash_rl": "studies are found by id",
    "fedcohort.papers.hetero_select": "studies are found by id",
    "fedcohort.selectors._parts": "private",
}
EXPORTING = [name for name in PACKAGES if name not in NO_EXPORTS]

# Exported classes and functions without an example of their own, by reason.
NO_EXAMPLE = {
    "a protocol: implemented, not called": ("Backend", "Engine", "Task", "TaskSpec", "World"),
    "a base class: its subclasses have examples": ("Availability", "Latency", "Noise", "Partition", "RunSettings"),
    "a test class: the docstring of fedcohort.testing shows the use": (
        "BackendContract",
        "EngineContract",
        "LinearEvaluator",
        "MethodContract",
        "TaskContract",
        "WorldContract",
    ),
    "made or returned by another function, which has the example": (
        "BuiltWorld",
        "Comparison",
        "Federation",
        "FusedEngine",
        "NumpyEngine",
        "Record",
        "ReferenceEngine",
        "ReportFiles",
        "RoundEngine",
        "RunRecord",
        "RunResult",
        "Simulation",
        "Status",
        "StoredRun",
        "Verified",
        "SweepOutcome",
        "Trace",
        "VmapEngine",
        "WorkersEngine",
        "measure",
    ),
    "a part of a study; papers/fedcm/fedcm_table3.py is a worked example": ("Cell", "Claim", "Quantity", "Study"),
    "reads or writes files, or needs processes or an optional dependency; docs/ has a worked example": (
        "CohortApp",
        "CohortStrategy",
        "Deployment",
        "MLflow",
        "Outputs",
        "TensorBoard",
        "Writers",
        "draw_skew",
        "draw_world",
        "instructions",
        "load_trace",
        "make_report",
        "write_project",
    ),
}


def init_of(package: str) -> ast.Module:
    return ast.parse((SRC / Path(*package.split(".")) / "__init__.py").read_text())


def for_types(package: str) -> dict[str, str]:
    """name -> module, as the TYPE_CHECKING block has it."""
    found = {}
    for block in init_of(package).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                assert isinstance(line, ast.ImportFrom)
                for alias in line.names:
                    assert alias.asname == alias.name, f"{alias.name}: write `import {alias.name} as {alias.name}`"
                    found[alias.name] = str(line.module)
    return found


def documented() -> dict[str, list[str]]:
    """package -> names, as docs/api.md has them."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / "api.md").read_text().splitlines():
        if heading := re.fullmatch(r"## (fedcohort[\w.]*)", line):
            names = found.setdefault(heading[1], [])
        elif entry := re.fullmatch(r"- `(\w+)`: .+\.", line):
            names.append(entry[1])
        else:
            assert not line.startswith("- "), f"not of the form - `Name`: what it is for. {line}"
    return found


def exported() -> dict[str, object]:
    """Every exported class and function, once."""
    found = {}
    for package in EXPORTING:
        for name in importlib.import_module(package).__all__:
            found[name] = getattr(importlib.import_module(package), name)
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


def with_examples() -> list[str]:
    """Every module with an example in it."""
    files = [path for path in sorted((SRC / "fedcohort").rglob("*.py")) if ">>> " in path.read_text()]
    return [".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for path in files]


@pytest.mark.parametrize("package", EXPORTING)
def test_types_run_time_and_all_agree(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(for_types(package))
    assert set(module.__all__) <= set(dir(module))
    for name, home in for_types(package).items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", EXPORTING)
def test_no_export_has_the_name_of_a_module_beside_it(package):
    """Importing the module would replace the export."""
    folder = SRC / Path(*package.split("."))
    modules = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}
    assert not modules & set(for_types(package))


def test_packages_without_exports_have_none():
    assert set(NO_EXPORTS) <= set(PACKAGES)
    assert [name for name in NO_EXPORTS if hasattr(importlib.import_module(name), "__all__")] == []


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"module 'fedcohort.selectors' has no attribute 'Ort'"):
        importlib.import_module("fedcohort.selectors").Ort  # noqa: B018


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_whole_catalogue_is_exported(entry):
    module, _, name = entry.target.partition(":")
    package = importlib.import_module(f"fedcohort.{entry.kind}s")
    assert name in package.__all__
    assert getattr(package, name) is getattr(importlib.import_module(module), name)


def test_exported_names_are_exactly_the_documented_ones():
    assert documented() == {package: sorted(for_types(package)) for package in documented()}
    assert sorted(documented()) == EXPORTING


def test_every_export_has_a_docstring_with_an_example():
    values = exported()
    assert [name for name, value in values.items() if not inspect.getdoc(value)] == []
    lacking = {name for name, value in values.items() if ">>> " not in (inspect.getdoc(value) or "")}
    excused = set(itertools.chain(*NO_EXAMPLE.values()))
    assert lacking - excused == set()
    assert excused <= set(values)


@pytest.mark.parametrize("module", with_examples())
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=FLAGS)
    assert tried
    assert not failed


WITHOUT_FLWR = """
import sys
sys.modules["flwr"] = None
import fedcohort.flower
try:
    fedcohort.flower.{name}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("name", ["CohortApp", "CohortStrategy"])
def test_flower_asks_for_its_extra_when_a_name_is_used(name):
    code = WITHOUT_FLWR.format(name=name)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    remedy = "install it with: pip install 'fedcohort[flower]'."
    assert said == f"MissingExtra fedcohort.flower.{name}: needs the extra 'flower'; {remedy}\n"


def test_every_name_loads_without_torch():
    """What needs torch says so when it is made."""
    pytest.importorskip("flwr")
    names = [f"{package}:{name}" for package in EXPORTING for name in for_types(package)]
    load = "for name in sys.argv[1:]: pkgutil.resolve_name(name)"
    code = f"import pkgutil, sys; sys.modules['torch'] = None\n{load}"
    subprocess.run([sys.executable, "-c", code, *names], check=True)
