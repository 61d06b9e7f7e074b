"""The distribution of throughput over graphs (Fig. 5).

``lowest`` is the least throughput in tuples per second, ``above 97 %`` the share of graphs that sustain more than 97 % of the
rate (9,700 tuples per second at 1e4). The best of 2 to 5 parts are the oracles of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.stream.jobs import Setup, costs, methods
from benchmarks.papers.stream.paper import ABOVE_9700, LOWEST, RATES
from placeit.simulator.throughput_bound import relative_throughput

__all__ = ["jobs", "tell"]


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [job for job, _ in methods().values()]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    for rate in RATES:
        typical, series = rate == RATES[0], {}
        for method in methods():
            tuples = rate * np.sort(relative_throughput(costs(lab, method)[0], rate))
            report.row(
                part="fig5",
                rate=rate,
                method=method,
                lowest=tuples[0],
                paper_lowest=LOWEST.get(method) if typical else None,
                above_97_percent=np.mean(tuples > 0.97 * rate),
                paper_above=ABOVE_9700.get(method) if typical else None,
            )
            if method in ("B", "shipped, best of samples", "annealing") or "METIS" in method or "fuser" in method:
                series[method] = (tuples, np.arange(1, len(tuples) + 1) / len(tuples))
        axes = ("tuples/s", "share of graphs with no more")
        figures.lines("fig5", f"fig5-{rate:.0e}".replace("+0", ""), f"{rate:g} tuples/s", axes, series)
