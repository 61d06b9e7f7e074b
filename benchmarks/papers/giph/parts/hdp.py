"""HDP, the RNN-based placer (section 5), trained anew for each of some problems of the multi-network case.

A training draws 4 placements an update and ends when 100 updates bring no better one, or after 1000; the best placement met
counts. It is done twice: at the learning rate that HDP has here, 0.003, and at the paper's, 0.01. GiPH is the policy of the
other parts, trained once on other problems. Intervals of ratios of means are 95 %, from a bootstrap over the problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.compare import better_equal_worse, over_heft, ratio_interval
from benchmarks.papers.giph.jobs import Evaluation, HdpCase, Job, Setup, Training
from benchmarks.papers.giph.problems import heft_slr

__all__ = ["jobs", "tell"]

_RATES = {"hdp": 3e-3, "hdp, learning rate 0.01": 1e-2}
_GIPH = Evaluation(Training("giph", "multi"), "multi")


def jobs(setup: Setup) -> Sequence[Job]:
    return [_GIPH, *(HdpCase("multi", i, rate) for i in range(setup.sizes.hdp_cases) for rate in _RATES.values())]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    cases = range(lab.setup.sizes.hdp_cases)
    run, planned = heft_slr(lab.setup.dataset("multi", 0).test[: len(cases)])
    giph = lab[_GIPH]["curve"][: len(cases), -1]
    found: dict[str, NDArray[np.float64]] = {
        name: np.array([float(lab[HdpCase("multi", case, rate)]["slr"]) for case in cases]) for name, rate in _RATES.items()
    }
    for name, slr in {"giph": giph, **found, "heft": run, "heft, planned": planned}.items():
        low, high = ratio_interval(giph, slr)
        better, equal, worse = better_equal_worse(giph, slr)
        report.row(
            part="hdp",
            policy=name,
            cases=len(cases),
            mean_slr=slr.mean(),
            **over_heft(float(slr.mean()), float(run.mean()), float(planned.mean())),
            giph_over_it=giph.mean() / slr.mean(),
            interval=f"{low:.3f} to {high:.3f}",
            giph_better=better,
            equal=equal,
            giph_worse=worse,
        )
    best = np.minimum(*found.values())
    report.claim("multi: SLR of GiPH over HDP, trained for each problem", giph.mean() / found["hdp"].mean(), "", at_most=1.0)
    _, high = ratio_interval(giph, best)
    report.claim("the same over the better of HDP's two learning rates, upper end of the interval", high, "", at_most=1.0)
    order = np.argsort(run)
    series = {name: (np.arange(len(cases)), (slr / run)[order]) for name, slr in {"giph": giph, **found}.items()}
    axes = ("problems, by SLR of HEFT", "SLR, relative to HEFT")
    figures.lines("hdp", "hdp", "", axes, series, levels={"heft": 1.0}, marked=True)
