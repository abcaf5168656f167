"""A worker of a sweep: one process, one thread, one run after the other.

Jobs come as JSON lines on standard input, news go as JSON lines to standard output: {"event": "round" | "done" |
"failed", ...}. When nobody reads the news any more, the sweep has ended, and the worker ends after the current round:
what it did is kept and can be resumed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcohort.errors import FedcohortError, RunLocked

PATIENCE = 10.0  # seconds to wait for a folder whose last owner is just ending
NEWS = 0.2  # seconds between two pieces of news of one run
Tell = Callable[[dict[str, Any]], None]


def perform(job: dict[str, Any], tell: Tell | None = None) -> dict[str, Any]:
    """Do one job; whatever goes wrong comes back as {"event": "failed", "error": one line}."""
    from fedcohort.experiment.config import from_mapping
    from fedcohort.experiment.store import Store

    last = [0.0]

    def on_round(row: dict[str, float]) -> None:
        now = time.monotonic()
        if tell is not None and now - last[0] >= NEWS:
            last[0] = now
            tell({"event": "round", "round": int(row["round"]) + 1})

    limit = time.monotonic() + PATIENCE
    while True:
        try:
            config = from_mapping({**job["config"], "workers": 1})
            obtained = Store().obtain(config, folder=Path(job["folder"]), on_round=on_round)
            return {"event": "done", "how": obtained.how, "notes": obtained.finished.history.notes}
        except RunLocked as error:
            if time.monotonic() > limit:
                return {"event": "failed", "error": one_line(error)}
            time.sleep(NEWS)
        except BrokenPipeError:
            raise
        except Exception as error:
            return {"event": "failed", "error": one_line(error)}


def one_line(error: Exception) -> str:
    """The error as one line; one that was not raised on purpose with its class and place."""
    if isinstance(error, FedcohortError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


def main() -> None:
    """Serve until standard input ends."""
    news = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the news

    def tell(message: dict[str, Any]) -> None:
        news.write(json.dumps(message) + "\n")
        news.flush()

    try:
        for line in sys.stdin:
            tell(perform(json.loads(line), tell))
    except BrokenPipeError:
        os._exit(0)  # nobody reads; closing the stream would only raise again


if __name__ == "__main__":
    main()
