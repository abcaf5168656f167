"""The server: Flower's quickstart shape. Lines that fedcohort adds or changes are marked with +."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy  # +
from flower_app.task import Net, accuracy, load_test

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on data that no client has."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(net, load_test())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    strategy = FedAvg(fraction_evaluate=0.5)
    strategy = CohortStrategy(strategy, selector="oort", cohort_size=3, deadline=120.0)  # +
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    print("accuracy by round:", [round(m["accuracy"], 4) for m in result.evaluate_metrics_serverapp.values()])
