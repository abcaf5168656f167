"""An exception in code of one's own, as one line that names the file: the frames of ours say nothing to its author."""

from __future__ import annotations

import os
import site
import sysconfig
import traceback
from pathlib import Path

from fedcohort.core.pack import PackError

WHOLE = "FEDCOHORT_TRACEBACK"  # set to 1 to see the whole traceback
_OURS = Path(__file__).parents[1]


def own_mistake(error: Exception) -> str | None:
    """One sentence where the exception comes from code of one's own; None where it does not, or all is to be seen."""
    if os.environ.get(WHOLE):
        return None
    if isinstance(error, PackError):
        name, _, rule = str(error).partition(": ")
        part = name.removeprefix("session.").replace(".", ", key ", 1)
        return f"state of the {part}: {rule}; return a dict of arrays of numbers from state_dict."
    frames = traceback.extract_tb(error.__traceback__)
    last = max((at for at, frame in enumerate(frames) if _OURS in Path(frame.filename).parents), default=-1)
    own = [frame for frame in frames[last + 1 :] if not _installed(Path(frame.filename))]
    if not own:
        return None
    said = " ".join(str(error).split())[:300] or "no message"
    where = f"{Path(own[-1].filename).name} line {own[-1].lineno}, in {own[-1].name}"
    return f"{where}: {type(error).__name__}: {said}; repair it ({WHOLE}=1 shows the whole traceback)."


def _installed(file: Path) -> bool:
    """Whether a file belongs to Python or to a package that is installed."""
    places = [*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    return not file.is_file() or any(Path(place) in file.parents for place in places)
