"""Total cost and energy as objectives (Fig. 11 right, Fig. 16), on the test problems of the multi-network case.

``giph`` is trained with the objective as its reward, and ``giph for latency`` is the policy of the other parts; of each search,
the best placement by the objective counts. The total cost is the seconds that devices and links are busy. Energy is by a power
model: a device of x times the mean speed draws 10 x^2 W while it computes and 1 W while it does not, and a byte takes
0.05 J on a link. Costs are in multiples of a lower bound: every task where it costs least, and nothing moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.jobs import Evaluation, Job, Policy, Setup, Training
from benchmarks.papers.giph.parts.depth import by_depth
from benchmarks.papers.giph.policies import UNTRAINED
from benchmarks.papers.giph.problems import instance
from placeit.placers.heft import Heft

__all__ = ["jobs", "tell"]

_OBJECTIVES = ("total-cost", "energy")


def _evaluations(objective: str) -> dict[str, Evaluation]:
    policies: dict[str, Policy] = {
        "giph": Training("giph", "multi", objective=objective),
        "giph for latency": Training("giph", "multi"),
        **{name: name for name in UNTRAINED},
    }
    return {name: Evaluation(policy, "multi", objective=objective) for name, policy in policies.items()}


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [evaluation for objective in _OBJECTIVES for evaluation in _evaluations(objective).values()]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    problems = lab.setup.dataset("multi", 0).test
    plans = [Heft().plan(problem).placement[None] for problem in problems]
    for objective in _OBJECTIVES:
        curves = {name: lab[evaluation]["curve"] for name, evaluation in _evaluations(objective).items()}
        values = {name: curve[:, -1] for name, curve in curves.items()}
        values["random placement"] = curves["random"][:, 0]
        ones = [instance(problem, objective) for problem in problems]
        values["heft"] = np.array([float(one.cost(plan)[0]) / one.unit for one, plan in zip(ones, plans, strict=True)])
        for name, value in values.items():
            mean = value.mean()
            report.row(
                part="objectives", objective=objective, policy=name, mean_cost=mean, over_heft=mean / values["heft"].mean()
            )
        ratio = values["giph"].mean() / values["heft"].mean()
        report.claim(f"{objective}: GiPH, trained for it, over HEFT's placement", ratio, "", at_most=1.0)
        by_depth(report, figures, "objectives", f"mean {objective}", problems, values)
