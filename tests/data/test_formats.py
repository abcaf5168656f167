"""Every file format, written by hand or by an independent writer, and every way in which such a file can be bad."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.data.cifar_batches import read_python
from fedcohort.data.dataset import load
from fedcohort.errors import DataError

RNG = np.random.default_rng(5)
PICTURES = RNG.integers(0, 256, (6, 4, 3, 32, 32), dtype=np.uint8)  # six batches of four
LABELS = RNG.integers(0, 10, (6, 4), dtype=np.uint8)
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def refuses(name, root, *parts):
    with pytest.raises(DataError) as caught:
        load(name, root)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


# npz ------------------------------------------------------------------------------------------------------------


def test_split_layout_channels_last(tmp_path):
    x = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    y = np.array([0, 9, 3, 3, 1], np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    data = load("cifar10", tmp_path)
    assert data.x.shape == (5, 3, 32, 32)
    assert data.x_test.shape == (2, 3, 32, 32)
    assert data.classes == 10
    assert data.x[4, 2, 7, 30] == x[4, 7, 30, 2]
    assert data.y.tolist() == y.tolist()
    # (v / 255 - 0.5) / 0.5
    np.testing.assert_allclose(data.features([1])[0, 1], (x[1, :, :, 1] / 255 - 0.5) / 0.5, atol=1e-6)


def test_mnist_gets_a_channel_and_its_mean_and_deviation(tmp_path):
    x = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", x_train=x, y_train=[1, 2, 3], x_test=x, y_test=[1, 2, 3])
    data = load("mnist", tmp_path)
    assert data.x.shape == (3, 1, 28, 28)
    assert data.classes == 10
    np.testing.assert_allclose(data.features(test=True)[:, 0], (x / 255 - 0.1307) / 0.3081, atol=1e-5)


def test_natural_layout(tmp_path):
    x = RNG.integers(-99, 99, (4, 128, 6)).astype(np.int16)
    scale = np.array([1, 2, 3, 4, 5, 6], np.float32) / 10
    columns = {"client": [5, 5, 8, 8], "scale": scale, "activity": [3, 3, 12, 0], "classes": np.array(["ADL", "FALL"])}
    np.savez(tmp_path / "mobifall.npz", x=x, y=np.array([0, 0, 1, 0], np.int8), **columns)
    data = load("mobifall", tmp_path)
    assert data.x.dtype == np.int16
    assert data.client.tolist() == [0, 0, 1, 1]
    assert data.activity.tolist() == [3, 3, 12, 0]
    np.testing.assert_allclose(data.features(), x * scale, rtol=1e-6)
    assert len(data.y_test) == 0
    assert data.classes == 2


def test_your_own_npz_by_its_name(tmp_path):
    np.savez(tmp_path / "clinic-3.npz", x=np.eye(4), y=[0, 1, 2, 2], client=["n", "s", "s", "n"])
    data = load("clinic-3", tmp_path)
    assert data.clients == 2
    assert data.features().tolist() == np.eye(4).tolist()
    assert data.classes == 3


def test_fortran_order_is_understood(tmp_path):
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=np.asfortranarray(x), y=[0, 1, 0, 1])
    np.testing.assert_array_equal(load("own", tmp_path).x, x)


def test_npz_object_array_is_refused_unread(tmp_path):
    trap = np.empty(2, object)
    trap[:] = [{"a": 1}, "b"]
    np.savez(tmp_path / "own.npz", x=trap, y=[0, 1])
    refuses("own", tmp_path, "own.npz", "refused", "object")


def npy(shape, body=b"", descr="'|u1'", magic=b"\x93NUMPY\x01\x00"):
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return magic + struct.pack("<H", len(head)) + head + body


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (npy("(1000000000000, 28, 28)"), "limit"),
        (npy("(1999999, 28, 28)", b"\0" * 100), "declares"),
        (npy("(2, 28, 28)", b"\0" * (2 * 784 + 1)), "longer than it declares"),
        (npy("(-1, 28, 28)"), "(-1, 28, 28)"),
        (npy("(2, 30, 30)", b"\0" * 1800), "(30, 30)"),
        (npy("(2, 28, 28)", b"\0" * 1568, descr="'|O'"), "plain numbers"),
        (npy("(2, 28, 28)", b"\0" * 1568, descr="[('a', '|u1')]"), "plain numbers"),
        (b"not numpy at all", "header"),
        (b"", "header"),
        (npy("(2, 28, 28)", magic=b"\x93NUMPY\x03\x00"), "version"),
        (npy("(2, " + "28, " * 5000 + ")"), "header"),
        (npy("(__import__('os').system('true'),)"), "header"),
    ],
    ids=range(12),
)
def test_npz_with_a_lying_header(tmp_path, member, says):
    zipped(tmp_path / "mnist.npz", x_train=member, y_train=npy("(2,)", b"\1\2"))
    refuses("mnist", tmp_path, "mnist.npz", says)


def test_npz_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "own.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as out,
    ):
        out.write(npy("(300, 1048576)"))
        for _ in range(300):
            out.write(bytes(1 << 20))
    refuses("own", tmp_path, "refused", "unpacks")


def test_npz_damage_and_wrong_arrays(tmp_path):
    path = tmp_path / "mnist.npz"
    x = RNG.integers(0, 256, (9, 28, 28), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(9), x_test=x, y_test=np.arange(9))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refuses("mnist", tmp_path, "mnist.npz", "damaged")
    path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    refuses("mnist", tmp_path, "damaged", "CRC")
    np.savez(path, images=x, labels=np.arange(9))
    refuses("mnist", tmp_path, "x_train, y_train, x_test, y_test", "x and y")
    np.savez(path, x=x, y=np.arange(9) + 5)
    refuses("mnist", tmp_path, "classes = 10", "labels reach 13")
    np.savez(path, x=x, y=np.arange(8))
    refuses("mnist", tmp_path, "9 rows", "8")


# CIFAR-10 batches -------------------------------------------------------------------------------------------------


def binary(at):
    return b"".join(bytes([label]) + picture.tobytes() for label, picture in zip(LABELS[at], PICTURES[at], strict=True))


def python2(at):
    """A batch as Python 2 and NumPy 1 wrote it, opcode by opcode."""
    labels = b"".join(b"K" + bytes([label]) for label in LABELS[at])
    body = PICTURES[at].tobytes()
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05("
        + labels
        + b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        + b"(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN"
        + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(body))
        + body
        + b"tbU\tfilenamesq\x0c](U\x05a.pngU\x05b.pngeu."
    )


def python3(at, protocol):
    rows = PICTURES[at].reshape(4, -1)
    return pickle.dumps({b"data": rows, b"labels": [int(v) for v in LABELS[at]], b"filenames": [b"a"]}, protocol)


def same_as_written(data):
    np.testing.assert_array_equal(data.x, PICTURES[:5].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(data.y, LABELS[:5].ravel())
    np.testing.assert_array_equal(data.x_test, PICTURES[5])
    np.testing.assert_array_equal(data.y_test, LABELS[5])


WRITERS = {
    "binary": (binary, ".bin", "cifar-10-batches-bin"),
    "python2": (python2, "", "cifar-10-batches-py"),
    "protocol2": (lambda at: python3(at, 2), "", "cifar-10-batches-py"),
    "protocol3": (lambda at: python3(at, 3), "", "cifar-10-batches-py"),
    "protocol4": (lambda at: python3(at, 4), "", "cifar-10-batches-py"),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("base", ["", "cifar10"])
def test_cifar_batches(tmp_path, writer, base):
    write, suffix, folder = WRITERS[writer]
    place = tmp_path / base / folder
    place.mkdir(parents=True)
    for at, name in enumerate(BATCHES):
        (place / (name + suffix)).write_bytes(write(at))
    same_as_written(load("cifar10", tmp_path))
    (place / f"data_batch_3{suffix}").unlink()
    refuses("cifar10", tmp_path, f"data_batch_3{suffix}", str(place), "fedcohort data get cifar10")


@pytest.mark.parametrize(("writer", "name"), [("binary", "cifar-10-binary"), ("python2", "cifar-10-python")])
def test_cifar_archives(tmp_path, writer, name):
    write, suffix, folder = WRITERS[writer]
    path = tmp_path / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for at, batch in enumerate(BATCHES):
            info = tarfile.TarInfo(f"{folder}/{batch}{suffix}")
            info.size = len(write(at))
            archive.addfile(info, io.BytesIO(write(at)))
    same_as_written(load("cifar10", tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]  # nothing was unpacked
    path.write_bytes(path.read_bytes()[:9000])
    refuses("cifar10", tmp_path, path.name, "damaged")


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    rows = PICTURES[0].reshape(4, -1)
    evil = pickle.dumps({"data": rows, "labels": [1, 2, 3, 4], "x": Evil(open, (str(mark), "w"))}, protocol)
    path = tmp_path / "data_batch_1"
    with pytest.raises(DataError) as caught:
        read_python(evil, path)
    assert str(path) in str(caught.value)
    assert not mark.exists()
    if protocol in (2, 3, 4):
        assert "io.open" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02.",
        b"\x80\x02}.",
        b"\x80\x02]q\x00.",
        b"cos\nsystem\n(U\x02ls\x85R.",
        b"\x80\x02cnumpy\nload\n.",
        b"\x80\x02(cnumpy\ndtype\nU\x01O\x85R.",
        b"\x80\x02}U\x04data}s.",
        b"\x80\x02}U\x04dataNU\x06labels]u.",
        b"\x80\x04}\x8c\x02os\x8c\x06system\x93.",
        b"e",
        b"R",
        b"b",
        b"hA.",
        b"T\xff\xff\xff\xffabc",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"]" * 200_000,
        b"N\x85" + b"2\x86" * 100,
        b"\x80\x02" + b"c" + b"a" * 1000,
    ],
    ids=range(19),
)
def test_odd_pickles_are_data_errors(tmp_path, content):
    with pytest.raises(DataError):
        read_python(content, tmp_path / "batch")


def test_python_batch_must_say_what_a_batch_says(tmp_path):
    rows = PICTURES[0].reshape(4, -1)
    for bad in (
        {"data": rows, "labels": [1, 2, 3]},
        {"data": rows, "labels": [1, 2, 3, 10]},
        {"data": rows, "labels": [1, 2, 3, True]},
        {"data": rows[:, :-1].copy(), "labels": [1, 2, 3, 4]},
        {"data": rows.astype(np.int64), "labels": [1, 2, 3, 4]},
        {"labels": [1, 2, 3, 4]},
        [rows],
    ):
        with pytest.raises(DataError, match="batch"):
            read_python(pickle.dumps(bad, 2), tmp_path / "batch")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_altered_pickle_is_read_or_refused(tmp_path_factory, data):
    """Change, cut or insert a few bytes outside the pixels: the answer is a batch or a DataError, nothing else."""
    content = bytearray(python2(0))
    start = content.index(PICTURES[0].tobytes()[:64])
    spots = st.integers(0, start - 1) | st.integers(start + PICTURES[0].nbytes, len(content) - 1)
    for spot in data.draw(st.lists(spots, min_size=1, max_size=4)):
        content[spot] = data.draw(st.integers(0, 255))
    try:
        x, y = read_python(bytes(content), tmp_path_factory.getbasetemp() / "batch")
    except DataError:
        return
    assert x.shape[1:] == (3, 32, 32)
    assert len(x) == len(y)
    assert y.max() <= 9


def test_binary_batch_damage(tmp_path):
    for at, name in enumerate(BATCHES):
        (tmp_path / f"{name}.bin").write_bytes(binary(at))
    (tmp_path / "data_batch_2.bin").write_bytes(binary(1)[:-1])
    refuses("cifar10", tmp_path, "data_batch_2.bin", "3073-byte")
    (tmp_path / "data_batch_2.bin").write_bytes(b"\x0a" + binary(1)[1:])
    refuses("cifar10", tmp_path, "data_batch_2.bin", "label 10")


# idx ----------------------------------------------------------------------------------------------------------------


def idx(array, kind=8):
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


DIGITS = RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8)
NUMBERS = np.arange(7, dtype=np.uint8)
IDX = {
    "train-images-idx3-ubyte": idx(DIGITS),
    "train-labels-idx1-ubyte": idx(NUMBERS),
    "t10k-images-idx3-ubyte": idx(DIGITS[:2]),
    "t10k-labels-idx1-ubyte": idx(NUMBERS[:2]),
}


def write_idx(folder, zip_them):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in IDX.items():
        (folder / (name + ".gz" * zip_them)).write_bytes(gzip.compress(content) if zip_them else content)


@pytest.mark.parametrize("zip_them", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist"), ("mnist", ".")],
)
def test_idx(tmp_path, name, folder, zip_them):
    write_idx(tmp_path / folder, zip_them)
    data = load(name, tmp_path)
    np.testing.assert_array_equal(data.x[:, 0], DIGITS)
    np.testing.assert_array_equal(data.y_test, [0, 1])
    mean, deviation = (0.1307, 0.3081) if name == "mnist" else (0.2860, 0.3530)
    np.testing.assert_allclose(data.features()[:, 0], (DIGITS / 255 - mean) / deviation, atol=1e-5)


def test_idx_damage(tmp_path):
    place = tmp_path / "mnist"
    path = place / "train-images-idx3-ubyte.gz"
    for content, says in (
        (gzip.compress(IDX["train-images-idx3-ubyte"])[:-40], "damaged"),
        (gzip.compress(IDX["train-images-idx3-ubyte"][:-1]), "ends after"),
        (gzip.compress(IDX["train-images-idx3-ubyte"] + b"x"), "longer"),
        (gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 28, 28)), "limit"),
        (gzip.compress(idx(DIGITS[:, :20])), "(20, 28)"),
        (gzip.compress(idx(DIGITS, kind=13)), "idx"),
        (b"<html>not found</html>", "idx"),
        (b"", "ends after"),
    ):
        write_idx(place, True)
        path.write_bytes(content)
        refuses("mnist", tmp_path, str(path), says)
    path.unlink()
    refuses("mnist", tmp_path, path.name, str(place), "fedcohort data get mnist")


# LEAF ---------------------------------------------------------------------------------------------------------------


def leaf(**writers):
    users = {w: {"x": (x / 255).tolist(), "y": y} for w, (x, y) in writers.items()}
    return json.dumps({"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users})


def test_leaf_by_writer(tmp_path):
    x = RNG.integers(0, 256, (6, 784))
    for part, content in (
        ("train/a.json", leaf(f0=(x[:2], [61, 0]), f9=(x[2:3], [5]))),
        ("train/b.json", leaf(f3=(x[3:4], [7]))),
        ("test/a.json", leaf(f9=(x[4:5], [1]), f0=(x[5:6], [2]))),
    ):
        path = tmp_path / "femnist" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    data = load("femnist", tmp_path)
    assert data.x.dtype == np.uint8
    assert data.x.shape == (4, 1, 28, 28)
    assert data.classes == 62
    np.testing.assert_array_equal(data.x.reshape(4, -1), x[:4])
    assert data.y.tolist() == [61, 0, 5, 7]
    assert data.client.tolist() == [0, 0, 2, 1]  # f0, f3, f9 in sorted order
    assert data.client_test.tolist() == [2, 0]
    np.testing.assert_allclose(data.features(test=True).reshape(2, -1), x[4:] / 255, atol=1e-6)


def test_leaf_values_that_are_not_bytes_stay_exact(tmp_path):
    (tmp_path / "femnist").mkdir()
    x = RNG.random((2, 784))
    content = {"users": ["w"], "num_samples": [2], "user_data": {"w": {"x": x.tolist(), "y": [1, 2]}}}
    (tmp_path / "femnist" / "all_data_0.json").write_text(json.dumps(content))
    data = load("femnist", tmp_path)
    np.testing.assert_allclose(data.features().reshape(2, -1), x, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not json"),
        ("[" * 100_000, "json"),
        ("[1, 2]", "user_data"),
        ('{"users": ["a", "b"], "user_data": {"a": {"x": [], "y": []}}}', "do not match"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1, 2]], "y": [1]}}}', "'a'"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1, 2], [3]], "y": [1]}}}', "rectangular"),
        ('{"users": ["a"], "user_data": {"a": [1]}}', "'a'"),
        ('{"users": [], "user_data": {}}', "no samples"),
        (leaf(a=(np.full((1, 784), 999), [1])), "between 0 and 1"),
        (leaf(a=(np.full((1, 784), np.nan), [1])), "between 0 and 1"),
        (leaf(a=(np.zeros((1, 784)), [1.5])), "not integers"),
        (leaf(a=(np.zeros((1, 784)), [62])), "62"),
        (leaf(a=(np.zeros((1, 784)), [-1])), "-1"),
    ],
    ids=range(13),
)
def test_leaf_damage(tmp_path, content, says):
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "all.json").write_text(content)
    refuses("femnist", tmp_path, "all.json", says)


# UCI HAR ------------------------------------------------------------------------------------------------------------


def har_files():
    signals = RNG.normal(size=(2, 6, 3, 128)).astype(np.float32)  # halves, channels, windows, readings
    files, names = {}, [f"{kind}_{axis}" for kind in ("total_acc", "body_gyro") for axis in "xyz"]
    for half, part in enumerate(("train", "test")):
        for channel, name in enumerate(names):
            text = "\n".join(" " + "  ".join(f"{v:.7e}" for v in row) for row in signals[half, channel])
            files[f"{part}/Inertial Signals/{name}_{part}.txt"] = text
        files[f"{part}/y_{part}.txt"] = "5\n1\n6\n"
        files[f"{part}/subject_{part}.txt"] = "1\n3\n3\n" if part == "train" else "2\n2\n30\n"
    return signals, files


def har_zip(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(f"UCI HAR Dataset/{name}", text)
    return out.getvalue()


@pytest.mark.parametrize("form", ["outer", "inner", "folder"])
def test_har_as_uci_serves_it(tmp_path, form):
    signals, files = har_files()
    if form == "folder":
        for name, text in files.items():
            path = tmp_path / "UCI HAR Dataset" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    elif form == "inner":
        (tmp_path / "UCI HAR Dataset.zip").write_bytes(har_zip(files))
    else:
        (tmp_path / "har").mkdir()
        with zipfile.ZipFile(tmp_path / "har" / "human+activity+recognition+using+smartphones.zip", "w") as outer:
            outer.writestr("UCI HAR Dataset.zip", har_zip(files))
    data = load("har", tmp_path)
    assert data.x.shape == (6, 128, 6)
    assert data.y.tolist() == [4, 0, 5, 4, 0, 5]
    assert data.client.tolist() == [0, 2, 2, 1, 1, 3]  # volunteers 1, 2, 3, 30
    np.testing.assert_allclose(data.features()[4, :, 3], signals[1, 3, 1], rtol=1e-5)


def test_har_damage(tmp_path):
    _, files = har_files()
    path = tmp_path / "UCI HAR Dataset.zip"
    for change, says in (
        ({"train/y_train.txt": "5\n1\n"}, "differ in length"),
        ({"train/y_train.txt": "5\n1\n7\n"}, "1 .. 6"),
        ({"test/subject_test.txt": "one\n2\n3\n"}, "not a number"),
        ({"test/Inertial Signals/total_acc_x_test.txt": "1 2 3"}, "rows of 128"),
    ):
        path.write_bytes(har_zip(files | change))
        refuses("har", tmp_path, path.name, says)
    del files["train/y_train.txt"]
    path.write_bytes(har_zip(files))
    refuses("har", tmp_path, "does not hold", "y_train.txt")
    path.write_bytes(har_zip(files)[:-30])
    refuses("har", tmp_path, "damaged")
