"""Message passing once per episode or once per step (Table 6): ChainMM on four described GPUs, simulated.

A message passing is counted once for each episode, or once for each op of each episode, up to the episode in which the best
placement was met, as in the paper; episodes of an update share a passing if they can.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_6
from benchmarks.papers.doppler.statistics import best_at

__all__ = ["jobs", "tell"]

_AGENTS = {"once per episode": "doppler", "once per step": "doppler:passing=step"}
_CASE = Case("chain-mm", "four")


def jobs(setup: Setup) -> Sequence[Job]:
    return list(_all(setup).values())


def _all(setup: Setup) -> dict[str, Training]:
    trainings = {name: Training(_CASE, 0, setup.sizes.episodes_of("chain-mm"), agent) for name, agent in _AGENTS.items()}
    return {**trainings, **same_moves(trainings["once per episode"])}


def tell(lab: Lab, report: Report) -> None:
    for name, job in _all(lab.setup).items():
        found, paper = lab[job], TABLE_6.get(name, {})
        at, every = best_at(found["curve"]), len(_CASE.problem) if name == "once per step" else 1
        report.row(
            part="table6",
            messages=name,
            best_ms=float(found["best"]) * 1e3,
            best_at_episode=at,
            passings=None if at is None else at * every,
            episodes=int(found["episodes"]),
            training_s=float(found["seconds"]),
            paper_ms=paper.get("ms"),
            paper_episode=paper.get("episodes"),
            paper_passings=paper.get("passings"),
        )
