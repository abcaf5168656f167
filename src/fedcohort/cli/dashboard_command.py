"""`fedcohort dashboard`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.experiment.store import ROOT


def dashboard_command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or run folders (default: runs).")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on (0: a free one).")] = 0,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(help="A token of your own (default: a random one).")] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = False,
) -> None:
    """Look at runs in the browser while they go on. Read-only, this machine only; Ctrl-C ends it."""
    from fedcohort.dashboard.serve import serve

    def ready(address: str) -> None:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"dashboard: {address}", markup=False)
        console.print("the address lets in whoever has it; Ctrl-C ends the dashboard")
        if open_:
            webbrowser.open(address)

    serve(list(runs or [ROOT]), host=host, port=port, token=token, ready=ready)
