"""Distance of methods from the optimum on small graphs, by branch and bound over all placements.

``throughput`` is the capacity of a method's placement over the greatest capacity of any placement: its mean, and its least
value. No rate limits it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.stream.jobs import Setup, costs, methods, optima

__all__ = ["jobs", "tell"]


def jobs(setup: Setup) -> Sequence[Job]:
    return [*optima(setup), *(job for job, _ in methods().values())]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    found = [lab[job] for job in optima(lab.setup)]
    graphs, least = (np.concatenate([outcome[name] for outcome in found]) for name in ("graph", "cost"))
    mean = {}
    for method in methods():
        ratio = least / costs(lab, method)[0][graphs]
        mean[method] = ratio.mean()
        report.row(
            part="exact",
            method=method,
            graphs=len(graphs),
            throughput=mean[method],
            at_least=ratio.min(),
            optimal=np.mean(ratio > 1 - 1e-9),
        )
    report.claim("annealing: of the optimal capacity, on the mean", mean["annealing"], "", at_least=0.99)
    report.claim("shipped, best of samples: of the optimal capacity, on the mean", mean["shipped, best of samples"], "")
    figures.bars("exact", "exact", "", ("", "share of the optimal capacity"), list(mean), {"mean": list(mean.values())})
