"""Five seeds (Table 5): ChainMM, simulated on four described GPUs and executed on two cores, of which one is slowed twice.

Trainings differ in their seeds only. Their placements are executed interleaved, in one race.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab, column
from benchmarks.papers.doppler.executed import SLOWDOWNS, Seeds
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_5

__all__ = ["jobs", "tell"]

_GRAPH = "chain-mm"


def jobs(setup: Setup) -> Sequence[Job]:
    searches = [job for training in _trainings(setup) for job in same_moves(training).values()]
    return [*_trainings(setup), *searches, _seeds(setup)]


def _trainings(setup: Setup) -> list[Training]:
    sizes = setup.sizes
    return [Training(Case(_GRAPH, "four"), number, sizes.episodes_of(_GRAPH)) for number in range(sizes.seeds)]


def _seeds(setup: Setup) -> Seeds:
    return Seeds(_GRAPH, SLOWDOWNS[0], setup.sizes.seeds)


def tell(lab: Lab, report: Report) -> None:
    simulated = [float(lab[job]["best"]) for job in _trainings(lab.setup)]
    searches = [same_moves(training) for training in _trainings(lab.setup)]
    executed = lab[_seeds(lab.setup)]
    for number, best in enumerate(simulated):
        runs = executed[str(number)]
        report.row(
            part="table5",
            seed=lab.setup.seed + number,
            simulated_ms=best * 1e3,
            **{f"{column(name)}_ms": float(lab[job]["best"]) * 1e3 for name, job in searches[number].items()},
            executed_ms=float(np.median(runs)) * 1e3,
            deviation_ms=float(np.std(runs, ddof=1)) * 1e3 if len(runs) > 1 else None,
            paper_ms=TABLE_5[number] if number < len(TABLE_5) else None,
        )
    medians = [float(np.median(runs)) for runs in executed.values()]
    report.claim("executed: slowest seed over the fastest", max(medians) / min(medians), "")
    report.claim("simulated: worst seed over the best", max(simulated) / min(simulated), "")
    report.claim("paper: slowest seed over the fastest", max(TABLE_5) / min(TABLE_5), "")
