"""Each stage left out (Fig. 3): Llama-layer, executed on two cores, of which one is slowed twice.

I is imitation, II simulated, III measured. The level is the final cost of III alone; the figure is the number of episodes of
III until that level was reached, within 1 % as measured values go. All trainings share one journal of runs, so equal placements
have equal values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.executed import SLOWDOWNS, Learned
from benchmarks.papers.doppler.jobs import Setup
from benchmarks.papers.doppler.statistics import episodes_to

__all__ = ["jobs", "tell"]

_PARTS = (("III",), ("I", "III"), ("II", "III"), ("I", "II", "III"))
_MARGIN = 1.01


def jobs(setup: Setup) -> Sequence[Job]:
    return list(_learned(setup).values())


def _learned(setup: Setup) -> dict[tuple[str, ...], Learned]:
    graph = setup.sizes.some(["llama-layer"])[0]
    return {parts: Learned(graph, SLOWDOWNS[0], 0, parts, "stages") for parts in _PARTS}


def tell(lab: Lab, report: Report) -> None:
    found = {parts: lab[job] for parts, job in _learned(lab.setup).items()}
    level = float(found[("III",)]["curve"][-1, 1]) * _MARGIN
    needed = {parts: episodes_to(level, one["curve"]) for parts, one in found.items()}
    for parts, one in found.items():
        curve = one["curve"]
        report.row(
            part="fig3",
            graph=_learned(lab.setup)[parts].graph,
            stages=", ".join(parts),
            first_ms=float(curve[0, 1]) * 1e3,
            best_ms=float(curve[-1, 1]) * 1e3,
            over_three_stages=float(curve[-1, 1] / found[_PARTS[-1]]["curve"][-1, 1]),
            measured_episodes=int(one["episodes"]),
            episodes_to_level=needed[parts] if np.isfinite(needed[parts]) else None,
        )
    report.claim(
        "measured episodes of III alone until its level, over those that three stages need for it",
        needed[("III",)] / needed[_PARTS[-1]],  # 0 if they never reach the level
        "",
        at_least=2.0,
    )
