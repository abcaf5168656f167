"""Objects of your own by name: "module:Class(key=1)" imported and called, and the text of an object that came from one.

Only what builds a run imports (run, resume, verify, sweep). Reports and the dashboard read run folders that somebody
else may have sent: they ask :func:`names_module` first, and leave out what would need an import.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import re
import sys
import traceback
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedcohort.core import spec_string
from fedcohort.errors import BadParameter, ConfigError, FedcohortError, UnknownName
from fedcohort.protocols import Method, Selector

if TYPE_CHECKING:
    from fedcohort.tasks.spec import TaskSpec
    from fedcohort.worlds.world_spec import WorldSpec

T = TypeVar("T")
GIVEN = "given:"  # the text of an object that nothing can make again
_CALLS = {  # what is called, and with which arguments
    "selector": {
        "select": ("rnd", "rng"),
        "observe": ("result",),
        "state_dict": (),
        "load_state_dict": ("arrays",),
    },
    "method": {
        "prepare": ("plan", "model", "clients"),
        "aggregate": ("model", "updates", "context"),
        "state_dict": (),
        "load_state_dict": ("arrays",),
    },
}
_MADE: dict[int, tuple[Any, str]] = {}  # id -> (weak reference, text)


def names_module(text: str) -> bool:
    """Whether making this would import a module of somebody's choice."""
    head = text.partition("(")[0]
    return ":" in head and not spec_string.file_of(text) and not text.startswith(GIVEN)


def meant(text: str) -> ConfigError | None:
    """What is said of a text that looks like a file or a module of one's own, written in another form than it must."""
    head, bracket, rest = text.strip().partition("(")
    tail = f"{bracket}{rest}"
    file = re.fullmatch(rf".+\.({'|'.join(spec_string.FILES)})", head, re.IGNORECASE)
    if file and ":" not in head:
        kind = file.group(1).lower()
        inside = tail or ("(target=COLUMN, client=COLUMN)" if kind != "npz" else "")
        return ConfigError(repr(text), "a file of your own is named with its kind", f"write {kind}:{head}{inside}")
    script = re.fullmatch(r"(?:\./)?([\w./]+)\.py(?::(\w+))?", head)
    if script:
        module = script.group(1).replace("/", ".")
        better = f"{module}:{script.group(2) or 'NAME'}{tail}"
        return ConfigError(repr(text), "a module is named without .py and with dots", f"write {better}")
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", head):
        better = f"{':'.join(head.rsplit('.', 1))}{tail}"
        return ConfigError(repr(text), "what is your own is named as module:NAME", f"write {better}")
    if re.fullmatch(r"\w+:", head) and head[:-1] not in spec_string.FILES:
        return ConfigError(repr(text), "there is no name behind the colon", f"write {head}NAME, e.g. {head}MySelector")
    if head[:-1] in spec_string.FILES:
        return ConfigError(
            repr(text), "there is no file behind the colon", f"write {head}FILE, e.g. {head}mine.{head[:-1]}"
        )
    return None


def imported(kind: str, name: str) -> Any:
    """What "module:name" stands for; every way this can fail is one sentence."""
    if name.startswith(GIVEN):
        raise ConfigError(
            f"{kind} {name.removeprefix(GIVEN)!r}",
            "it was given as an object, and a run folder cannot make that again",
            f"give it again in Python: simulate({kind}=..., out=FOLDER, resume=True)",
        )
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            remedy = "run the command in the folder that holds it, or install it"
            raise ConfigError(f"{kind} {name!r}", f"there is no module {error.name}", remedy) from None
        rule = f"the module {module} imports {error.name}, which is not installed"
        raise ConfigError(f"{kind} {name!r}", rule, f"install {error.name}") from None
    except Exception as error:
        raise ConfigError(f"{kind} {name!r}", f"importing {module} failed ({_where(error)})", "repair it") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [n for n in vars(found) if not n.startswith("_")] if hasattr(found, "__dict__") else []
            raise UnknownName.among(f"name in {module}", attribute, names)
        found = getattr(found, part)
    return found


def source_digest(name: str) -> str:
    """sha256 of the file of "module:name": a run with a changed module is another run. The module is imported."""
    imported("object", name)
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else ""


def parameters(made: Any) -> dict[str, inspect.Parameter]:
    """The keyword parameters of a constructor or factory; none of an object that cannot be called."""
    if not callable(made):
        return {}
    return {n: p for n, p in inspect.signature(made).parameters.items() if p.kind is not p.VAR_KEYWORD}


def check_arguments(name: str, made: Any, arguments: dict[str, Any]) -> None:
    """Refuse a parameter that there is not, with the nearest name."""
    known = parameters(made)
    free = callable(made) and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(made).parameters.values())
    for key in arguments:
        if key not in known and not (free and ":" in name):
            raise UnknownName.among(f"parameter of {name}", key, known)


def call(name: str, made: Any, arguments: dict[str, Any]) -> Any:
    """Make it; what the constructor raises becomes one sentence."""
    try:
        return made(**arguments)
    except FedcohortError:
        raise
    except (TypeError, ValueError) as error:
        if ":" in name and not callable(made):
            what = type(made).__name__
            remedy = "name a class or a function" if what == "module" else f"name its class, {what}"
            raise BadParameter(name, f"this is a {what} object, not a class", remedy) from None
        if ":" in name:
            raise _failed(name, error) from None
        given = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        rule = "a value is of the wrong kind" if isinstance(error, TypeError) else str(error).rstrip(".")
        raise BadParameter(f"{name}({given})", rule, f"see the defaults in `fedcohort show {name}`") from None
    except Exception as error:
        raise _failed(name, error) from None


def _failed(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"{name}", f"it cannot be made ({_where(error)})", "check its arguments, or repair it")


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "fedcohort" not in f.filename and "importlib" not in f.filename]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else own[-1].lineno if own else None
    file = error.filename if isinstance(error, SyntaxError) else own[-1].filename if own else None
    place = f", {Path(file).name} line {line}" if file else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{place}"


def checked_selector(text: str, made: Any) -> Selector:
    """The object itself, if it is a selector."""
    found: Selector = _checked("selector", text, made, Selector, "inherit from fedcohort.StatefulSelector")
    return found


def checked_method(text: str, made: Any) -> Method:
    """The object itself, if it is a method."""
    found: Method = _checked("method", text, made, Method, "inherit from fedcohort.methods.MethodBase")
    return found


def _checked(kind: str, text: str, made: Any, promise: Any, remedy: str) -> Any:
    """Everything that is promised is there, and can be called as it will be."""
    if not isinstance(made, promise) or isinstance(made, type):
        members = sorted(n for n in dir(promise) if not n.startswith("_"))
        lacking = [n for n in members if not hasattr(made, n)]
        rule = f"it makes a {type(made).__name__}, which is not a {kind}"
        raise BadParameter(f"{text}", rule + (f": it lacks {', '.join(lacking)}" if lacking else ""), remedy)
    check_calls(kind, text, made)
    return made


def check_calls(kind: str, text: str, made: Any, *, stored: bool = True) -> None:
    """Refuse a member that cannot be called as it will be; those about saving count where the run is kept."""
    for name, arguments in _CALLS[kind].items():
        if not stored and "state_dict" in name:
            continue
        if not hasattr(made, name):
            remedy = "inherit from fedcohort." + ("StatefulSelector" if kind == "selector" else "methods.MethodBase")
            raise BadParameter(text, f"it lacks {name}, and a run that is kept saves the state of its {kind}", remedy)
        try:
            own = inspect.signature(getattr(made, name))
        except (TypeError, ValueError):  # a builtin without a signature
            continue
        try:
            own.bind(*arguments)
        except TypeError:
            rule = f"its {name} is written {name}(self{', ' if own.parameters else ''}{str(own)[1:].partition(')')[0]})"
            raise BadParameter(text, rule, f"write def {name}({', '.join(('self', *arguments))})") from None


def as_task(text: str, found: Any, arguments: dict[str, Any]) -> TaskSpec:
    """The task behind a factory, or an object that is one; a dataset becomes a task with a small perceptron."""
    from fedcohort.data.dataset import Dataset
    from fedcohort.tasks.own_task import task_on

    if isinstance(found, Dataset):
        return task_on(found, **arguments)
    made = _object(text, found, arguments, ("labels", "bind"))
    if isinstance(made, Dataset):
        return task_on(made)
    fits = all(callable(getattr(made, part, None)) for part in ("labels", "owners", "bind"))
    remedy = "return fedcohort.task_from(...), a TorchTask, a ClassificationSpec or a Dataset"
    if callable(getattr(made, "state_dict", None)):  # a torch module
        factory = text.partition("(")[0].partition(":")[2]
        remedy = f"return fedcohort.TorchTask({factory}, (x, y)) from another function, and name that"
    if not fits or isinstance(made, type):
        raise BadParameter(f"{text}", f"it makes a {type(made).__name__}, which is not a task", remedy)
    task: TaskSpec = made
    return task


def as_world(text: str, found: Any, arguments: dict[str, Any]) -> WorldSpec:
    """The world behind a factory, or one that is there, with changes."""
    from fedcohort.worlds.world_spec import WorldSpec

    if isinstance(found, WorldSpec):
        return found.replace(**arguments)
    made = _object(text, found, arguments, ())
    if not isinstance(made, WorldSpec):
        rule = f"it makes a {type(made).__name__}, which is not a world"
        raise BadParameter(f"{text}", rule, "return a fedcohort.worlds.WorldSpec")
    return made


def _object(text: str, found: Any, arguments: dict[str, Any], parts: tuple[str, ...]) -> Any:
    ready = bool(parts) and not isinstance(found, type) and all(hasattr(found, part) for part in parts)
    if ready and not arguments:
        return found
    name = text.partition("(")[0].strip()
    if not callable(found):
        raise BadParameter(f"{text}", f"{name} is a {type(found).__name__}, which cannot be called", "name a function")
    check_arguments(name, found, arguments)
    return call(name, found, arguments)


def remember(text: str, made: T) -> T:
    """Note that this object came from this text, for as long as it lives."""
    key = id(made)
    with contextlib.suppress(TypeError):  # it has slots and cannot be noted
        _MADE[key] = (weakref.ref(made, lambda _: _MADE.pop(key, None)), text)
    return made


def remembered(made: Any) -> str | None:
    """The text that an object came from."""
    found = _MADE.get(id(made))
    return found[1] if found is not None and found[0]() is made else None
