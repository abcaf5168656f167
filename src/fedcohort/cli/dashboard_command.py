"""`fedcohort dashboard`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.experiment.store import ROOT


def dashboard_command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders that hold runs, or run folders.")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on (0: any free one).")] = 0,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="Token that the address must contain.", show_default="a random one")
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser right away.")] = False,
) -> None:
    """Watch runs in the browser while they are going. RUNS are folders that hold runs, or run folders (default: runs).

    Read-only, and reachable from this machine only. Press Ctrl-C to stop it.
    """
    from fedcohort.dashboard.serve import serve

    def ready(address: str) -> None:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"dashboard: {address}", markup=False)
        console.print("whoever has this address can look; press Ctrl-C to stop")
        if open_:
            webbrowser.open(address)

    serve(list(runs or [ROOT]), host=host, port=port, token=token, ready=ready)
