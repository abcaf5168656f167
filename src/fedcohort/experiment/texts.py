"""The four texts of a run, "name(key=value, ...)": from tables, changed by dotted keys, in a canonical form, resolved.

    from_table("selector", {"name": "oort", "explore": 0.8})    ->  "oort(explore=0.8)"
    changed("selector", "oort", ["explore"], 0.5)               ->  "oort(explore=0.5)"
    canonical("selector", "oort( explore = 0.9 )")              ->  "oort"          (0.9 is the default)
    resolved("selector", "oort")                                ->  the name and every parameter, defaults filled in

Two texts that mean the same run have the same resolved form; that is what a run's digest is made of.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcohort.core.spec_string import file_of
from fedcohort.errors import BadParameter, DataError, FedcohortError, UnknownName
from fedcohort.registry import lookup as registry
from fedcohort.registry.own_objects import GIVEN, check_arguments, source_digest
from fedcohort.tasks import catalogue as tasks
from fedcohort.tasks import own_task
from fedcohort.worlds import catalogue as worlds
from fedcohort.worlds.world_spec import WorldSpec

KINDS = registry.KINDS
# Parameters that came later count only where they are used, so that old digests hold.
LATER: dict[str, Any] = {
    "augment": "none",
    "norm": None,
    "per_second": True,
    "adaptive": False,
    "adapt": 0.0,
    "insight": "step",
    "reference": "all",
    "unknown": "zero",
}
OWN = "fedcohort."  # modules of this package count by their name: a comment in one does not make another run
WORLD, OWNERS = "mixed-v1", "owners-v1"  # the world where none is named: without and with owners in the data
_OWNED = ("femnist", "har", "mobifall")
_FILES = (".toml", ".json")


def write(name: str, arguments: Mapping[str, Any]) -> str:
    """The text of a name and its arguments, in the order given."""
    inside = ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())
    return f"{name}({inside})" if inside else name


def from_table(kind: str, table: Mapping[str, Any], default: str) -> str:
    """The text of a table with a `name` and parameters; without a name they are those of the default."""
    rest = dict(table)
    text = str(rest.pop("name", default))
    for key, value in rest.items():
        text = changed(kind, text, str(key).split("."), value)
    return text


def changed(kind: str, text: str, path: Sequence[str], value: Any) -> str:
    """The text with one parameter changed. A path of several parts goes into `inner`, or a section of a world."""
    if path == ["name"]:
        return str(value)
    if is_file(kind, text):
        raise BadParameter(
            f"{kind}.{'.'.join(path)}", f"the {kind} is the file {text!r}, which takes no parameters", "change the file"
        )
    name, arguments = registry.parse(text)
    if kind == "world":
        key = "__".join(path)
    elif len(path) > 1 and path[0] == "inner":
        inner = str(arguments.get("inner", "uniform" if kind == "selector" else "fedavg"))
        key, value = "inner", changed(kind, inner, path[1:], value)
    elif len(path) > 1:
        raise BadParameter(
            f"{kind}.{'.'.join(path)}", "only `inner` has parameters of its own", f"write {kind}.{path[0]}=VALUE"
        )
    else:
        key = path[0]
        if key == "inner" and isinstance(value, Mapping):
            value = from_table(kind, value, "uniform" if kind == "selector" else "fedavg")
    _check_known(kind, name, key)
    return write(name, {**arguments, key: value})


def canonical(kind: str, text: str) -> str:
    """One way to write it: default values left out, keys in order, names with dashes. Unknown names are refused."""
    if is_file(kind, text) or text.startswith(GIVEN):
        return text
    name, given = registry.parse(text)
    if kind == "world" and not _own(kind, name):
        return write(name, _effective(name, {k: _frozen(v) for k, v in given.items()}))
    name = registry.entry(kind, name).name if kind in ("selector", "method") and ":" not in name else name
    known = defaults(kind, name)
    if _own(kind, name) and not file_of(name) and not callable(registry.load(kind, name)):
        known = dict.fromkeys(given, inspect.Parameter.empty)  # an object that is there, with changes
    kept = {}
    for key in sorted(given):
        _check_known(kind, name, key)
        default = known.get(key, inspect.Parameter.empty)  # a factory may take any key
        value = _like(_argument(kind, key, given[key], canonical), default)
        if not _same(value, default) or value == ():  # an empty list is meant, and may be refused
            kept[key] = value
    return write(name, kept)


def resolved(kind: str, text: str) -> Any:
    """Everything the text stands for, as plain data: a world file by what is in it, parameters with their defaults."""
    if text.startswith(GIVEN):
        return {"name": text}
    if kind == "world":
        return resolved_world(registry.make_world_spec(text))
    name, given = registry.parse(canonical(kind, text))
    full = {**defaults(kind, name), **given}
    used = (k for k in sorted(full) if k not in LATER or full[k] != LATER[k])
    plain = {k: _plain(_argument(kind, k, full[k], resolved)) for k in used}
    if file_of(name):
        return {"name": file_of(name), "sha256": own_task.content_digest(name), **plain}
    return {
        "name": name,
        **plain,
        **({"source": source_digest(name)} if ":" in name and not name.startswith(OWN) else {}),
    }


def resolved_world(spec: WorldSpec) -> Any:
    """Everything that a world says, as plain data; a file that it reads by what is in it."""
    found = spec.to_dict()
    return _plain({k: _by_content(k, v) for k, v in found.items() if k not in ("name", "about")})


def content(kind: str, text: str) -> str:
    """sha256 of what a text only names (a file, a module) with its parameters; empty where it names neither."""
    outside = ":" in text or is_file(kind, text) or (kind == "world" and reads_files(text))
    if text.startswith(GIVEN) or not outside:
        return ""
    return hashlib.sha256(json.dumps(resolved(kind, text), sort_keys=True).encode()).hexdigest()


def reads_files(world: str) -> bool:
    """Whether a world takes seconds or availability from a file."""
    if world.startswith(GIVEN):
        return False
    spec = registry.make_world_spec(world).to_dict()
    return any(isinstance(value, Mapping) and bool(value.get("path")) for value in spec.values())


def _by_content(section: str, value: Any) -> Any:
    """A section that reads a file, by what is in it: changed seconds or another trace are another run."""
    if not (isinstance(value, Mapping) and value.get("path")):
        return value
    try:
        content = Path(str(value["path"])).expanduser().read_bytes()
    except OSError:
        raise DataError(f"{section} file {value['path']!r}", "it cannot be read", "check the path") from None
    return {**value, "path": f"sha256:{hashlib.sha256(content).hexdigest()}"}


def defaults(kind: str, name: str) -> dict[str, Any]:
    """Parameters of a selector, method or task with their defaults (`inspect.Parameter.empty`: it has none)."""
    if file_of(name) and kind == "task":
        return own_task.options(name)
    if kind != "task" or _own(kind, name):
        return {n: p.default for n, p in registry.parameters(registry.load(kind, name)).items()}
    if name not in tasks.names():
        raise registry.unknown("task", name, registry.names("task"))
    spec: Any = tasks.get(name)
    own = {} if name == "quadratic" else tasks.ENTRIES[name].options
    found = {}
    for option in tasks.options(name):
        holder = spec.default if option in tasks.PLAN_OPTIONS else spec
        found[option] = own[option] if option in own else getattr(holder, option)
    return found


def name_of(text: str) -> str:
    """The name in a text."""
    return text.partition("(")[0].strip()


def parameters(kind: str, text: str) -> Sequence[str]:
    """The parameters that a text may have; none for one that cannot be read."""
    try:
        if kind == "world":
            return tuple(registry.make_world_spec(text).to_dict())
        return tuple(defaults(kind, registry.parse(text)[0]))
    except FedcohortError:
        return ()


def holders(kind: str, key: str) -> list[str]:
    """The names of this kind that have a parameter of this name; worlds share their fields and are not asked."""
    return [] if kind == "world" else [name for name in registry.names(kind) if key in parameters(kind, name)]


def default_world(task: str) -> str:
    """The world of a run that names none: data that name the owners of their samples are divided among those."""
    if file_of(task) or _own("task", registry.parse(task)[0]):
        owned = registry.make_task_spec(task).owners() is not None
    else:
        entry = tasks.ENTRIES.get(registry.parse(task)[0])
        owned = entry is not None and entry.dataset in _OWNED
    return OWNERS if owned else WORLD


def _own(kind: str, name: str) -> bool:
    """Whether a name is not of our catalogue: module:name, a file, or what another package brings."""
    if ":" in name:
        return True
    return kind in ("world", "task") and name in registry.entries(kind) and name not in _ours(kind)


def _ours(kind: str) -> Sequence[str]:
    return worlds.names() if kind == "world" else tasks.names()


def is_file(kind: str, text: str) -> bool:
    """Whether the text names a file with a world in it."""
    return kind == "world" and text.endswith(_FILES)


def _effective(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The overrides of a world that change something, sorted where their order does not matter.

    Keys are left out of the whole, one at a time: some fit only together (latency__factors with latency__shares).
    """
    whole, kept = _world(name, given), given  # refuses a key that is wrong
    for key in reversed(given):  # of two keys that say the same, the first stays
        fewer = {k: v for k, v in kept.items() if k != key}
        kept = fewer if _says(name, fewer, whole) else kept
    ordered = dict(sorted(kept.items()))
    return ordered if _says(name, ordered, whole) else kept


def _says(name: str, overrides: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether these overrides make this world; some cannot do without others, or not in this order."""
    try:
        return _world(name, overrides) == whole
    except (BadParameter, UnknownName):
        return False


def _world(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    return {**worlds.get(name, **overrides).to_dict(), "name": ""}


def _check_known(kind: str, name: str, key: str) -> None:
    known: Sequence[str] | dict[str, Any]
    if kind == "world":
        return  # fields depend on the sections: `canonical` and `resolved` build the world and refuse
    if _own(kind, name) and not file_of(name):
        check_arguments(name, registry.load(kind, name), {key: None})
        return
    if kind == "task":
        known = own_task.options(name) if file_of(name) else tasks.options(name)
    else:
        known = registry.parameters(registry.load(kind, name))
    if key not in known:
        raise UnknownName.among(f"parameter of {name}", key, known)


def _argument(kind: str, key: str, value: Any, way: Any) -> Any:
    """An inner selector or method is a text of its own."""
    return way(kind, value) if key == "inner" and isinstance(value, str) and kind != "task" else _frozen(value)


def _frozen(value: Any) -> Any:
    """Lists become tuples, all the way down."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)
    return {str(k): _frozen(v) for k, v in sorted(value.items())} if isinstance(value, Mapping) else value


def _like(value: Any, default: Any) -> Any:
    """A whole number where the default is a float becomes a float."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and isinstance(default, float) else value


def _same(value: Any, default: Any) -> bool:
    frozen = _frozen(default)
    return default is not inspect.Parameter.empty and type(value) is type(frozen) and bool(value == frozen)


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def _literal(value: Any) -> str:
    """A literal that `registry.parse` reads back."""
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return repr(value)
    if isinstance(value, float) and not math.isnan(value):
        return repr(value) if math.isfinite(value) else ("1e999" if value > 0 else "-1e999")
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_literal(v) for v in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{str(k)!r}: {_literal(v)}' for k, v in value.items())}}}"
    raise BadParameter(f"{value!r}", "a parameter is a number, a word, true, false, or a list of these", "change it")
