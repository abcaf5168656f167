"""`fedcohort verify` and `fedcohort journal show`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcohort.core.plain_text import shown
from fedcohort.errors import BadParameter
from fedcohort.experiment.verification import verify
from fedcohort.rounds.history import client_names
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import Record
from fedcohort.storage.run_folder import RunFolder
from fedcohort.types import Outcome

app = typer.Typer(no_args_is_help=True, help="Read or compress the journal of a run.")
Folder = Annotated[Path, typer.Argument(help="A run folder, or the state_dir of a Flower run.")]


@app.callback()
def _root() -> None:
    """Read or compress the journal of a run."""


def verify_command(folder: Folder) -> None:
    """Check that a run is what it says: every hash, and every cohort replayed from seed and journal.

    FOLDER is a run folder, or the state_dir of a Flower run. A simulated run whose selector reads whole updates is
    trained again, which takes as long as the run did: journals keep only digests of updates.
    """
    found = verify(folder)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"chain     {found.records} records, every hash matches")
    console.print(f"cohorts   {found.rounds} rounds {found.how}: identical")
    console.print(f"snapshots {found.snapshots}, every digest matches")
    for cut in found.cuts:
        console.print(f"damage    {escape(shown(cut, 2000))}")
    console.print(f"head      {found.head}")


@app.command("show")
def show(
    folder: Folder,
    round_: Annotated[
        int | None, typer.Option("--round", help="Show only this round, with all its clients; from 0.")
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Number of newest records to show.")] = 40,
) -> None:
    """Print the newest records of a journal, also of a run that is going. FOLDER is a run folder or a state_dir."""
    reader = RunFolder(folder).reader()
    every = list(reader.records())
    records = [r for r in every if round_ is None or r.round == round_]
    if not records:
        newest = max((r.round for r in every if r.kind == "ask"), default=-1)
        there = f"it has rounds 0 to {newest}" if newest >= 0 else "it has no rounds yet"
        raise BadParameter(f"--round {round_}", f"there is no such round in this journal; {there}", "name one of those")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("seq", "kind", "round", "what", "hash"):
        table.add_column(name, justify="right" if name in ("seq", "round") else "left", overflow="fold")
    for record in records[-last:]:
        where = "" if record.round < 0 else str(record.round)
        what = escape(shown(_what(record, round_ is not None), 10**6))
        table.add_row(str(record.seq), escape(shown(record.kind)), where, what, record.hash.hex()[:12])
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
    if round_ is not None:
        names = [*client_names(reader), *(i for r in every if r.kind == "roster" for i in r.unpack()[1]["ids"])]
        for record in records:
            if record.kind == "tell":
                console.print(_clients(record, names))


def _clients(record: Record, names: list[str]) -> Table:
    """What became of each client of a round: outcome, seconds, the reason where there is one, and what it reported."""
    arrays, meta = record.unpack()
    scalar = [
        k for k, v in arrays.items() if k.startswith("signal.") and v.ndim == 1 and v.size == arrays["clients"].size
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    head = (
        "client",
        *(("name",) if names else ()),
        "outcome",
        "seconds",
        *(k.removeprefix("signal.") for k in scalar),
        "reason",
    )
    for name in head:
        table.add_column(name, justify="left" if name in ("name", "outcome", "reason") else "right", overflow="fold")
    reasons = meta.get("reasons", {})
    for i, client in enumerate(arrays["clients"].tolist()):
        name = [escape(shown(names[client]) if client < len(names) else "")] if names else []
        cells = [Outcome(int(arrays["outcome"][i])).name, f"{arrays['duration'][i]:,.1f}"]
        cells += ["-" if np.isnan(arrays[k][i]) else f"{arrays[k][i]:.4g}" for k in scalar]
        table.add_row(str(client), *name, *cells, escape(shown(str(reasons.get(str(client), "")))))
    return table


@app.command("compact")
def compact(
    folder: Folder,
    keep: Annotated[int, typer.Option(min=0, help="Number of newest finished rounds to leave as they are.")] = 10,
) -> None:
    """Compress old records. Nothing is lost: `fedcohort verify` replays them as before."""
    journal = Journal.open(RunFolder(folder).existing_journal())
    try:
        before, after = journal.compact(keep)
    finally:
        journal.close()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{before:,} bytes before, {after:,} after; {journal.length} records, head {journal.head.hex()}")


def _what(record: Record, full: bool) -> str:
    arrays, meta = record.unpack()
    if record.kind == "open":
        config = meta.get("config", meta)
        names = ("kind", "selector", "method", "model", "world", "task", "seed")
        return ", ".join(f"{k} {config[k]}" for k in names if k in config)
    if record.kind == "ask":
        clients = arrays["clients"]
        shown = clients if full else clients[:12]
        more = "" if shown.size == clients.size else f" and {clients.size - shown.size} more"
        probed = f", {arrays['probed'].size} probed" if "probed" in arrays else ""
        return f"clock {meta['clock']:,.1f} s, {clients.size} clients: {' '.join(map(str, shown))}{more}{probed}"
    if record.kind == "tell":
        counts = [f"{int((arrays['outcome'] == o).sum())} {o.name}" for o in Outcome if (arrays["outcome"] == o).any()]
        slowest = float(np.max(arrays["duration"], initial=0.0))
        return f"{', '.join(counts) or 'nobody'}, slowest {slowest:,.1f} s"
    if record.kind == "roster":
        refused = "; ".join(f"{name} is refused: {why}" for name, why in meta["refused"].items())
        return "; ".join(filter(None, [f"{len(meta['ids'])} new clients: {' '.join(meta['ids'])}", refused]))
    if record.kind == "again":
        return f"left open by an earlier process, asked again; {meta['connected']} clients connected"
    return ", ".join([f"{k} {v}" for k, v in meta.items()] + [f"{k} of {v.size} clients" for k, v in arrays.items()])
