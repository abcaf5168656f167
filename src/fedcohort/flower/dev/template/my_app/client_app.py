"""The client. Compared with a plain Flower app, one line differs: CohortApp(...) instead of ClientApp().

`instructions` is for methods that change local training (FedProx, SCAFFOLD, FedDyn) and for PyramidFL; you can leave
it out if you use none of them.
"""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedcohort.flower import SUPPORTED, CohortApp, Outputs, instructions
from my_app import task


def data(context: Context) -> tuple[task.Samples, task.Samples]:
    """The training and validation data of this client."""
    return task.load(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


def outputs(arrays: ArrayRecord, context: Context, part: str) -> Outputs:
    """Logits and labels of a model on the data of this client: most signals are computed from them."""
    x, y = data(context)[0 if part == "train" else 1]
    return Outputs(task.forward({k: a.numpy() for k, a in arrays.items()}, x)[1], y)


def gradient(arrays: ArrayRecord, context: Context) -> task.Model:
    """The full-batch gradient, for selectors that compare gradients (FedACS)."""
    return task.gradient({k: a.numpy() for k, a in arrays.items()}, *data(context)[0])[1]


app = CohortApp(outputs=outputs, gradient=gradient, applies=SUPPORTED, version="1.0.0")  # was: app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local training, as in any Flower app."""
    samples, _ = data(context)
    model = {k: a.numpy() for k, a in msg.content["arrays"].items()}
    config = msg.content["config"]
    seed = int(config["server-round"]) if "server-round" in config else 0
    asked = instructions(msg, epochs=int(context.run_config["local-epochs"]), lr=float(context.run_config["lr"]))
    loss, steps = task.train(model, samples, asked.epochs, asked.lr, seed, asked.adjust)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(samples[1]), "num-steps": steps})
    arrays = ArrayRecord({k: Array(v) for k, v in model.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Accuracy on the validation data of this client."""
    x, y = data(context)[1]
    model = {k: a.numpy() for k, a in msg.content["arrays"].items()}
    accuracy = float((task.forward(model, x)[1].argmax(axis=1) == y).mean())
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
