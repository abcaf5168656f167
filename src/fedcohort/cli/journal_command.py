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

    FOLDER is a run folder, or the state_dir of a Flower run.
    """
    found = verify(folder)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"chain     {found.records} records, every hash matches")
    console.print(f"cohorts   {found.rounds} rounds {found.how}: identical")
    console.print(f"snapshots {found.snapshots}, every digest matches")
    for cut in found.cuts:
        console.print(f"damage    {escape(cut)}")
    console.print(f"head      {found.head}")


@app.command("show")
def show(
    folder: Folder,
    round_: Annotated[int | None, typer.Option("--round", help="Show only this round, with all its clients.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Number of newest records to show.")] = 40,
) -> None:
    """Print the newest records of a journal, also of a run that is going. FOLDER is a run folder or a state_dir."""
    records = [r for r in RunFolder(folder).reader().records() if round_ is None or r.round == round_]
    if not records:
        raise BadParameter(
            f"--round {round_}", "there is no such round in this journal", "leave --round out to see all"
        )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("seq", "kind", "round", "what", "hash"):
        table.add_column(name, justify="right" if name in ("seq", "round") else "left", overflow="fold")
    for record in records[-last:]:
        where = "" if record.round < 0 else str(record.round)
        what = escape(shown(_what(record, round_ is not None), 10**6))
        table.add_row(str(record.seq), escape(shown(record.kind)), where, what, record.hash.hex()[:12])
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


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
        why = "; ".join(f"{c}: {r}" for c, r in meta.get("reasons", {}).items()) if full else ""
        slowest = float(np.max(arrays["duration"], initial=0.0))
        return f"{', '.join(counts) or 'nobody'}, slowest {slowest:,.1f} s{', ' + why if why else ''}"
    if record.kind == "roster":
        refused = "; ".join(f"{name} is refused: {why}" for name, why in meta["refused"].items())
        return "; ".join(filter(None, [f"{len(meta['ids'])} new clients: {' '.join(meta['ids'])}", refused]))
    if record.kind == "again":
        return f"left open by an earlier process, asked again; {meta['connected']} clients connected"
    return ", ".join([f"{k} {v}" for k, v in meta.items()] + [f"{k} of {v.size} clients" for k, v in arrays.items()])
