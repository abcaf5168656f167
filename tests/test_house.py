"""The order of the house: every name once, tests mirror src, short files, foreign packages in few places."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "fedcohort"
TEMPLATE = SRC / "flower" / "dev" / "template"  # a project of its own, copied for a new user of Flower
FILES = [path for path in sorted(SRC.rglob("*.py")) if TEMPLATE not in path.parents]

SHARED_FILE_NAMES = {"__init__", "__main__", "base", "catalogue"}
BANNED = {"user", "party", "node", "participant", "arm", "manager", "util", "helper", "common"}
MAX_FILE, MAX_FUNCTION = 400, 60
# What is longer than that today, with its length: a number may only fall, and an entry goes when it is under the limit.
LONG_FILES = {
    "testing/method_contract.py": 414,
    "testing/selector_contract.py": 404,
}
LONG_FUNCTIONS: dict[str, int] = {}

# Package -> the beginnings of the paths that may import it, at run time or for types only.
HOMES = {
    "click": ("cli/",),
    "cryptography": ("flower/dev/",),
    "flwr": ("flower/",),
    "h11": ("dashboard/",),
    "llvmlite": ("engines/fused/",),
    "matplotlib": ("report/plots/", "rounds/history"),
    "mlflow": ("report/export/",),
    "numba": ("engines/fused/",),
    "optuna": ("experiment/tuning",),
    "pandas": ("arena/leaderboard", "data/own_tables", "rounds/history_view"),
    "pyarrow": ("data/own_tables", "report/export/"),
    "ray": ("engines/ray_", "experiment/ray_"),
    "rich": ("cli/", "report/plots/"),
    "scipy": ("experiment/metrics/",),
    "sqlite3": ("storage/",),
    "starlette": ("dashboard/",),
    "tensorboardX": ("report/export/",),
    "threadpoolctl": ("core/threads",),
    "tomli_w": ("experiment/",),
    "torch": ("engines/torch_", "engines/module_translation", "tasks/torch_task"),
    "typer": ("cli/",),
    "uvicorn": ("dashboard/",),
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def place(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def modules(path: Path) -> set[str]:
    """The dotted names of all modules that a file imports, inside functions and for types too."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            name = node.args[0]
            found |= {name.value} if isinstance(name, ast.Constant) and isinstance(name.value, str) else set()
    return found


def misplaced(where: str, imported: set[str]) -> list[str]:
    """Which of these modules a file at this place must not import."""
    found = []
    for package in sorted({name.partition(".")[0] for name in imported}):
        known = package in sys.stdlib_module_names or package in ("numpy", "fedcohort", "")
        if not (where.startswith(HOMES[package]) if package in HOMES else known):
            found.append(f"{where}: {package}")
    return found


def twice(names: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in names.items() if len(places) > 1}


def words(name: str) -> set[str]:
    """The words of snake_case and CamelCase, in the singular."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word.lower() for word in found} | {word.lower().removesuffix("s") for word in found}


def too_long(lengths: dict[str, int], limit: int, known: dict[str, int]) -> list[str]:
    grown = [f"{name}: {n} lines" for name, n in lengths.items() if n > max(limit, known.get(name, 0))]
    return grown + [f"{name}: delete its entry here" for name in known if lengths.get(name, 0) <= limit]


def test_a_file_name_occurs_once():
    names = defaultdict(list)
    for path in FILES:
        if path.stem not in SHARED_FILE_NAMES:
            names[path.stem].append(place(path))
    assert twice(names) == {}


def test_a_class_name_occurs_once():
    names = defaultdict(list)
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                names[node.name].append(place(path))
    assert twice(names) == {}


def test_tests_mirror_src():
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [f.as_posix() for f in sorted(folders) if f.parts[:1] != ("stress",) and not (SRC / f).is_dir()] == []


def test_no_file_is_too_long():
    lengths = {place(path): len(path.read_text().splitlines()) for path in FILES}
    assert too_long(lengths, MAX_FILE, LONG_FILES) == []


def test_no_function_is_too_long():
    lengths = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths[f"{place(path)}:{node.name}"] = (node.end_lineno or node.lineno) - node.lineno + 1
    assert too_long(lengths, MAX_FUNCTION, LONG_FUNCTIONS) == []


def test_no_banned_word_in_names():
    found = []
    for path in FILES:
        banned = BANNED - {"node"} if place(path).startswith("flower/") else BANNED
        classes = [node.name for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
        found += [f"{place(path)}: {name}" for name in (path.stem, *classes) if words(name) & banned]
    assert found == []


def test_foreign_packages_are_imported_in_their_places_only():
    assert [problem for path in FILES for problem in misplaced(place(path), modules(path))] == []


def test_core_imports_numpy_only():
    core = [path for path in FILES if place(path).startswith("core/")]
    allowed = sys.stdlib_module_names | {"numpy"}
    outside = {
        f"{place(path)}: {name}"
        for path in core
        for name in modules(path)
        if name.partition(".")[0] not in allowed and not name.startswith("fedcohort.core")
    }
    assert outside <= {"core/threads.py: threadpoolctl"}


def test_nobody_inside_comes_through_the_front_door():
    """`from fedcohort import x` takes a module or the version: the import contracts see those."""
    found = []
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "fedcohort":
                found += [f"{place(path)}: {a.name}" for a in node.names if not _module_or_version(a.name)]
            elif isinstance(node, ast.Import):
                found += [f"{place(path)}: import fedcohort" for a in node.names if a.name == "fedcohort"]
    assert found == []


def _module_or_version(name: str) -> bool:
    return name == "__version__" or (SRC / name).is_dir() or (SRC / f"{name}.py").is_file()


def test_the_checks_see_what_they_look_for():
    assert misplaced("report/glance.py", {"sqlite3", "json", "numpy", "fedcohort.types"}) == [
        "report/glance.py: sqlite3"
    ]
    assert misplaced("engines/factory.py", {"torch.nn"}) == ["engines/factory.py: torch"]
    assert misplaced("engines/torch_vmap.py", {"torch.func", ".interface"}) == []
    assert misplaced("data/known.py", {"pandas"}) == ["data/known.py: pandas"]
    assert words("SlotManager") >= {"slot", "manager"}
    assert words("array_utils") >= {"array", "util"}
    assert not words("Harmonic") & BANNED
    assert too_long({"a": 401, "b": 10, "c": 500}, 400, {"b": 420, "c": 500}) == [
        "a: 401 lines",
        "b: delete its entry here",
    ]
    assert twice({"a": ["x"], "b": ["x", "y"]}) == {"b": ["x", "y"]}
