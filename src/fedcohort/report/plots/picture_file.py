"""Checks the path of a picture before anything that takes long is done."""

from __future__ import annotations

from pathlib import Path

from fedcohort.errors import BadParameter

ENDINGS = (".png", ".svg", ".pdf")


def picture_file(path: str | Path) -> Path:
    """The path, if a picture can be written there; its ending decides the format."""
    target = Path(path)
    if target.suffix.lower() not in ENDINGS:
        raise BadParameter(f"file {str(path)!r}", f"its name must end in {', '.join(ENDINGS)}", "use e.g. picture.png")
    if not target.parent.is_dir():
        raise BadParameter(f"file {str(path)!r}", "its folder does not exist", f"create {target.parent} first")
    if target.is_dir():
        raise BadParameter(f"file {str(path)!r}", "this is a folder", "name a file")
    return target
