"""The explicit catalogue: one line per selector and method. Nothing is imported until it is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A name, where its class lives, and what `fedcohort list` says about it.

    >>> [entry.name for entry in ENTRIES if entry.family == "robust"][:2]
    ['median', 'trimmed-mean']
    """

    kind: str  # selector or method
    name: str
    target: str  # "module:Class"
    family: str
    paper: str
    cost: str = "no extra traffic"  # what a round costs beyond training: probes, signals


def _selector(name: str, target: str, family: str, paper: str, cost: str = "no extra traffic") -> CatalogueEntry:
    return CatalogueEntry("selector", name, f"fedcohort.selectors.{target}", family, paper, cost)


def _method(name: str, target: str, family: str, paper: str, cost: str = "no extra traffic") -> CatalogueEntry:
    return CatalogueEntry("method", name, f"fedcohort.methods.{target}", family, paper, cost)


ENTRIES: tuple[CatalogueEntry, ...] = (
    _selector("uniform", "uniform:Uniform", "baseline", "McMahan et al. 2017"),
    _selector("proportional", "proportional:Proportional", "baseline", "Li et al. 2020 (FedProx)"),
    _selector("round-robin", "round_robin:RoundRobin", "baseline", "-"),
    _selector("oort", "oort:Oort", "utility", "Lai et al. 2021", "8 bytes a reply"),
    _selector("pyramidfl", "pyramidfl:PyramidFL", "utility", "Li et al. 2022", "12 bytes a reply; uploads less"),
    _selector("flash", "flash:Flash", "linear bandit", "FLASH (Chang et al.)", "probes last cohort and the stale"),
    _selector("linucb", "linucb:LinUCB", "linear bandit", "Li et al. 2010", "12 bytes a reply"),
    _selector(
        "restless-bandit",
        "restless_bandit:RestlessBandit",
        "linear bandit",
        "Yemini et al. 2021",
        "probes last cohort and the stale",
    ),
    _selector(
        "neural-bandit",
        "neural_bandit:NeuralBandit",
        "neural bandit",
        "Cao et al. 2022",
        "probes last cohort and the stale",
    ),
    _selector(
        "fedacs", "fedacs:FedACS", "analytics", "Wang et al. (TNSE, FedACS)", "last layer a reply, until it stops"
    ),
    _selector("rexp3", "rexp3:Rexp3", "bandit", "Besbes et al. 2014; Uchiya et al. 2010", "last layer a reply"),
    _selector("fedcm-ucb", "fedcm:FedCMUCB", "bandit", "FedCM paper, algorithm 2", "none; wants the method fedca"),
    _selector("fedcm-ts", "fedcm:FedCMTS", "bandit", "FedCM paper, algorithm 3", "none; wants the method fedca"),
    _selector("hetero-select", "hetero_select:HeteroSelect", "utility", "HeteRo-Select 2025", "4 bytes a reply"),
    _selector("power-of-choice", "power_of_choice:PowerOfChoice", "utility", "Cho et al. 2022", "probes d candidates"),
    _selector("afl", "afl:AFL", "utility", "Goetz et al. 2019", "4 bytes a reply"),
    _selector("epsilon-greedy", "epsilon_greedy:EpsilonGreedy", "bandit", "Watkins 1989", "8 bytes a reply"),
    _selector("ucb1", "ucb1:UCB1", "bandit", "Auer et al. 2002", "8 bytes a reply"),
    _selector("feel", "feel:Feel", "utility", "Ren et al. 2020", "probes everybody (or a sample)"),
    _selector("fedcs", "fedcs:FedCS", "system", "Nishio and Yonetani 2019"),
    _selector("tifl", "tifl:Tifl", "system", "Chai et al. 2020", "probes a few of each tier now and then"),
    _selector(
        "fedcor", "fedcor:FedCor", "analytics", "Tang et al. 2022", "probes everybody in warm-up and around samples"
    ),
    _selector("divfl", "divfl:DivFL", "diversity", "Balakrishnan et al. 2022"),
    _selector("clustered", "clustered:Clustered", "diversity", "Fraboni et al. 2021"),
    _selector("ledger", "ledger:Ledger", "debts", "ours; docs/ledger.md", "8 bytes a reply"),
    _selector("warm-up", "wrappers.warm_up:WarmUp", "wrapper", "-", "that of the inner selector"),
    _selector("explore", "wrappers.explore:Explore", "wrapper", "-", "that of the inner selector"),
    _selector("quota", "wrappers.quota:Quota", "wrapper", "after Huang et al. 2021", "that of the inner selector"),
    _selector("floor", "wrappers.floor:Floor", "wrapper", "-", "that of the inner selector"),
    _selector("cool-down", "wrappers.cool_down:CoolDown", "wrapper", "-", "that of the inner selector"),
    _selector("blocklist", "wrappers.blocklist:Blocklist", "wrapper", "-", "that of the inner selector"),
    _selector(
        "probability-cap", "wrappers.probability_cap:ProbabilityCap", "wrapper", "-", "that of the inner selector"
    ),
    _selector("flash-rl", "flash_rl:FlashRL", "reinforcement", "Bouaziz et al. 2023", "one model from everybody, once"),
    _selector("favor", "favor:Favor", "reinforcement", "Wang et al. 2020", "one model from everybody, once"),
    _method("fedavg", "fedavg:FedAvg", "averaging", "McMahan et al. 2017"),
    _method("fedprox", "fedprox:FedProx", "averaging", "Li et al. 2020"),
    _method("fedpdp", "fedpdp:FedPdp", "averaging", "Li et al. 2020 (partial participation)"),
    _method("fednova", "fednova:FedNova", "averaging", "Wang et al. 2020"),
    _method("scaffold", "scaffold:Scaffold", "correction", "Karimireddy et al. 2020", "one more model down"),
    _method("feddyn", "feddyn:FedDyn", "correction", "Acar et al. 2021", "one more model down"),
    _method("fedavgm", "fedavgm:FedAvgM", "server optimiser", "Hsu et al. 2019"),
    _method("fedadam", "fedopt:FedAdam", "server optimiser", "Reddi et al. 2021"),
    _method("fedyogi", "fedopt:FedYogi", "server optimiser", "Reddi et al. 2021"),
    _method("fedadagrad", "fedopt:FedAdagrad", "server optimiser", "Reddi et al. 2021"),
    _method("median", "median:Median", "robust", "Yin et al. 2018"),
    _method("trimmed-mean", "trimmed_mean:TrimmedMean", "robust", "Yin et al. 2018"),
    _method("krum", "krum:Krum", "robust", "Blanchard et al. 2017"),
    _method("multi-krum", "krum:MultiKrum", "robust", "Blanchard et al. 2017"),
    _method("geometric-median", "geometric_median:GeometricMedian", "robust", "Pillutla et al. 2022"),
    _method("norm-clip", "norm_clip:NormClip", "robust", "Andrew et al. 2021"),
    _method("fedbuff", "fedbuff:FedBuff", "asynchronous", "Nguyen et al. 2022"),
    _method("fedca", "fedca:FedCA", "filter", "FedCM paper, section 3", "none; searches subsets on server data"),
    _method("cmfl", "cmfl:CMFL", "filter", "Wang et al. 2019"),
    _method("feddf", "feddf:FedDF", "distillation", "Lin et al. 2020", "none; distils on unlabelled server data"),
    _method("rhfl", "rhfl:RHFL", "distillation", "Fang and Ye 2022", "4 bytes a reply; distils on server data"),
    _method("fedbio", "fedbio:FedBiO", "bilevel", "our construction after Li et al. 2023"),
)
