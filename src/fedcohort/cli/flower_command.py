"""`fedcohort flower`: a new project, and a deployment on this machine to try it with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.errors import check
from fedcohort.flower.dev.deployment import CONNECTION, FOLDER, Deployment, program, up
from fedcohort.flower.dev.project import write_project

app = typer.Typer(help="Create a Flower project, and start a local deployment to try it on.", no_args_is_help=True)
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
    """Start a SuperLink and SuperNodes on this machine, and print how to run an app on them."""
    program("flower-superlink")
    check(not (tls and simulation), "--tls --simulation", "simulated SuperNodes have no keys", "use one of the two")
    deployment = up(folder, clients, keys=tls, simulation=simulation)
    console = Console(highlight=False, soft_wrap=True)
    what = "simulated SuperNodes" if simulation else f"{clients} SuperNodes"
    console.print(f"SuperLink on 127.0.0.1:{deployment.port} and {what}; logs in {deployment.folder}")
    size = f' --federation-config "num-supernodes={clients} client-resources-num-cpus=1"' if simulation else ""
    console.print("run an app on it:")
    console.print(f"  source {folder / 'env'}")
    console.print(f"  flwr run . {CONNECTION} --stream{size}")
    console.print("stop it: fedcohort flower down" + ("" if folder == Path(FOLDER) else f" --dir {folder}"))


@app.command("down")
def down_command(folder: Where = Path(FOLDER)) -> None:
    """Stop every process that `fedcohort flower up` started."""
    ended = Deployment.load(folder.resolve()).down()
    Console(highlight=False).print(f"stopped {ended} processes; none is left")
