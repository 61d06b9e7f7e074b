"""The published cost graphs on four devices.

Costs are the costs that DOPPLER's authors publish, in their unit, by the rules of their simulator: links without contention,
first in, first out. Without the data they are our own graphs of the same programs, and nothing is claimed. A training has the
agent's default stages, with the number of episodes for which a few minutes are enough (the paper has 4,000 and 8,000), and
imitates the best placement met at the end. The best placement met counts; beside it stand the best of 64 that are drawn from
the trained policies and their likeliest one (greedy). Rows with ``moves`` make the same moves without learning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case, published_folder
from benchmarks.papers.doppler.jobs import Placed, Setup, Training, same_moves
from benchmarks.papers.doppler.paper import BEST_KNOWN, FOUND_HERE, LIST_SCHEDULING, ZERO_SHOT_GIPH
from benchmarks.papers.doppler.statistics import met_by

__all__ = ["jobs", "tell"]

_SEARCH = ("annealing:evaluations=1000000000", "local-search:evaluations=1000000000")
_OTHERS = ("critical-path", "heft", "giph")
_LONGEST_TRAINING_S = 600.0


def jobs(setup: Setup) -> Sequence[Job]:
    graphs = setup.sizes.graphs
    searches = [job for graph in graphs for _, job in _searches(setup, graph)]
    return [*(job for graph in graphs for job in (*_trainings(setup, graph), *_placed(graph))), *searches]


def _trainings(setup: Setup, graph: str) -> list[Training]:
    sizes, case = setup.sizes, Case(graph, "published")
    return [Training(case, number, sizes.main_of(graph)) for number in sizes.seeds_of(graph)]


def _searches(setup: Setup, graph: str) -> list[tuple[str, Training]]:
    return [row for training in _trainings(setup, graph) for row in same_moves(training).items()]


def _placed(graph: str) -> list[Placed]:
    case = Case(graph, "published")
    return [*(Placed(case, name) for name in _OTHERS), *(Placed(case, name, limited=True) for name in _SEARCH)]


def tell(lab: Lab, report: Report) -> None:
    there = published_folder() is not None
    if not there:
        report.note(
            "PLACEIT_DATA names no folder with doppler_*.json: our own graphs take their place, and nothing is claimed."
        )
    for graph in lab.setup.sizes.graphs:
        known = BEST_KNOWN[graph] if there else None
        trainings = [lab[job] for job in _trainings(lab.setup, graph)]
        for number, found in enumerate(trainings):
            report.row(
                part="main",
                graph=graph,
                seed=lab.setup.seed + number,
                **met_by(found, known),
            )
        for name, job in _searches(lab.setup, graph):
            report.row(part="main", graph=graph, seed=lab.setup.seed + job.number, moves=name, **met_by(lab[job], known))
        if there:
            worst = max(float(found["best"]) for found in trainings) / BEST_KNOWN[graph]
            report.claim(f"{graph}: best placement met in training over the best known, worst seed", worst, "", at_most=1.03)
        longest = max(float(found["seconds"]) for found in trainings)
        report.claim(f"{graph}: longest training", longest, "s", at_most=_LONGEST_TRAINING_S)
    for graph in lab.setup.sizes.graphs:
        for job in _placed(graph):
            found = lab[job]
            report.row(
                part="main",
                graph=graph,
                placer=job.placer,
                makespan=float(found["cost"]),
                min_found_here=FOUND_HERE[graph] if there else None,
                known_of_list_scheduling=LIST_SCHEDULING[graph] if there else None,
                known_of_zero_shot_giph=ZERO_SHOT_GIPH[graph] if there else None,
                seconds=float(found["seconds"]),
            )
            if there and job.limited:
                name = f"{graph}: {job.placer.partition(':')[0]} in {lab.setup.sizes.search_s:g} s over the least found here"
                report.claim(name, float(np.round(found["cost"] / FOUND_HERE[graph], 6)), "", at_most=1.001)
