"""The page of a board: one HTML file without scripts that needs nothing else.

Names of selectors are other people's texts: every one goes through `html.escape`.
"""

from __future__ import annotations

from html import escape

from fedcohort import __version__
from fedcohort.arena.board_data import LEVELS, BoardData, Standing
from fedcohort.arena.problem_set import ARCHIVE_SEEDS, TUNING_SEEDS
from fedcohort.arena.svg_pictures import heat_map, profile_picture, rank_picture
from fedcohort.experiment.metrics.paired import ALPHA

PROFILES = 8  # entries of the performance profile
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 92rem; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 14px; } .scroll { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .7rem; border-bottom: 1px solid #e3e8ec; white-space: nowrap; }
.board th, .board td { padding: .2rem .5rem; } .board td:last-child { white-space: normal; min-width: 11rem; }
.board td:nth-child(2) { position: sticky; left: 0; background: #fff; }
svg { display: block; max-width: 100%; min-width: 42rem; height: auto; }
.board tr.mine td { background: #fdf0e6; font-weight: 600; } .pale { color: #666; }
"""


def page_text(board: BoardData) -> str:
    """The whole page."""
    mine = [s.entry for s in board.standings if s.mine]
    title = f"Arena {board.version}: {', '.join(mine) or 'the board'}"
    leading = [s.entry for s in board.standings][:PROFILES]
    shown = [*mine, *(n for n in leading if n not in mine)]
    shown += [n for n in ("uniform",) if n not in shown]
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(board.summary())}</p>{_notes(board)}{board_table(board)}",
        _figure(str(rank_picture(board))),
        _figure(str(heat_map(board))),
        _figure(str(profile_picture(board, shown))),
        "".join(_cells_of(board, s) for s in board.standings if s.mine),
        _pairs(board),
        _problems(board),
        f"<p class='pale'>Seeds {ARCHIVE_SEEDS[0]}-{ARCHIVE_SEEDS[-1]} are the archive's: tune on seeds from "
        f"{TUNING_SEEDS} on. Made by fedcohort {escape(__version__)}.</p>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    head = f"<meta charset='utf-8'><meta http-equiv='Content-Security-Policy' content=\"{policy}\">"
    return (
        f"<!doctype html><html lang='en'><head>{head}<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def board_table(board: BoardData) -> str:
    """The board as an HTML table."""
    heads = (
        "", "selector", "average rank", "95 %", "minus uniform", "95 %", "won:lost", "reads", "traffic", "own ms",
        "verdict",
    )  # fmt: skip
    rows = "".join(_row(s) for s in board.standings)
    head = "".join(f"<th scope='col'>{escape(h)}</th>" for h in heads)
    return f"<div class='scroll'><table class='board'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _row(s: Standing) -> str:
    difference = "not reached everywhere" if s.difference is None else f"{s.difference:+.3f}"
    spread = "" if s.difference is None else f"{s.difference_low:+.3f} to {s.difference_high:+.3f}"
    reads = "the truth" if s.privacy is None else LEVELS[s.privacy]
    cells = (
        str(s.place), s.entry, f"{s.rank:.1f}", f"{s.rank_low:.1f} to {s.rank_high:.1f}", difference, spread,
        f"{s.won}:{s.lost}", reads, f"{s.traffic:.2f} x", f"{s.own_ms:.2f}", s.verdict,
    )  # fmt: skip
    kind = " class='mine'" if s.mine else ""
    return f"<tr{kind}>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>"


def _cells_of(board: BoardData, s: Standing) -> str:
    """One's own results, problem by problem: with so few seeds the range over seeds says more than a test."""
    results = board.results
    at = results.entries.index(s.entry)
    rows = []
    for i, name in enumerate(results.problems):
        mine, difference = results.values[at, i], results.differences()[at, i]
        ahead = int((difference > 0).sum())
        spread = f"{difference.min():+.3f} to {difference.max():+.3f}"
        cells = (name, f"{mine.mean():.3f}", f"{difference.mean():+.3f}", spread, f"{ahead} of {difference.size}")
        rows.append(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>")
    heads = ("problem", f"mean {board.score}", "minus uniform", "range over seeds", "seeds ahead of uniform")
    head = "".join(f"<th scope='col'>{escape(h)}</th>" for h in heads)
    table = f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    return f"<h2>{escape(s.entry)}, problem by problem</h2>{table}"


def _pairs(board: BoardData) -> str:
    """Problems that the row wins against the column, with a star where Holm's correction leaves it standing."""
    found, names = board.pairwise(), board.results.entries
    head = "".join(f"<th scope='col'>{i + 1}</th>" for i in range(len(names)))
    rows = []
    for i, name in enumerate(names):
        cells = [
            "<td></td>" if i == j else f"<td>{found.wins[i, j]}{'*' if found.p[i, j] < ALPHA else ''}</td>"
            for j in range(len(names))
        ]
        rows.append(f"<tr><th scope='row'>{i + 1} {escape(name)}</th>{''.join(cells)}</tr>")
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    about = (
        f"Problems (of {len(board.results.problems)}) that the row wins against the column; *: p &lt; {ALPHA} (Holm)"
    )
    return f"<details><summary>Pairwise wins</summary><p>{about}</p><div class='scroll'>{table}</div></details>"


def _problems(board: BoardData) -> str:
    items = "".join(f"<dt>{escape(p.name)}</dt><dd>{escape(p.about)}</dd>" for p in board.problems)
    return f"<details><summary>The problems</summary><dl>{items}</dl></details>"


def _figure(svg: str) -> str:
    return f"<div class='scroll'>{svg}</div>"


def _notes(board: BoardData) -> str:
    return f"<ul>{''.join(f'<li>{escape(n)}</li>' for n in board.notes)}</ul>" if board.notes else ""
