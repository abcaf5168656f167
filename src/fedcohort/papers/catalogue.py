"""Every study of every paper, found by id such as "flash:table1-noise". Add a file of studies here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from fedcohort.errors import UnknownName
from fedcohort.papers.study import Study

# One line per file; each has STUDIES, in the order in which the paper prints them.
_FILES = (
    "flash.flash_table1",
    "flash.flash_fig2",
    "flash.flash_fig3",
    "flash.flash_fig4",
    "flash.flash_fig5",
    "flash.flash_regret",
    "flash_rl.flash_rl_table1",
    "flash_rl.flash_rl_latency",
    "flash_rl.flash_rl_fig2",
    "flash_rl.flash_rl_fig3",
    "hetero_select.hetero_select_table",
    "hetero_select.hetero_select_open",
    "hetero_select.hetero_select_misalignment",
    "fedcm.fedcm_table2",
    "fedcm.fedcm_table3",
    "fedcm.fedcm_table4",
    "fedcm.fedcm_table5",
    "fedcm.fedcm_fig5",
    "fedcm.fedcm_training",
    "fedacs.fedacs_table2",
    "fedacs.fedacs_table3",
    "fedacs.fedacs_fig2",
    "fedacs.fedacs_fig4",
    "fedacs.fedacs_fig6",
    "fedacs.fedacs_fig7",
    "fedacs.fedacs_fig8",
    "fedacs.fedacs_fig9",
    "fedacs.fedacs_fig10",
    "fedacs.fedacs_poisoners",
)
ALL = "all"


def studies() -> dict[str, Study]:
    """Every study by id.

    >>> studies()["fedcm:table3"].paper
    'fedcm'
    """
    found: list[Study] = []
    for name in _FILES:
        found += import_module(f"fedcohort.papers.{name}").STUDIES
    return {study.id: study for study in found}


def chosen(what: str) -> Sequence[Study]:
    """The studies of a paper ("flash"), of a table ("flash:table1", all its blocks, "flash:table1-noise"), or "all".

    >>> [study.id for study in chosen("flash:table1")]
    ['flash:table1-noniid', 'flash:table1-noise', 'flash:table1-both']
    """
    known, what = studies(), what.lower()
    if what == ALL:
        return list(known.values())
    named = [s for s in known.values() if what in (s.id, s.paper) or (":" in what and s.id.startswith(f"{what}-"))]
    if not named:
        papers = {s.paper for s in known.values()}
        raise UnknownName.among("paper or table", what, [*sorted(papers), *known, ALL])
    return named
