"""Fuzzing: bytes from outside, changed at random, given to whatever reads them.

A target has sound examples and a reader that may only take the bytes or refuse them with an error of our own. Inputs
are made by changing examples: bits, ranges, numbers, brackets, words of the format. An input that is refused at a new
place becomes an example itself, so that the search goes deeper. It runs in a child process with little memory: an input
that takes too much processor time or memory, or ends the child, is a finding like any foreign exception.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcohort.core.pack import PackError
from fedcohort.errors import FedcohortError

MEMORY = 1 << 30  # bytes that the child may take beyond what it has
SECONDS = 5.0  # of the processor for one input
MOST = 1 << 17  # bytes of an input
EXAMPLES = 400  # kept at most
NUMBERS = (
    b"0",
    b"-1",
    b"1e999",
    b"nan",
    b"-inf",
    b"0.5",
    b"1e-320",
    b"9223372036854775808",
    b"1000000000000",
    b"65536",
)
_VARYING = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|/\S+")  # parts of a message that depend on the input
_DIGITS = re.compile(rb"-?\d+(?:\.\d+)?")


class Hung(BaseException):
    """One input took too long."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes from outside: sound examples, the words of its format, and the reader."""

    name: str
    examples: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]  # the bytes, and a folder of its own; a text that it returns is a place
    words: tuple[bytes, ...] = ()
    errors: tuple[type[Exception], ...] = (FedcohortError, PackError)


@dataclass
class Found:
    """What a run of the fuzzer found."""

    executions: int = 0
    taken: int = 0
    refused: int = 0
    places: int = 0  # different ends that inputs came to
    slowest: float = 0.0  # seconds of the processor
    megabytes: float = 0.0  # by which the child grew
    findings: list[dict[str, Any]] = field(default_factory=list)


def fuzz(target: Target, seed: int, *, executions: int = 0, seconds: float = 0.0) -> Found:
    """So many inputs, or so many seconds of them, in a child process; goes on behind an input that ended the child."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    total, began, turn = Found(), time.monotonic(), 0
    examples = target.examples()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=base) as name:
        folder = Path(name)
        while True:
            left = (executions - total.executions, seconds - (time.monotonic() - began))
            if (executions and left[0] <= 0) or (seconds and left[1] <= 0) or len(total.findings) >= 20:
                return total
            report = folder / "report.json"
            report.unlink(missing_ok=True)
            code = _child(target, examples, (seed, turn), max(left[0], 0), max(left[1], 0.0), folder)
            turn += 1
            _add(total, json.loads(report.read_text()) if report.exists() else {})
            if code:
                data = (folder / "input").read_bytes()
                total.findings.append({"what": f"the process ended with {code}", "where": "", "input": data.hex()})


def _add(total: Found, part: dict[str, Any]) -> None:
    total.executions += part.get("executions", 1)
    total.taken += part.get("taken", 0)
    total.refused += part.get("refused", 0)
    total.places = max(total.places, part.get("places", 0))
    total.slowest = max(total.slowest, part.get("slowest", 0.0))
    total.megabytes = max(total.megabytes, part.get("megabytes", 0.0))
    total.findings += part.get("findings", [])


def _child(
    target: Target, examples: list[bytes], seed: tuple[int, int], executions: int, seconds: float, folder: Path
) -> int:
    """Run a child to its end; it is ended itself when it does not move at all."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGPROF, _hung)
            logging.disable(logging.CRITICAL)  # what is refused is also logged, a thousand times a second
            warnings.simplefilter("error", RuntimeWarning)  # a number that overflows is not a number that was checked
            grown = _pages()
            resource.setrlimit(resource.RLIMIT_AS, (grown + MEMORY, grown + MEMORY))
            found = _loop(target, list(examples), random.Random(f"{target.name} {seed}"), executions, seconds, folder)
            (folder / "report.json").write_text(json.dumps(vars(found)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    until = time.monotonic() + (seconds or 600.0) + 120.0
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(done[1])


def _loop(
    target: Target, corpus: list[bytes], rng: random.Random, executions: int, seconds: float, folder: Path
) -> Found:
    found, seen, until = Found(), set(), time.monotonic() + seconds
    before, work = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, folder / "work"
    work.mkdir(exist_ok=True)
    sound = list(corpus)
    while found.executions < executions or (seconds and time.monotonic() < until):
        first = found.executions < len(sound)
        data = sound[found.executions] if first else changed(rng, rng.choice(corpus), corpus, target.words)
        (folder / "input").write_bytes(data)
        begun = time.process_time()
        kind, where, error = _one(target, data, work)
        found.slowest = max(found.slowest, round(time.process_time() - begun, 3))
        found.executions += 1
        found.taken += kind == "taken"
        found.refused += kind == "refused"
        if (kind, where) not in seen:
            seen.add((kind, where))
            if len(corpus) < EXAMPLES:
                corpus.append(data)
            if kind == "foreign":
                found.findings.append({"what": error, "where": where, "input": data[:4000].hex()})
    found.places = len(seen)
    found.megabytes = round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1)
    return found


def _one(target: Target, data: bytes, work: Path) -> tuple[str, str, str]:
    """Whether it was taken, refused or ended in a foreign error; where; and which error."""
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            taken = target.read(data, work)
            return "taken", taken if isinstance(taken, str) else "", ""
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    except target.errors as error:
        return "refused", f"{_where(error)} {_VARYING.sub('', str(error))[:100]}", ""
    except (Exception, Hung) as error:
        return "foreign", _where(error), f"{type(error).__name__}: {error}"[:300]


def _where(error: BaseException) -> str:
    """The last lines of this project that the error passed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "fedcohort" in f.filename]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))


def _hung(*_: object) -> None:
    raise Hung(f"more than {SECONDS:g} s of the processor")


def _pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def changed(rng: random.Random, data: bytes, corpus: list[bytes], words: tuple[bytes, ...]) -> bytes:
    """The same bytes with one to five changes."""
    for _ in range(min(1 + int(rng.expovariate(0.7)), 5)):
        data = rng.choice(_CHANGES)(rng, data, corpus, words)[:MOST]
    return data


def _flip(rng: random.Random, data: bytes, *_: object) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if at < len(data) else data


def _byte(rng: random.Random, data: bytes, *_: object) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.choice((0, 1, 10, 34, 127, 128, 255, rng.randrange(256)))]) + data[at + 1 :]


def _drop(rng: random.Random, data: bytes, *_: object) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + 1 + int(rng.expovariate(0.1)) :]


def _repeat(rng: random.Random, data: bytes, *_: object) -> bytes:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + 1 + int(rng.expovariate(0.2))]
    return data[:at] + part * rng.choice((2, 3, 10, 200, 5000)) + data[at:]


def _word(rng: random.Random, data: bytes, corpus: list[bytes], words: tuple[bytes, ...]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(words or NUMBERS) + data[at + rng.choice((0, 0, 1, 4)) :]


def _number(rng: random.Random, data: bytes, *_: object) -> bytes:
    places = list(_DIGITS.finditer(data[:20_000]))
    if not places:
        return data
    place = rng.choice(places)
    return data[: place.start()] + rng.choice((*NUMBERS, str(rng.randrange(300)).encode())) + data[place.end() :]


def _integer(rng: random.Random, data: bytes, *_: object) -> bytes:
    """Another binary number, as in the headers of formats."""
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), rng.randrange(256)))
    return data[:at] + value.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


def _splice(rng: random.Random, data: bytes, corpus: list[bytes], *_: object) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _nest(rng: random.Random, data: bytes, *_: object) -> bytes:
    at, many = rng.randrange(len(data) + 1), rng.choice((2, 50, 3000))
    return data[:at] + rng.choice((b"[", b"(", b"{", b"-", b"'", b'"', b'{"a":', b"[[")) * many + data[at:]


def _cut(rng: random.Random, data: bytes, *_: object) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


_CHANGES = (_flip, _byte, _drop, _repeat, _word, _word, _number, _number, _integer, _splice, _nest, _cut)
