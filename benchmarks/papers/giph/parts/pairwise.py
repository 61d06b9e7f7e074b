"""Which policy finds the better placement (Table 6), on the test problems of the multi-network case.

All learned rows but two are trained alike, by imitation with the features of the schedule. ``giph paper`` has the paper's
four features and width, and is trained by the paper's REINFORCE; Placeto by REINFORCE. HEFT is run first in, first out
(``heft``), or as planned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab, column
from benchmarks.papers.giph.compare import better_equal_worse
from benchmarks.papers.giph.jobs import Evaluation, Job, Policy, Setup, Training
from benchmarks.papers.giph.policies import VARIANTS
from benchmarks.papers.giph.problems import heft_slr

__all__ = ["jobs", "tell"]

_POLICIES: dict[str, Policy] = {
    **{variant: Training(variant, "multi") for variant in VARIANTS},
    "giph paper": Training("giph paper", "multi", kind="reinforce"),
    "placeto": Training("placeto", "multi", kind="reinforce"),
    "random-task-eft": "random-task-eft",
}


def jobs(setup: Setup) -> Sequence[Job]:
    found = [Evaluation(policy, "multi") for policy in _POLICIES.values()]
    return [*found, *(Evaluation(Training("giph", "multi", number), "multi", number) for number in range(1, setup.sizes.seeds))]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    slr = {name: lab[Evaluation(policy, "multi")]["curve"][:, -1] for name, policy in _POLICIES.items()}
    slr["heft"], slr["heft, planned"] = heft_slr(lab.setup.dataset("multi", 0).test)
    names = list(slr)
    share = np.full((len(names), len(names)), np.nan)
    for i, row in enumerate(names):
        columns = {}
        for j, other in enumerate(names):
            columns[f"vs_{column(other)}"] = "-"
            if i != j:
                better, equal, worse = better_equal_worse(slr[row], slr[other])
                share[i, j] = better
                columns[f"vs_{column(other)}"] = f"{100 * better:.0f}/{100 * equal:.0f}/{100 * worse:.0f}"
        report.row(part="pairwise", better_equal_worse_percent=row, mean_slr=slr[row].mean(), **columns)
    figures.matrix("pairwise", "pairwise", "problems on which the row is better, %", names, share)
    numbers = range(lab.setup.sizes.seeds)
    giph = np.concatenate([lab[Evaluation(Training("giph", "multi", n), "multi", n)]["curve"][:, -1] for n in numbers])
    hefts = zip(*(heft_slr(lab.setup.dataset("multi", n).test) for n in numbers), strict=True)
    for how, slrs in zip(("", ", as planned"), hefts, strict=True):
        better, _, worse = better_equal_worse(giph, np.concatenate(slrs))
        report.claim(f"multi, all seeds: share of problems on which GiPH is better than HEFT{how}", better, "", at_least=0.59)
        report.claim(f"multi, all seeds: share of problems on which GiPH is worse than HEFT{how}", worse, "", at_most=0.36)
