"""Adaptivity (Fig. 6): SLR on a network that loses devices and gets slower replacements, without training again.

The network begins with 20 devices and has 16 to 20. The policies come from the multi-network case, trained on other networks.
Each search begins at a random placement; ``giph carried on`` goes on from the best placement on the network before. HDP is
trained again for each network, on few of the graphs; its SLR after changes is reported for each of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab, column
from benchmarks.papers.giph.jobs import Job, Outcome, Policy, Setup, Training, hdp_slr, load_policy, starts
from benchmarks.papers.giph.parts.search import policies
from benchmarks.papers.giph.policies import search
from benchmarks.papers.giph.problems import changing, heft_slr, instance
from placeit.learning.workloads.churn import carry_placement

__all__ = ["ChurnHdp", "ChurnSearch", "jobs", "tell"]

_CARRIED = "giph carried on"


@dataclass(frozen=True)
class ChurnSearch(Job):
    """Searches all graphs on each of the networks: ``slr`` is ``float64[networks, graphs]``."""

    policy: Policy
    carry: bool = False

    @property
    def name(self) -> str:
        policy = self.policy.name if isinstance(self.policy, Training) else self.policy
        return f"churn-{policy}" + ("-carried" if self.carry else "")

    @property
    def needs(self) -> Sequence[Job]:
        return [self.policy] if isinstance(self.policy, Training) else []

    def run(self, setup: Setup) -> Outcome:
        policy = load_policy(self.policy, setup)
        rng = np.random.default_rng([setup.seed, 7])
        networks = changing(setup.seed, setup.sizes)
        slr = np.empty((len(networks), len(networks[0])))
        begin = starts(networks[0], setup.seed)
        for i, problems in enumerate(networks):
            if i > 0 and self.carry:
                begin = [carry_placement(*one, rng) for one in zip(begin, networks[i - 1], problems, strict=True)]
            elif i > 0:
                begin = starts(problems, setup.seed + i)
            for j, path in enumerate(search(policy, problems, begin, rng)):
                one = instance(problems[j])
                costs = one.cost(path) / one.unit
                slr[i, j] = costs.min()
                begin[j] = path[int(np.argmin(costs))]
        return {"slr": slr}


@dataclass(frozen=True)
class ChurnHdp(Job):
    """Trains HDP for some of the graphs on one of the networks: ``slr`` is ``float64[graphs]``."""

    network: int

    @property
    def name(self) -> str:
        return f"churn-hdp-{self.network}"

    def run(self, setup: Setup) -> Outcome:
        problems = changing(setup.seed, setup.sizes)[self.network][: setup.sizes.hdp_churn_graphs]
        return {"slr": np.array([hdp_slr(problem, setup) for problem in problems])}


def _searches() -> dict[str, ChurnSearch]:
    found = policies("multi")
    return {name: ChurnSearch(policy) for name, policy in found.items()} | {_CARRIED: ChurnSearch(found["giph"], carry=True)}


def jobs(setup: Setup) -> Sequence[Job]:
    return [*_searches().values(), *(ChurnHdp(network) for network in range(setup.sizes.churn_changes + 1))]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    networks = changing(lab.setup.seed, lab.setup.sizes)
    heft, planned = (np.array(slr) for slr in zip(*map(heft_slr, networks), strict=True))
    slr = {name: lab[job]["slr"] for name, job in _searches().items()}
    hdp = np.array([lab[ChurnHdp(network)]["slr"] for network in range(len(networks))])
    few = hdp.shape[1]
    for i, problems in enumerate(networks):
        report.row(
            part="churn",
            change=i,
            devices=problems[0].devices,
            **{column(name): found[i].mean() for name, found in slr.items()},
            heft=heft[i].mean(),
            heft_planned=planned[i].mean(),
            giph_on_few=slr["giph"][i, :few].mean(),
            hdp_on_few=hdp[i].mean(),
            heft_on_few=heft[i, :few].mean(),
        )
    after = slice(1, None)
    for name in ("giph", _CARRIED):
        for how, costs in (("", heft), (", as planned", planned)):
            ratio = slr[name][after].mean() / costs[after].mean()
            report.claim(f"after changes: SLR of {name}, not trained again, over HEFT{how}", ratio, "", at_most=1.02)
    for graph in range(few):
        reached = {"giph": slr["giph"][after, graph].mean(), "hdp": hdp[after, graph].mean()}
        hefts = {"heft": heft[after, graph].mean(), "heft_planned": planned[after, graph].mean()}
        ratio = reached["giph"] / reached["hdp"]
        report.row(part="churn", graph=graph, tasks=len(networks[0][graph]), **reached, **hefts, giph_over_hdp=ratio)
    few_ratio = slr["giph"][after, :few].mean() / hdp[after].mean()
    report.claim("after changes: SLR of giph, not trained again, over HDP, trained again", few_ratio, "", at_most=1.0)
    series = {name: (range(len(networks)), found.mean(axis=1) / heft.mean(axis=1)) for name, found in slr.items()}
    series["hdp"] = (range(len(networks)), hdp.mean(axis=1) / heft[:, :few].mean(axis=1))
    figures.lines("churn", "churn", "", ("changes of the network", "mean SLR, relative to HEFT"), series, levels={"heft": 1.0})
