"""The policy that ships with placeit, used as it is.

It is searched with for 2 |V| steps from random placements, like all others; test problems are those of the other parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import SHIPPED, Evaluation, Job, Setup
from benchmarks.giph.lab import Lab
from benchmarks.giph.parts.pairwise import compare
from benchmarks.giph.problems import heft_slr
from placeit.workloads.datasets import DatasetKind

__all__ = ["jobs", "tell"]

_KINDS: tuple[DatasetKind, ...] = ("multi", "single", "recurrent", "sensor-fusion")


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [Evaluation(SHIPPED, data) for data in _KINDS]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    ratios = []
    for data in _KINDS:
        slr = lab[Evaluation(SHIPPED, data)]["curve"][:, -1]
        heft, planned = heft_slr(lab.setup.dataset(data, 0).test)
        better, equal, worse = compare(slr, heft)
        ratios.append(slr.mean() / heft.mean())
        report.row(
            part="shipped",
            problems=data,
            cases=len(slr),
            giph=slr.mean(),
            heft=heft.mean(),
            heft_planned=planned.mean(),
            better_than_heft=better,
            equal=equal,
            worse=worse,
        )
        report.claim(f"shipped policy, {data}: SLR over HEFT", ratios[-1], "", at_most=1.0)
    figures.bars("shipped", "shipped", "", ("", "mean SLR over that of HEFT"), _KINDS, {"giph": ratios})
