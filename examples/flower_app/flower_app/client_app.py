"""The client: Flower's quickstart shape. Lines that fedcohort adds or changes are marked with +."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedcohort.flower import CohortApp, Outputs  # +
from flower_app.task import Net, accuracy, load_data
from flower_app.task import train as train_fn


def outputs(arrays: ArrayRecord, context: Context, part: str) -> Outputs:  # +
    """Logits and labels of a model on this client's data: the signals that selectors read follow from them."""  # +
    net = Net()  # +
    net.load_state_dict(arrays.to_torch_state_dict())  # +
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])  # +
    x, y = data[0 if part == "train" else 1]  # +
    with torch.no_grad():  # +
        return Outputs(net(x).numpy(), y.numpy())  # +


app = CohortApp(outputs=outputs, version="1.0.0")  # + was: app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train_fn(net, data, context.run_config["local-epochs"], context.run_config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local validation data."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, held = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    metrics = MetricRecord({"eval_acc": accuracy(net, held), "num-examples": len(held[1])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
