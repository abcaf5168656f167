"""Run every example as it is and keep what it printed: `python docs/_site/record_examples.py [NAME ...]`.

The pages of the gallery show it. Notebooks are executed by the small runner below and keep their outputs: text, and the
picture that a cell ends with. Nothing but the package itself is needed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from gallery import EXAMPLES, FLOWER, NOTEBOOKS, OUTPUT, TITLES, digest, notebook_cells

_TEMPORARY = re.compile(r"/\S*?/tmp\w*/|/tmp/")


def record(name: str) -> str:
    """Run a script in an empty folder; keep and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr}")
    said = _TEMPORARY.sub("", done.stdout)
    (OUTPUT / f"{name}.txt").write_text(f"script {digest(name)}\n{said}", encoding="utf-8")
    return said


def run_cells(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Execute the code cells of a notebook in one namespace; the outputs of each, in the notebook's own format."""
    space: dict[str, Any] = {"__name__": "__main__"}
    out = []
    for cell in cells:
        if cell["cell_type"] == "code":
            out.append(_run_cell("".join(cell["source"]), space))
    return out


def _run_cell(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    said, value = io.StringIO(), None
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(ast.Module(body, []), "<cell>", "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        text = said.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": _shown(value)})
    return outputs


def _shown(value: Any) -> dict[str, list[str]]:
    """A picture where the value is one, else its text."""
    figure = getattr(value, "figure", None)
    if figure is None:
        return {"text/plain": repr(value).splitlines(keepends=True)}
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    return {"image/svg+xml": drawn.getvalue().splitlines(keepends=True), "text/plain": [f"<{type(value).__name__}>"]}


def record_notebook(name: str) -> None:
    """Execute a notebook and keep its outputs in it."""
    path = EXAMPLES / f"{name}.ipynb"
    cells = notebook_cells(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        outputs = iter(run_cells(cells))
    count = 0
    for cell in cells:
        if cell["cell_type"] == "code":
            count += 1
            cell |= {"outputs": next(outputs), "execution_count": count}
    book = json.loads(path.read_text("utf-8")) | {"cells": cells}
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """All of them, or those named."""
    OUTPUT.mkdir(exist_ok=True)
    for name in names or [n for n in TITLES if n != FLOWER.name]:
        print(f"== {name}\n{record(name)}")
        if name in NOTEBOOKS:
            record_notebook(name)


if __name__ == "__main__":
    main(sys.argv[1:])
