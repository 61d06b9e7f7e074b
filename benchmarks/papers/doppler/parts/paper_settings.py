"""The paper's own settings: the published cost graphs on four devices, with the paper's numbers of episodes.

One episode an update, 4,000 or 8,000 of them, with the paper's rates, exploration and baseline, and without this agent's
additions (``neighbourhood=0,affinity=false``). Episodes are greedy except where they explore (``greedy=true``). The rows below
each have the agent's own settings and the same number of episodes, with learning and without (``same moves``).
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case, published_folder
from benchmarks.papers.doppler.jobs import Setup, Training, same_moves
from benchmarks.papers.doppler.paper import BEST_KNOWN
from benchmarks.papers.doppler.statistics import met_by

__all__ = ["jobs", "tell"]


def _trainings(setup: Setup, graph: str) -> dict[str, Training]:
    case, episodes = Case(graph, "published"), setup.sizes.episodes_of(graph)
    return {
        "the paper's": Training(case, 0, episodes, "doppler:neighbourhood=0,affinity=false,greedy=true", by_paper=True),
        "our own": Training(case, 0, episodes),
        **same_moves(Training(case, 0, episodes)),
    }


def jobs(setup: Setup) -> Sequence[Job]:
    return [job for graph in setup.sizes.graphs for job in _trainings(setup, graph).values()]


def tell(lab: Lab, report: Report) -> None:
    for graph in lab.setup.sizes.graphs:
        known = BEST_KNOWN[graph] if published_folder() is not None else None
        for name, job in _trainings(lab.setup, graph).items():
            found = lab[job]
            report.row(
                part="paper",
                graph=graph,
                settings=name,
                **met_by(found, known),
            )
