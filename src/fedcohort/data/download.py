"""Getting a dataset: from its official address, from a mirror, or from a folder on this machine.

A file is written as NAME.part, resumed with HTTP Range where one is left from before, checked, and only then renamed.
So a file under its own name is whole. A part with the wrong checksum is deleted; a part cut short is kept for resuming.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcohort.data.dataset import check_file, data_root, load
from fedcohort.data.known import FOLDERS, KNOWN, FoundFiles, find
from fedcohort.data.sources import SOURCES, Remote, sha256_of
from fedcohort.errors import DataError, UnknownName

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where known
SIZE_LIMIT = 4 << 30
TRIES = 3  # connections to one address before the next one is asked
TIMEOUT = 60.0  # seconds without a byte
_BLOCK = 1 << 18


class _Broken(Exception):
    """The connection ended early: what arrived is kept, and asking again may help."""


class _Refused(Exception):
    """This address does not have the file: asking again does not help."""


def _silent(_file: str, _done: int, _total: int | None) -> None:
    """Progress that nobody watches."""


def fetch(remote: Remote, target: Path, *, mirror: str | None = None, progress: Progress = _silent) -> str:
    """One official file to `target`, resumed and verified: "present" where it was there already, else "fetched"."""
    if target.is_file() and sha256_of(target) == remote.sha256:
        return "present"
    _download(remote.urls(mirror), target, remote.size, progress, lambda part: _right(part, remote))
    return "fetched"


def _right(part: Path, remote: Remote) -> str | None:
    """Why this part is not the official file, or None."""
    found = sha256_of(part)
    return None if found == remote.sha256 else f"the sha256 is {found} and should be {remote.sha256}"


def _download(
    urls: tuple[str, ...], target: Path, size: int | None, progress: Progress, wrong: Callable[[Path], str | None]
) -> None:
    """Try each address until one gives a file in which `wrong` finds nothing wrong; then give it its name."""
    part = target.with_name(target.name + ".part")
    reasons: list[str] = []
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            reason = _from_address(url, part, size, progress, wrong)
            if reason is None:
                os.replace(part, target)
                return
            reasons.append(f"{url}: {reason}")
    raise DataError(
        f"file {target.name}",
        f"download failed ({'; '.join(reasons)})",
        "run the command again to resume, or name a mirror or a folder with --from",
    )


def _from_address(
    url: str, part: Path, size: int | None, progress: Progress, wrong: Callable[[Path], str | None]
) -> str | None:
    """Bring the part to its end from this address. None when it is right, else the reason why not."""
    reason = ""
    for _ in range(TRIES):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _transfer(url, part, size, progress)
        except _Refused as error:
            return str(error)
        except _Broken as error:
            reason = str(error)
            continue
        problem = wrong(part)
        if problem is None:
            return None
        part.unlink()
        reason = problem
        if not resumed:
            return reason  # this address has another file; a resumed part may only have had a bad beginning
    return reason


def _transfer(url: str, part: Path, size: int | None, progress: Progress) -> None:
    if not url.startswith(("http://", "https://")):
        raise _Refused(f"{url} is neither an http nor an https address")
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have == size:
        return
    if size is not None and have > size:
        part.unlink()
        have = 0
    headers = {"User-Agent": "fedcohort", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https, see above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            _receive(answer, part, have, size, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing after what we have: whole, or another file
            if size is None:
                return
            part.unlink()
            raise _Broken("the server has less than what was here") from None
        if error.code in (408, 429) or error.code >= 500:
            raise _Broken(f"HTTP {error.code} {error.reason}") from None
        raise _Refused(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _Broken(f"no connection ({error.reason})") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _Broken(f"the connection broke ({str(error) or type(error).__name__})") from None
    except ValueError as error:
        raise _Refused(str(error)) from None


def _receive(answer: http.client.HTTPResponse, part: Path, have: int, size: int | None, progress: Progress) -> None:
    """Append to the part where the server resumes at the right byte; start it anew where it does not."""
    resumes = re.match(rf"bytes {have}-", answer.headers.get("Content-Range", "")) if answer.status == 206 else None
    if answer.status == 206 and resumes is None:
        raise _Refused("the server answers with another range than asked for")
    done = have if resumes else 0
    length = answer.headers.get("Content-Length", "")
    total = done + int(length) if length.isdigit() else None
    limit = size if size is not None else SIZE_LIMIT
    if total is not None and total > limit:
        raise _Refused(f"the server offers {total:,} bytes, more than {limit:,}")
    with part.open("ab" if resumes else "wb") as out:
        while block := answer.read(_BLOCK):
            done += len(block)
            if done > limit:
                raise _Refused(f"the server sends more than {limit:,} bytes")
            out.write(block)
            progress(part.name.removesuffix(".part"), done, size or total)
        out.flush()
        os.fsync(out.fileno())
    whole = size if size is not None else total
    if whole is not None and done < whole:
        raise _Broken(f"it ended after {done:,} of {whole:,} bytes")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """A full disk or a read-only folder is one clear error."""
    try:
        yield
    except OSError as error:
        rule = f"it cannot be written ({error.strerror or error})"
        raise DataError(str(target), rule, "free some space or choose another folder with --root") from None


def get(name: str, *, root: Path | str | None = None, origin: str | None = None, progress: Progress = _silent) -> str:
    """Bring a dataset into the data folder and check it. Says what was done.

    `origin` is a mirror's address (http or https) or a folder on this machine instead of the official address.
    """
    if name == "digits":
        return "digits comes with fedcohort: nothing to get"
    if name not in KNOWN:
        raise UnknownName.among("dataset", name, ["digits", *KNOWN])
    folder = data_root(root)
    if origin is not None and "://" not in origin:
        done = _copy(name, Path(origin).expanduser(), folder)
    elif origin is not None and not origin.startswith(("http://", "https://")):
        raise DataError(f"--from {origin}", "it must be an http or https address", "give one, or a folder")
    elif origin is not None and (origin.endswith(".npz") or not SOURCES[name].files):
        done = _get_npz(name, origin, folder, progress)
    elif origin is not None:
        done = _get_mirrored(name, origin, folder, progress)
    else:
        done = _get_official(name, None, folder, progress)
    data = load(name, folder)
    return f"{name}: {done}, {len(data):,} + {len(data.y_test):,} samples in {folder}"


def _get_official(name: str, mirror: str | None, folder: Path, progress: Progress) -> str:
    source = SOURCES[name]
    if mirror is None and (folder / f"{name}.npz").is_file():
        return f"already there as {name}.npz"  # `get` reads it next, and says so if it is damaged
    if not source.files:
        raise DataError(f"dataset {name!r}", "it cannot be downloaded by a program", source.by_hand)
    answers = [fetch(r, folder / FOLDERS[name][0] / r.file, mirror=mirror, progress=progress) for r in source.files]
    return "already there and right" if set(answers) == {"present"} else "fetched and verified"


def _get_mirrored(name: str, mirror: str, folder: Path, progress: Progress) -> str:
    """The official files from a mirror; NAME.npz where it does not have them."""
    try:
        return _get_official(name, mirror, folder, progress)
    except DataError as error:
        try:
            return _get_npz(name, mirror, folder, progress)
        except DataError:
            raise error from None


def _get_npz(name: str, origin: str, folder: Path, progress: Progress) -> str:
    """An .npz from a mirror: no published checksum, so it is read and checked before it gets its name."""
    url = origin if origin.endswith(".npz") else f"{origin.rstrip('/')}/{name}.npz"

    def wrong(part: Path) -> str | None:
        try:
            check_file(name, part)
        except DataError as error:
            return str(error).rstrip(".")
        return None

    _download((url,), folder / f"{name}.npz", None, progress, wrong)
    return "fetched and read"


def _copy(name: str, origin: Path, folder: Path) -> str:
    if not origin.is_dir():
        raise DataError(f"--from {origin}", "there is no such folder", "give a folder, or an http address")
    found = find(name, origin, loose=True)
    if found is None:
        raise DataError(
            f"dataset {name!r}", f"neither {name}.npz nor its official files are in {origin}", "see docs/data.md"
        )
    known = {remote.file: remote.sha256 for remote in SOURCES[name].files}
    for path in found.files:
        if path.is_file() and path.name in known and sha256_of(path) != known[path.name]:
            raise DataError(str(path), "its sha256 is not the published one", "get the file again")
    found.read()
    for path, target in _targets(name, found, folder):
        part = target.with_name(target.name + ".part")
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not (target.exists() and target.samefile(path)):
                try:
                    shutil.copyfile(path, part)
                    os.replace(part, target)
                finally:
                    with suppress(FileNotFoundError):
                        part.unlink()
    return f"copied from {origin}"


def _targets(name: str, found: FoundFiles, folder: Path) -> list[tuple[Path, Path]]:
    """Where each found file goes: an .npz beside the others, official files into the dataset's own folder."""
    home = folder if found.form == "npz" else folder / FOLDERS[name][0]
    return [(path, home / path.relative_to(found.base)) for path in found.files]
