"""Convergence (Fig. 14, Fig. 15): the mean SLR on held-out problems during training, in the multi-network case.

Imitation learns the best of all moves of some states; all-actions maximises the expected gain over all moves of these states;
REINFORCE learns from the gains of the moves that it draws. ``giph paper`` is REINFORCE as in the paper, with the paper's
features: one problem an update; it is run for each seed, as some of these trainings learn and some do not. Seconds include
evaluations, while another job runs on the other core. Placeto is also trained in the single-network case, and evaluated on
problems of that network: it knows devices by their numbers, which mean nothing on another network.

All variants are trained by imitation, and four of them without the start-time potential (Fig. 15); here that also leaves out
the features of the schedule that the paper does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.compare import over_heft
from benchmarks.papers.giph.jobs import NO_POTENTIAL, Job, Setup, Training
from benchmarks.papers.giph.policies import VARIANTS
from benchmarks.papers.giph.problems import heft_slr

__all__ = ["jobs", "tell"]

_FIG_15 = ("giph", "giph-3", "giph-5", "giph-ne-pol")
_ONCE = {
    "imitation": Training("giph", "multi"),
    **{f"imitation, {variant}": Training(variant, "multi") for variant in VARIANTS if variant != "giph"},
    **{f"imitation, {variant}{NO_POTENTIAL}": Training(f"{variant}{NO_POTENTIAL}", "multi") for variant in _FIG_15},
    "all-actions": Training("giph", "multi", kind="all-actions"),
    "reinforce": Training("giph", "multi", kind="reinforce"),
    "giph paper": Training("giph paper", "multi", kind="reinforce"),
    "placeto": Training("placeto", "multi", kind="reinforce"),
    "placeto, single network": Training("placeto", "single", kind="reinforce"),
}


def _trainings(setup: Setup) -> dict[str, Training]:
    further = range(1, setup.sizes.seeds)
    papers = {f"giph paper, seed {setup.seed + n}": Training("giph paper", "multi", n, kind="reinforce") for n in further}
    return _ONCE | papers


def jobs(setup: Setup) -> Sequence[Job]:
    return list(_trainings(setup).values())


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    series, by_episode = {}, {}
    for name, training in _trainings(lab.setup).items():
        history = lab[training]
        held_out = lab.setup.dataset(training.data, training.number).held_out
        run, planned = (float(slr.mean()) for slr in heft_slr(held_out))
        ratio = history["evaluation"] / run
        series[name], by_episode[name] = (history["seconds"], ratio), (history["episodes"], ratio)
        for episodes, seconds, slr in zip(history["episodes"], history["seconds"], history["evaluation"], strict=True):
            columns = {"episodes": episodes, "seconds": seconds, "mean_slr": slr, **over_heft(slr, run, planned)}
            report.row(part="convergence", training=name, **columns)
    what = "mean SLR on held-out problems, relative to HEFT"
    levels = {"heft": 1.0}
    figures.lines("convergence", "convergence", "", ("seconds of training", what), series, levels=levels, marked=True)
    figures.lines("convergence", "convergence-episodes", "", ("episodes", what), by_episode, levels=levels, marked=True)
