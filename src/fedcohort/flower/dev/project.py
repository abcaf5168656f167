"""A ready Flower project with a selecting server: digits, a small NumPy model, no download."""

from __future__ import annotations

import re
from pathlib import Path

from fedcohort.errors import BadParameter, RunExists

_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Federated digits with a fedcohort selector"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<2", "fedcohort[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "local"

[tool.flwr.app.components]
serverapp = "{module}.server_app:app"
clientapp = "{module}.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 5
selector = "oort"
method = "fedavg"
cohort = 2
deadline = 60.0
min-available = 2
local-epochs = 1
lr = 0.1
state-dir = ""
"""

_TASK = '''"""Digits, split among the clients, and a softmax classifier with one hidden layer, in NumPy."""

from functools import lru_cache

import numpy as np

HIDDEN, CLASSES = 32, 10


@lru_cache
def digits():
    """All samples. scikit-learn is imported here: every message is a new process, and not all of them need data."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16.0).astype(np.float32), y


@lru_cache
def load(partition: int, partitions: int):
    """Training and validation data of one client: every partitions-th sample."""
    x, y = digits()
    mine = np.arange(partition, len(y) - 297, partitions)
    cut = max(len(mine) * 4 // 5, 1)
    return (x[mine[:cut]], y[mine[:cut]]), (x[mine[cut:]], y[mine[cut:]])


def load_test():
    """The last 297 samples, which no client has."""
    x, y = digits()
    return x[-297:], y[-297:]


def initial(seed: int = 0):
    """A fresh model."""
    rng = np.random.default_rng(seed)
    return {
        "hidden.weight": rng.normal(0, 0.2, (HIDDEN, 64)).astype(np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": rng.normal(0, 0.2, (CLASSES, HIDDEN)).astype(np.float32),
        "output.bias": np.zeros(CLASSES, np.float32),
    }


def forward(model, x):
    """Hidden activations and logits."""
    h = np.maximum(x @ model["hidden.weight"].T + model["hidden.bias"], 0.0)
    return h, h @ model["output.weight"].T + model["output.bias"]


def gradient(model, x, y):
    """Mean cross-entropy and its gradient."""
    h, z = forward(model, x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean())
    p[np.arange(len(y)), y] -= 1.0
    p /= len(y)
    back = (p @ model["output.weight"]) * (h > 0)
    grad = {
        "hidden.weight": back.T @ x,
        "hidden.bias": back.sum(axis=0),
        "output.weight": p.T @ h,
        "output.bias": p.sum(axis=0),
    }
    return loss, {k: v.astype(np.float32) for k, v in grad.items()}


def train(model, x, y, epochs: int, lr: float, seed: int, adjust, batch: int = 16):
    """SGD; the model is changed in place. Returns the mean loss of the first epoch and the steps taken."""
    rng, losses, steps = np.random.default_rng(seed), [], 0
    for epoch in range(epochs):
        order = rng.permutation(len(y))
        for at in range(0, len(order), batch):
            rows = order[at : at + batch]
            loss, grad = gradient(model, x[rows], y[rows])
            grad = adjust(grad, model)
            for key in model:
                model[key] = model[key] - lr * grad[key]
            losses += [loss] if epoch == 0 else []
            steps += 1
    return float(np.mean(losses)), steps
'''

_CLIENT = '''"""The client. Against a plain Flower app, one line differs: CohortApp(...) where ClientApp() stood.

`instructions` is for methods with a client half (FedProx, SCAFFOLD, FedDyn) and for PyramidFL; without them, leave
it out.
"""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedcohort.flower import SUPPORTED, CohortApp, Outputs, instructions
from {module} import task


def data(context: Context):
    """This client's own data."""
    return task.load(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


def outputs(arrays: ArrayRecord, context: Context, part: str):
    """Logits and labels of a model on this client's data: all that most selectors' signals need."""
    x, y = data(context)[0 if part == "train" else 1]
    return Outputs(task.forward({{k: a.numpy() for k, a in arrays.items()}}, x)[1], y)


def gradient(arrays: ArrayRecord, context: Context):
    """The full-batch gradient, for selectors that compare gradients (FedACS)."""
    return task.gradient({{k: a.numpy() for k, a in arrays.items()}}, *data(context)[0])[1]


app = CohortApp(outputs=outputs, gradient=gradient, applies=SUPPORTED, version="1.0.0")  # was: app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local training, as in any Flower app."""
    x, y = data(context)[0]
    model = {{k: a.numpy() for k, a in msg.content["arrays"].items()}}
    config = msg.content["config"]
    seed = int(config["server-round"]) if "server-round" in config else 0
    asked = instructions(msg, epochs=int(context.run_config["local-epochs"]), lr=float(context.run_config["lr"]))
    loss, steps = task.train(model, x, y, asked.epochs, asked.lr, seed, asked.adjust)
    metrics = MetricRecord({{"train_loss": loss, "num-examples": len(y), "num-steps": steps}})
    arrays = ArrayRecord({{k: Array(v) for k, v in model.items()}})
    return Message(RecordDict({{"arrays": arrays, "metrics": metrics}}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Accuracy on this client's validation data."""
    x, y = data(context)[1]
    model = {{k: a.numpy() for k, a in msg.content["arrays"].items()}}
    accuracy = float((task.forward(model, x)[1].argmax(axis=1) == y).mean())
    metrics = MetricRecord({{"accuracy": accuracy, "num-examples": len(y)}})
    return Message(RecordDict({{"metrics": metrics}}), reply_to=msg)
'''

_SERVER = '''"""The server. Against a plain Flower app, two lines differ: an import, and the wrapped strategy.

With another `method` than fedavg, one of fedcohort's own takes the place of Flower's strategy.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy
from {module} import task

app = ServerApp()


def test_metrics(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy of the global model on data that no client has."""
    x, y = task.load_test()
    model = {{k: a.numpy() for k, a in arrays.items()}}
    return MetricRecord({{"accuracy": float((task.forward(model, x)[1].argmax(axis=1) == y).mean())}})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    config = context.run_config
    method = None if config["method"] == "fedavg" else str(config["method"])
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0) if method is None else None,
        method=method,
        selector=str(config["selector"]),
        cohort_size=int(config["cohort"]),
        deadline=float(config["deadline"]),
        min_available=int(config["min-available"]),
        app_version="1.0.0",
        state_dir=str(config["state-dir"]) or None,
    )
    initial = ArrayRecord({{k: Array(v) for k, v in task.initial().items()}})
    rounds = int(config["num-server-rounds"])
    result = strategy.start(
        grid, initial, num_rounds=rounds, train_config=ConfigRecord({{"lr": config["lr"]}}), evaluate_fn=test_metrics
    )
    print("accuracy by round:", [round(m["accuracy"], 4) for m in result.evaluate_metrics_serverapp.values()])
'''

_README = """# {name}

Federated digits on Flower, with the clients of each round chosen by a fedcohort selector.

    fedcohort flower up --simulation     # a SuperLink with simulated SuperNodes; without --simulation: five real ones
    source .flwr/fedcohort/env
    flwr run . loopback --stream --federation-config "num-supernodes=5 client-resources-num-cpus=1"
    fedcohort flower down                # and away with it

On real SuperNodes leave --federation-config away. Settings are in `pyproject.toml`, `[tool.flwr.app.config]`; others
for one run:

    flwr run . loopback --stream --run-config 'selector="uniform" method="fedadam" cohort=3'
"""


def write_project(folder: Path) -> list[Path]:
    """Write a new project; refuses a folder that holds something."""
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise BadParameter(
            f"project name {name!r}",
            "it must start with a letter and hold only lower-case letters, digits, - and _",
            "choose e.g. my-app",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunExists(f"{folder}", "it exists and is not empty", "choose another name")
    module = name.replace("-", "_")
    files = {
        "pyproject.toml": _PYPROJECT.format(name=name, module=module),
        "README.md": _README.format(name=name),
        ".gitignore": "__pycache__/\n.flwr/\n",
        f"{module}/__init__.py": f'"""{name}: federated digits with a fedcohort selector."""\n',
        f"{module}/task.py": _TASK,
        f"{module}/client_app.py": _CLIENT.format(module=module),
        f"{module}/server_app.py": _SERVER.format(module=module),
    }
    written = []
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(target)
    return written
