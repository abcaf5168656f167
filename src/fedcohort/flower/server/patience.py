"""No wait without end: a SuperLink that is gone is asked again for ever by Flower's own client.

A SuperLink that is killed and has no database has forgotten its runs when it comes back; one that does not come back
answers nothing at all. Either way nobody can ever answer, and the run ends with one sentence: its state folder can be
resumed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from fedcohort.errors import StoreError

TICK = 1.0  # seconds
REMEDY = "start the SuperLink with --database and the SuperNodes, then this app again with the same state_dir"


def nobody_left(seconds: float) -> StoreError:
    """The error of a run that no client answers any more."""
    return StoreError("clients", f"nobody has answered for {seconds:g} s and nobody can be asked", REMEDY)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """A call to the SuperLink that ends after so many seconds; elsewhere than in the main thread it is not bounded.

    It wakes up every second: Flower learns in another thread that the SuperLink has died, and tells the main one by a
    signal that is not seen while that waits for a lock, as it does when Flower pulls replies.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        del number, frame
        left = until - time.monotonic()
        if left <= 0:
            raise StoreError("SuperLink", f"it has not answered for {seconds:g} s", REMEDY)
        signal.setitimer(signal.ITIMER_REAL, min(left, TICK))

    until = time.monotonic() + seconds
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, TICK))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
