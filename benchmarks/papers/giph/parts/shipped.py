"""The policy that ships with placeit, without further training.

It searches for 2 |V| steps from random placements, like all other policies; the test problems are the ones of the other parts,
and of further seeds. The sensor-fusion cases of seed 0 are the second half hour of a scene whose first half hour the policy was
trained on, with the same edge devices in the same places; of all other problems it has seen neither graphs nor networks. ``same
moves`` is the same number of moves, made by an untrained policy or drawn uniformly. HEFT's placement is run first in, first out
(``heft``), or as planned. Intervals of ratios of means are 95 %, from a bootstrap over the problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab, column
from benchmarks.papers.giph.compare import better_equal_worse, over_heft, ratio_interval
from benchmarks.papers.giph.jobs import SHIPPED, Evaluation, Job, Setup
from benchmarks.papers.giph.policies import SAME_MOVES
from benchmarks.papers.giph.problems import heft_slr
from placeit.learning.workloads.datasets import DatasetKind

__all__ = ["jobs", "tell"]

_KINDS: tuple[DatasetKind, ...] = ("multi", "single", "recurrent", "sensor-fusion")
_SCENE_SEEN = 0
"""Seed of the sensor-fusion scene that the policy was trained on (:mod:`placeit.learning.workloads.mixture`)."""


def jobs(setup: Setup) -> Sequence[Job]:
    policies = (SHIPPED, *SAME_MOVES)
    return [Evaluation(one, data, number) for data in _KINDS for number in range(setup.sizes.seeds) for one in policies]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    setup = lab.setup
    ratios: dict[str, list[float]] = {"heft": [], "heft, planned": []}
    ticks = []
    for data in _KINDS:
        seeds = [setup.seed + number for number in range(setup.sizes.seeds)]
        groups = {f"seed {seed}": [seed] for seed in seeds}
        unseen = [seed for seed in seeds if data != "sensor-fusion" or seed != _SCENE_SEEN]
        if len(unseen) > 1:
            groups["all of these" if len(unseen) == len(seeds) else "the scenes not seen"] = unseen
        for name, group in groups.items():
            numbers = [seed - setup.seed for seed in group]
            slr, *others = (
                np.concatenate([lab[Evaluation(policy, data, number)]["curve"][:, -1] for number in numbers])
                for policy in (SHIPPED, *SAME_MOVES)
            )
            hefts = [heft_slr(setup.dataset(data, number).test) for number in numbers]
            run, planned = (np.concatenate(parts) for parts in zip(*hefts, strict=True))
            columns: dict[str, float | str] = {}
            for how, heft in (("heft", run), ("heft_planned", planned)):
                low, high = ratio_interval(slr, heft)
                better, equal, worse = better_equal_worse(slr, heft)
                columns[f"over_{how}"] = float(slr.mean() / heft.mean())
                columns[f"interval_{how}"] = f"{low:.3f} to {high:.3f}"
                columns[f"better_equal_worse_{how}"] = f"{100 * better:.0f}/{100 * equal:.0f}/{100 * worse:.0f} %"
            means = {"giph": slr.mean(), "heft": run.mean(), "heft_planned": planned.mean()}
            means |= {column(name): other.mean() for name, other in zip(SAME_MOVES, others, strict=True)}
            report.row(part="shipped", problems=data, of=name, cases=len(slr), **means, **columns)
            over = over_heft(float(slr.mean()), float(run.mean()), float(planned.mean()))
            seen = data == "sensor-fusion" and group == [_SCENE_SEEN]
            if len(group) == len(unseen) or seen:
                what = f"shipped policy, {data}{', the scene trained on' if seen else ''}: SLR over HEFT"
                report.claim(what, over["over_heft"], "", at_most=1.0)
                report.claim(f"{what}, as planned", over["over_heft_planned"], "", at_most=1.0)
                ticks.append(data + (" (seen)" if seen else ""))
                ratios["heft"].append(over["over_heft"])
                ratios["heft, planned"].append(over["over_heft_planned"])
    figures.bars("shipped", "shipped", "", ("", "mean SLR of GiPH, relative to HEFT"), ticks, ratios)
