"""What the tasks load, and what they say when torch is missing. Run in fresh interpreters."""

import subprocess
import sys

NO_TORCH = """
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Absent())
"""
HEAVY = (
    "print(sorted({'torch', 'sklearn', 'numba', 'matplotlib', 'pydantic'} & {m.split('.')[0] for m in sys.modules}))"
)


def run(code):
    done = subprocess.run([sys.executable, "-c", "import sys\n" + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_catalogue_is_light():
    make = "from fedcohort.tasks import catalogue\nfor n in catalogue.names(): catalogue.get(n)\n"
    assert run(make + HEAVY) == "[]"


def test_digits_train_in_numpy_without_torch():
    code = """
import numpy as np
from types import SimpleNamespace
from fedcohort.tasks import catalogue
from fedcohort.types import Part
spec = catalogue.get("digits-mlp")
n = spec.labels().size
part = Part(np.array([0, n // 2, n]), np.arange(n), spec.labels(), spec.labels())
none = Part(np.zeros(3, np.int64), *[np.zeros(0, np.int64)] * 3)
world = SimpleNamespace(name="w", population=2, classes=10, train=part, validation=none)
task = spec.bind(world, engine="numpy")
model = task.initial(np.random.default_rng(0))
trained = task.train(model, np.arange(2), task.plan())
better = model.with_params(model.params + trained.updates.delta.mean(axis=0))
print(task.evaluate(better, "test")["accuracy"] > task.evaluate(model, "test")["accuracy"] + 0.3)
"""
    assert run(NO_TORCH + code) == "True"


def test_what_needs_torch_says_so():
    code = """
from fedcohort.errors import MissingExtra
from fedcohort.tasks import catalogue
from fedcohort.engines.torch_reference import ReferenceEngine
for attempt in (catalogue.get("cifar10-vgg11").model, lambda: ReferenceEngine(None, None)):
    try:
        attempt()
    except MissingExtra as error:
        print("fedcohort[torch]" in str(error))
"""
    assert run(NO_TORCH + code) == "True\nTrue"
