"""What the server answers: the page, its files, and runs as JSON. No part of an address ever becomes part of a path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedcohort.dashboard.board import Board
from fedcohort.dashboard.guard import Guard
from fedcohort.dashboard.live import Live
from fedcohort.dashboard.track import Plain, Track, as_json, real, said, text
from fedcohort.errors import FedcohortError
from fedcohort.registry.lookup import names, parse
from fedcohort.report import views
from fedcohort.report.traits import Traits, order, traits_of
from fedcohort.types import Index

POINTS = 1500  # of a curve
CELLS = 120_000  # of a cohort map
ROWS = 400  # clients of a cohort map
WORLD = 20_000  # clients of a world that is built again for its traits
_FILES = {
    "charts.js": ("fedcohort.report", "text/javascript"),
    "maps.js": ("fedcohort.report", "text/javascript"),
    "style.css": ("fedcohort.report", "text/css"),
    "dashboard.js": ("fedcohort.dashboard", "text/javascript"),
    "grouping.js": ("fedcohort.dashboard", "text/javascript"),
    "panels.js": ("fedcohort.dashboard", "text/javascript"),
    "runlist.js": ("fedcohort.dashboard", "text/javascript"),
    "dashboard.css": ("fedcohort.dashboard", "text/css"),
}


class Pages:
    """The answers, over one board of runs."""

    def __init__(self, board: Board, live: Live) -> None:
        self.board, self.live = board, live
        self.page = (files("fedcohort.dashboard") / "web" / "index.html").read_bytes()
        self.files = {n: ((files(p) / "web" / n).read_bytes(), kind) for n, (p, kind) in _FILES.items()}

    def routes(self) -> list[Route]:
        """Every address there is."""
        return [
            Route("/", self.index),
            Route("/web/{name}", self.file),
            Route("/api/runs", self.runs),
            Route("/api/runs/{run}", self.run),
            Route("/api/runs/{run}/curve", self.curve),
            Route("/api/runs/{run}/map", self.map),
            Route("/api/runs/{run}/traits", self.traits),
            Route("/api/runs/{run}/clients/{slot}", self.client),
            Route("/api/events", self.live.events),
        ]

    async def index(self, request: Request) -> Response:
        """The page."""
        return Response(self.page, media_type="text/html")

    async def file(self, request: Request) -> Response:
        """A script or a style sheet, from memory."""
        found = self.files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found[0], media_type=found[1])

    async def runs(self, request: Request) -> Response:
        """All runs."""
        await asyncio.to_thread(self.board.refresh)
        version, runs, _ = self.board.since(0)
        return answer({"version": version, "runs": runs})

    async def run(self, request: Request) -> Response:
        """One run in a few numbers, with its configuration."""
        target = _number(request, "target")
        return await self._of(request, lambda track: track.summary(target))

    async def curve(self, request: Request) -> Response:
        """One number against rounds and virtual time, thinned."""
        name = request.query_params.get("name", "accuracy")
        most = int(min(max(_number(request, "most") or POINTS, 4), POINTS))
        return await self._of(request, lambda track: _curve(track, name, most))

    async def map(self, request: Request) -> Response:
        """Who was asked when, in the newest rounds."""
        last = int(min(max(_number(request, "last") or 200, 1), 1e6))
        return await self._of(request, lambda track: _map(track, last))

    async def traits(self, request: Request) -> Response:
        """How the clients of the map differ: its world is built again, which may take a while."""
        return await self._of(request, _traits)

    async def client(self, request: Request) -> Response:
        """One client of a run."""
        slot = request.path_params["slot"]
        if not slot.isascii() or not slot.isdigit() or len(slot) > 12:
            raise HTTPException(404)
        return await self._of(request, lambda track: track.client(int(slot)))

    async def _of(self, request: Request, look: Callable[[Track], Plain]) -> Response:
        """Something about the run that the address names; 404 where it is not in the list."""
        run = request.path_params["run"]
        await asyncio.to_thread(self.board.refresh)
        held = self.board.track(run)
        if held is None:
            raise HTTPException(404)
        return answer(await asyncio.to_thread(_looked, run, *held, look))


def _looked(run: str, born: int, track: Track, look: Callable[[Track], Plain]) -> Plain:
    try:
        rounds = track.advance()
        return {"id": run, "born": born, "next": rounds, **look(track)}
    except (FedcohortError, OSError) as error:
        return {"id": run, "born": born, "error": said(error)}


def _curve(track: Track, name: str, most: int) -> Plain:
    with track.lock:
        values, clock, index = track.column(name), track.column("clock"), np.array(track.index, np.int64)
        known = track.numbers()
    keep = views.thin(values, most)
    keep = keep[np.isfinite(values[keep])]
    shown = {"round": index[keep].tolist(), "clock": views.plain(clock[keep]), "value": views.plain(values[keep])}
    return {"name": text(name), "names": known, "next": int(values.size), **shown}


def _map(track: Track, last: int) -> Plain:
    """Cells of the newest rounds; of too many clients those that were asked most often are shown."""
    first = max(track.rounds - last, 0)
    cells = track.cells(first)[-CELLS:]
    slots, times, population = _rows(track)
    return {
        "population": population,
        "first": first,
        "cells": cells[np.isin(cells[:, 1], slots)].ravel().tolist(),
        "slots": slots.tolist(),
        "names": [track.name(slot) for slot in slots.tolist()],
        "legend": list(views.OUTCOMES),
        "traits": {"asked": times.tolist()},
    }


def _rows(track: Track) -> tuple[Index, Index, int]:
    """The clients of the map, how often each was asked, and how many clients there are."""
    slots, times = track.counts()
    population = max(track.population, int(slots.max(initial=-1)) + 1)
    if population <= ROWS:
        counts = np.zeros(population, np.int64)
        counts[slots] = times
        slots, times = np.arange(population), counts
    shown = np.sort(order(-times)[:ROWS])
    return slots[shown], times[shown], population


def _traits(track: Track) -> Plain:
    """Skew, noise and speed of the clients of the map, as far as they can be known."""
    slots, _, population = _rows(track)
    traits, note = _world(track.config, population)
    return {
        "slots": slots.tolist(),
        "traits": {n: views.plain(v[slots]) for n, v in traits.items()},
        "note": text(note),
    }


def _world(config: Plain, population: int) -> tuple[Traits, str]:
    """How clients differ, where the world is one of the catalogue and not too large to be built for a look."""
    try:
        for kind in ("world", "task"):
            name, arguments = parse(str(config.get(kind, "")))
            large = any(isinstance(v, (int, float)) and abs(v) > WORLD for v in arguments.values())
            if name not in names(kind) or large or any(isinstance(v, str) and "/" in v for v in arguments.values()):
                return {}, ""
        return traits_of(config, population) if 0 < population <= WORLD else ({}, "")
    except Exception as error:  # whatever a strange configuration leads to, the map is drawn without traits
        return {}, f"the world cannot be built again: {error}"


def answer(value: Plain) -> Response:
    """Values as JSON."""
    return Response(as_json(value), media_type="application/json")


def _number(request: Request, name: str) -> float | None:
    try:
        return real(float(request.query_params.get(name, "")))
    except ValueError:
        return None


async def _empty(request: Request, error: Exception) -> Response:
    return Response(status_code=getattr(error, "status_code", 500))


def application(board: Board, live: Live, token: str, port: int, host: str = "127.0.0.1") -> Guard:
    """The whole application, guard first."""
    inner = Starlette(routes=Pages(board, live).routes(), exception_handlers={HTTPException: _empty, Exception: _empty})
    inner.router.redirect_slashes = False
    return Guard(inner, token, port, host)
