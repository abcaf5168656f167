"""The table of likely mistakes: what somebody types, and the one line that answers. Exit code 2, no traceback."""

from __future__ import annotations

import shlex

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
    "run --set stop_at=80": "stop_at = 80: it must be between 0 and 1; use e.g. 0.8",
    "run --set patience=soon": "patience = 'soon': it must be a whole number; use e.g. 20",
    "run --set max_privacy=P9": "max_privacy = 'P9': it must be one of P0, P1, P2, P3",
    "run --set close_after=11": "close_after = 11: it must be at most cohort_size = 10",
    "run --cohort-size 0": "cohort_size = 0: it must be at least 1; use e.g. 10",
    "run --cohort-size -4": "cohort_size = -4: it must be at least 1",
    "run --cohort-size 5000": "cohort_size = 5000: the world has 50 clients; use at most 50",
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
    "report empty -o x.docx": "file 'x.docx': its name must end in .html,",
    "export empty": "export: no destination was given; add --torch model.pt,",
    "skew --data nofile.npz": "--data nofile.npz: there is no such file",
    "world show mixed-v1 --png x.bmp": "file 'x.bmp': its name must end in .png, .svg, .pdf",
    "demo --out x.doc": "file 'x.doc': its name must end in .png, .svg, .pdf",
    "flower new 9app": "project name '9app': it must start with a letter",
    # sweeps
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


def chosen(select):
    return fc.simulate(Mine(select), task="quadratic", world="mixed-v1(clients=12)", rounds=1, cohort_size=3)


X, Y = np.zeros((6, 2)), np.arange(6) % 2
LINES = {  # a line of Python -> parts of the sentence
    "chosen(lambda rnd: rnd.available[:3])": "Mine.select returned ndarray|it must return a Cohort; write: return",
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
    return folder


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


def test_there_are_many_and_names_ignore_case(place):
    assert len(COMMANDS) + len(LINES) >= 100
    for kind, name in (("selector", "OORT"), ("method", "FedAvg"), ("world", "Mixed-V1"), ("task", "Digits-MLP")):
        assert fc.RunConfig(**{kind: name}).canonical() == fc.RunConfig(**{kind: name.lower()})
    assert "fedcm-table3-laptop.json" in mistake("reproduce", "FedCM:Table3", "--scale", "laptop", "--show", cwd=place)


def test_a_sweep_of_nothing_explains_itself(place):
    out, _ = fedcohort("sweep", cwd=place, code=2)
    assert out.startswith("Nothing to run yet: say what is to be varied.")
    assert "fedcohort sweep selectors=[uniform,oort] seeds=6 cohort_size=[5,10]" in out
    assert not (place / "runs").exists()
