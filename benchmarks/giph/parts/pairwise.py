"""Which policy finds the better placement (Table 6), on the test problems of the multi-network case.

All learned rows but two are trained alike, by imitation with the features of the schedule. ``giph paper`` has the paper's
four features and width, and is trained by the paper's REINFORCE; Placeto by REINFORCE. HEFT is run first in, first out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import Evaluation, Job, Policy, Setup, Training
from benchmarks.giph.lab import Lab, column
from benchmarks.giph.policies import VARIANTS
from benchmarks.giph.problems import heft_slr

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
    slr["heft"], _ = heft_slr(lab.setup.dataset("multi", 0).test)
    names = list(slr)
    share = np.full((len(names), len(names)), np.nan)
    for i, row in enumerate(names):
        columns = {}
        for j, other in enumerate(names):
            columns[f"vs_{column(other)}"] = "-"
            if i != j:
                better, equal, worse = compare(slr[row], slr[other])
                share[i, j] = better
                columns[f"vs_{column(other)}"] = f"{100 * better:.0f}/{100 * equal:.0f}/{100 * worse:.0f}"
        report.row(part="pairwise", better_equal_worse_percent=row, mean_slr=slr[row].mean(), **columns)
    figures.matrix("pairwise", "pairwise", "problems on which the row is better, %", names, share)
    numbers = range(lab.setup.sizes.seeds)
    giph = np.concatenate([lab[Evaluation(Training("giph", "multi", n), "multi", n)]["curve"][:, -1] for n in numbers])
    heft = np.concatenate([heft_slr(lab.setup.dataset("multi", n).test)[0] for n in numbers])
    better, _, worse = compare(giph, heft)
    report.claim("multi, all seeds: share of problems on which GiPH is better than HEFT", better, "", at_least=0.59)
    report.claim("multi, all seeds: share of problems on which GiPH is worse than HEFT", worse, "", at_most=0.36)


def compare(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float, float]:
    """Shares of problems on which ``a`` is less than, equal to and more than ``b``."""
    equal = np.isclose(a, b, rtol=1e-9, atol=0.0)
    return float(((a < b) & ~equal).mean()), float(equal.mean()), float(((a > b) & ~equal).mean())
