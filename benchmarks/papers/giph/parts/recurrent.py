"""Deep-learning graphs (Fig. 7): recurrent cells, unrolled, 40 groups of operators on one network of 8 devices.

The policies are trained on graphs of the same cells. Relocations are counted for GiPH's searches: the number of moves of each
op that was moved at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.jobs import Evaluation, Job, Setup
from benchmarks.papers.giph.parts.search import curve_rows, policies

__all__ = ["jobs", "tell"]

_MAX_RELOCATIONS = 10


def _evaluations() -> dict[str, Evaluation]:
    return {name: Evaluation(policy, "recurrent") for name, policy in policies("recurrent").items()}


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return list(_evaluations().values())


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    found = _evaluations()
    curve_rows(lab, report, figures, "recurrent", "deep-learning graphs", found)
    ticks = [*map(str, range(1, _MAX_RELOCATIONS)), f"{_MAX_RELOCATIONS}+"]
    shares = {}
    for name in ("giph", "placeto"):
        times = np.minimum(lab[found[name]]["relocations"], _MAX_RELOCATIONS)
        shares[name] = np.bincount(times, minlength=_MAX_RELOCATIONS + 1)[1:] / len(times)
        columns = {f"times_{tick}": share for tick, share in zip(ticks, shares[name].tolist(), strict=True)}
        report.row(part="recurrent", share_of_moved_ops=name, **columns)
    figures.bars("recurrent", "recurrent-relocations", "", ("relocations", "share of moved ops"), ticks, shares)
