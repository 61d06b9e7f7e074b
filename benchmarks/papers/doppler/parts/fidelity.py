"""Simulator and reality (Appendix H.1, Fig. 18): placements saved throughout a training, simulated and executed.

Two cores, the second of which is slowed 2 and 3 times. The training is one in simulation without imitation, so that its first
placements are bad ones. ``simulated`` is the makespan of the plan that is run, with segments merged, before anything of it was
measured; ``trained_on`` is the faster simulation without merging that training uses. Each placement is measured twice, and
simulation is compared with the geometric mean. ``repeated`` is the correlation r of the two measurements, which limits the
correlation with any simulation: if each measurement is the truth and noise, the truth and the mean correlate with the root of 2
r / (1 + r) (Spearman-Brown). Paper, on four P100s: Pearson 0.79, Spearman 0.69. Nothing is claimed where the slowest placement
takes less than 1.5 times as long as the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.executed import SLOWDOWNS, Fidelity
from benchmarks.papers.doppler.jobs import Setup
from benchmarks.papers.doppler.statistics import correlations

__all__ = ["jobs", "tell"]

_SPREAD = 1.5


def jobs(setup: Setup) -> Sequence[Job]:
    return [Fidelity(graph, slowdown) for graph in setup.sizes.graphs for slowdown in SLOWDOWNS]


def tell(lab: Lab, report: Report) -> None:
    for graph in lab.setup.sizes.graphs:
        for slowdown in SLOWDOWNS:
            found = lab[Fidelity(graph, slowdown)]
            ran = np.isfinite(found["first"]) & np.isfinite(found["second"])
            first, second, simulated, trained_on = (found[name][ran] for name in ("first", "second", "simulated", "trained_on"))
            measured = np.sqrt(first * second)
            spread = float(measured.max() / measured.min()) if len(measured) else float("nan")
            pearson, spearman = correlations(simulated, measured)
            same_pearson, same_spearman = correlations(first, second)
            seen_pearson, seen_spearman = correlations(trained_on, measured)
            report.row(
                part="fidelity",
                graph=graph,
                slowdown=slowdown,
                placements=len(measured),
                spread=spread,
                pearson=pearson,
                spearman=spearman,
                pearson_repeated=same_pearson,
                spearman_repeated=same_spearman,
                pearson_trained_on=seen_pearson,
                spearman_trained_on=seen_spearman,
                median_simulated_over_measured=float(np.median(simulated / measured)) if len(measured) else None,
            )
            if spread >= _SPREAD:
                where = f"{graph}, one core slowed {slowdown:g} times"
                report.claim(f"{where}: Pearson, simulated and measured", pearson, "", at_least=0.95)
                report.claim(f"{where}: Spearman, simulated and measured", spearman, "", at_least=0.9)
