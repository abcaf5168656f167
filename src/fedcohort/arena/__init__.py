"""The arena: frozen problems, everybody's results on them, and where a selector of your own stands.

::

    from fedcohort import arena
    board = arena.run(MySelector, tier="quick")     # only yours is run: under a minute
    print(board)
    board.plot("board.svg")
    board.page("board.html")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.arena.archive import Archive as Archive
    from fedcohort.arena.contest import board as board
    from fedcohort.arena.contest import practise as practise
    from fedcohort.arena.contest import run as run
    from fedcohort.arena.leaderboard import ArenaBoard as ArenaBoard
    from fedcohort.arena.problem_set import Problem as Problem
    from fedcohort.arena.problem_set import problem as problem
    from fedcohort.arena.problem_set import problems as problems
else:
    __getattr__, __dir__, __all__ = exports(__name__)
