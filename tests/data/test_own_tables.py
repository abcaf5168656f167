"""Tables of one's own: which columns become what, and what is said about those that cannot."""

import numpy as np
import pytest

from fedcohort import Dataset
from fedcohort.data.dataset import check_file
from fedcohort.errors import DataError, FedcohortError

TABLE = "age,bmi,site,ill\n31,22.5,north,no\n58,31.0,south,yes\n44,27.1,south,no\n63,29.4,north,yes\n"


def csv_file(tmp_path, text=TABLE, name="clinic.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_csv_keeps_the_names_of_clients_and_classes_and_standardises(tmp_path):
    data = Dataset.from_csv(csv_file(tmp_path), target="ill", client="site")
    assert (data.name, data.class_names, data.client_names) == ("clinic", ("no", "yes"), ("north", "south"))
    assert (data.y.tolist(), data.client.tolist()) == ([0, 1, 0, 1], [0, 1, 1, 0])
    assert data.x[:, 0].tolist() == [31, 58, 44, 63]  # as stored
    np.testing.assert_allclose(data.features().mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(data.features().std(axis=0), 1, atol=1e-5)
    plain = Dataset.from_csv(csv_file(tmp_path), "ill", drop=["site", "bmi"], standardise=False)
    assert (plain.client, plain.features().tolist()) == (None, [[31], [58], [44], [63]])


@pytest.mark.parametrize("separator", [";", "\t"])
def test_usual_column_names_other_separators_and_padded_ids(tmp_path, separator):
    text = "\ufeffx1,label,client\n1,3,007\n2,5,010\n\n4,3,007\n".replace(",", separator)
    data = Dataset.from_csv(csv_file(tmp_path, text))
    assert (data.class_names, data.client_names, len(data)) == ((3, 5), ("007", "010"), 3)


@pytest.mark.parametrize(
    ("text", "how", "says"),
    [
        (TABLE, {}, "none of them is named as the labels; give target='COLUMN'"),
        (TABLE, {"target": "il"}, "did you mean ill"),
        (TABLE, {"target": "ill", "client": "city"}, "client='city': there is no such column"),
        (TABLE, {"target": "ill"}, "column 'site': a feature is a number, and this holds north, south"),
        (TABLE, {"target": "ill", "drop": ["cite"]}, "did you mean site"),
        (TABLE, {"target": "ill", "features": ["age", "ill"]}, "column 'ill' in features: it is the target"),
        (TABLE, {"target": "ill", "client": "site", "features": "site"}, "column 'site' in features: it is the client"),
        (TABLE, {"target": "ill", "drop": "bmi", "features": ["age", "bmi"]}, "it is among those to drop"),
        (TABLE, {"target": "ill", "features": []}, "features=[]: no column is left as a feature; name some"),
        (TABLE, {"target": "ill", "features": ["agee"]}, "did you mean age"),
        (TABLE.replace("27.1", ""), {"target": "ill", "client": "site"}, "column 'bmi': 1 cells are empty, the first"),
        (TABLE.replace("44", "NA"), {"target": "ill", "client": "site"}, "column 'age': 1 cells are empty"),
        (TABLE.replace("south,no", ",no"), {"target": "ill", "client": "site"}, "column 'site': 1 cells are empty"),
        (TABLE.replace("south,no", "south,"), {"target": "ill", "client": "site"}, "or name another column as target"),
        (TABLE.replace("south,no", ",no"), {"target": "ill", "client": "site"}, "or name another column as client"),
        ("y\n1\n2\n", {}, "no column is left as a feature"),
        ("a,y\n", {}, "no rows below its header"),
        ("a,y\n1,2\n3\n", {}, "line 3 with 1 cells"),
        ("a,a,y\n1,2,3\n", {}, "the header has it twice"),
        ("1,2,0\n3,4,1\n", {}, "its first line holds numbers"),
        ("a,y,label\n1,2,3\n", {}, "each of them could be the target"),
        ("a,y\n" + "".join(f"1,{i}.5\n" for i in range(200)), {}, "200 different values in 200 rows"),
        ("a,y\n1,0.5\n2,1\n", {}, "labels are whole numbers or words"),
    ],
)
def test_mistakes_in_a_table_name_the_column_and_the_remedy(tmp_path, text, how, says):
    with pytest.raises(FedcohortError) as caught:
        Dataset.from_csv(csv_file(tmp_path, text), **how)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (
            ["0.5"] * 300 + ["n/a"],
            "column 'a': 1 cells are not numbers, and the first is 'n/a' in row 301; put numbers",
        ),
        (
            ["0.5", "0.7", "1,5"],
            "1 cells are not numbers, and the first is '1,5' in row 3; write decimals with a point",
        ),
        (["0,5", "1,5", "2"], "a feature is a number, and this holds 0,5, 1,5, 2; write decimals with a point"),
        (["0.5", "1,5", "?"], "1 cells are not numbers, and the first is '?' in row 3; put numbers there"),
        (["north", "south", "7"], "a feature is a number, and this holds north, south, 7; encode it as numbers"),
        (["007", "010", "012"], "a feature is a number, and this holds 007, 010, 012; encode it as numbers"),
    ],
)
def test_a_word_among_numbers_is_named_with_its_row(tmp_path, cells, says):
    rows = "".join(f"{cell};{i % 2}\n" for i, cell in enumerate(cells))
    with pytest.raises(DataError) as caught:
        Dataset.from_csv(csv_file(tmp_path, f"a;y\n{rows}"))
    assert says in str(caught.value)
    assert ("with a point" in str(caught.value)) == ("with a point" in says)


def test_what_is_advised_for_objects_in_an_npz_is_then_read(tmp_path):
    columns = {"x": np.zeros((3, 2)), "y": np.array([1, 2, 1], object), "client": np.array([7, 8, 7], object)}
    for name in ("y", "client"):
        np.savez(tmp_path / "own.npz", **columns)
        with pytest.raises(DataError, match=rf"{name}\.astype\(int\) if numbers"):
            check_file("own", tmp_path / "own.npz")
        columns[name] = columns[name].astype(int)
    np.savez(tmp_path / "own.npz", **columns)
    assert check_file("own", tmp_path / "own.npz").client_names == (7, 8)


def test_a_frame_and_a_parquet_file_are_read_like_the_csv(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(csv_file(tmp_path))
    data = Dataset.from_pandas(frame, "ill", "site", name="clinic")
    from_file = Dataset.from_csv(csv_file(tmp_path), "ill", "site")
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "clinic.parquet")
    stored = Dataset.from_parquet(tmp_path / "clinic.parquet", target="ill", client="site")
    for other in (from_file, stored):
        np.testing.assert_array_equal(other.features(), data.features())
        assert (other.class_names, other.client_names) == (data.class_names, data.client_names)
    with pytest.raises(DataError, match="not a parquet file"):
        Dataset.from_parquet(csv_file(tmp_path), target="ill")


def test_a_csv_where_an_npz_is_expected_is_not_called_damaged(tmp_path):
    with pytest.raises(DataError, match=r"text file, not an \.npz; name it as csv:") as caught:
        check_file("clinic", csv_file(tmp_path))
    assert "damaged" not in str(caught.value)
    assert "delete" not in str(caught.value)


def test_wrong_names_in_an_npz_are_answered_with_the_expected_ones(tmp_path):
    np.savez(tmp_path / "own.npz", features=np.zeros((2, 2)), labels=[0, 1], site=["a", "b"])
    with pytest.raises(DataError, match=r"must be x and y, with client.*; it has features, labels, site\)") as caught:
        check_file("own", tmp_path / "own.npz")
    assert "np.savez(FILE, x=..., y=..., client=...)" in str(caught.value)
    np.save(tmp_path / "own.npy", np.zeros(3))
    with pytest.raises(DataError, match="this is one array"):
        check_file("own", tmp_path / "own.npy")


def test_an_npz_may_have_owners_and_a_test_set_with_owners(tmp_path):
    sides = {"x": np.zeros((2, 2)), "y": [1, 2], "client": ["b", "a"]}
    np.savez(tmp_path / "own.npz", **sides, x_test=np.zeros((1, 2)), y_test=[2], client_test=["c"])
    data = check_file("own", tmp_path / "own.npz")
    assert (data.client_names, data.client_test.tolist(), data.y_test.tolist()) == (("a", "b", "c"), [2], [1])
