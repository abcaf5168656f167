"""The server. Compared with a plain Flower app, two lines differ: an import, and the wrapped strategy.

If `method` is not fedavg, the aggregation method of that name in fedcohort is used instead of Flower's strategy.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy
from my_app import task

app = ServerApp()


def test_metrics(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy of the global model on data that no client has."""
    x, y = task.load_test()
    model = {k: a.numpy() for k, a in arrays.items()}
    return MetricRecord({"accuracy": float((task.forward(model, x)[1].argmax(axis=1) == y).mean())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    config = context.run_config
    method = None if config["method"] == "fedavg" else str(config["method"])
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0) if method is None else None,
        method=method,
        selector=str(config["selector"]),
        cohort_size=int(config["cohort-size"]),
        deadline=float(config["deadline"]),
        min_available=int(config["min-available"]),
        app_version="1.0.0",
        state_dir=str(config["state-dir"]) or None,
    )
    initial = ArrayRecord({k: Array(v) for k, v in task.initial().items()})
    rounds = int(config["num-server-rounds"])
    result = strategy.start(
        grid, initial, num_rounds=rounds, train_config=ConfigRecord({"lr": config["lr"]}), evaluate_fn=test_metrics
    )
    print("accuracy by round:", [round(m["accuracy"], 4) for m in result.evaluate_metrics_serverapp.values()])
