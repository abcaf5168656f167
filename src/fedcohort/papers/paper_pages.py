"""The pages of all results: a short index, and for each paper its verdict on half a page before its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcohort.experiment.metrics.paired import VERDICT_SEEDS as ENOUGH
from fedcohort.papers.paper_evidence import (
    VERDICTS,
    MeasuredDifference,
    compared,
    counted,
    fingerprint,
    gains,
    is_half_done,
    seeds_of,
    seeds_text,
    span,
)
from fedcohort.papers.paper_summaries import SUMMARIES, PaperSummary
from fedcohort.papers.result_files import picture_name
from fedcohort.papers.results_page import departures_list
from fedcohort.papers.results_page import told as table_of
from fedcohort.papers.verdicts import FAILS, HOLDS, NOISE

Result = Mapping[str, Any]
INTRO = """# The papers' tables, reproduced

Five papers on who trains next, their tables and figures run again by one command: what each claims, what holds here,
and what a perfect choice would gain. Each paper has a page: the verdict in half a page, then every table with its
picture.

```
fedcohort reproduce                                        # list: one line per table or figure, and stored results
fedcohort reproduce fedcm:table3                           # smoke: digits, a minute; shows that everything runs
fedcohort reproduce fedcm:table3 --show                    # print the committed results, run nothing
fedcohort reproduce flash:fig5 --scale laptop --main       # what decides the main claim; real data in $FEDCOHORT_DATA
fedcohort reproduce flash:table1 --scale laptop            # all of it; the same command continues
fedcohort reproduce --page docs/papers.md                  # write this page and those of the papers
```
"""
READING = f"""## How to read the tables

* Each cell is **ours** (mean over seeds; in brackets their range, from five seeds on the 95 % bootstrap interval) and,
  after the slash, the published number (averages of published numbers are ours). "n = 2": of two seeds, where other
  cells have more: compare such cells in the claims, which are paired by seed. "(3 of 6)": three of six seeds reached
  the target.
* Scales: `laptop` has smaller networks, fewer samples and fewer rounds than the papers; `desk` comes nearer to their
  clients, samples and local epochs. Each page says where its runs depart from the paper. Absolute numbers are not
  comparable; what is checked are orderings and differences.
* *Perfect choice* is a selector that is told every client's true labels: a strong rule, not a bound.
* Claims are judged by the rule of `fedcohort compare`: differences are averaged over columns within each seed, and a
  claim *holds* or *does not hold* when the interval over seeds leaves zero (or the margin) out and the exact Wilcoxon
  test says so too. The first claim of a table is its **main claim**, what the table is printed for: it is tested on its
  own (not corrected over tables), and {ENOUGH} seeds can decide it. The others are corrected for their number (Holm)
  and need more. With fewer seeds than that a claim is *undecided*: the differences show a direction only. *Inside the
  noise*: enough seeds, and they do not agree. *Not measured*: runs are missing. Claims that are "not in the
  paper" are our own questions, and are counted apart. Only what the main claim is about must have six seeds, other
  cells three, for six would not decide several claims either; `--seeds 6` asks for six of everything.
* Values, configurations and digests of every run are in `results/`. An incomplete study says so: the same command
  continues it, and keeps what is known of runs whose digests are still the same. Some were made with earlier kernels
  of the engine, which round otherwise in the last bit; training makes that a point more or less, either way. So a run
  done again may give another number than the one that is kept (11 of 18 that were tried did), within its noise.
"""


def by_paper(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each paper, in their order."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["study"].partition(":")[0], []).append(result)
    return found


def index_page(results: Sequence[Result], not_run: Sequence[str] = (), folder: str = "papers") -> str:
    """The index: one row per paper, with a link to its page in `folder`."""
    heads = ("paper", "it claims", "what holds here", "scale", "seeds", "a perfect choice gains")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for paper, mine in by_paper(results).items():
        lines.append("| " + " | ".join(_index_row(paper, mine, not_run, folder)) + " |")
    return "\n".join([INTRO, *lines, "", READING])


def _index_row(paper: str, results: Sequence[Result], not_run: Sequence[str], folder: str) -> list[str]:
    about = SUMMARIES[paper]
    holds = _counts(results, "of {} main claims", main=True)
    first = next(compared(about.comparisons, results), None)
    if first is not None:
        rows, found = first
        what = f"{rows.left} - {rows.right}: {found.mean:+.2f} {rows.unit}"
        where = [f"`{found.result['study']}`", found.result["scale"], *rows.columns[: len(rows.columns) == 1]]
        holds += f". So far {what} ({', '.join([*where, seeds_text([found.seeds])])})"
    lacking = sum(study.partition(":")[0] == paper for study in not_run)
    scale = f"{_scales(results)}; {_tables(results)}" + f", {lacking} not run yet" * bool(lacking)
    seeds = span([count for result in results for count in seeds_of(result)])
    link = f"[{about.title}]({folder}/{paper}.md)"
    return [link, about.in_short, holds, scale, seeds, _range([*gains(about, results)])]


def _range(found: Sequence[MeasuredDifference]) -> str:
    """ "+2.58 to +3.83 points (1 to 2 seeds)"."""
    if not found:
        return "not measured yet"
    least, most = min(f.mean for f in found), max(f.mean for f in found)
    ends = f"{least:+.2f}" if least == most else f"{least:+.2f} to {most:+.2f}"
    return f"{ends} points ({seeds_text([f.seeds for f in found])})"


def _counts(results: Sequence[Result], words: str, *, ours: bool = False, main: bool = False) -> str:
    """ "of 6 main claims: 1 holds, 5 undecided", with "of {} main claims" as words; nothing where there are none."""
    counts = counted(results, ours=ours, main=main)
    parts = [f"{count} {verdict if count == 1 else VERDICTS[verdict]}" for verdict, count in counts.items() if count]
    return f"{words.format(sum(counts.values()))}: {', '.join(parts)}" if parts else ""


def _main(result: Result) -> str:
    """The verdict on the main claim."""
    return next((f"**{claim['verdict']}**" for claim in result["claims"] if claim["main"]), "-")


def _scales(results: Sequence[Result]) -> str:
    return ", ".join(f"`{scale}`" for scale in dict.fromkeys(result["scale"] for result in results))


def _tables(results: Sequence[Result]) -> str:
    lacking = sum(map(is_half_done, results))
    return f"{len(results)} table{'s' * (len(results) > 1)}" + f", {lacking} incomplete" * bool(lacking)


def paper_page(
    paper: str, results: Sequence[Result], not_run: Sequence[str] = (), pictures: Path | None = None, index: str = ""
) -> str:
    """The page of a paper; `pictures` is the folder of pictures beside the tables, `index` the name of the index."""
    about = SUMMARIES[paper]
    back = f" [All papers, and how to read the tables](../{index})." if index else ""
    lines = [f"# {about.title}", ""]
    there = [bool(_picture(result, pictures)) for result in results]
    shown = "each with its picture" if all(there) else "with pictures" if any(there) else "without pictures"
    lines += [f"What holds here of {about.title}, then its tables, {shown}.{back} To continue them:", ""]
    lines += ["```", f"fedcohort reproduce {paper} --scale {results[0]['scale']}", "```", "", *_verdict(about, results)]
    lines += [*_evidence(about, results), *_overview(about, results), ""]
    for at, result in enumerate(results):
        lines += _section(about, result, results[:at], pictures)
    lacking = [study for study in not_run if study.partition(":")[0] == paper]
    if lacking:
        lines += ["## Not run yet at any scale but `smoke`", ""]
        lines += [f"* `fedcohort reproduce {study}`" for study in lacking] + [""]
    return "\n".join(lines)


def _verdict(about: PaperSummary, results: Sequence[Result]) -> list[str]:
    """The half page: what is claimed, what holds and why, at which scale and reading, what a perfect choice gains."""
    counts = (
        _counts(results, "Of {} main claims", main=True),
        _counts(results, "of all its {}"),
        _counts(results, "of our own {} questions", ours=True),
    )
    seeds = seeds_text([count for result in results for count in seeds_of(result)])
    measured = [*gains(about, results)]
    gain = f" over {about.base}: {_range(measured)}" if measured else " is not measured yet"
    parts = (
        f"**The paper claims.** {about.claims}",
        f"**What holds here.** {'; '.join(filter(None, counts))}.",
        *_words(about, results),
        f"**Scale.** {_scales(results)}; {_tables(results)}; {seeds}.",
        f"**Our reading.** {about.reading}",
        f"**What a perfect choice would gain**{gain}.",
    )
    return [line for part in parts for line in (part, "")]


def _words(about: PaperSummary, results: Sequence[Result]) -> list[str]:
    """What the runs point to and why, where the words were written for these results."""
    if about.written_for != fingerprint(results):
        return ["**Where the runs point.** Not said: the words were written for results with other verdicts."]
    points = "\n".join(f"* {point}" for point in about.found)
    return ["**Where the runs point.**", points, f"**Why.** {about.why}"]


def _evidence(about: PaperSummary, results: Sequence[Result]) -> list[str]:
    """What the half page rests on: verdicts, differences between rows, and what a perfect choice gains, one by one."""
    differences = [
        f"* {rows.left} - {rows.right}: **{found.mean:+.2f}** {rows.unit} ({found.source})"
        for rows, found in compared(about.comparisons, results)
    ]
    gained = [f"* **{found.mean:+.2f}** points ({found.source})" for found in gains(about, results)]
    lists = {
        "Claims that were tested": _decided(results),
        "Differences": differences,
        f"A perfect choice over {about.base}": gained,
    }
    return [line for title, lines in lists.items() if lines for line in (f"## {title}", "", *lines, "")]


def _decided(results: Sequence[Result]) -> list[str]:
    """The main claims that were tested, and what else is decided."""
    lines = []
    for result in results:
        for claim in result["claims"]:
            if claim["verdict"] in (HOLDS, FAILS) or (claim["main"] and claim["verdict"] == NOISE):
                by = "" if claim["difference"] is None else f", {claim['difference']:+.2f}"
                where = f"`{result['study']}`, {result['scale']}{by}, {claim['seeds']} seeds"
                lines.append(f"* **{claim['verdict']}**: {claim['words']} ({where})")
    return lines


def _overview(about: PaperSummary, results: Sequence[Result]) -> list[str]:
    heads = ("table", "scale", "seeds", "runs", "main claim", "claims", *VERDICTS.values())
    lines = ["## All tables", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for result in results:
        verdicts = [claim["verdict"] for claim in result["claims"]]
        runs = f"{result['done']} of {result['wanted']}" if "wanted" in result else ""
        cells = [_heading(about, result), result["scale"], span(seeds_of(result)), runs, _main(result)]
        lines.append("| " + " | ".join(map(str, (*cells, len(verdicts), *map(verdicts.count, VERDICTS)))) + " |")
    return lines


def _section(about: PaperSummary, result: Result, above: Sequence[Result], pictures: Path | None) -> list[str]:
    """One table with its picture, its claims and its departures from the paper."""
    lines = [f"## {_heading(about, result)}", "", *table_of(result, _picture(result, pictures)), ""]
    return [*lines, *_departures(about, result, above)]


def _departures(about: PaperSummary, result: Result, above: Sequence[Result]) -> list[str]:
    """How a table departs from the paper; what a table above it says already is not said again."""
    mine = result["departures"]
    bases = [other for other in above if other["departures"] and set(other["departures"]) <= set(mine)]
    parts = list(mine)
    if bases:
        base = max(bases, key=lambda other: len(other["departures"]))
        own = [departure for departure in mine if departure not in base["departures"]]
        parts = [f"as in *{_heading(about, base)}* above", *own]
    return departures_list(parts)


def _heading(about: PaperSummary, result: Result) -> str:
    """The title without the name of the paper, with which the page begins; a larger scale is told."""
    title = result["title"].removeprefix(about.title).lstrip(",: ")
    scale = "" if result["scale"] == "laptop" else f" (scale {result['scale']})"
    return f"{title[0].upper()}{title[1:]}{scale}"


def _picture(result: Result, pictures: Path | None) -> str:
    """The picture of a study, if it is there."""
    name = picture_name(result)
    if pictures is None or not (pictures / name).exists():
        return ""
    return f"![{result['title']}](../pictures/papers/{name})"
