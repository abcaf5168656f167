"""Advice for a world of one's own: the nearest problems by what is measurable, and who wins there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcohort.arena.board_data import BoardData, Standing
from fedcohort.arena.problem_set import Problem
from fedcohort.arena.world_traits import TRAITS, distance, measure_world
from fedcohort.experiment.runs import build_world_for
from fedcohort.registry.lookup import make_task_spec, make_world_spec
from fedcohort.signals import SIGNALS

NEAREST = 3


@dataclass(frozen=True)
class Suggestion:
    """One selector for a world: what it gained over uniform on the nearest problems, and what it costs."""

    standing: Standing
    gain: float
    least: float  # over problems and seeds
    most: float

    def text(self) -> str:
        """One line."""
        s = self.standing
        probes = any(SIGNALS[n].side == "probe" for n in s.needs if n in SIGNALS)
        reads = f"reads P{s.privacy}" + (f" ({', '.join(s.needs)})" if s.needs else "")
        cost = f"{s.traffic:.2f} x the traffic" + (", probes clients" if probes else "")
        spread = f"from {self.least:+.3f} to {self.most:+.3f} over seeds and problems"
        return f"{s.entry}: {self.gain:+.3f} against uniform ({spread}); {reads}; {cost}"


@dataclass(frozen=True)
class Advice:
    """The traits of a world, the nearest problems (nearest first) with their distance, and suggestions."""

    world: str
    traits: dict[str, float]
    near: tuple[tuple[Problem, float], ...]
    suggestions: tuple[Suggestion, ...]
    board: BoardData

    def text(self) -> str:
        """As plain text."""
        lines = [f"world {self.world}"]
        lines += [f"  {name} {self.traits[name]:g}: {about}" for name, (about, _) in TRAITS.items()]
        lines += ["", "nearest problems of the arena (distance in steps; above 3 is far)"]
        lines += [f"  {p.name} ({far:.1f}): {p.about}" for p, far in self.near]
        lines += ["", f"who wins there, by {self.board.score}"]
        lines += [f"  {s.text()}" for s in self.suggestions]
        if self.near[0][1] > NEAREST:
            lines.append("note: no problem is near this world, so try the suggestions in it: `fedcohort sweep`")
        if all(s.least <= 0 for s in self.suggestions):
            lines.append("note: none of these is ahead of uniform in every run: uniform is a safe choice here")
        return "\n".join([*lines, *(f"note: {n}" for n in self.board.notes)])


def advise(world: str, board: BoardData, *, task: str = "digits-mlp", seed: int = 0, count: int = 5) -> Advice:
    """Suggest selectors for a world (a text of the catalogue, or a file) over the samples of a task."""
    built = build_world_for(make_world_spec(world), make_task_spec(task), seed)
    traits = measure_world(built)
    ranked = sorted(((p, distance(traits, dict(p.traits))) for p in board.problems), key=lambda pair: pair[1])
    near = ranked[:NEAREST]
    weight = np.array([1.0 / (1.0 + far) for _, far in near])
    columns = [board.results.problems.index(p.name) for p, _ in near]
    gains = np.average(board.heat()[:, columns], axis=1, weights=weight)
    differences = board.results.differences()[:, columns]
    at = {s.entry: i for i, s in enumerate(board.standings)}
    found = [
        Suggestion(s, gain, float(differences[at[s.entry]].min()), float(differences[at[s.entry]].max()))
        for s, gain in board.leaders(gains, count)
    ]
    return Advice(world, traits, tuple(near), tuple(found), board)
