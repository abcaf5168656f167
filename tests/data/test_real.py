"""The real datasets, where they are on this machine; each test is skipped by name where its dataset is not."""

import hashlib
import struct

import numpy as np
import pytest

import real_data
from fedcohort.data.dataset import load, status


@pytest.mark.parametrize(
    ("name", "train", "test", "classes", "clients", "shape"),
    [
        ("cifar10", 50_000, 10_000, 10, 0, (3, 32, 32)),
        ("mnist", 60_000, 10_000, 10, 0, (1, 28, 28)),
        ("femnist", 63_942, 0, 62, 391, (1, 28, 28)),
        ("har", 10_411, 0, 6, 30, (128, 6)),
        ("mobifall", 5_286, 0, 2, 24, (128, 6)),
    ],
)
def test_counts(name, train, test, classes, clients, shape):
    data = load(name, real_data.need(name))
    assert (len(data), len(data.y_test), data.classes, data.clients, data.shape) == (
        train,
        test,
        classes,
        clients,
        shape,
    )
    if clients:
        assert np.bincount(data.client).min() > 0
    sample = data.features(np.arange(0, train, 200))
    assert sample.dtype == np.float32
    assert np.isfinite(sample).all()


def test_mnist_has_the_published_bytes():
    """sha256 of the unzipped idx files, as published with them: independent of our own content digest."""
    data = load("mnist", real_data.need("mnist"))
    images = struct.pack(">IIII", 2051, 60_000, 28, 28) + data.x.tobytes()
    labels = struct.pack(">II", 2049, 10_000) + data.y_test.astype(np.uint8).tobytes()
    assert hashlib.sha256(images).hexdigest() == "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    assert hashlib.sha256(labels).hexdigest() == "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    # the well-known mean and deviation of the training pixels
    assert data.x.mean() * data.scale + data.shift == pytest.approx(0, abs=1e-3)
    assert data.x.std(dtype=np.float32) * data.scale == pytest.approx(1, abs=1e-3)


def test_cifar10_is_official_and_its_binary_batches_read_the_same(tmp_path):
    folder = real_data.need("cifar10")
    assert status("cifar10", folder, verify=True).checksum == "right"
    data = load("cifar10", folder)
    assert (np.bincount(data.y) == 5000).all()
    records = np.concatenate([data.y[:, None].astype(np.uint8), data.x.reshape(50_000, -1)], axis=1)
    for at in range(5):
        (tmp_path / f"data_batch_{at + 1}.bin").write_bytes(records[at * 10_000 : (at + 1) * 10_000].tobytes())
    test = np.concatenate([data.y_test[:, None].astype(np.uint8), data.x_test.reshape(10_000, -1)], axis=1)
    (tmp_path / "test_batch.bin").write_bytes(test.tobytes())
    assert status("cifar10", tmp_path, verify=True).checksum == "right"


def test_altered_content_is_noticed(tmp_path):
    folder = real_data.need("mnist")
    with np.load(folder / "mnist.npz") as file:
        arrays = dict(file)
    arrays["y_test"][17] = (arrays["y_test"][17] + 1) % 10
    np.savez(tmp_path / "mnist.npz", **arrays)
    assert "not the official ones" in status("mnist", tmp_path, verify=True).problem


def test_femnist_background_is_white_and_sensors_are_in_their_units():
    femnist = load("femnist", real_data.need("femnist"))
    assert femnist.features(slice(0, 500))[:, 0, 0].mean() > 0.99  # the top row is background, value 1
    har = load("har", real_data.need("har"))
    still = har.features(np.flatnonzero(har.y == 4))[:, :, :3]  # standing: gravity alone, 1 g
    assert np.linalg.norm(still, axis=2).mean() == pytest.approx(1.0, abs=0.05)
    falls = load("mobifall", real_data.need("mobifall"))
    quiet = falls.features(np.flatnonzero(falls.activity == 0))[:, :, :3]  # standing: 9.8 m/s2
    assert np.linalg.norm(quiet, axis=2).mean() == pytest.approx(9.8, abs=0.3)
    assert set(np.unique(falls.activity)) == set(range(13))


def test_volunteers_are_held_out_whole():
    data = load("har", real_data.need("har"))
    cut = data.held_out(0.2, np.random.default_rng(0), by_client=True)
    assert cut.clients == 24
    assert len(np.unique(cut.client_test)) == 6
    assert len(cut) + len(cut.y_test) == 10_411
