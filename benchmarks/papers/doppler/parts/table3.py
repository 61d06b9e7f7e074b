"""Either policy alone (Table 3), on our own graphs of the paper's sizes on four described GPUs, simulated.

``select`` learns which op comes next, and it goes where it can start first; ``place`` learns where ops go, and the one with the
longest path to an exit comes next. The best placement met in training counts; figures are means over seeds. Costs that differ
by 0.1 % count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Setup, Training
from benchmarks.papers.doppler.paper import TABLE_3
from benchmarks.papers.doppler.statistics import not_worse

__all__ = ["jobs", "tell"]

_AGENTS = {"both": "doppler", "select": "doppler:place=earliest-start", "place": "doppler:select=critical-path"}


def jobs(setup: Setup) -> Sequence[Job]:
    return [job for graph in setup.sizes.graphs for name in _AGENTS for job in _trainings(setup, graph, name)]


def _trainings(setup: Setup, graph: str, name: str) -> list[Training]:
    sizes = setup.sizes
    numbers = range(sizes.other_seeds)
    return [Training(Case(graph, "four"), number, sizes.episodes_of(graph), _AGENTS[name]) for number in numbers]


def tell(lab: Lab, report: Report) -> None:
    graphs = lab.setup.sizes.graphs
    best = {
        name: {graph: float(np.mean([lab[job]["best"] for job in _trainings(lab.setup, graph, name)])) for graph in graphs}
        for name in _AGENTS
    }
    for graph in graphs:
        for name, costs in best.items():
            report.row(
                part="table3",
                graph=graph,
                learned=name,
                simulated_ms=costs[graph] * 1e3,
                over_both=costs[graph] / best["both"][graph],
                paper_ms=TABLE_3[graph][name],
                paper_over_both=TABLE_3[graph][name] / TABLE_3[graph]["both"],
                seeds=lab.setup.sizes.other_seeds,
            )
    good = not_worse(best["both"], [best["select"], best["place"]])
    name = f"graphs of {len(graphs)} on which both policies are at least as good as either alone"
    report.claim(name, good, "", at_least=min(3, len(graphs)))
