"""Server-sent events: what changed in the list of runs, and the new rounds of the runs that a page shows.

A page names the runs it shows and how many rounds of each it has; it is sent the rounds after those, and nothing twice.
Each event carries these positions as its id, so that a browser that lost the connection continues where it was.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fedcohort.dashboard.board import Board
from fedcohort.dashboard.track import Plain, as_json, said
from fedcohort.errors import FedcohortError

EVERY = 1.0  # seconds between two looks
ALIVE = 15  # looks without news after which a comment says that the connection lives
MOST_RUNS = 32  # that one page may follow
MOST_PAGES = 64  # that may listen at once
ROWS, CELLS = 5_000, 50_000  # rounds, and cells of a cohort map, in one event
_PLACE = re.compile(r"[0-9a-f]{16}:\d{1,9}:\d{1,9}")


@dataclass
class Watch:
    """What one page has seen."""

    version: int  # of the list
    name: str  # the number whose curve it draws
    places: dict[str, tuple[int, int]]  # run -> (which journal, rounds)
    map: str = ""  # the run whose cohort map it draws
    seen: dict[str, int] = field(default_factory=dict)  # run -> version of the list when it was read last

    def id(self) -> str:
        """Where it stands, for a browser that comes back."""
        return f"{self.version}/" + ",".join(f"{run}:{born}:{at}" for run, (born, at) in self.places.items())


class Live:
    """All pages that listen."""

    def __init__(self, board: Board, every: float = EVERY) -> None:
        self.board, self.every = board, every
        self.pages = 0
        self._end = asyncio.Event()

    def stop(self) -> None:
        """Let every page go, at once."""
        self._end.set()

    async def events(self, request: Request) -> Response:
        """The stream of one page."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self.pages >= MOST_PAGES:
            return Response(status_code=503)
        return StreamingResponse(self._stream(_watch(request)), media_type="text/event-stream")

    async def _stream(self, watch: Watch) -> AsyncIterator[str]:
        self.pages += 1
        quiet = 0
        try:
            yield "retry: 2000\n\n"
            while not self._end.is_set():
                news = await asyncio.to_thread(self._news, watch)
                for kind, value in news:
                    yield _event(kind, value, watch.id())
                quiet = 0 if news else quiet + 1
                if quiet >= ALIVE:
                    yield ": alive\n\n"
                    quiet = 0
                try:
                    await asyncio.wait_for(self._end.wait(), self.every)
                except TimeoutError:
                    continue
        finally:
            self.pages -= 1

    def _news(self, watch: Watch) -> list[tuple[str, Plain]]:
        """What this page does not know yet."""
        self.board.refresh()
        version, changed, gone = self.board.since(watch.version)
        news: list[tuple[str, Plain]] = []
        if changed or gone:
            news.append(("list", {"version": version, "changed": changed, "gone": gone}))
        watch.version = version
        for run in list(watch.places):
            found = self._rounds(watch, run)
            if found is not None:
                news.append(found)
        return news

    def _rounds(self, watch: Watch, run: str) -> tuple[str, Plain] | None:
        """New rounds of one run; "anew" where its journal is another one than the page knows."""
        held = self.board.track(run)
        if held is None:
            return None
        (born, track), (known, at) = held, watch.places[run]
        version = self.board.entries[run].version if run in self.board.entries else 0
        if watch.seen.get(run) == version:
            return None
        watch.seen[run] = version
        try:
            rounds = track.advance()
        except (FedcohortError, OSError) as error:
            return "trouble", {"id": run, "error": said(error)}
        if born != known or at > rounds:
            watch.places[run] = (born, 0)
            return "anew", {"id": run, "born": born}
        rows = track.rows(at, ROWS, watch.name)
        if not rows:
            return None
        watch.places[run] = (born, at + len(rows))
        if at + len(rows) < rounds:
            watch.seen.pop(run)
        cells = track.cells(at, at + len(rows))[-CELLS:].ravel().tolist() if watch.map == run else []
        return "rows", {"id": run, "born": born, "next": at + len(rows), "rows": rows, "cells": cells}


def _watch(request: Request) -> Watch:
    """What the page asks for; strange parts are left out."""
    query = request.query_params
    came_back = request.headers.get("last-event-id", "")
    version, _, places = (
        came_back.partition("/") if came_back else (query.get("version", "0"), "", query.get("runs", ""))
    )
    found: dict[str, tuple[int, int]] = {}
    for part in places.split(",")[:MOST_RUNS]:
        if _PLACE.fullmatch(part):
            run, born, at = part.split(":")
            found[run] = (int(born), int(at))
    whole = version.isascii() and version.isdigit() and len(version) < 10
    return Watch(int(version) if whole else 0, query.get("name", "accuracy"), found, query.get("map", ""))


def _event(kind: str, value: Plain, place: str) -> str:
    return f"id: {place}\nevent: {kind}\ndata: {as_json(value)}\n\n"
