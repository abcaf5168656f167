"""What `import fedcohort` loads, and that the files of the project agree with each other."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import fedcohort

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "sklearn", "numba", "typer", "rich", "matplotlib", "flwr", "ray", "scipy", "tomli_w", "optuna")


def loaded_by(code: str) -> set[str]:
    """The modules in a fresh process after this code."""
    code = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_loads_numpy_only():
    assert not loaded_by("import fedcohort; fedcohort.__version__") & set(HEAVY)


def test_importing_a_package_loads_numpy_only():
    """Its names load when they are used."""
    packages = [m.name for m in pkgutil.walk_packages(fedcohort.__path__, "fedcohort.") if m.ispkg]
    assert "fedcohort.flower" in packages
    assert not loaded_by(f"import {', '.join(packages)}") & set(HEAVY)


def test_session_and_selectors_load_numpy_only():
    assert not loaded_by("import fedcohort; fedcohort.Session; fedcohort.make_selector('oort')") & set(HEAVY)


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == fedcohort.__version__
    assert f"version: {fedcohort.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "### Behaviour" in (ROOT / "CHANGELOG.md").read_text()


def test_no_placeholder_address():
    assert ".example" not in (ROOT / "pyproject.toml").read_text()


def test_types_are_shipped():
    assert (Path(fedcohort.__file__).parent / "py.typed").exists()
