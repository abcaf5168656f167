"""The gallery: every script and notebook in examples/ as a page with what it printed when it was last recorded.

`python docs/_site/record_examples.py` records; the first line of a record is the digest of the script, and a test fails
when the script has changed since.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OUTPUT = EXAMPLES / "output"
TITLES = {
    "own_selector": "A selector of your own",
    "own_torch_model": "A torch model of your own",
    "own_data": "Your own data and fleet",
    "three_heterogeneities": "Skew, noise and slow clients at once",
    "analyst_skew": "Skewness analytics on its own",
    "asynchronous_rounds": "Asynchronous rounds",
    "flower_app": "A Flower app",
    "sweep_and_report": "A sweep and its report",
    "tune_with_optuna": "An Optuna search",
    "student": "Own selector, own network, six seeds",
}
NOTEBOOKS = ("own_selector", "own_torch_model")
FLOWER = EXAMPLES / "flower_app"


def titles() -> dict[str, str]:
    """Page -> its title, in the order of the gallery."""
    out = {"examples/index.md": "All examples"} | {f"examples/{name}.md": title for name, title in TITLES.items()}
    return out | {f"examples/{name}_notebook.md": f"Notebook: {TITLES[name].lower()}" for name in NOTEBOOKS}


def pages() -> dict[str, str]:
    """Every page of the gallery."""
    out = {"examples/index.md": _index()}
    out |= {f"examples/{name}_notebook.md": _notebook(name)[0] for name in NOTEBOOKS}
    for name, title in TITLES.items():
        out[f"examples/{name}.md"] = _flower(title) if name == FLOWER.name else _script(name, title)
    return out


def attachments() -> dict[str, str]:
    """Files that pages link to: the notebooks, and the pictures in them."""
    found = {f"examples/{name}.ipynb": (EXAMPLES / f"{name}.ipynb").read_text("utf-8") for name in NOTEBOOKS}
    for name in NOTEBOOKS:
        found |= {f"examples/{file}": text for file, text in _notebook(name)[1].items()}
    return found


def _notebook(name: str) -> tuple[str, dict[str, str]]:
    """A notebook as a page, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook_cells(name):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/svg+xml" in output["data"]:
                file = f"{name}-{len(pictures)}.svg"
                pictures[file] = "".join(output["data"]["image/svg+xml"])
                parts.append(f"![What the cell draws]({file})")
    parts.insert(1, f"This is a [notebook]({name}.ipynb) to download, with its outputs; also as a [script]({name}.md).")
    return "\n\n".join(parts) + "\n", pictures


def digest(name: str) -> str:
    """Of a script as it is now."""
    return hashlib.sha256((EXAMPLES / f"{name}.py").read_bytes()).hexdigest()[:16]


def recorded(name: str) -> tuple[str, str]:
    """(digest of the script that was recorded, what it printed)."""
    first, _, text = (OUTPUT / f"{name}.txt").read_text("utf-8").partition("\n")
    return first.removeprefix("script "), text


def described(name: str) -> tuple[str, str]:
    """(the question that an example answers, the rest of its docstring)."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text("utf-8"))) or ""
    first, _, rest = text.partition("\n\n")
    return " ".join(first.split()), rest


def _index() -> str:
    lines = [
        "# Examples",
        "",
        "Scripts to copy from. Each runs in under a minute on two cores, needs no download, and is run by the tests.",
        "",
        "```console",
        "$ python examples/own_selector.py",
        "```",
        "",
        "| example | the question | |",
        "|---|---|---|",
    ]
    for name, title in TITLES.items():
        question = "The same selector in a real deployment" if name == FLOWER.name else described(name)[0]
        also = f"[notebook]({name}_notebook.md)" if name in NOTEBOOKS else ""
        lines.append(f"| [{title}]({name}.md) | {question} | {also} |")
    return "\n".join(lines) + "\n"


def _script(name: str, title: str) -> str:
    question, rest = described(name)
    source = (EXAMPLES / f"{name}.py").read_text("utf-8")
    code = source.partition('"""\n\n')[2] if source.startswith('"""') else source
    also = [f"Also as a [notebook]({name}_notebook.md)."] if name in NOTEBOOKS else []
    _, printed = recorded(name)
    parts = [
        f"# {title}",
        question,
        *_prose(rest),
        *also,
        "## What it prints",
        f"```text\n{printed.rstrip()}\n```",
        f"## `examples/{name}.py`",
        f"```python\n{code.strip()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _prose(text: str) -> list[str]:
    """The paragraphs of a docstring; indented ones are commands."""
    out = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            lines = "\n".join(f"$ {line.strip()}" for line in paragraph.splitlines())
            out.append(f"```console\n{lines}\n```")
        else:
            out.append(" ".join(paragraph.split()))
    return out


def _flower(title: str) -> str:
    readme = (FLOWER / "README.md").read_text("utf-8").partition("\n")[2].strip()
    parts = [f"# {title}", readme.replace("\n## ", "\n### ")]
    for path in ("flower_app/server_app.py", "flower_app/client_app.py", "flower_app/task.py", "pyproject.toml"):
        language = "toml" if path.endswith("toml") else "python"
        parts += [
            f"## `examples/flower_app/{path}`",
            f"```{language}\n{(FLOWER / path).read_text('utf-8').strip()}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def notebook_cells(name: str) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    found: list[dict[str, Any]] = json.loads((EXAMPLES / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return found
