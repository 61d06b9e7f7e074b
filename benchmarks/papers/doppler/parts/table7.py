"""Placeto with and without imitation, beside DOPPLER (Table 7): FFNN on four described GPUs, simulated.

Placeto learns by its own schedule: a rate from 1e-3 to 1e-6, exploration from 0.5 to 0. It visits ops in a fixed order, so its
teacher, the critical path, only gives the device. An episode takes several times as long as DOPPLER's, so Placeto gets fewer;
the last row is DOPPLER with that number of episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_7
from benchmarks.papers.doppler.statistics import best_at

__all__ = ["jobs", "tell"]


def _trainings(setup: Setup) -> dict[str, Training]:
    sizes = setup.sizes
    graph = sizes.some(["ffnn"])[0]
    case, placeto = Case(graph, "four"), "placeto:devices=4"
    return {
        "placeto, imitating first": Training(case, 0, sizes.placeto, placeto),
        "placeto": Training(case, 0, sizes.placeto, placeto, imitation=False),
        "doppler": Training(case, 0, sizes.episodes_of(graph)),
        "doppler, as few episodes": Training(case, 0, sizes.placeto),
        **{f"doppler, {name}": job for name, job in same_moves(Training(case, 0, sizes.episodes_of(graph))).items()},
        **{f"placeto, {name}": job for name, job in same_moves(Training(case, 0, sizes.placeto, placeto)).items()},
    }


def jobs(setup: Setup) -> Sequence[Job]:
    return list(_trainings(setup).values())


def tell(lab: Lab, report: Report) -> None:
    for name, job in _trainings(lab.setup).items():
        found = lab[job]
        report.row(
            part="table7",
            graph=job.case.graph,
            policy=name,
            best_ms=float(found["best"]) * 1e3,
            best_at_episode=best_at(found["curve"]),
            episodes=int(found["episodes"]),
            training_s=float(found["seconds"]),
            paper_ms=TABLE_7.get(name),
        )
