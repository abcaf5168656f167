"""`fedcohort reproduce`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from fedcohort import papers
from fedcohort.cli.options import StoreFolder, Workers
from fedcohort.cli.progress import watched
from fedcohort.errors import ConfigError, FedcohortError, StoreError, UnknownName, check
from fedcohort.experiment.store import ROOT, Store
from fedcohort.papers import reproduce, result_files
from fedcohort.papers.paper_evidence import is_half_done
from fedcohort.papers.study import SCALES, Study
from fedcohort.storage.snapshots import write_durably


def reproduce_command(
    what: Annotated[str | None, typer.Argument(help="PAPER, PAPER:TABLE or all; omit to list all.")] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="smoke (a minute), laptop (minutes to two hours), desk (samples as in the papers; hours) or paper.",
            show_default="smoke; with --show every one that is there",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", show_default="that of the scale")] = None,
    store: StoreFolder = ROOT,
    out: Annotated[Path, typer.Option(help="Folder that holds the results.")] = result_files.RESULTS,
    workers: Workers = 0,
    main: Annotated[bool, typer.Option("--main", help="Only what a verdict on the main claim needs.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the result in --out without running anything.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Measure what is there, without running anything.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Write all results in --out to this Markdown page and the folder beside it."),
    ] = None,
) -> None:
    """Reproduce a table or figure of a paper: our numbers beside the published ones, and which of its claims hold.

    WHAT is PAPER, PAPER:TABLE or all; omit it to list all. The same command continues a reproduction that was stopped.
    Datasets are read from $FEDCOHORT_DATA (see `fedcohort data list`).
    """
    _check_options(what, {"--scale": scale, "--seeds": seeds, "--main": main, "--show": show, "--no-run": no_run})
    at = scale.lower() if scale else None
    if at not in (None, *SCALES):
        raise UnknownName.among("scale", str(scale), SCALES)
    if what is None and page is None:
        _list(out)
    failed = False
    if what is not None and show:
        for path in _stored(what, at, out):
            failed |= _print(result_files.load(path))
    elif what is not None:
        for study in papers.chosen(what):
            failed |= _print(_run(study, at or SCALES[0], seeds, Store(store), out, workers, main, no_run))
    if page is not None:
        _page(out, page)
    if failed:
        raise typer.Exit(1)


def _check_options(what: str | None, options: Mapping[str, Any]) -> None:
    """Options that exclude each other, or that say what is done with a table when none is named."""
    texts = {option: option if value is True else f"{option} {value}" for option, value in options.items()}
    given = [option for option, value in options.items() if value is not None and value is not False]
    excluded = {
        ("--main", "--show"): "it says what to run, and --show runs nothing",
        ("--main", "--no-run"): "it says what to run, and --no-run runs nothing",
        ("--show", "--no-run"): "the one prints what is written, the other measures",
        ("--seeds", "--show"): "a written result is shown whole",
    }
    for (one, other), rule in excluded.items():
        check(not {one, other} <= {*given}, f"{texts[one]} with {texts[other]}", rule, "leave one out")
    if what is None and given:
        remedy = "name it, e.g. flash:table1, or all"
        raise ConfigError(f"{texts[given[0]]} without a table", "it says what is done with one", remedy)


def _stored(what: str, scale: str | None, out: Path) -> list[Path]:
    """The results of these studies that are there, of one scale or of all."""
    files = {at: [result_files.file_of(s.id, at, out) for s in papers.chosen(what)] for at in SCALES}
    there = {at: found for at, paths in files.items() if (found := [path for path in paths if path.exists()])}
    if scale in there:
        return there[scale]
    if scale is None and there:
        return [path for paths in there.values() for path in paths]
    remedy = (
        f"take {' or '.join(there)}" if there else "run `fedcohort reproduce` first, or name their folder with --out"
    )
    raise StoreError(f"{out}", f"it holds no result of {what}" + (f" at scale {scale}" if scale else ""), remedy)


def _run(
    study: Study, scale: str, seeds: int | None, store: Store, out: Path, workers: int, main: bool, no_run: bool
) -> dict[str, Any]:
    before = result_files.file_of(study.id, scale, out)
    work = reproduce.plan(study, scale, seeds, before, part=main or no_run)
    if no_run:
        found = reproduce.result(work, store)
        if not found["done"]:
            return found
    else:
        with watched(reproduce.missing(work, store, main), store) as bar:
            found = reproduce.perform(work, store, bar.hear, keep=out, main=main, workers=workers)
    if before.exists() and not found.get("cost", {}).get("run_now"):  # what is there was run with other versions
        earlier = result_files.load(before, claims=False)
        found |= {key: earlier[key] for key in ("versions", "cost") if key in earlier}
    path = result_files.save(found, out)
    Console(stderr=True).print(f"result: {path}")
    return found


def _print(found: dict[str, Any]) -> bool:
    """Print a result; whether some of its runs failed."""
    from fedcohort.papers.results_page import markdown

    console = Console(highlight=False)
    console.print(Markdown(markdown(found)) if console.is_terminal else markdown(found), soft_wrap=True, markup=False)
    return bool(found["failed"])


def _list(out: Path) -> None:
    """One line for each study, which a terminal cuts where it ends."""
    rows = [("table", "results (runs)", "what it is")]
    for study in papers.studies().values():
        there = [_state(result_files.file_of(study.id, scale, out), scale) for scale in study.seeds]
        rows.append((study.id, ", ".join(filter(None, there)) or "-", study.title))
    first, second = (max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:2])
    console = Console(highlight=False)
    for name, there_is, title in rows:
        line = f"{name:{first}}{there_is:{second}}{title}"
        if console.is_terminal:
            console.print(line, style="bold" * (name == "table"), no_wrap=True, overflow="ellipsis", markup=False)
        else:
            typer.echo(line)


def _state(path: Path, scale: str) -> str:
    """ "desk 3/24" (runs that are there), "laptop" where all are, nothing where there is no result."""
    if not path.exists():
        return ""
    try:
        found = result_files.load(path)
    except FedcohortError:
        return f"{scale} (damaged)"
    return f"{scale} {found['done']}/{found['wanted']}" if is_half_done(found) else scale


def _page(out: Path, page: Path) -> None:
    """Write the index, and the page of each paper into the folder of the same name beside it."""
    from fedcohort.papers import paper_pages

    check(page.suffix == ".md", f"page {str(page)!r}", "it is a Markdown file", "use e.g. --page docs/papers.md")
    known = papers.studies().values()
    files = [result_files.file_of(s.id, scale, out) for s in known for scale in ("laptop", "desk", "paper")]
    found = [result_files.load(path) for path in files if path.exists()]
    if not found:
        raise StoreError(
            f"{out}",
            "it holds no results of scale laptop, desk or paper",
            "run `fedcohort reproduce all --scale laptop` first",
        )
    missing = [s.id for s in known if s.id not in {result["study"] for result in found}]
    folder, pictures = page.with_suffix(""), page.parent / "pictures" / "papers"
    folder.mkdir(parents=True, exist_ok=True)
    for paper, mine in paper_pages.by_paper(found).items():
        text = paper_pages.paper_page(paper, mine, missing, pictures, page.name)
        write_durably(folder / f"{paper}.md", text.encode())
    write_durably(page, paper_pages.index_page(found, missing, folder.name).encode())
    Console(stderr=True).print(f"pages: {page}, {folder}")
