"""Eight GPUs in two meshes (Table 9): described (``examples/two_meshes.yaml``), our own graphs, simulated."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab, column
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Placed, Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_9

__all__ = ["jobs", "tell"]

_PLACERS = {"one device": "single", "critical path": "critical-path", "enumerative": "enumerative"}


def _all(setup: Setup, graph: str) -> dict[str, Job]:
    case = Case(graph, "meshes")
    placed = {name: Placed(case, placer) for name, placer in _PLACERS.items()}
    learned = Training(case, 0, setup.sizes.episodes_of(graph))
    return {**placed, "doppler": learned, **same_moves(learned)}


def jobs(setup: Setup) -> Sequence[Job]:
    return [job for graph in setup.sizes.graphs for job in _all(setup, graph).values()]


def tell(lab: Lab, report: Report) -> None:
    for graph in lab.setup.sizes.graphs:
        costs = {
            name: float(lab[job]["best" if isinstance(job, Training) else "cost"]) * 1e3
            for name, job in _all(lab.setup, graph).items()
        }
        report.row(
            part="table9",
            graph=graph,
            **{f"{column(name)}_ms": cost for name, cost in costs.items()},
            **{f"paper_{column(name)}": TABLE_9[graph].get(name) for name in costs},
        )
        others = min(costs["critical path"], costs["enumerative"])
        report.claim(
            f"{graph}: DOPPLER over the better of critical path and EnumerativeOptimizer", costs["doppler"] / others, ""
        )
