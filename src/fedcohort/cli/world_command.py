"""`fedcohort world`: look at a world before anything is trained in it."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcohort.cli.options import Picture

if TYPE_CHECKING:
    from fedcohort.worlds.built_world import BuiltWorld
    from fedcohort.worlds.world_spec import WorldSpec

app = typer.Typer(
    no_args_is_help=True, help="List worlds, or look at one: who owns what, how noisy, how fast, how often available."
)


@app.command("list")
def list_worlds() -> None:
    """List the worlds of the catalogue."""
    from fedcohort.worlds.catalogue import WORLDS

    width = max(len(name) for name in WORLDS)
    for name, spec in WORLDS.items():
        clients = f"{spec.clients} clients" if spec.clients else "by owner"
        typer.echo(f"{name:<{width}}  {clients:>11}  {spec.about}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name, name(key=value, ...), or a .json or .toml file.")],
    png: Picture = None,
    seed: Annotated[int, typer.Option(help="Seed of the world.")] = 0,
    task: Annotated[
        str, typer.Option(help="Task whose samples are divided.", show_default="that of a run which names none")
    ] = "",
    clients: Annotated[int | None, typer.Option(help="Number of clients, if not the world's own.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of clients to list.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the specification and the summary as JSON.")] = False,
) -> None:
    """Describe a world as a table; with --png, draw it, too.

    NAME is a world of `fedcohort world list`, with parameters if you like, or a .json or .toml file.
    """
    from fedcohort.worlds.describe import describe

    if png is not None:
        from fedcohort.report.plots.picture_file import picture_file

        picture_file(png)  # before anything is built
    spec = _spec(name)
    if clients is not None:
        spec = spec.replace(clients=clients, name=f"{spec.name} with {clients} clients")
    of_run = task or _default_task()
    world = _built(spec, of_run, seed)
    if png is not None:
        from fedcohort.report.plots.world_picture import draw_world

        draw_world(world, png)
    told = describe(world)
    if as_json:
        plain = {"spec": spec.to_dict(), "task": of_run, "summary": told.summary}
        typer.echo(json.dumps(plain, indent=2, default=_number))
        return
    typer.echo(told.text(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else 0))
    why = "" if task else ", the task of a run that names none"
    typer.echo(f"\nover the samples of {of_run}{why}, as a run of seed {seed} has it")
    if png is not None:
        typer.echo(f"wrote {png}")


def _spec(text: str) -> WorldSpec:
    from fedcohort.registry.lookup import make_world_spec
    from fedcohort.worlds.catalogue import load

    return load(text) if text.endswith((".json", ".toml")) else make_world_spec(text)


def _default_task() -> str:
    from fedcohort.experiment.config import RunConfig

    return RunConfig().task


def _built(spec: WorldSpec, task: str, seed: int) -> BuiltWorld:
    """As a run builds it."""
    from fedcohort.experiment.runs import build_world_for
    from fedcohort.registry.lookup import make_task_spec

    return build_world_for(spec, make_task_spec(task), seed)


def _number(value: Any) -> Any:
    return value.item()
