"""Getting datasets from a server on this machine that drops connections, ignores Range, lies and loses files."""

import gzip
import hashlib
import io
import os
import struct

import numpy as np
import pytest

from fedcohort.data import download
from fedcohort.data.dataset import available, load
from fedcohort.data.download import fetch, get
from fedcohort.data.sources import SOURCES, Remote, Source
from fedcohort.errors import DataError, UnknownName

BODY = np.random.default_rng(3).bytes(700_000)


def remote(mirror, body=BODY, size=True, bases=()):
    digest = hashlib.sha256(body).hexdigest()
    return Remote("file.bin", digest, bases or (f"{mirror.url}/",), len(body) if size else None)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "file.bin"


def left(target):
    return sorted(path.name for path in target.parent.iterdir()) if target.parent.exists() else []


def test_plain_download_then_nothing_to_do(mirror, target):
    mirror.files["file.bin"] = BODY
    seen = []
    assert fetch(remote(mirror), target, progress=lambda *now: seen.append(now)) == "fetched"
    assert target.read_bytes() == BODY
    assert left(target) == ["file.bin"]
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))
    assert fetch(remote(mirror), target) == "present"
    assert len(mirror.asked) == 1


@pytest.mark.parametrize("size", [True, False])
def test_resumes_in_the_middle(mirror, target, size):
    mirror.files["file.bin"] = BODY
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(BODY[:400_000])
    fetch(remote(mirror, size=size), target)
    assert target.read_bytes() == BODY
    assert mirror.asked == [("file.bin", "bytes=400000-")]


def test_a_server_that_dies_is_asked_again_for_the_rest(mirror, target):
    mirror.files["file.bin"] = BODY
    mirror.die_after = [300_000, 100_000]
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY
    assert [span for _, span in mirror.asked] == [None, "bytes=300000-", "bytes=400000-"]


def test_a_server_that_keeps_dying_leaves_a_part_to_resume(mirror, target):
    mirror.files["file.bin"] = BODY
    mirror.die_after = [100_000] * 3
    with pytest.raises(DataError, match=r"file.bin.*300,000 of 700,000.*again to resume"):
        fetch(remote(mirror), target)
    assert left(target) == ["file.bin.part"]
    assert target.with_name("file.bin.part").read_bytes() == BODY[:300_000]
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY
    assert mirror.asked[-1][1] == "bytes=300000-"


def test_a_server_that_ignores_range_starts_over(mirror, target):
    mirror.files["file.bin"], mirror.ranges = BODY, False
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(b"x" * 1000)
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY


def test_a_bad_beginning_is_found_and_fetched_afresh(mirror, target):
    mirror.files["file.bin"] = BODY
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(b"x" * 1000)
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY
    assert [span for _, span in mirror.asked] == ["bytes=1000-", None]


@pytest.mark.parametrize("size", [True, False])
def test_wrong_checksum_keeps_nothing(mirror, target, size):
    mirror.files["file.bin"] = BODY[:-1] + b"?"
    with pytest.raises(DataError) as caught:
        fetch(remote(mirror, size=size), target)
    assert "sha256" in str(caught.value)
    assert mirror.url in str(caught.value)
    assert left(target) == []


def test_wrong_checksum_does_not_touch_what_was_there(mirror, target):
    mirror.files["file.bin"] = b"?" * len(BODY)
    target.parent.mkdir()
    target.write_bytes(b"older")
    with pytest.raises(DataError):
        fetch(remote(mirror), target)
    assert target.read_bytes() == b"older"


def test_truncated_file_is_never_taken_for_whole(mirror, target):
    mirror.files["file.bin"] = BODY[:-100]
    with pytest.raises(DataError, match=r"file\.bin"):
        fetch(remote(mirror), target)
    assert not target.exists()


def test_too_long_is_cut_off_at_once(mirror, target):
    mirror.files["file.bin"] = BODY + b"more"
    with pytest.raises(DataError, match="more than 700,000"):
        fetch(remote(mirror), target)
    assert not target.exists()


def test_whole_part_left_from_before_needs_no_server(mirror, target):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(BODY)
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY
    assert mirror.asked == []


def test_part_longer_than_the_file_is_dropped(mirror, target):
    mirror.files["file.bin"] = BODY
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(BODY + b"x")
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY


def test_range_not_satisfiable_with_a_whole_part(mirror, target):
    mirror.files["file.bin"] = BODY
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(BODY)
    fetch(remote(mirror, size=False), target)
    assert target.read_bytes() == BODY


def test_not_found_then_the_next_address(mirror, target):
    mirror.files["file.bin"] = BODY
    mirror.fail = [404]
    fetch(remote(mirror, bases=(f"{mirror.url}/first/", f"{mirror.url}/second/")), target)
    assert target.read_bytes() == BODY
    assert len(mirror.asked) == 2


def test_not_found_anywhere_says_where_it_looked(mirror, target):
    with pytest.raises(DataError) as caught:
        fetch(remote(mirror), target)
    for part in (f"{mirror.url}/file.bin", "404", "--from"):
        assert part in str(caught.value)
    assert left(target) == []
    assert len(mirror.asked) == 1  # asking again is of no use


def test_a_busy_server_is_asked_again(mirror, target):
    mirror.files["file.bin"] = BODY
    mirror.fail = [503, 429]
    fetch(remote(mirror), target)
    assert target.read_bytes() == BODY


def test_nobody_listens(mirror, target):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match="no connection"):
        fetch(remote(mirror, bases=(f"http://127.0.0.1:{port}/",)), target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(mirror, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="cannot be written"):
        fetch(remote(mirror), tmp_path / "sub" / "file.bin")


def test_a_file_in_place_of_the_folder(mirror, tmp_path):
    (tmp_path / "sub").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(remote(mirror), tmp_path / "sub" / "file.bin")


# whole datasets ----------------------------------------------------------------------------------------------------


def idx(array):
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def tiny_mnist():
    x, y = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28), np.array([3, 1, 4], np.uint8)
    names = [remote.file for remote in SOURCES["mnist"].files]
    return dict(zip(names, (idx(x), idx(y), idx(x), idx(y)), strict=True))


@pytest.fixture
def tiny(mirror, monkeypatch):
    """MNIST of three digits, published by the server with right checksums."""
    mirror.files |= tiny_mnist()
    files = tuple(
        Remote(n, hashlib.sha256(b).hexdigest(), (f"{mirror.url}/",), len(b)) for n, b in mirror.files.items()
    )
    monkeypatch.setitem(SOURCES, "mnist", Source(files))
    return mirror


def test_get_then_load_then_verify(tiny, tmp_path):
    said = get("mnist", root=tmp_path)
    assert "fetched and verified, 3 + 3 samples" in said
    assert load("mnist", tmp_path).y.tolist() == [3, 1, 4]
    row = next(row for row in available(tmp_path, verify=True) if row.name == "mnist")
    assert (row.form, row.checksum, row.problem) == ("idx", "right", "")
    assert "already there" in get("mnist", root=tmp_path)
    assert len(tiny.asked) == 4


def test_verify_finds_an_altered_file_and_get_repairs_it(tiny, tmp_path):
    get("mnist", root=tmp_path)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    row = next(row for row in available(tmp_path, verify=True) if row.name == "mnist")
    assert path.name in row.problem
    get("mnist", root=tmp_path)
    assert next(row for row in available(tmp_path, verify=True) if row.name == "mnist").problem == ""


def test_get_from_a_mirror_still_checks(tiny, tmp_path, monkeypatch):
    official = SOURCES["mnist"].files
    dead = tuple(Remote(r.file, r.sha256, ("http://127.0.0.1:9/",), r.size) for r in official)
    monkeypatch.setitem(SOURCES, "mnist", Source(dead))
    get("mnist", root=tmp_path / "a", origin=tiny.url)
    assert load("mnist", tmp_path / "a").y.tolist() == [3, 1, 4]
    tiny.files["t10k-labels-idx1-ubyte.gz"] = b"?" * official[3].size
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        get("mnist", root=tmp_path / "b", origin=tiny.url)


def test_a_mirror_of_unpacked_files_is_asked_for_the_npz(mirror, tmp_path):
    x = np.zeros((2, 28, 28), np.uint8)
    mirror.files["mnist.npz"] = npz(x_train=x, y_train=[1, 2], x_test=x, y_test=[3, 4])
    assert "2 + 2 samples" in get("mnist", root=tmp_path, origin=mirror.url)
    del mirror.files["mnist.npz"]
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz.*404"):
        get("mnist", root=tmp_path / "other", origin=mirror.url)


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


FEMNIST = npz(x=np.zeros((4, 28, 28), np.uint8), y=[0, 1, 2, 3], client=[0, 0, 1, 1], scale=np.float32(1 / 255))


def test_npz_from_a_mirror_is_read_before_it_is_kept(mirror, tmp_path):
    mirror.files["femnist.npz"] = FEMNIST
    assert "4 + 0 samples" in get("femnist", root=tmp_path, origin=mirror.url)
    mirror.files["mobifall.npz"] = FEMNIST
    with pytest.raises(DataError, match="mobifall"):
        get("mobifall", root=tmp_path, origin=f"{mirror.url}/mobifall.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["femnist.npz"]


@pytest.mark.parametrize("folder", [".", "femnist", "femnist/data", "data"])
def test_from_a_folder_with_leaf_files(tmp_path, folder):
    import json

    for part in ("train", "test"):
        place = tmp_path / "leaf" / folder / part
        place.mkdir(parents=True)
        content = {"users": ["w"], "num_samples": [1], "user_data": {"w": {"x": [[0.0] * 784], "y": [1]}}}
        (place / "all.json").write_text(json.dumps(content))
    get("femnist", root=tmp_path / "root", origin=str(tmp_path / "leaf"))
    assert (tmp_path / "root" / "femnist" / "train" / "all.json").is_file()
    assert len(load("femnist", tmp_path / "root").y_test) == 1


def test_from_a_folder_with_npz_and_into_itself(tmp_path):
    (tmp_path / "femnist.npz").write_bytes(FEMNIST)
    get("femnist", root=tmp_path / "root", origin=str(tmp_path))
    get("femnist", root=tmp_path, origin=str(tmp_path))
    assert (tmp_path / "root" / "femnist.npz").read_bytes() == (tmp_path / "femnist.npz").read_bytes() == FEMNIST


def test_from_a_folder_refuses_what_is_wrong(tmp_path):
    for name, content in tiny_mnist().items():
        (tmp_path / name).write_bytes(content)  # not the published files
    with pytest.raises(DataError, match="not the published one"):
        get("mnist", root=tmp_path / "root", origin=str(tmp_path))
    (tmp_path / "femnist.npz").write_bytes(FEMNIST[:-50])
    with pytest.raises(DataError, match="damaged"):
        get("femnist", root=tmp_path / "root", origin=str(tmp_path))
    with pytest.raises(DataError, match=r"har\.npz"):
        get("har", root=tmp_path / "root", origin=str(tmp_path))
    with pytest.raises(DataError, match="no such folder"):
        get("har", root=tmp_path / "root", origin=str(tmp_path / "nowhere"))
    assert not (tmp_path / "root").exists()


def test_an_npz_that_is_there_is_not_downloaded_again_but_read(tiny, tmp_path):
    x = np.zeros((2, 28, 28), np.uint8)
    content = npz(x_train=x, y_train=[1, 2], x_test=x, y_test=[3, 4])
    (tmp_path / "mnist.npz").write_bytes(content)
    assert "already there as mnist.npz, 2 + 2 samples" in get("mnist", root=tmp_path)
    assert tiny.asked == []
    (tmp_path / "mnist.npz").write_bytes(content[:-99])
    with pytest.raises(DataError, match=r"mnist\.npz.*damaged.*delete it and run: fedcohort data get mnist"):
        get("mnist", root=tmp_path)


def test_by_hand_says_precisely_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"preprocess\.sh.*data get femnist --from"):
        get("femnist", root=tmp_path)
    with pytest.raises(DataError, match=r"form on https.*mobifall\.npz"):
        get("mobifall", root=tmp_path)


def test_get_refuses_other_schemes_and_names(tmp_path):
    with pytest.raises(DataError, match="http"):
        get("har", root=tmp_path, origin="file:///etc/passwd")
    with pytest.raises(UnknownName, match="mnist"):
        get("minst", root=tmp_path)
    assert "nothing to get" in get("digits", root=tmp_path)


def test_every_official_file_has_a_checksum_and_an_address():
    for name, source in SOURCES.items():
        assert source.terms
        assert bool(source.files) != bool(source.by_hand), name
        for file in source.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size
            assert all(url.startswith(("https://", "http://")) and url.endswith(file.file) for url in file.urls())
    assert download.TIMEOUT > 0
