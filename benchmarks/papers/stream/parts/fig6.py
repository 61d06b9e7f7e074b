"""How many devices are used (Fig. 6): the share of graphs by the number of devices with an operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.stream.jobs import Setup, costs, methods
from placeit.bench.streams import DEVICES

__all__ = ["jobs", "tell"]


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [job for job, _ in methods().values()]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    numbers, series = range(1, DEVICES + 1), {}
    for method in methods():
        used = costs(lab, method)[1]
        series[method] = [float(np.mean(used == number)) for number in numbers]
        shares = {f"{number}_devices": share for number, share in zip(numbers, series[method], strict=True)}
        report.row(part="fig6", method=method, mean=used.mean(), **shares)
    shown = {name: series[name] for name in ("METIS, 5 parts", "METIS, best of 2-5", "shipped, best of samples", "annealing")}
    figures.bars("fig6", "fig6", "", ("devices used", "share of graphs"), [str(number) for number in numbers], shown)
