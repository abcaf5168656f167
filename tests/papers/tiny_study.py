"""A study of eight runs that take a second: two selectors and two methods on digits, two seeds."""

from fedcohort.papers.study import SCALES, Cell, Study, quantity, row_beats

RUN = {"world": "mixed-v1(clients=8)", "task": "digits-softmax(epochs=1)", "rounds": 3, "cohort_size": 3}
SEEDS = dict.fromkeys(SCALES, 2)


def tiny(**more) -> Study:
    """Two selectors and two methods on digits."""

    def cells(scale):
        del scale
        return [
            Cell(selector, method, {**RUN, "selector": selector, "method": method}, quantity("final"), 50.0)
            for selector in ("uniform", "round-robin")
            for method in ("fedavg", "fedprox")
        ]

    def claims(scale):
        del scale
        return [row_beats("uniform wins", "uniform", "round-robin", ("fedavg", "fedprox"), 1.5)]

    return Study("tiny:table", "Tiny", cells, claims, SEEDS, {"smoke": ("all of it is small",)}, average="mean", **more)
