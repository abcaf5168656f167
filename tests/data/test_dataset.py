"""Datasets from arrays, their normalised features, and test sets cut from them."""

import numpy as np
import pytest

from fedcohort.data.dataset import Dataset, data_root, load
from fedcohort.errors import BadParameter, DataError, UnknownName


def small(n=10, **more):
    return Dataset.from_arrays(np.arange(n * 3, dtype=np.float32).reshape(n, 3), np.arange(n) % 4, **more)


def test_from_arrays_keeps_what_it_is_given():
    data = small(client=[7, 7, 7, 3, 3, 3, 9, 9, 9, 9])
    assert (data.name, data.classes, data.clients, len(data), data.shape) == ("mine", 4, 3, 10, (3,))
    # owners 3, 7, 9 are numbered in sorted order
    assert data.client.tolist() == [1, 1, 1, 0, 0, 0, 2, 2, 2, 2]
    assert len(data.y_test) == 0
    assert data.x_test.shape == (0, 3)
    np.testing.assert_array_equal(data.features(), np.arange(30).reshape(10, 3))


def test_owners_may_be_names_and_training_owners_come_first():
    data = small(3, client=["b", "c", "b"], x_test=np.zeros((2, 3)), y_test=[0, 1], client_test=["a", "c"])
    assert data.client.tolist() == [0, 1, 0]
    assert data.client_test.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("y", "numbers", "names"),
    [
        ([1, 2, 3], [0, 1, 2], (1, 2, 3)),  # does not start at 0
        ([0, 7, 7], [0, 1, 1], (0, 7)),  # a gap
        ([1, -1, 1], [1, 0, 1], (-1, 1)),
        ([2.0, 1.0, 2.0], [1, 0, 1], (1, 2)),
        ([True, False, True], [1, 0, 1], (0, 1)),
        (["no", "yes", "no"], [0, 1, 0], ("no", "yes")),
        (np.array(["no", "yes", "no"], object), [0, 1, 0], ("no", "yes")),
    ],
)
def test_labels_are_mapped_and_the_mapping_is_kept(y, numbers, names):
    data = Dataset.from_arrays(np.zeros((3, 2)), y)
    assert (data.y.tolist(), data.class_names, data.classes) == (numbers, names, len(names))


def test_test_labels_share_the_mapping_of_the_training_labels():
    data = Dataset.from_arrays(np.zeros((2, 1)), [5, 9], x_test=np.zeros((2, 1)), y_test=[9, 7])
    assert (data.class_names, data.y.tolist(), data.y_test.tolist()) == ((5, 7, 9), [0, 2], [2, 1])


def test_channels_last_becomes_first_and_bytes_are_scaled():
    x = np.arange(2 * 5 * 4 * 3, dtype=np.uint8).reshape(2, 5, 4, 3)
    data = Dataset.from_arrays(x, [0, 1])
    assert data.x.shape == (2, 3, 5, 4)
    assert data.x.dtype == np.uint8
    out = data.features([1])
    assert out.dtype == np.float32
    assert out.flags.c_contiguous
    assert out[0, 2, 4, 1] == pytest.approx(x[1, 4, 1, 2] / 255)
    first = np.zeros((2, 3, 5, 4), np.uint8)
    assert Dataset.from_arrays(first, [0, 1]).x.shape == (2, 3, 5, 4)


def test_features_by_rows_mask_slice_and_per_channel_scale():
    x = np.ones((4, 5, 2), np.int16) * np.arange(4, dtype=np.int16)[:, None, None]
    data = Dataset.from_arrays(x, [0, 1, 0, 1], scale=np.array([2.0, 10.0]), shift=1.0)
    assert data.features()[3, 0].tolist() == [7.0, 31.0]  # 3 * 2 + 1, 3 * 10 + 1
    for rows in ([1, 3], np.array([False, True, False, True]), slice(1, None, 2)):
        assert data.features(rows)[:, 0, 0].tolist() == [3.0, 7.0]
    assert data.x.dtype == np.int16  # as stored


def test_features_do_not_write_into_the_dataset():
    data = small(scale=3.0)
    before = data.x.copy()
    data.features()[:] = 99
    np.testing.assert_array_equal(data.x, before)


GOOD = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": GOOD, "y": [0, 1]}, "x with 3 rows and y with 2"),
        ({"x": [[0.0, np.nan], [0, 0], [0, 0]], "y": [0, 1, 2]}, "x[0]"),
        ({"x": [[0.0, 1], [0, np.inf], [0, 0]], "y": [0, 1, 2]}, "x[1]"),
        ({"x": [[1e300, 1]], "y": [0]}, "infinity"),
        ({"x": GOOD.astype(object), "y": [0, 1, 2]}, "object"),
        ({"x": [[1, 2], [3]], "y": [0, 1]}, "x"),
        ({"x": GOOD.astype(complex), "y": [0, 1, 2]}, "complex"),
        ({"x": np.zeros(3), "y": [0, 1, 2]}, "x of shape (3,)"),
        ({"x": np.zeros((3, 0)), "y": [0, 1, 2]}, "(3, 0)"),
        ({"x": np.zeros((0, 2)), "y": []}, "at least one sample"),
        ({"x": GOOD, "y": [0, 1, -1], "classes": 2}, "label -1"),
        ({"x": GOOD, "y": [0.0, 1.5, 2.0]}, "y of dtype float64"),
        (
            {"x": GOOD, "y": [0.0, np.nan, np.nan]},
            "y[1] = nan: 2 labels are NaN or infinite; give these samples a label",
        ),
        ({"x": GOOD, "y": [0, 1, 2], "x_test": GOOD, "y_test": [0, 1, np.nan]}, "y_test[2] = nan: 1 labels are NaN"),
        ({"x": GOOD, "y": ["a", "b", "c"], "classes": 3}, "y of dtype"),
        ({"x": GOOD, "y": [0, 1, 2], "x_test": GOOD, "y_test": ["a", "b", "c"]}, "one holds numbers and the other"),
        ({"x": GOOD, "y": np.array([0, 1, 2], object)}, "object"),
        ({"x": GOOD, "y": [[0], [1], [2]]}, "y of shape (3, 1)"),
        ({"x": GOOD, "y": [0, 1, 2], "client": [0, 1]}, "client of shape (2,)"),
        ({"x": GOOD, "y": [0, 1, 2], "client": [0.5, 1, 2]}, "client of dtype float64"),
        ({"x": GOOD, "y": [0, 1, 2], "x_test": GOOD}, "x_test and y_test"),
        ({"x": GOOD, "y": [0, 1, 2], "x_test": np.zeros((1, 5)), "y_test": [0]}, "(5,)"),
        ({"x": GOOD, "y": [0, 1, 2], "x_test": GOOD, "y_test": [0]}, "x_test with 3 rows"),
        ({"x": GOOD, "y": [0, 1, 2], "classes": 2}, "classes = 2"),
        ({"x": GOOD, "y": [0, 1, 2], "scale": np.ones(3)}, "scale of shape (3,)"),
        ({"x": GOOD, "y": [0, 1, 2], "scale": float("nan")}, "scale"),
        ({"x": GOOD, "y": [0, 1, 2], "client_test": [0]}, "client_test"),
        ({"x": GOOD, "y": [0, 1, 2], "activity": [0]}, "activity"),
    ],
)
def test_bad_arrays_name_themselves(given, says):
    with pytest.raises(DataError) as caught:
        Dataset.from_arrays(**given)
    assert says in str(caught.value)


def test_held_out_by_samples_is_a_partition():
    data = small(10, client=[0, 0, 0, 1, 1, 1, 2, 2, 2, 2], activity=np.arange(10))
    cut = data.held_out(0.3, np.random.default_rng(1))
    assert (len(cut.y), len(cut.y_test)) == (7, 3)
    rows = np.concatenate([cut.x, cut.x_test])[:, 0] // 3
    assert sorted(rows.tolist()) == list(range(10))
    np.testing.assert_array_equal(cut.x[:, 0] // 3, cut.activity)
    np.testing.assert_array_equal(cut.y, cut.activity % 4)
    again = data.held_out(0.3, np.random.default_rng(1))
    np.testing.assert_array_equal(cut.x_test, again.x_test)


def test_held_out_by_client_shares_nobody():
    owner = np.repeat(np.arange(5), 4)
    data = small(20, client=owner)
    cut = data.held_out(0.4, np.random.default_rng(0), by_client=True)
    train, test = (set(owner[(x[:, 0] // 3).astype(int)]) for x in (cut.x, cut.x_test))
    assert len(train) == 3
    assert len(test) == 2
    assert not train & test
    assert sorted(set(cut.client.tolist())) == [0, 1, 2]
    assert sorted(set(cut.client_test.tolist())) == [3, 4]
    assert {cut.client_names[c] for c in cut.client} == train
    assert {cut.client_names[c] for c in cut.client_test} == test


def test_held_out_keeps_at_least_one_on_each_side():
    data = small(4, client=[0, 0, 1, 1])
    for share in (0.01, 0.99):
        cut = data.held_out(share, np.random.default_rng(0), by_client=True)
        assert (len(cut.y), len(cut.y_test)) == (2, 2)


def test_held_out_refuses():
    rng = np.random.default_rng(0)
    with pytest.raises(BadParameter, match=r"share = 1\.5"):
        small().held_out(1.5, rng)
    with pytest.raises(DataError, match="0 clients"):
        small().held_out(0.5, rng, by_client=True)
    with pytest.raises(DataError, match="already has a test set"):
        small().held_out(0.5, rng).held_out(0.5, rng)


def test_digits_are_embedded():
    data = load("digits")
    assert data.x.shape == (1500, 1, 8, 8)
    assert data.x_test.shape == (297, 1, 8, 8)
    assert data.classes == 10
    assert data.features().max() == 1.0
    assert data.features().min() == 0.0
    # UCI's documentation: 1797 samples, between 174 and 183 of each class
    counts = np.bincount(np.concatenate([data.y, data.y_test]))
    assert counts.sum() == 1797
    assert counts.min() == 174
    assert counts.max() == 183


def test_digits_are_those_of_scikit_learn_to_the_bit():
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    data = load("digits")
    np.testing.assert_array_equal(np.concatenate([data.x, data.x_test]).reshape(-1, 64), theirs.data)
    np.testing.assert_array_equal(np.concatenate([data.y, data.y_test]), theirs.target)
    assert (data.x.dtype, data.y.dtype) == (np.uint8, theirs.target.dtype)


def test_root_from_argument_environment_and_default(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("FEDCOHORT_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "fedcohort" / "data"


def test_absent_and_unknown(tmp_path):
    with pytest.raises(DataError) as caught:
        load("fashion-mnist", tmp_path)
    for part in ("fashion-mnist.npz", str(tmp_path), "fedcohort data get fashion-mnist"):
        assert part in str(caught.value)
    with pytest.raises(UnknownName, match="cifar10"):
        load("cifar-10", tmp_path)
    (tmp_path.parent / "secret.npz").write_bytes(b"")
    with pytest.raises(UnknownName):
        load("../secret", tmp_path)
