"""Case study (Fig. 9): sensor fusion at intersections.

Policies are trained on cases of the first half hour of traffic and tested on the second, as in the paper: the intersections and
their devices are the same. The last rows are GiPH's policy on scenes of other seeds, which it has not seen. The distribution is
taken over the best placements found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.compare import over_heft
from benchmarks.papers.giph.jobs import Evaluation, Job, Setup, Training
from benchmarks.papers.giph.parts.search import curve_rows, policies
from benchmarks.papers.giph.problems import heft_slr

__all__ = ["jobs", "tell"]

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


def _evaluations() -> dict[str, Evaluation]:
    return {name: Evaluation(policy, "sensor-fusion") for name, policy in policies("sensor-fusion").items()}


def _on_scene(number: int) -> Evaluation:
    return Evaluation(Training("giph", "sensor-fusion"), "sensor-fusion", number)


def jobs(setup: Setup) -> Sequence[Job]:
    return [*_evaluations().values(), *map(_on_scene, range(1, setup.sizes.seeds))]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    found = _evaluations()
    curve_rows(lab, report, figures, "fusion", "sensor fusion", found, log="y")
    slr = {name: lab[evaluation]["curve"][:, -1] for name, evaluation in found.items()}
    slr["heft"], slr["heft, planned"] = heft_slr(lab.setup.dataset("sensor-fusion", 0).test)
    for name, values in slr.items():
        columns = {f"{100 * q:g}_percent_below": np.quantile(values, q) for q in _QUANTILES}
        report.row(part="fusion", slr_distribution=name, mean=values.mean(), **columns)
    for number in range(lab.setup.sizes.seeds):
        giph = lab[_on_scene(number)]["curve"][:, -1]
        run, planned = (float(heft.mean()) for heft in heft_slr(lab.setup.dataset("sensor-fusion", number).test))
        report.row(
            part="fusion",
            scene_of_seed=lab.setup.seed + number,
            seen_in_training=number == 0,
            cases=len(giph),
            giph=giph.mean(),
            heft=run,
            heft_planned=planned,
            **over_heft(float(giph.mean()), run, planned),
        )
    report.claim("sensor fusion: SLR of GiPH over HEFT", slr["giph"].mean() / slr["heft"].mean(), "", at_most=1.0)
    ratio = slr["giph"].mean() / slr["heft, planned"].mean()
    report.claim("sensor fusion: SLR of GiPH over HEFT, as planned", ratio, "", at_most=1.0)
    shares = {name: (np.sort(values), (np.arange(len(values)) + 1) / len(values)) for name, values in slr.items()}
    figures.lines("fusion", "fusion-distribution", "", ("SLR", "share of cases at or below"), shares, log="x")
