"""`fedcohort arena`: where a selector stands among all others, on frozen problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedcohort.cli.progress import plain

if TYPE_CHECKING:
    from fedcohort.arena.archive import Row

app = typer.Typer(no_args_is_help=True, help="Rank selectors on frozen problems, against an archive of all.")

Tier = Annotated[str, typer.Option(help="quick: the eight embedded problems; full: all sixteen.")]
Privacy = Annotated[str, typer.Option("--max-privacy", help="Rank only those that read no more: P0, P1, P2 or P3.")]
ArchiveFile = Annotated[Path | None, typer.Option("--archive", help="Another archive.", show_default="the shipped one")]
ScoreName = Annotated[
    str, typer.Option(help="anytime, final, time_to_target, worst_tenth, traffic or own_ms orders the board.")
]
Page = Annotated[Path | None, typer.Option("--page", help="Write an HTML page with pictures to this file.")]


@app.command("board")
def board_command(
    tier: Tier = "full",
    group: Annotated[str | None, typer.Option(help="Only one group or kind: digits, cifar, skew, noise, ...")] = None,
    score: ScoreName = "anytime",
    max_privacy: Privacy = "P3",
    archive: ArchiveFile = None,
    page: Page = None,
) -> None:
    """Show the leaderboard from the archive; nothing is run."""
    from fedcohort.arena.contest import board

    made = board(tier=tier, group=group, score=score, max_privacy=max_privacy, archive=archive)
    typer.echo(made.text())
    if page is not None:
        typer.echo(f"wrote {made.page(page)}")


@app.command("run")
def run_command(
    selector: Annotated[str, typer.Argument(help="A selector of the catalogue, or module:Class(key=value).")],
    tier: Tier = "quick",
    seeds: Annotated[str, typer.Option(help="Seeds by number, e.g. 0-4 or 0,2.")] = "0-4",
    score: ScoreName = "anytime",
    max_privacy: Privacy = "P3",
    archive: ArchiveFile = None,
    page: Annotated[Path, typer.Option("--page", help="Where to write the HTML page.")] = Path("arena.html"),
) -> None:
    """Run one selector and rank it against everybody in the archive; a page with pictures is written at the end."""
    from fedcohort.arena.contest import run
    from fedcohort.arena.problem_set import parse_seeds
    from fedcohort.errors import check

    check(page.parent.is_dir(), f"file {str(page)!r}", "its folder does not exist", f"create {page.parent} first")
    made = run(
        selector,
        tier=tier,
        seeds=parse_seeds(seeds),
        score=score,
        max_privacy=max_privacy,
        archive=archive,
        on_row=_told,
    )
    typer.echo(made.text())
    typer.echo(f"wrote {made.page(page)}")


@app.command("advise")
def advise_command(
    world: Annotated[str, typer.Option(help="A name, name(key=value, ...), or a .json or .toml file.")],
    task: Annotated[str, typer.Option(help="Task whose samples are divided.")] = "digits-mlp",
    max_privacy: Privacy = "P2",
    score: ScoreName = "anytime",
    archive: ArchiveFile = None,
) -> None:
    """Find the problems nearest to a world, and say who wins there and what it costs."""
    from fedcohort.arena.advice import advise
    from fedcohort.arena.contest import board

    typer.echo(advise(world, board(score=score, max_privacy=max_privacy, archive=archive), task=task).text())


@app.command("check")
def check_command(
    cells: Annotated[int, typer.Option(min=1, help="How many random runs to repeat.")] = 20,
    tier: Tier = "quick",
    seed: Annotated[int | None, typer.Option(help="Which runs are drawn.", show_default="random")] = None,
    archive: ArchiveFile = None,
) -> None:
    """Run random cells again and compare them with the archive; exit code 1 where one differs."""
    from fedcohort.arena.archive import Archive
    from fedcohort.arena.fill import check_cells, differs, same_versions

    bad = 0
    for old, new in check_cells(Archive(archive), cells, tier=tier, seed=seed):
        said = differs(old, new)
        bad += bool(said)
        alike = "the same" if same_versions(old, new) else "close (other versions or another processor)"
        typer.echo(f"{old['selector']} on {old['problem']}, seed {old['seed']}: {said or alike}")
    if bad:
        typer.echo(f"{bad} of {cells} runs differ from the archive: its rows no longer describe this code")
        raise typer.Exit(1)


@app.command("fill")
def fill_command(
    seeds: Annotated[str, typer.Option(help="Seeds by number, e.g. 0-4 or 0,2.")] = "0-4",
    tier: Tier = "full",
    selectors: Annotated[list[str] | None, typer.Option("--selector", help="Repeatable; omit for all.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes (0: in this one).")] = 1,
    retry: Annotated[bool, typer.Option("--retry", help="Also run again what failed.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also run again what is there: a selector has changed.")
    ] = False,
    archive: ArchiveFile = None,
) -> None:
    """Run what the archive lacks; can be stopped and started again at any time."""
    from fedcohort.arena.archive import Archive
    from fedcohort.arena.fill import archive_entries, fill, missing_cells
    from fedcohort.arena.problem_set import missing_data, parse_seeds, tier_problems

    chosen = tier_problems(tier)
    if said := missing_data(chosen):
        typer.echo(said)
    found = Archive(archive)
    on, names = [p for p in chosen if p.available], selectors or archive_entries()
    todo = missing_cells(found, names, on, parse_seeds(seeds), retry=retry, force=force)
    fill(found, todo, workers=workers, on_row=_told)
    found.rewrite()
    typer.echo(f"{len(todo)} runs added to {found.path}")


@app.command("merge")
def merge_command(
    others: Annotated[list[Path], typer.Argument(help="Archives whose rows are taken over.")],
    archive: ArchiveFile = None,
) -> None:
    """Merge other archives into this one: the union of their rows."""
    from fedcohort.arena.archive import Archive
    from fedcohort.errors import check

    found = Archive(archive)
    for path in others:
        check(path.is_file(), f"archive {path}", "there is no such file", "check the path")
        typer.echo(f"{found.merge(Archive(path).rows)} rows from {path}")


@app.command("guide")
def guide_command(
    out: Annotated[Path, typer.Argument(help="The page to write; its picture goes to pictures/ beside it.")] = Path(
        "docs/which-selector.md"
    ),
    archive: ArchiveFile = None,
) -> None:
    """Write the page "which selector when", and the tables of README.md and selectors/README.md, from the archive."""
    from fedcohort.arena.archive import Archive
    from fedcohort.arena.guide import PAGES, put_table, write_guide
    from fedcohort.errors import check

    pictures = out.parent / "pictures"
    check(pictures.is_dir(), f"file {str(out)!r}", f"there is no folder {pictures} for its picture", "create it first")
    board = write_guide(out, pictures / f"{out.stem}.svg", Archive(archive))
    written = [out]
    for page, link, most in PAGES if out.parent.name == "docs" else ():
        if (path := out.parent.parent / page).is_file():
            put_table(path, board, link, most)
            written.append(path)
    typer.echo(f"wrote {', '.join(map(str, written))}")


def _told(row: Row, done: int, total: int) -> None:
    """One line per run, on standard error."""
    said = row.get("error") or f"anytime {row['scores']['anytime']:.4f}"
    where = f"{row['problem']} seed {row['seed']}"
    Console(stderr=True, highlight=False, soft_wrap=True).print(plain(f"{done}/{total} {where}: {said}"))
