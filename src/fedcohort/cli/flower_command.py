"""`fedcohort flower`: a new project, a deployment on this machine to try it with, and how a run is doing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.core.plain_text import shown
from fedcohort.errors import check
from fedcohort.flower.dev.deployment import CONNECTION, FOLDER, Deployment, program, up
from fedcohort.flower.dev.project import write_project
from fedcohort.flower.server.run_status import read_status
from fedcohort.storage.backup import back_up

app = typer.Typer(
    help="Create a Flower project, start a local deployment to try it on, and look after a run.", no_args_is_help=True
)
Where = Annotated[Path, typer.Option("--dir", help="Folder for keys, logs and process ids.")]


@app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to create; its name becomes the name of the app.")],
) -> None:
    """Create a Flower project in FOLDER whose clients are chosen by a fedcohort selector."""
    written = write_project(folder)
    console = Console(highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"  {path}")
    console.print(f"next: cd {folder} && fedcohort flower up --simulation   (or without: five real SuperNodes)")


@app.command("up")
def up_command(
    clients: Annotated[int, typer.Option(help="Number of SuperNodes.")] = 5,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS and registered node keys.")] = False,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Simulate the SuperNodes with Ray instead of starting processes.")
    ] = False,
    folder: Where = Path(FOLDER),
) -> None:
    """Start a SuperLink and SuperNodes on this machine, and print how to run an app on them.

    Where a deployment is running here and some of its processes have died, those are started again.
    """
    program("flower-superlink")
    check(not (tls and simulation), "--tls --simulation", "simulated SuperNodes have no keys", "use one of the two")
    deployment = up(folder, clients, keys=tls, simulation=simulation)
    console = Console(highlight=False, soft_wrap=True)
    what = "simulated SuperNodes" if simulation else f"{len(deployment.processes) - 1} SuperNodes"
    console.print(f"SuperLink on 127.0.0.1:{deployment.port} and {what}; logs in {deployment.folder}")
    size = f' --federation-config "num-supernodes={clients} client-resources-num-cpus=1"' if simulation else ""
    console.print("run an app on it:")
    console.print(f"  source {folder / 'env'}")
    console.print(f"  flwr run . {CONNECTION} --stream{size}")
    console.print("stop it: fedcohort flower down" + ("" if folder == Path(FOLDER) else f" --dir {folder}"))


@app.command("status")
def status_command(
    folder: Annotated[Path, typer.Argument(help="The state_dir of a run.")],
    stale: Annotated[
        float | None, typer.Option(help="Seconds without a new record after which a running server counts as stuck.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how a run is doing, also while its server runs: round, who is asked, who is silent, last error.

    Exit code 0: running or finished. 2: the folder cannot be read. 3: stopped before its end. 4: stuck (--stale).
    5: nobody answered in the last round.
    """
    found = read_status(folder)
    code = found.exit_code(stale)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "exit_code": code}))
        raise typer.Exit(code)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    last = ", ".join(f"{count} {name}" for name, count in found.last.items() if count) or "nobody was asked"
    accuracy = "" if found.accuracy is None else f", accuracy {found.accuracy:.4f}"
    open_ = "" if found.open_round is None else f"; round {found.open_round} is open"
    console.print(f"state     {found.state}, last record {found.written:,.0f} s ago")
    console.print(f"rounds    {found.rounds} done ({last}{accuracy}){open_}")
    console.print(f"asked     {_some(found.asked)}")
    console.print(f"silent    {_some([f'{name} ({n} in a row)' for name, n in found.silent.items()])}")
    console.print(f"used      {found.used} of {found.replies} replies in {found.looked_at} rounds")
    console.print(f"never     {_some(found.never)}")
    console.print(f"error     {shown(found.last_error, 2000) or '-'}")
    raise typer.Exit(code)


@app.command("backup")
def backup_command(
    folder: Annotated[Path, typer.Argument(help="The state_dir of a run.")],
    target: Annotated[Path, typer.Argument(help="A folder that is new or empty.")],
) -> None:
    """Copy a state_dir, also while its server runs, and check the copy. A server started on the copy resumes there."""
    count = back_up(folder, target)
    Console(highlight=False, soft_wrap=True, markup=False).print(
        f"{count:,} records and all checkpoints are in {target}"
    )


def _some(names: list[str], most: int = 12) -> str:
    """The first of these names, printable."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return shown(", ".join(names[:most]), 2000) + more if names else "-"


@app.command("down")
def down_command(folder: Where = Path(FOLDER)) -> None:
    """Stop every process that `fedcohort flower up` started."""
    ended = Deployment.load(folder.resolve()).down()
    Console(highlight=False).print(f"stopped {ended} processes; none is left")
