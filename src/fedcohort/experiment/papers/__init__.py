"""The papers' tables and figures, one file each, by id such as "flash:table1-noise"."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from fedcohort.errors import UnknownName
from fedcohort.experiment.papers.study import Study

# One line per file; each has STUDIES, in the order in which the paper prints them.
_FILES = (
    "flash_table1",
    "flash_fig2",
    "flash_fig3",
    "flash_fig4",
    "flash_fig5",
    "flashrl_table1",
    "flashrl_latency",
    "flashrl_fig2",
    "flashrl_fig3",
    "heteroselect_table",
    "fedcm_table2",
    "fedcm_table3",
    "fedcm_table4",
    "fedcm_table5",
    "fedacs_table2",
    "fedacs_table3",
    "fedacs_fig4",
    "fedacs_fig6",
    "fedacs_fig7",
    "fedacs_fig8",
    "fedacs_fig9",
    "fedacs_fig10",
)
ALL = "all"


def studies() -> dict[str, Study]:
    """Every study by id."""
    found: list[Study] = []
    for name in _FILES:
        found += import_module(f"fedcohort.experiment.papers.{name}").STUDIES
    return {study.id: study for study in found}


def chosen(what: str) -> Sequence[Study]:
    """The studies of a paper ("flash"), of a table ("flash:table1", all its blocks, "flash:table1-noise"), or "all"."""
    known = studies()
    if what == ALL:
        return list(known.values())
    named = [s for s in known.values() if what in (s.id, s.paper) or s.id.startswith(f"{what}-")]
    if not named:
        papers = {s.paper for s in known.values()}
        raise UnknownName.among("paper or table", what, [*sorted(papers), *known, ALL])
    return named
