"""SLR against the depth of the task graph (Fig. 5), on the test problems of the multi-network case.

Depth is the number of tasks on the longest path. Problems are sorted by depth into groups of equal size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab, column
from benchmarks.papers.giph.jobs import Evaluation, Job, Setup
from benchmarks.papers.giph.parts.search import policies
from benchmarks.papers.giph.problems import depth, heft_slr
from placeit.core.problem import Problem

__all__ = ["by_depth", "jobs", "tell"]

_GROUPS = 6


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [Evaluation(policy, "multi") for policy in policies("multi").values()]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    problems = lab.setup.dataset("multi", 0).test
    slr = {name: lab[Evaluation(policy, "multi")]["curve"][:, -1] for name, policy in policies("multi").items()}
    slr["heft"], slr["heft, planned"] = heft_slr(problems)
    by_depth(report, figures, "depth", "mean SLR", problems, slr)


def by_depth(
    report: Report,
    figures: Figures,
    part: str,
    what: str,
    problems: Sequence[Problem],
    values: Mapping[str, NDArray[np.float64]],
) -> None:
    """Add a row of means for each group of problems of similar depth, and draw them."""
    depths = np.array([depth(problem) for problem in problems])
    groups = np.array_split(np.argsort(depths, kind="stable"), min(_GROUPS, len(depths)))
    means = {name: np.array([value[group].mean() for group in groups]) for name, value in values.items()}
    for i, group in enumerate(groups):
        spread = f"{depths[group].min()} to {depths[group].max()}"
        columns = {column(name): mean[i] for name, mean in means.items()}
        report.row(part=part, what=what, depth=spread, cases=len(group), **columns)
    middle = [depths[group].mean() for group in groups]
    name = f"{part}-{what}".replace(" ", "-").replace(",", "").lower()
    figures.lines(part, name, "", ("depth of the task graph", what), {n: (middle, m) for n, m in means.items()}, marked=True)
