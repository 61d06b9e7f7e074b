"""Either policy alone (Table 3), on our own graphs of the paper's sizes on four described GPUs, simulated.

``select`` learns which op is next, and the op goes where it can start first; ``place`` learns where ops go, and the op with the
longest path to an exit is next. The best placement met in training counts; figures are means over seeds. Costs that differ by
0.1 % count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_3
from benchmarks.papers.doppler.statistics import not_worse

__all__ = ["jobs", "tell"]

_AGENTS = {"both": "doppler", "select": "doppler:place=earliest-start", "place": "doppler:select=critical-path"}


def jobs(setup: Setup) -> Sequence[Job]:
    return [job for graph in setup.sizes.graphs for some in _all(setup, graph).values() for job in some]


def _all(setup: Setup, graph: str) -> dict[str, list[Training]]:
    """Return the trainings of each row; the last rows make the moves of both policies without learning."""
    sizes = setup.sizes
    found: dict[str, list[Training]] = {}
    for number in range(sizes.other_seeds):
        of = {name: Training(Case(graph, "four"), number, sizes.episodes_of(graph), agent) for name, agent in _AGENTS.items()}
        for name, training in {**of, **same_moves(of["both"])}.items():
            found.setdefault(name, []).append(training)
    return found


def tell(lab: Lab, report: Report) -> None:
    graphs = lab.setup.sizes.graphs
    best: dict[str, dict[str, float]] = {}
    for graph in graphs:
        for name, trainings in _all(lab.setup, graph).items():
            best.setdefault(name, {})[graph] = float(np.mean([lab[job]["best"] for job in trainings]))
    for graph in graphs:
        for name, costs in best.items():
            report.row(
                part="table3",
                graph=graph,
                learned=name,
                simulated_ms=costs[graph] * 1e3,
                over_both=costs[graph] / best["both"][graph],
                paper_ms=TABLE_3[graph].get(name),
                paper_over_both=TABLE_3[graph][name] / TABLE_3[graph]["both"] if name in TABLE_3[graph] else None,
                seeds=lab.setup.sizes.other_seeds,
            )
    good = not_worse(best["both"], [best["select"], best["place"]])
    name = f"graphs of {len(graphs)} on which both policies are at least as good as either alone"
    report.claim(name, good, "", at_least=min(3, len(graphs)))
