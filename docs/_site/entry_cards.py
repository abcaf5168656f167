"""What is generated at the top of every selector's and method's page, from the registry and the docstrings alone.

Use, family, paper, signals, privacy, cost and time of a selection; parameters with default, range, symbol and meaning;
departures from the paper; the formulas. `fedcohort show NAME` prints the same. Nothing of it is typed on the page.
"""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fedcohort.cli.parameter_table import parameter_rows, prose
from fedcohort.errors import FedcohortError
from fedcohort.registry import lookup as registry
from fedcohort.registry.catalogue import CatalogueEntry
from fedcohort.signals import PRIVACY, PRIVACY_LEVELS, SIGNALS, privacy

ROOT = Path(__file__).parents[2]
_ADDRESS = re.compile(r"(https?://[^\s)]+[^\s).,;])")


def card(kind: str, name: str) -> str:
    """The generated part of a page."""
    found = registry.entry(kind, name)
    made: Any = registry.load(kind, name)
    told = module_parts(made)
    parts = [_use(kind, found), _facts(kind, found, made, told["paper"])]
    parts += [_parameters(made), _departures(told)]
    if told["formulas"]:
        formulas = "\n".join(f"    {line}".rstrip() for line in told["formulas"].splitlines())
        parts.append(f'??? abstract "Formulas, numbered as in the source"\n    ```text\n{formulas}\n    ```')
    return "\n\n".join(parts)


def module_parts(made: Any) -> dict[str, str]:
    """The docstring of an entry's module, cut into paper, formulas and departures."""
    module = inspect.getmodule(made)
    paragraphs = inspect.cleandoc(module.__doc__ or "" if module else "").split("\n\n")
    out = {"title": paragraphs[0], "paper": "", "formulas": "", "departures": ""}
    rest = paragraphs[1:]
    last = [i for i, p in enumerate(rest) if p.startswith(("Departures", "Choices"))]
    if last:
        out["departures"] = "\n\n".join(rest[last[0] :])
        rest = rest[: last[0]]
    if rest and rest[0].startswith("    ") and not _is_formula(rest[0]):
        out["paper"] = " ".join(rest.pop(0).split())
    out["formulas"] = "\n\n".join(rest)
    return out


def bullets(departures: str) -> list[str]:
    """The points of a list of departures, one line each."""
    out: list[str] = []
    for line in departures.splitlines()[1:]:
        text = line.strip()
        if text.startswith("* "):
            out.append(text[2:])
        elif text and out:
            out[-1] += f" {text}"
        elif text:
            out.append(text)
    return out


def needs_of(made: Any) -> frozenset[str]:
    """The signals of a selector with its default arguments."""
    try:
        found: Any = made().needs
    except (TypeError, FedcohortError):
        found = getattr(made, "needs", None)
    return found if isinstance(found, frozenset) else frozenset()


def _is_formula(paragraph: str) -> bool:
    """Wrappers have no paper: their first indented paragraph is a rule."""
    return bool(re.search(r" {4,}\(\d\)\s*$|\bt \+ 1\b|\.\. W - 1", paragraph)) or "on the list" in paragraph


def _use(kind: str, found: CatalogueEntry) -> str:
    name = found.name
    if kind == "method":
        shell = f"fedcohort run --selector uniform --method {name} --rounds 20 --cohort-size 10"
        call = f'history = fc.simulate("uniform", method="{name}", rounds=20, cohort_size=10)'
        flower = f'strategy = CohortStrategy(method="{name}", selector="uniform", cohort_size=10)'
    else:
        text = f"{name}(inner='oort')" if found.family == "wrapper" else name
        method = " --method fedca" if "wants the method fedca" in found.cost else ""
        extra = ', method="fedca"' if method else ""
        quoted = f'"{text}"' if "(" in text else text
        shell = f"fedcohort run --selector {quoted}{method} --rounds 20 --cohort-size 10"
        call = f'history = fc.simulate("{text}"{extra}, rounds=20, cohort_size=10)'
        flower = f'strategy = CohortStrategy(FedAvg(), selector="{text}", cohort_size=10)'
    python = f"import fedcohort as fc\n\n{call}\nprint(history.accuracy[-1])"
    deployed = f"from fedcohort.flower import CohortStrategy\n\n{flower}"
    if kind == "selector":
        deployed = f"from flwr.serverapp.strategy import FedAvg\n{deployed}"
    tabs = {"Command line": ("console", f"$ {shell}"), "Python": ("python", python), "Flower": ("python", deployed)}
    return "\n\n".join(_tab(title, language, text) for title, (language, text) in tabs.items())


def _tab(title: str, language: str, text: str) -> str:
    body = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    return f'=== "{title}"\n\n    ```{language}\n{body}\n    ```'


def _facts(kind: str, found: CatalogueEntry, made: Any, paper: str) -> str:
    rows = [("family", found.family), ("paper", _ADDRESS.sub(r"<\1>", paper) or found.paper)]
    if kind == "selector":
        needs = sorted(needs_of(made))
        level = PRIVACY_LEVELS[privacy(frozenset(needs))]
        rows.append(("signals", "<br>".join(map(_signal, needs)) or "none"))
        rows.append(("privacy", f"**{level}**: {PRIVACY[level]}"))
    rows.append(("cost per round", found.cost))
    spent = selection_times().get(found.name)
    if kind == "selector" and spent:
        rows.append(("time to select", f"{spent} ([all of them](speed.md))"))
    rows.append(("class", f"[`{made.__module__}.{made.__qualname__}`][{made.__module__}.{made.__qualname__}]"))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in rows)])


def _signal(name: str) -> str:
    s = SIGNALS[name]
    size = "4 bytes a parameter" if s.bytes < 0 else f"{s.bytes} bytes"
    return f"`{name}`: {s.about.rstrip('.')} ({s.side}, {size}, {PRIVACY_LEVELS[s.privacy]})"


def _parameters(made: Any) -> str:
    rows = parameter_rows(made)
    if not rows:
        return "## Parameters\n\nNone."
    lines = ["## Parameters", "", "| name | default | range | symbol | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        default = f"`{row.default}`" if row.default else "required"
        symbol = f"*{_cell(row.symbol)}*" if row.symbol else ""
        lines.append(f"| `{row.name}` | {_cell(default)} | {_cell(row.range)} | {symbol} | {_cell(row.meaning)} |")
    return "\n".join(lines)


def _departures(told: dict[str, str]) -> str:
    points = bullets(told["departures"])
    head = told["departures"].partition("\n")[0]
    if not points:
        return "## Departures from the paper\n\nNone."
    ours = "there is no paper" in head or head.startswith("Choices")
    title = "Choices made here" if ours else "Departures from the paper"
    return "\n".join([f"## {title}", "", *(f"- {_escaped(point)}" for point in points)])


def _escaped(text: str) -> str:
    """Stars and underscores of formulas are not emphasis; code between backticks stays."""
    pieces = text.split("`")
    return "`".join(p if i % 2 else re.sub(r"([*_<])", r"\\\1", p) for i, p in enumerate(pieces))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


@cache
def selection_times() -> dict[str, str]:
    """Selector -> how long it takes to choose 100 clients, as last measured."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "selection.json").read_text("utf-8"))
    out = {}
    for name, times in measured["ms"].items():
        known = [(n, t[0]) for n, t in zip(measured["clients"], times, strict=False) if t]
        if known:
            out[name] = ", ".join(f"{t:.2g} ms of {n:,} clients" for n, t in (known[0], known[-1]))
    return out


def generated_page(kind: str, name: str) -> str:
    """The page of an entry that has no page of its own in docs/: what its class says, and where to read on."""
    made: Any = registry.load(kind, name)
    found = registry.entry(kind, name)
    more = "\n\nIt goes around any other selector: [all wrappers](wrappers.md)." if found.family == "wrapper" else ""
    return f"# {name}\n\n{prose(made).partition(' Args: ')[0]}{more}\n"


def with_card(kind: str, name: str, text: str) -> str:
    """A page with its card behind the first paragraph."""
    head, _, rest = text.partition("\n\n")
    intro, _, rest = rest.partition("\n\n")
    return f"{head}\n\n{intro.strip()}\n\n{card(kind, name)}\n\n{rest}"
