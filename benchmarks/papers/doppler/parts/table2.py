"""Placers side by side (Table 2): our own graphs, simulated on four described GPUs and executed on two cores.

Simulated: the graphs of the paper's sizes, the best placement met in training. Executed: smaller ones on two cores of this
machine, the second of which is slowed 2 and 3 times (emulated: it really idles), all placements interleaved in one race.
``sim`` is DOPPLER after imitation and simulation, ``sys`` after a third stage with measured rewards. Critical path is the best
of 50 placements, which are run if placements are executed; Placeto learns in simulation. The claim is about ``sys``: at least
as fast as each of the three, unless the whole interval of the ratio by round is above 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.executed import SLOWDOWNS, BestOfEach
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Placed, Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_2
from benchmarks.papers.doppler.statistics import ratio

__all__ = ["jobs", "tell"]

_PLACERS = {"one device": "single", "critical path": "critical-path", "enumerative": "enumerative"}
_RIVALS = ("critical path", "enumerative", "placeto")


def jobs(setup: Setup) -> Sequence[Job]:
    graphs = setup.sizes.graphs
    simulated = [job for graph in graphs for job in _simulated(setup, graph).values()]
    return [*simulated, *(BestOfEach(graph, slowdown) for graph in graphs for slowdown in SLOWDOWNS)]


def _simulated(setup: Setup, graph: str) -> dict[str, Job]:
    case, sizes = Case(graph, "four"), setup.sizes
    return {
        **{name: Placed(case, placer) for name, placer in _PLACERS.items()},
        "placeto": Training(case, 0, sizes.placeto, "placeto:devices=4", imitation=False),
        "sim": Training(case, 0, sizes.episodes_of(graph)),
        **same_moves(Training(case, 0, sizes.episodes_of(graph))),
    }


def tell(lab: Lab, report: Report) -> None:
    for graph in lab.setup.sizes.graphs:
        costs = {
            name: float(lab[job]["best" if isinstance(job, Training) else "cost"])
            for name, job in _simulated(lab.setup, graph).items()
        }
        _rows(report, graph, "simulated, four GPUs", costs)
        for slowdown in SLOWDOWNS:
            seconds = lab[BestOfEach(graph, slowdown)]
            where = f"executed, one core slowed {slowdown:g} times"
            _rows(report, graph, where, {name: float(np.median(runs)) for name, runs in seconds.items()})
            for rival in _RIVALS:
                over = ratio(seconds["sys"], seconds[rival])
                report.row(
                    part="table2",
                    graph=graph,
                    where=where,
                    time_of="sys",
                    over=rival,
                    ratio=over.ratio,
                    ci_low=over.ci_low,
                    ci_high=over.ci_high,
                )
                name = f"{graph}, {where}: DOPPLER over {rival}, lower end of the interval"
                report.claim(name, over.ci_low, "", at_most=1.0)


def _rows(report: Report, graph: str, where: str, seconds: dict[str, float]) -> None:
    ours, paper = seconds.get("sys", seconds["sim"]), TABLE_2[graph]
    for name, value in seconds.items():
        report.row(
            part="table2",
            graph=graph,
            where=where,
            placed_by=name,
            ms=value * 1e3,
            over_doppler=value / ours,
            paper_ms=paper.get(name),
            paper_over_sys=paper[name] / paper["sys"] if name in paper else None,
        )
