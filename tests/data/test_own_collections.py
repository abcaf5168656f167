"""Collections of torch, Hugging Face and Flower as datasets; small stand-ins where a library is not installed."""

import numpy as np
import pytest

from fedcohort import Dataset
from fedcohort.errors import DataError, FedcohortError

GREY = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)


class Pairs(list):
    """Anything with a length and an index is a torch dataset."""


class Rows:
    """A `datasets.Dataset` as far as it is needed."""

    def __init__(self, **columns):
        self.columns = columns
        self.features = {}

    @property
    def column_names(self):
        return list(self.columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {k: v[key] for k, v in self.columns.items()}


class ClassLabel:
    names = ("cat", "dog", "eel")


class Partitioner:
    num_partitions = 3

    def load_partition(self, index):
        rows = {0: slice(0, 1), 1: slice(0, 0), 2: slice(1, 4)}[index]
        return Rows(image=list(GREY[rows]), label=[2, 0, 2, 0][rows])


def test_torch_pairs_and_their_owners():
    torch = pytest.importorskip("torch")
    samples = torch.utils.data.TensorDataset(torch.eye(4, 3), torch.tensor([4, 6, 4, 6]))
    data = Dataset.from_torch(samples, client=["a", "b", "b", "a"], test=samples, name="eye")
    assert (data.name, data.shape, data.class_names, data.client_names) == ("eye", (3,), (4, 6), ("a", "b"))
    assert len(data.y_test) == 4
    grey = Dataset.from_torch(Pairs(zip(GREY, [0, 1, 0, 1], strict=True)))
    assert grey.shape == (1, 5, 6)
    assert grey.features().max() == pytest.approx(GREY.max() / 255)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (iter([]), "no length and no index"),
        (Pairs(), "it is empty"),
        (Pairs([GREY[0]]), "not a pair (x, y)"),
        (Pairs([(GREY[0], 0), (GREY[0, :2], 1)]), "(2, 6) and (5, 6)"),
        (Pairs([(GREY[0], [0, 1])]), "not one class"),
    ],
)
def test_what_is_not_a_torch_dataset_is_told(samples, says):
    with pytest.raises(DataError) as caught:
        Dataset.from_torch(samples)
    assert says in str(caught.value)


def test_huggingface_columns_class_names_and_splits():
    train = Rows(image=list(GREY), label=[2, 0, 2, 0], client=["x", "y", "y", "x"], text=["-"] * 4)
    train.features["label"] = ClassLabel()
    data = Dataset.from_huggingface({"train": train, "test": train})
    assert (data.shape, data.class_names, data.client_names) == ((1, 5, 6), ("cat", "eel"), ("x", "y"))
    assert data.y_test.tolist() == data.y.tolist() == [1, 0, 1, 0]
    plain = Dataset.from_huggingface(Rows(a=[1.0, 2.0], b=[3, 4], word=["p", "q"], y=[0, 1]))
    assert plain.x.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(FedcohortError, match="did you mean label"):
        Dataset.from_huggingface(train, target="lable")
    for used, says in (
        ("label", "it is the target"),
        (["image", "client"], "it is the client"),
        ([], r"features=\[\]"),
    ):
        with pytest.raises(DataError, match=says):
            Dataset.from_huggingface(train, features=used)
    with pytest.raises(FedcohortError, match="give features='COLUMN'"):
        Dataset.from_huggingface(Rows(a=list(GREY), b=list(GREY), y=[0, 1, 0, 1]))


def test_partitions_of_flower_become_clients_under_their_numbers():
    data = Dataset.from_flwr_partitioner(Partitioner())
    assert (data.client_names, data.client.tolist()) == ((0, 2), [0, 1, 1, 1])
    assert (data.class_names, data.y.tolist()) == ((0, 2), [1, 0, 1, 0])
    with pytest.raises(DataError, match="this is not a partitioner"):
        Dataset.from_flwr_partitioner(3)


def test_the_real_partitioner_of_flwr_datasets():
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    made = partitioners.IidPartitioner(num_partitions=4)
    rows = {"image": [g.tolist() for g in GREY] * 2, "label": [0, 1] * 4}
    made.dataset = datasets.Dataset.from_dict(rows)
    assert Dataset.from_flwr_partitioner(made).clients == 4
