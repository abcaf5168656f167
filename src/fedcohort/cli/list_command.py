"""`fedcohort list` and `fedcohort show`."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcohort.cli.parameter_table import parameter_rows, prose, task_rows, world_rows
from fedcohort.cli.progress import plain
from fedcohort.core.spec_string import file_of
from fedcohort.errors import FedcohortError, RunWarning, UnknownName
from fedcohort.registry import lookup as registry
from fedcohort.signals import PRIVACY_LEVELS, SIGNALS, privacy

_COLUMNS = {  # options of a table of one's own
    "target": "column of the labels",
    "client": "column of the owners",
    "drop": "columns to leave out",
    "features": "columns to use; all others where none is named",
    "standardise": "features get mean 0 and deviation 1",
}
WHAT = ("selectors", "methods", "worlds", "tasks", "signals", "runs")


def list_command(what: Annotated[str, typer.Argument(help=f"One of: {', '.join(WHAT)}.")] = "selectors") -> None:
    """List what there is. WHAT is selectors, methods, worlds, tasks, signals, or runs (those in ./runs)."""
    if what not in WHAT:
        raise UnknownName.among("list", what, WHAT)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print({"signals": _signals, "runs": _runs}.get(what, lambda: _catalogue(what.removesuffix("s")))())


def show_command(
    name: Annotated[str, typer.Argument(help="A selector, method, world, task or signal, or `config`.")],
) -> None:
    """Explain one entry: its paper, formulas, signals, departures and parameters.

    NAME is a selector, method, world, task or signal. `fedcohort show config` explains every key of a run.
    """
    base = name.partition("(")[0].replace("_", "-").lower()
    console = Console(highlight=False, soft_wrap=True)
    if name == "config":
        return _show_config()
    if file_of(name):
        return _show_task(console, name)
    if ":" in base:
        return _show_own(console, name)
    for kind in ("selector", "method"):
        if base in registry.entries(kind):
            return _show_class(console, kind, base)
    if base in registry.names("world"):
        return _show_world(console, name)
    if base in registry.names("task"):
        return _show_task(console, name)
    if name in SIGNALS:
        s = SIGNALS[name]
        size = "one float per parameter" if s.bytes < 0 else f"{s.bytes} bytes"
        return console.print(
            f"{s.name}: {s.about}\nunit {s.unit}, side {s.side}, {size}, privacy {PRIVACY_LEVELS[s.privacy]}"
        )
    found = UnknownName.among("entry", base, [n for kind in registry.KINDS for n in registry.names(kind)] + [*SIGNALS])
    near = found.remedy if found.remedy.startswith("did you mean") else ""
    meant = f"did you mean {registry.OTHER_NAMES[base]}" if base in registry.OTHER_NAMES else near
    remedy = meant or "see `fedcohort list`, or name your own as module:NAME"
    raise UnknownName(f"entry {name!r}", found.rule, remedy)


def _show_own(console: Console, name: str) -> None:
    """Something of one's own: what it says about itself, and its parameters."""
    base = registry.parse(name)[0]
    made = registry.load("object", base)
    cls = made if callable(made) else type(made)
    kind = "selector" if hasattr(made, "select") else "method" if hasattr(made, "aggregate") else "function or object"
    console.print(f"[bold]{plain(base)}[/] ({kind} of your own, {plain(inspect.getsourcefile(cls) or '')})\n")
    console.print(
        plain((inspect.cleandoc(cls.__doc__ or "") or "It has no docstring.").partition("\nArgs:\n")[0].strip()) + "\n"
    )
    if kind == "selector" and isinstance(made, type):
        needs = _needs(made)
        console.print(f"[bold]Signals[/]: {', '.join(sorted(needs)) or 'none'}")
    _print_parameters(console, made)


def _show_config() -> None:
    from fedcohort.experiment.config import keys

    table = _table("key", "kind", "default", "meaning")
    for key in keys():
        table.add_row(key.name, key.kind, key.default, key.about.replace("[", r"\["))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _show_world(console: Console, name: str) -> None:
    spec = registry.make_world_spec(name)
    console.print(f"[bold]{plain(spec.name)}[/] (world): {plain(spec.about)}\n")
    for part in (spec.partition, spec.noise, spec.latency, spec.availability, spec.faults, spec.validation):
        console.print(f"[bold]{part.kind}[/]: {plain(prose(type(part)))}")
    console.print(f"\n[bold]Parameters[/], e.g. '{plain(spec.name.partition('(')[0])}(clients=20)':")
    _print_rows(("name", "value", "range", "part"), world_rows(spec))


def _show_task(console: Console, name: str) -> None:
    from fedcohort.tasks.catalogue import names, options

    spec = registry.make_task_spec(name)
    base = name.partition("(")[0]
    console.print(f"[bold]{plain(spec.name)}[/] (task): {plain(getattr(spec, 'about', ''))}\n")
    if file_of(name):
        from fedcohort.tasks.own_task import TABLE
        from fedcohort.tasks.own_task import options as file_options

        given = registry.parse(name)[1]
        columns = [(k, repr(given.get(k, v)), "", _COLUMNS[k]) for k, v in TABLE.items() if k in file_options(base)]
        rest = [option for option in file_options(base) if option not in TABLE]
        return _print_rows(("name", "value", "range", "meaning"), [*columns, *task_rows(spec, rest)])
    if base not in names():
        console.print(plain(_plain(spec)))
        return None
    for part in ("dataset", "model"):
        if hasattr(spec, part):
            console.print(f"[bold]{part}[/]: {plain(str(getattr(spec, part)))}")
    console.print(f"\n[bold]Parameters[/], e.g. '{base}(lr=0.1)':")
    return _print_rows(("name", "value", "range", "meaning"), task_rows(spec, options(base)))


def _print_rows(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = _table(*columns)
    for row in rows:
        table.add_row(*map(plain, row))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _show_class(console: Console, kind: str, name: str) -> None:
    made = registry.load(kind, name)
    module = inspect.getmodule(made)
    found = registry.entry(kind, name)
    console.print(f"[bold]{name}[/] ({kind}, {found.family})\n")
    console.print((inspect.getdoc(module) or "").replace("[", r"\["))
    about, _, rest = (inspect.getdoc(made) or "").partition("\nArgs:\n")
    example = "\n".join(line for line in rest.splitlines() if not line.startswith("    ")).strip()
    console.print(f"\n[bold]In short[/]: {plain(about.strip())}\n")
    if example:
        console.print(f"{plain(example)}\n")
    if kind == "selector":
        needs = _needs(made)
        console.print(
            f"[bold]Signals[/]: {', '.join(sorted(needs)) or 'none'} (privacy {PRIVACY_LEVELS[privacy(needs)]})"
        )
        console.print(f"[bold]Cost per round[/]: {found.cost}")
    _print_parameters(console, made)


def _print_parameters(console: Console, made: Any) -> None:
    rows = parameter_rows(made) if callable(made) else []
    console.print("[bold]Parameters[/]:" if rows else "[bold]Parameters[/]: none")
    if rows:
        columns = ("name", "default", "range", "symbol", "meaning")
        _print_rows(columns, [(r.name, r.default, r.range, r.symbol, r.meaning) for r in rows])


def _needs(made: type[Any]) -> frozenset[str]:
    """The signals of a selector with its default arguments; of the class where an argument has no default."""
    try:
        found: Any = made().needs
    except (TypeError, FedcohortError):
        found = getattr(made, "needs", None)
    return found if isinstance(found, frozenset) else frozenset()


def _catalogue(kind: str) -> Table:
    if kind == "selector":
        table = _table("name", "family", "paper", "signals", "privacy", "cost per round")
        for found, made in registry.loaded(kind):
            needs = _needs(made)
            row = (
                found.name,
                found.family,
                found.paper,
                ", ".join(sorted(needs)) or "-",
                PRIVACY_LEVELS[privacy(needs)],
                found.cost,
            )
            table.add_row(*row)
        return table
    if kind == "method":
        table = _table("name", "family", "paper", "cost per round")
        for name, found in registry.entries(kind).items():
            table.add_row(name, found.family, found.paper, found.cost)
        return table
    table = _table("name", "what it is")
    make = registry.make_world_spec if kind == "world" else registry.make_task_spec
    for name in registry.names(kind):
        try:
            table.add_row(name, getattr(make(name), "about", ""))
        except FedcohortError as error:
            if name not in registry.entries(kind):
                raise
            warnings.warn(f"skipped: {error}", RunWarning, stacklevel=2)
    return table


def _signals() -> Table:
    table = _table("name", "side", "unit", "bytes", "privacy", "what it is")
    for s in SIGNALS.values():
        table.add_row(
            s.name,
            s.side,
            s.unit,
            "4 x parameters" if s.bytes < 0 else str(s.bytes),
            PRIVACY_LEVELS[s.privacy],
            s.about,
        )
    return table


def _runs() -> Table:
    from fedcohort.experiment.runs import read
    from fedcohort.experiment.store import ROOT
    from fedcohort.storage.run_folder import runs_in

    table = _table("folder", "selector", "method", "world", "task", "seed", "rounds", "accuracy")
    for folder in runs_in(ROOT):
        try:
            found = read(folder)
        except FedcohortError as error:
            table.add_row(str(folder), f"[red]{plain(error.rule)}[/]")
            continue
        c, rows = found.config, found.history.rows
        last = f"{rows[-1].get('accuracy', float('nan')):.4f}" if rows else "-"
        done = f"{len(rows)}/{c.rounds}"
        table.add_row(str(folder), c.selector, c.method, c.world, c.task, str(c.seed), done, last)
    return table


def _table(*columns: str) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in ("name", "privacy"))
    return table


def _plain(spec: Any) -> str:
    describe = getattr(spec, "describe", None)
    text = describe() if callable(describe) else "\n".join(f"{k}: {v}" for k, v in vars(spec).items())
    return str(text)
