"""The table of likely mistakes: what somebody types, and the one line that answers. Exit code 2, no traceback."""

from __future__ import annotations

import gzip
import shlex
import sys

import numpy as np
import pytest
from test_cli import fedcohort, mistake

import fedcohort as fc
from fedcohort.errors import FedcohortError
from fedcohort.selectors import Oort, Uniform  # noqa: F401 - used in the lines below

COMMANDS = {  # a command -> parts of the sentence
    # names
    "run --selector ort": "selector 'ort': there is no selector of this name; did you mean oort",
    "run --selector ORT": "did you mean oort",
    "run --method fedavgg": "method 'fedavgg': there is no method of this name; did you mean fedavg",
    "run --world mixed-v2": "world 'mixed-v2': there is no world of this name; did you mean mixed-v1",
    "run --task digits-mpl": "task 'digits-mpl': there is no task of this name; did you mean digits-mlp",
    "run --set engine=warp": "engine = 'warp': it must be one of auto,",
    "run --device gpu": "device = 'gpu': it must be one of auto, cpu, cuda",
    "run --device cuda:7": "device = 'cuda:7': torch|CUDA device|use device='cpu'",
    "run --device cuda --set engine=numpy": "device = 'cuda'|with engine numpy: it computes on the CPU",
    "show oortt": "entry 'oortt': there is no entry of this name; did you mean oort",
    "list selector": "did you mean selectors",
    "world show mixed-v9": "world 'mixed-v9': there is no world of this name",
    "data get mnst": "dataset 'mnst': there is no dataset of this name; did you mean mnist",
    "reproduce fedmc:table3": "there is no paper or table of this name; did you mean fedcm:table3",
    "reproduce fedcm:table3 --scale lap": "scale 'lap': there is no scale of this name; did you mean laptop",
    # texts and their parameters
    "run --selector 'oort(explor=1)'": "parameter of oort 'explor'|did you mean explore",
    "run --selector 'oort(explore=7)'": "explore = 7|it must be between 0 and 1; use e.g. 0.9",
    "run --selector 'oort(explore=\"a\")'": "explore = 'a': it must be a number; use e.g. 0.9",
    "run --selector 'oort(explore='": "selector = 'oort(explore=': it must have the form name(key=value, ...)",
    "run --selector 'oort(__import__(1))'": "arguments must be key=literal pairs",
    "run --set selector=": "selector = '': it must have the form name(key=value, ...)",
    "run --selector nomodule:Mine": "there is no module nomodule; run the command in the folder that holds it",
    "run --set task.lr=fast": "lr = 'fast': it must be a number; use e.g. 0.1",
    "run --set task.optimiser=lbfgs": "optimiser = 'lbfgs': it must be one of sgd, adam",
    "run --set task.epoch=1": "parameter of digits-mlp 'epoch'|did you mean epochs",
    "run --set method.servr_lr=1": "did you mean server_lr",
    "run --set world.clints=1": "did you mean clients",
    "run --set world.noise.concentratio=1": "did you mean concentration",
    "run --selector oort --set selector.explor=1": "did you mean explore",
    "run --set selektor.explore=1": "key 'selektor': there is no key of this name; did you mean selector",
    # parameters given as keys
    "run --selector oort --set explore=0.5": "it is a parameter of the selector oort; write selector.explore=VALUE",
    "run --set explore=0.5": "it is a parameter of oort,|write selector.explore=VALUE",
    "run --set lr=0.5": "it is a parameter of the task digits-mlp; write task.lr=VALUE",
    "run --set clients=5": "it is a parameter of the world mixed-v1; write world.clients=VALUE",
    # keys and values
    "run --set dedline=3": "key 'dedline': there is no key of this name; did you mean deadline",
    "run --set deadline": "--set 'deadline': this is not of the form KEY=VALUE",
    "run --set deadline=-1": "deadline = -1: it must be positive; use e.g. 300.0",
    "run --set rounds.x=1": "rounds.x: rounds is one value, without parameters; write rounds=VALUE",
    "run --set seed=true": "seed = True: it must be a whole number",
    "run --set over_select=inf": "over_select = inf: it must be at least 1 and finite",
    "run --set score=f1": "score = 'f1': on validation data this task measures accuracy, loss, macro_f1; name one",
    "run --set score=loss --set stop_at=0.5": "stop_at = 0.5 with score = 'loss': |use patience, or another score",
    "run --set stop_at=80": "stop_at = 80: it must be between 0 and 1; use e.g. 0.8",
    "run --set patience=soon": "patience = 'soon': it must be a whole number; use e.g. 20",
    "run --set max_privacy=P9": "max_privacy = 'P9': it must be one of P0, P1, P2, P3",
    "run --set close_after=11": "close_after = 11: it must be at most cohort_size = 10",
    "run --cohort-size 0": "cohort_size = 0: it must be at least 1; use e.g. 10",
    "run --cohort-size -4": "cohort_size = -4: it must be at least 1",
    "run --cohort-size 5000": "cohort_size = 5000: the world has 50 clients; use at most 50",
    "run --set size_schedule=3:99": "size_schedule = '3:99': the world has 50 clients; use at most 50, or all",
    "run --rounds 0": "rounds = 0: it must be at least 1; use e.g. 50",
    "run --rounds ten": "invalid value for '--rounds': 'ten' is not a valid integer",
    "run --seed -1": "seed = -1: it must be at least 0",
    "run --seeds 3": "no such option '--seeds'|--seed",
    "run --method scaffold --set buffer_size=4": "method scaffold with buffer_size|use fedbuff",
    # files and folders
    "run nothing.toml": "nothing.toml: there is no such file; check the path",
    "run broken.toml": "broken.toml: this is not valid TOML|fix the line that is named",
    "run empty": "empty: this is a folder; name a .toml file",
    "run keys.toml": "key 'selektor': there is no key of this name; did you mean selector",
    "run --task csv:nofile.csv": "nofile.csv: there is no such file",
    "run --task npz:table.csv": "table.csv: this is a text file, not an .npz",
    "resume nowhere": "run folder nowhere: there is no such folder; check the path, or see `fedcohort list runs`",
    "resume empty": "run folder empty: it holds no journal; name a folder made by `fedcohort run`",
    "verify empty": "run folder empty: it holds no journal",
    "journal show nowhere": "run folder nowhere: there is no such folder",
    "compare nowhere": "nowhere: there is no such run or folder",
    "compare empty": "folder empty: it holds no runs; name a run folder or a folder of runs",
    "compare empty --metric acuracy": "metric 'acuracy': there is no metric of this name; choose from best,",
    "compare empty --by colour": "choose from method, selector",
    "compare empty --metric time_to_target --target 80": "target = 80: an accuracy lies between 0 and 1; use e.g. 0.8",
    "report empty --target 80": "target = 80: an accuracy lies between 0 and 1; use e.g. 0.8",
    "report empty -o x.docx": "file 'x.docx': its name must end in .html,",
    "export empty": "export: no destination was given; add --torch model.pt,",
    "reproduce flash:fig5 --main --show": "--main with --show: it says what to run, and --show runs nothing",
    "reproduce flash:fig5 --main --no-run": "--main with --no-run: it says what to run",
    "reproduce flash:fig5 --seeds 3 --show": "--seeds 3 with --show: a written result is shown whole; leave one out",
    "skew --data nofile.npz": "--data nofile.npz: there is no such file",
    "world show mixed-v1 --png x.bmp": "file 'x.bmp': its name must end in .png, .svg, .pdf",
    "demo --out x.doc": "file 'x.doc': its name must end in .png, .svg, .pdf",
    "flower new 9app": "project name '9app': it must start with a letter",
    # things of one's own
    "run --selector own_mistakes.Crash": "what is your own is named as module:NAME; write own_mistakes:Crash",
    "run --selector own_mistakes.py:Crash": "a module is named without .py and with dots; write own_mistakes:Crash",
    "run --selector ./own_mistakes.py": "write own_mistakes:NAME",
    "run --selector own_mistakes:": "there is no name behind the colon; write own_mistakes:NAME",
    "run --selector own_mistakes": "see `fedcohort list selectors`, or name your own as module:NAME",
    "run --selector own_mistakes:Croosh": "did you mean Crash",
    "run --selector own_mistakes:OBJECT": "this is a Crash object, not a class; name its class, Crash",
    "run --selector own_mistakes:OneArgument": "its select is written select(self, rnd); write def select(self, rnd,",
    "run --selector own_mistakes:Boxes --rounds 3 --out boxed": "state of the selector, key b: arrays of object",
    "run --task own_mistakes:network": "not a task; return fedcohort.TorchTask(network, (x, y))",
    "run --task own_mistakes:nothing": "it makes a NoneType, which is not a task",
    "run --task table.csv": "a file of your own is named with its kind; write csv:table.csv(target=COLUMN",
    "run --task some/table.npz": "write npz:some/table.npz",
    "run --task csv:": "there is no file behind the colon; write csv:FILE",
    "run --task foo": "see `fedcohort list tasks`, or name your own as module:NAME",
    "show own_mistakes:Nobody": "there is no name in own_mistakes of this name",
    "show zzzzzz": "see `fedcohort list`, or name your own as module:NAME",
    # data of one's own
    "run --task csv:clinik.csv(target=ill)": "there is no such file; did you mean clinic.csv",
    "run --task 'csv:clinic.csv(target=ill, client=site'": "a bracket behind clinic.csv is not closed",
    "run --task csv:clinic.csv(target=sick)": "clinic.csv, target='sick': there is no such column",
    "run --task csv:clinic.csv(target=ill)": "column 'site': a feature is a number|say client='site'",
    "run --task csv:words.npz": "this is a zip file (.npz, or a spreadsheet), not a table of text; name it as npz:",
    "run --task csv:packed.csv.gz": "this is a gzip file, not a table of text; unpack it first",
    "run --task csv:latin.csv(target=ill)": "line 1 holds a letter that is not UTF-8; save it as CSV in UTF-8",
    "run --task csv:decimals.csv(target=ill)": "this holds 0,5, 1,5, 2,5, ...; write decimals with a point",
    "run --task csv:same.csv(target=ill)": "with 1 class (yes): there is nothing to tell apart",
    "run --task npz:objects.npz": "'y' holds Python objects|save it again with y=y.astype(str) if these are words",
    "run --task npz:onehot.npz": "give one class per sample: y.argmax(axis=1) of one-hot labels",
    "run --task npz:words.npz --set world.latency=fleet.csv": "latency 'fleet.csv'|write given(fleet.csv)",
    "run --task npz:words.npz --set world.latency=given(no.csv)": "latency file 'no.csv': it cannot be read",
    "run --task npz:words.npz -k 2 --set world.latency=given(fleet.csv)": "'NORTH' where the data have 'north'",
    "run --task npz:words.npz -k 2 --set world.availability=trace(fleet.csv)": "its columns must be device",
    "advise --data words.npz --selectors uniform,ort": "there is no selector of this name; did you mean oort",
    "skew --data notes.txt": "its ending does not say what it is; name it as csv:notes.txt or npz:notes.txt",
    # sweeps
    "sweep selectors=uniform,ort": "selector 'ort': there is no selector of this name; did you mean oort",
    "sweep both.toml": "selectors and selector: they say the same; keep selectors",
    "sweep both.toml keys.toml": "both.toml and keys.toml: a sweep has one file",
    "sweep cohort_size": "cohort_size: this key has no values; write e.g. cohort_size=[VALUE,VALUE]",
    "sweep cohort_size=[5,0]": "cohort_size = 0: it must be at least 1",
    "sweep cohort_size=[]": "cohort_size = []: there is nothing to vary",
    "sweep selector.explore=[0.1]": "no selector of this sweep (uniform) has such a parameter; add one of oort,",
    "sweep selector=oort selector.explore=[0.1,7]": "explore = 7.0: it must be between 0 and 1",
    "sweep explore=[0.1,0.2]": "it is a parameter of oort,|write selector.explore=VALUE",
    "sweep selectors=[uniform,ort]": "selector 'ort': there is no selector of this name; did you mean oort",
    "sweep seeds=few": "seeds 'few': these are not seeds; write 5 (how many), 0,3,7 or 10-14",
    "sweep --seeds 3 --backend spark": "backend 'spark': there is no backend of this name; choose from local, ray",
    # commands
    "flwr": "no such command 'flwr'. Did you mean 'flower'?",
    "--verson": "no such option '--verson'",
}


OWN = """import fedcohort as fc
import numpy as np

class Base(fc.StatefulSelector):
    needs = frozenset()
    def select(self, rnd, rng):
        return fc.Cohort(rnd.available[: rnd.size])
    def observe(self, result): ...

class Crash(Base):
    def select(self, rnd, rng):
        if rnd.index == 1:
            return 1 / 0
        return super().select(rnd, rng)

class OneArgument(Base):
    def select(self, rnd): ...

class Boxes(Base):
    def state_dict(self):
        return {"b": {"c": 1}}

OBJECT = Crash()

def network():
    from torch import nn
    return nn.Linear(3, 3)

def nothing(): ...
"""


class Mine:
    """A selector as a beginner writes it, whose `select` is given."""

    needs = frozenset()

    def __init__(self, select):
        self.answer = select

    def select(self, rnd, rng):
        return self.answer(rnd)

    def observe(self, result): ...

    def state_dict(self):
        return {}

    def load_state_dict(self, arrays): ...


class OneArgument(Mine):
    """Its `select` takes too little."""

    def select(self, rnd): ...


class NoState:
    """One that cannot be saved."""

    needs = frozenset()

    def select(self, rnd, rng): ...

    def observe(self, result): ...


def chosen(select):
    return fc.simulate(Mine(select), task="quadratic", world="mixed-v1(clients=12)", rounds=1, cohort_size=3)


X, Y = np.zeros((6, 2)), np.arange(6) % 2
LINES = {  # a line of Python -> parts of the sentence
    "chosen(lambda rnd: rnd.available[:3])": "Mine.select returned ndarray|it must return a Cohort; write: return",
    "fc.simulate(OneArgument(None))": "OneArgument: its select is written select(self, rnd); write def select",
    "fc.simulate(NoState(), out='x')": "NoState: it lacks state_dict, and a run that is kept saves the state",
    "fc.sweep(selectors=[Mine(len)])": "selectors: a Mine: other processes do the runs of a sweep|put it into a module",
    "chosen(lambda rnd: [1, 2])": "Mine.select returned list [1, 2]: it must return a Cohort",
    "chosen(lambda rnd: None)": "Mine.select returned nothing: it must return a Cohort",
    "chosen(lambda rnd: fc.Cohort(rnd.available[[0, 0]]))": "each client at most once; draw without replacement",
    "chosen(lambda rnd: fc.Cohort(np.array([0.5])))": "a cohort is a list of slots; return integers",
    "chosen(lambda rnd: fc.Cohort(np.array([99])))": "Mine chose [99]: only available clients",
    "chosen(lambda rnd: fc.Cohort(rnd.available[:4]))": "Mine chose 4 clients: at most 3 were asked for",
    "chosen(lambda rnd: rnd.profiles['samples'])": "signal 'samples': only declared signals can be read",
    "fc.simulate(Oort)": "this is a class; give an object of it, e.g. Oort()",
    "fc.simulate(3)": "selector = 3: this is neither the name of a selector nor an object with needs and select and",
    "fc.simulate(task=(X, Y))": "this is neither the name of a task nor an object with",
    "fc.simulate(task=fc.Dataset.from_arrays(X, Y))": "a Dataset is data|give task=fedcohort.task_from(data)",
    "fc.simulate('oort', explore=0.5)": "write selector.explore=VALUE, or selector = 'oort(explore=VALUE)'",
    "fc.simulate(rounds='ten')": "rounds = 'ten': it must be a whole number; use e.g. 50",
    "fc.simulate(cohort_size=None)": "cohort_size = None: it must be a whole number; use e.g. 10",
    "fc.simulate(selectors=['oort'])": "key 'selectors': there is no key of this name; did you mean selector",
    "fc.make_selector(\"quota(inner='ort')\")": "selector 'ort': there is no selector of this name; did you mean oort",
    "fc.make_method('FedProxx')": "did you mean fedprox",
    "Oort(explore='high')": "explore = 'high': it must be a number; use e.g. 0.9",
    "Oort(explore=float('nan'))": "explore = nan: it must be between 0 and 1",
    "fc.Session(Uniform(), cohort_size=0, seed=0)": "cohort_size = 0: it must be at least 1",
    "fc.Session(Uniform(), cohort_size=2, seed=0).ask([0.5])": "it must be a list of slots; give whole numbers from 0",
    "fc.Session(Uniform(), cohort_size=2, seed=0).tell(None)": "ask and tell take turns; ask for a cohort first",
    "fc.task_from((X, Y))": "data of type tuple: this is not a Dataset; make one with Dataset.from_arrays(x, y)",
    "fc.task_from(fc.Dataset.from_arrays(X, Y), hidden=0)": "hidden = 0: widths are whole numbers from 1",
    "fc.Dataset.from_arrays(X, Y[:4])": "x with 6 rows and y with 4: they must have one row per sample",
    "fc.sweep(selector__explor=[0.1])": "selector.explor: no selector of this sweep (uniform) has such a parameter",
    "fc.compare('nowhere')": "nowhere: there is no such run or folder",
    "fc.optuna_objective({})": "there is nothing to tune",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files of every wrong kind."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "broken.toml").write_text("rounds = \n")
    (folder / "keys.toml").write_text('selektor = "oort"\n')
    (folder / "both.toml").write_text('selectors = ["uniform"]\nselector = "oort"\n')
    (folder / "table.csv").write_text("a,b\n1,2\n")
    (folder / "empty").mkdir()
    (folder / "own_mistakes.py").write_text(OWN)
    (folder / "notes.txt").write_text("a,b\n1,2\n")
    _write_data(folder)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.syspath_prepend(folder)
    yield folder
    monkeypatch.undo()
    sys.modules.pop("own_mistakes", None)


def _write_data(folder):
    """Data with what goes wrong in tables and arrays."""

    def table(*cells):
        return "a,site,ill\n" + "".join(
            f"{cells[0].format(i)},s{i % 3},{cells[1][i % len(cells[1])]}\n" for i in range(30)
        )

    (folder / "clinic.csv").write_text(table("{}", ("no", "yes")))
    (folder / "same.csv").write_text(table("{}", ("yes",)).replace("s0", "0").replace("s1", "1").replace("s2", "2"))
    decimals = "".join(f"{i},5;{'no' if i % 2 else 'yes'}\n" for i in range(30))
    (folder / "decimals.csv").write_text("a;ill\n" + decimals)
    (folder / "latin.csv").write_bytes("größe,ill\n1,ja\n".encode("latin-1"))
    (folder / "packed.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    (folder / "fleet.csv").write_text("client,seconds\nNORTH,1\nSOUTH,2\n")
    x, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    owner = np.array(["north", "south", "east"])[np.arange(60) % 3]
    np.savez(folder / "words.npz", x=x, y=y, client=owner)
    np.savez(folder / "objects.npz", x=x, y=np.array(["a", "b"] * 30, dtype=object))
    np.savez(folder / "onehot.npz", x=x, y=np.eye(2)[y])


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, place):
    said = mistake(*shlex.split(command), cwd=place)
    for part in COMMANDS[command].split("|"):
        assert part in said
    assert not (place / "runs").exists()  # nothing was started


@pytest.mark.parametrize("line", LINES)
def test_python(line):
    with pytest.raises(FedcohortError) as error:
        eval(line)
    for part in LINES[line].split("|"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_what_one_s_own_code_raises_is_one_line_with_its_place(place, monkeypatch):
    command = ("run", "--selector", "own_mistakes:Crash", "--task", "digits-softmax", "--rounds", "3", "--out")
    _, err = fedcohort(*command, "crashed", cwd=place, code=2)
    said = "error: own_mistakes.py line 13, in select: ZeroDivisionError: division by zero; repair it"
    assert err.strip().splitlines()[-1].startswith(said)
    monkeypatch.setenv("FEDCOHORT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        fedcohort(*command, "again", cwd=place, code=2)


def test_there_are_many_and_names_ignore_case(place):
    assert len(COMMANDS) + len(LINES) >= 150
    for kind, name in (("selector", "OORT"), ("method", "FedAvg"), ("world", "Mixed-V1"), ("task", "Digits-MLP")):
        assert fc.RunConfig(**{kind: name}).canonical() == fc.RunConfig(**{kind: name.lower()})
    said = mistake("reproduce", "FedCM:Table3", "--scale", "LAPTOP", "--show", cwd=place)
    assert "it holds no result of FedCM:Table3 at scale laptop" in said


def test_a_sweep_of_nothing_explains_itself(place):
    out, _ = fedcohort("sweep", cwd=place, code=2)
    assert out.startswith("Nothing to run yet: say what is to be varied.")
    assert "fedcohort sweep selectors=[uniform,oort] seeds=8 cohort_size=[5,10]" in out
    assert not (place / "runs").exists()
