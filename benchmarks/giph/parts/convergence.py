"""Convergence (Fig. 14): the mean SLR on held-out problems during training, in the multi-network case.

Imitation learns the best of all moves of some states; all-actions maximises the expected gain over all moves of these;
REINFORCE learns from what its own moves bring. ``giph paper`` is REINFORCE as in the paper, with the paper's features: one
problem an update. Seconds include evaluations, and another job on the other core.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import Job, Setup, Training
from benchmarks.giph.lab import Lab
from benchmarks.giph.problems import heft_slr

__all__ = ["jobs", "tell"]

_TRAININGS = {
    "imitation": Training("giph", "multi"),
    "all-actions": Training("giph", "multi", kind="all-actions"),
    "reinforce": Training("giph", "multi", kind="reinforce"),
    "giph paper": Training("giph paper", "multi", kind="reinforce"),
    "placeto": Training("placeto", "multi", kind="reinforce"),
}


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return list(_TRAININGS.values())


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    held_out = lab.setup.dataset("multi", 0).held_out
    heft = float(heft_slr(held_out)[0].mean())
    series = {}
    for name, training in _TRAININGS.items():
        history = lab[training]
        series[name] = (history["seconds"], history["evaluation"])
        for episodes, seconds, slr in zip(history["episodes"], history["seconds"], history["evaluation"], strict=True):
            report.row(
                part="convergence", training=name, episodes=episodes, seconds=seconds, mean_slr=slr, over_heft=slr / heft
            )
    axes = ("seconds of training", "mean SLR on held-out problems")
    figures.lines("convergence", "convergence", "", axes, series, levels={"heft": heft}, marked=True)
    episodes = {name: (lab[training]["episodes"], lab[training]["evaluation"]) for name, training in _TRAININGS.items()}
    axes = ("episodes", axes[1])
    figures.lines("convergence", "convergence-episodes", "", axes, episodes, levels={"heft": heft}, marked=True)
