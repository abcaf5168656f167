"""Which runs belong together: the setting of a run, its name, and the runs of a setting that count.

Runs that agree in everything but the entry (the selector, or the method) and the seed form a setting. What a text only
names (a file, a module, an object that was given) counts by its content, which the run folder keeps as a digest. Of
several runs with the same setting, entry and seed the one that was started last counts, and of an entry whose code was
changed only the runs with the code of the newest one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fedcohort.experiment.metrics.stored_metrics import RunRecord

_SHORT = 8  # hexadecimal digits of a digest in a name
_NO_SETTING = ("seed", "workers")


def setting_key(record: RunRecord, by: str, *but: str) -> str:
    """Equal for runs of one setting; `but` are more keys that may differ."""
    aside = (by, *_NO_SETTING, *but)
    plain = [{k: v for k, v in part.items() if k not in aside} for part in (record.config.to_dict(), record.contents)]
    return json.dumps(plain, sort_keys=True)


def setting_names(records: Sequence[RunRecord], by: str = "selector") -> list[str]:
    """The name of the setting that each of these runs belongs to; equal names mean equal settings."""
    keys = [setting_key(r, by) for r in records]
    first = dict(zip(reversed(keys), reversed(records), strict=True))
    names = dict(zip(first, _names(list(first.values()), by), strict=True))
    return [names[key] for key in keys]


def counted(records: Iterable[RunRecord], by: str = "selector") -> tuple[list[RunRecord], list[str]]:
    """The runs that count, in their order, and what there is to say about the others.

    Finished runs come before others, and of these the one that was started last.
    """
    given = list(records)
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in given:
        groups.setdefault((setting_key(record, by), str(getattr(record.config, by))), []).append(record)
    kept: set[int] = set()
    older: dict[str, int] = {}
    for (_, entry), group in groups.items():
        group.sort(key=_age)
        same = [r for r in group if r.contents.get(by) == group[-1].contents.get(by)]
        older[entry] = older.get(entry, 0) + len(group) - len(same)
        kept |= {id(r) for r in {r.config.seed: r for r in same}.values()}
    changed = sum(older.values())
    repeated = len(given) - len(kept) - changed
    notes = []
    if changed:
        names = ", ".join(entry for entry, count in older.items() if count)
        notes.append(f"{_runs(changed)} left out: the code of {names} was changed, and only its newest runs count")
    if repeated:
        notes.append(f"{_runs(repeated)} left out: a newer run has the same setting, {by} and seed")
    return [r for r in given if id(r) in kept], notes


def _age(record: RunRecord) -> tuple[bool, float, str]:
    return record.finished, record.started, str(record.folder or "")


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count} runs are"


def _names(records: list[RunRecord], by: str) -> list[str]:
    """World and task of each setting, and whatever else differs between settings."""
    plain = [{k: v for k, v in r.config.to_dict().items() if k not in (by, *_NO_SETTING)} for r in records]
    keys = dict.fromkeys(k for p in plain for k in p)
    differ = [k for k in keys if len({json.dumps(p.get(k)) for p in plain}) > 1 and k not in ("world", "task")]
    short = ("method", "selector")
    names = [
        ", ".join([p["world"], p["task"], *(str(p[k]) if k in short else f"{k} {p.get(k)}" for k in differ)])
        for p in plain
    ]
    return [
        _told_apart(r, n, [o for o, m in zip(records, names, strict=True) if m == n], by)
        for r, n in zip(records, names, strict=True)
    ]


def _told_apart(record: RunRecord, name: str, alike: list[RunRecord], by: str) -> str:
    """The name, with the contents that differ between settings of this name."""
    kinds = dict.fromkeys(k for r in alike for k in r.contents if k != by)
    differ = [k for k in kinds if len({r.contents.get(k) for r in alike}) > 1]
    return ", ".join([name, *(f"{k} content {_shown(record.contents.get(k))}" for k in differ)])


def _shown(digest: Any) -> str:
    return str(digest)[:_SHORT] if digest else "not kept"
