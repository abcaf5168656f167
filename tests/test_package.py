"""What `import fedcohort` loads, and that the papers of the project agree with each other."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import fedcohort

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "sklearn", "numba", "pydantic", "typer", "rich", "matplotlib", "flwr", "ray", "scipy")


def test_import_loads_numpy_only():
    code = "import sys, fedcohort; fedcohort.__version__; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [m for m in HEAVY if m in loaded]


def test_session_and_selectors_load_numpy_only():
    code = "import sys, fedcohort; fedcohort.Session; fedcohort.make_selector('oort'); print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [m for m in HEAVY if m in loaded]


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == fedcohort.__version__
    assert f"version: {fedcohort.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "### Behaviour" in (ROOT / "CHANGELOG.md").read_text()


def test_public_names_exist():
    for name in fedcohort.__all__:
        assert getattr(fedcohort, name) is not None
    assert (Path(fedcohort.__file__).parent / "py.typed").exists()
