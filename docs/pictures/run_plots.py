"""Pictures of runs: accuracy against time for the demo, cohort maps of five selectors, and a world.

The runs are kept in docs/pictures/runs.json, so that pictures can be drawn again in a second; `--run` makes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from svg_sheet import Sheet, points, ticks

from fedcohort.experiment.metrics.run_metrics import reached
from fedcohort.looks import look

RUNS = Path(__file__).parent / "runs.json"
MAPPED = ("uniform", "oort", "flash", "fedacs", "fedcor")
WORLD, TASK, ROUNDS, SIZE = "mixed-v1", "digits-mlp", 60, 10
OUTCOMES = ("used", "late", "failed", "rejected", "filtered", "not back yet")


def make_runs() -> None:
    """Run the demo and the five selectors; keep what the pictures need."""
    from fedcohort import simulate
    from fedcohort.experiment.demo import DemoPlan

    plan = DemoPlan()
    kept: dict[str, Any] = {"demo": {}, "maps": {}, "target": plan.target, "seeds": len(plan.seeds), "fairness": {}}
    for selector in plan.selectors:
        for seed in plan.seeds:
            setting = {"world": plan.world, "task": plan.task, "rounds": plan.rounds, "cohort_size": plan.cohort_size}
            run = simulate(selector, seed=seed, **setting)
            curve = [run.clock.round(1).tolist(), run.accuracy.round(4).tolist()]
            kept["demo"].setdefault(selector, []).append(curve)
            kept["fairness"].setdefault(selector, []).append(round(run.fairness(), 4))
    for selector in MAPPED:
        run = simulate(selector, world=WORLD, task=TASK, rounds=ROUNDS, cohort_size=SIZE, seed=0)
        used = [np.isin(cohort, good).astype(int).tolist() for cohort, good in zip(run.cohorts, run.used, strict=True)]
        asked = [cohort.tolist() for cohort in run.cohorts]
        kept["maps"][selector] = {"asked": asked, "used": used, "accuracy": round(float(run.accuracy[-1]), 3)}
    RUNS.write_text(json.dumps(kept, separators=(",", ":")), encoding="utf-8")


def read_runs() -> dict[str, Any]:
    """What was kept."""
    found: dict[str, Any] = json.loads(RUNS.read_text("utf-8"))
    return found


def demo() -> Sheet:
    """Accuracy against virtual time: the mean over seeds, and the range in which all seeds are."""
    kept = read_runs()
    left, top, wide, high, end = 58, 56, 620, 300, 1200.0
    sheet = Sheet(860, 420, "Accuracy against virtual time")
    sheet.text(
        12,
        22,
        "Three ways to choose who trains: skewed data, wrong labels and slow clients at once",
        size=15,
        bold=True,
    )
    line = f"digits-mlp in mixed-v1, 10 of 50 clients a round, mean and range of {kept['seeds']} seeds"
    sheet.text(12, 41, line, colour="pale")

    def x(seconds: Any) -> Any:
        return left + wide * np.asarray(seconds) / end

    def y(share: Any) -> Any:
        return top + high * (1 - np.asarray(share))

    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        sheet.line(left, y(tick), left + wide, y(tick))
        sheet.text(left - 8, y(tick) + 4, f"{tick:.0%}", anchor="end", colour="pale")
    for tick in ticks(0, end / 60):
        sheet.text(x(60 * tick), top + high + 18, f"{tick:g}", anchor="middle", colour="pale")
    sheet.text(left + wide / 2, top + high + 38, "virtual minutes", anchor="middle", colour="pale")
    sheet.line(left, y(kept["target"]), left + wide, y(kept["target"]), "pale", 1, "3 3")
    at, marks = np.linspace(0, end, 241), []
    for name, curves in kept["demo"].items():
        colour, values = f"s{look(name).index}", np.array([stepped(at, *curve) for curve in curves])
        low, mean, most = values.min(axis=0), values.mean(axis=0), values.max(axis=0)
        band = points([*x(at), *x(at)[::-1]], [*y(low), *y(most)[::-1]])
        sheet.path(f"{band}z", fill=colour, opacity=0.15)
        sheet.path(points(list(x(at)), list(y(mean))), colour, width=2.4)
        sheet.text(left + wide + 10, y(mean[-1]) + 4 + _apart(name), name, colour=colour, bold=True, size=14)
        found = [reached(accuracy, kept["target"], clock) for clock, accuracy in curves]
        if all(found):
            when = float(np.mean([one.seconds for one in found if one is not None]))
            sheet.circle(x(when), y(kept["target"]), 5, colour, "paper")
            marks.append((x(when), y(kept["target"]), f"{when / 60:.1f} min", colour))
    for where, high_up, words, colour in marks:
        sheet.text(where + 6, high_up + 20, words, colour=colour, bold=True, size=13, halo=True)
    return sheet


def _apart(name: str) -> float:
    return {"oort": 12.0, "ledger": -8.0, "uniform": 2.0}.get(name, 0.0)


def stepped(at: np.ndarray, clock: list[float], accuracy: list[float]) -> np.ndarray:
    """Accuracy of the newest model at some times; 0.1 (ten classes) before the first round ends."""
    place = np.searchsorted(clock, at, side="right") - 1
    return np.where(place < 0, 0.1, np.array(accuracy)[place])


def described_world() -> tuple[Any, Any]:
    """The world of the pictures, and what is known about its clients."""
    from fedcohort.experiment.runs import build_world_for
    from fedcohort.registry.lookup import make_task_spec, make_world_spec
    from fedcohort.worlds.describe import describe

    world = build_world_for(make_world_spec(WORLD), make_task_spec(TASK), 0)
    return world, describe(world)


def cohorts() -> Sheet:
    """Who is asked when: a row per client from fast to slow, a column per round, five selectors side by side."""
    kept, (_, told) = read_runs()["maps"], described_world()
    order = np.argsort(told.columns["seconds"], kind="stable")
    place = np.empty(order.size, int)
    place[order] = np.arange(order.size)
    step, row, left, top, gap = 3.0, 6.2, 76, 78, 14
    wide, high = step * ROUNDS, row * order.size
    sheet = Sheet(left + len(kept) * (wide + gap) + 4, top + high + 52, "Who is asked when")
    sheet.text(
        12, 22, "Who is asked when: five selectors in the same world with the same random draws", size=15, bold=True
    )
    for i, (name, run) in enumerate(kept.items()):
        x0 = left + i * (wide + gap)
        sheet.text(x0, top - 22, name, bold=True, size=14)
        sheet.text(x0, top - 7, f"accuracy {run['accuracy']:.3f} after {ROUNDS} rounds", colour="pale", size=11)
        sheet.rect(x0, top, wide, high, "grid", opacity=0.35)
        for good, colour in ((1, "o0"), (0, "o2")):
            ways = [
                f"M{x0 + step * t:.0f} {top + row * place[c] + row / 2:.1f}h{step:.0f}"
                for t, (asked, used) in enumerate(zip(run["asked"], run["used"], strict=True))
                for c, u in zip(asked, used, strict=True)
                if u == good
            ]
            sheet.path("".join(ways), colour, width=row - 1.4)
        sheet.text(x0, top + high + 16, "round 0", colour="pale", size=11)
        sheet.text(x0 + wide, top + high + 16, str(ROUNDS - 1), anchor="end", colour="pale", size=11)
    sheet.text(left - 8, top + 10, "fastest", anchor="end", colour="pale", size=11)
    sheet.text(left - 8, top + high, "slowest", anchor="end", colour="pale", size=11)
    sheet.text(left - 8, top + high / 2, "50 clients", anchor="end", colour="pale", size=11)
    for x, colour, words in (
        (left, "o0", "asked, and its update was used"),
        (left + 230, "o2", "asked, and it dropped out"),
    ):
        sheet.rect(x, top + high + 30, 11, 11, colour)
        sheet.text(x + 17, top + high + 40, words)
    return sheet


def world() -> Sheet:
    """Skew, noise and speed of the demo's world: a column per client, from even to skewed."""
    built, told = described_world()
    order = np.argsort(told.columns["js"], kind="stable")
    share, wrong = built.histogram(clean=True)[order], told.columns["wrong"][order]
    seconds, lost = told.seconds[:, order], built.fixed["dropout"][order]
    left, step, wide = 176, 13.0, 13.0 * order.size
    sheet = Sheet(left + wide + 16, 470, "What skew, noise and speed look like in a world")
    sheet.text(
        12, 22, f"One world, {order.size} clients: skew, noise, speed and drop-out ({WORLD})", size=15, bold=True
    )
    _name(sheet, 60, "Data", "share of each class,", "from even to skewed")
    for i in range(order.size):
        for c in range(built.classes):
            if share[i, c] > 0.004:
                sheet.rect(
                    left + step * i, 46 + 14 * c, step - 1.5, 12.5, "s0", opacity=max(0.08, float(share[i, c]) ** 0.6)
                )
    base = 270
    _name(sheet, 214, "Label noise", "share of labels that", "are wrong")
    _bars(sheet, left, step, base, 58, wrong, "s1")
    _name(sheet, 300, "Speed", "seconds of a round,", "logarithmic")
    low, high = np.quantile(seconds, 0.1, axis=0), np.quantile(seconds, 0.9, axis=0)

    least, most = 10 ** np.floor(np.log10(low.min())), 10 ** np.ceil(np.log10(high.max()))

    def y(value: float) -> float:
        return float(374 - 80 * np.log10(value / least) / np.log10(most / least))

    for tick in 10 ** np.arange(np.log10(least), np.log10(most) + 0.5):
        sheet.line(left, y(tick), left + wide, y(tick))
        sheet.text(left - 8, y(tick) + 4, f"{tick:g} s", anchor="end", colour="pale", size=10)
    for i in range(order.size):
        x = left + step * i + step / 2 - 0.7
        sheet.line(x, y(low[i]), x, y(high[i]), "s2", 3)
        sheet.circle(x, y(float(np.median(seconds[:, i]))), 3.4, "s2")
    _name(sheet, 396, "Drop-out", "chance that a client", "does not reply")
    _bars(sheet, left, step, 446, 44, lost, "s3")
    sheet.text(left, 462, "most even client", colour="pale", size=11)
    sheet.text(left + wide, 462, "most skewed client", anchor="end", colour="pale", size=11)
    return sheet


def _name(sheet: Sheet, y: float, name: str, *below: str) -> None:
    sheet.text(12, y, name, bold=True, size=13)
    for i, words in enumerate(below):
        sheet.text(12, y + 15 + 13 * i, words, colour="pale", size=10.5)


def _bars(sheet: Sheet, left: float, step: float, base: float, tall: float, values: Any, colour: str) -> None:
    """Shares as bars; the axis ends at the next fifth above the largest."""
    top = float(np.ceil(max(values.max(), 0.05) * 5 - 1e-9) / 5)
    for share in (0.0, top):
        y = base - tall * share / top
        sheet.line(left, y, left + step * len(values), y)
        sheet.text(left - 8, y + 3, f"{share:.0%}", anchor="end", colour="pale", size=10)
    for i, value in enumerate(values):
        if value > 0.002:
            high = tall * float(value) / top
            sheet.rect(left + step * i, base - high, step - 1.5, high, colour)
