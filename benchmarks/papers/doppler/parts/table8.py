"""Less memory (Table 8): four described GPUs with 16 GiB each, limited to 8 GB as in the paper, and to 3 GB; simulated.

With a limit, weights and live tensors of a device have to fit at every moment; a placement that does not fit has no cost (-).
Our graphs take less than the paper's runtime does: 8 GB rule out a single device for FFNN only, 3 GB for all. DOPPLER and
Placeto do not learn from placements that do not fit, and bar devices without room for an op's weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab, column
from benchmarks.papers.doppler.graphs import Case, Where
from benchmarks.papers.doppler.jobs import Placed, Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_2, TABLE_8

__all__ = ["jobs", "tell"]

_PLACERS = {"one device": "single", "critical path": "critical-path", "enumerative": "enumerative"}
_WHERE: dict[str, Where] = {"16 GiB": "four", "8 GB": "four, 8 GB", "3 GB": "four, 3 GB"}
_PAPER = {"16 GiB": {graph: row | {"doppler": row["sys"]} for graph, row in TABLE_2.items()}, "8 GB": TABLE_8}


def _all(setup: Setup, graph: str, memory: str) -> dict[str, Job]:
    case, sizes = Case(graph, _WHERE[memory]), setup.sizes
    return {
        **{name: Placed(case, placer) for name, placer in _PLACERS.items()},
        "placeto": Training(case, 0, sizes.placeto, "placeto:devices=4", imitation=False),
        "doppler": Training(case, 0, sizes.episodes_of(graph)),
        **same_moves(Training(case, 0, sizes.episodes_of(graph))),
    }


def jobs(setup: Setup) -> Sequence[Job]:
    return [job for graph in setup.sizes.graphs for memory in _WHERE for job in _all(setup, graph, memory).values()]


def tell(lab: Lab, report: Report) -> None:
    for graph in lab.setup.sizes.graphs:
        for memory in _WHERE:
            paper = _PAPER[memory][graph] if memory in _PAPER else {}
            costs = {
                name: float(lab[job]["best" if isinstance(job, Training) else "cost"]) * 1e3
                for name, job in _all(lab.setup, graph, memory).items()
            }
            report.row(
                part="table8",
                graph=graph,
                memory=memory,
                **{f"{column(name)}_ms": cost for name, cost in costs.items()},
                **{f"paper_{column(name)}": paper.get(name) for name in costs},
            )
            others = [costs[name] for name in (*_PLACERS, "placeto") if np.isfinite(costs[name])]
            over = costs["doppler"] / min(others) if others else None
            report.claim(f"{graph}, {memory}: DOPPLER over the best of the others", over, "")
