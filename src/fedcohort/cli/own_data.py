"""Data of your own on the command line: a path, or a text such as csv:FILE(target=..., client=...)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcohort.core.spec_string import FILES, file_of
from fedcohort.errors import BadParameter, DataError
from fedcohort.registry.lookup import parse

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset

OWN_DATA = "Your own samples: an .npz with arrays x, y and client, or a .csv or .parquet table."


def data_text(given: str, target: str = "", client: str = "", **more: Any) -> str:
    """The text of a task on this file, its kind known by its ending."""
    from fedcohort.experiment.texts import write

    text = given
    if not file_of(given):
        ending = Path(given).suffix.lower().removeprefix(".")
        if not Path(given).expanduser().is_file():
            wanted = "give an .npz with the arrays x, y and client, or a .csv table"
            raise DataError(f"--data {given}", "there is no such file", wanted)
        if ending not in FILES:
            rule = "its ending does not say what it is"
            remedy = f"name it as {' or '.join(f'{kind}:{given}' for kind in FILES)}, whichever it is"
            raise DataError(f"--data {given}", rule, remedy)
        text = f"{ending}:{given}"
    name, arguments = parse(text)
    columns = {k: v for k, v in (("target", target), ("client", client)) if v}
    if columns and file_of(name) == "npz":
        rule = "an .npz has arrays x, y and client instead of columns"
        raise BadParameter(f"--{next(iter(columns))}", rule, "leave it out")
    return write(name, {**arguments, **columns, **more})


def own_data(given: str, target: str = "", client: str = "") -> Dataset:
    """The dataset in this file."""
    from fedcohort.tasks.own_task import TABLE, read_file

    name, arguments = parse(data_text(given, target, client))
    for key in arguments:
        if key not in TABLE:
            raise BadParameter(f"{key} of {name}", "it is not about the columns of a table", "leave it out")
    return read_file(name, arguments)
