"""GiPH against searches that value placements, at equal evaluations and at equal seconds.

``giph`` is the placer with the policy that ships with placeit: from a random placement it values 2 |V| + 1. ``annealing`` and
``guided`` begin at the better one of HEFT's placement and the best single device, so they are never worse than HEFT run first
in, first out. At equal evaluations they value as many placements as GiPH. At equal seconds their number of evaluations is found
by trying, so that they take as much processor time, on one core, everything counted, as GiPH on the same problem. Placements
are valued by the compiled simulator; where they are valued by measured runs, equal evaluations are the relevant comparison.
Evaluations and milliseconds are means.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.compare import better_equal_worse, over_heft
from benchmarks.papers.giph.jobs import Job, Outcome, Setup
from benchmarks.papers.giph.policies import STEPS_PER_OP
from benchmarks.papers.giph.problems import heft_slr
from placeit.core.problem import Problem
from placeit.learning.placers.giph import Giph
from placeit.learning.placers.guided import Guided
from placeit.learning.workloads.datasets import DatasetKind
from placeit.placers.annealing import Annealing
from placeit.placers.base import Placer
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost

__all__ = ["Budgeted", "jobs", "tell"]

_KINDS: tuple[DatasetKind, ...] = ("multi", "single", "recurrent", "sensor-fusion")
_PLACERS: dict[str, Placer] = {"annealing": Annealing(), "guided": Guided()}
_TRIES, _NEAR = 6, 0.1


@dataclass(frozen=True)
class Budgeted(Job):
    """Searches test problems: ``float64[cases, 3]`` of SLR, evaluations and seconds for each way of searching."""

    data: DatasetKind
    alone: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"budgets-{self.data}"

    def run(self, setup: Setup) -> Outcome:
        problems = setup.dataset(self.data, 0).test[: setup.sizes.budget_tests]
        for placer in (Giph(), *_PLACERS.values()):
            _place(placer, problems[0], 10, setup.seed)  # compiles
        found: dict[str, list[tuple[float, float, float]]] = {}
        for problem in problems:
            evaluations = STEPS_PER_OP * len(problem) + 1
            giph = _place(Giph(), problem, evaluations, setup.seed)
            found.setdefault("giph", []).append(giph)
            for name, placer in _PLACERS.items():
                equal = _place(placer, problem, evaluations, setup.seed)
                found.setdefault(f"{name}, equal evaluations", []).append(equal)
                found.setdefault(f"{name}, equal seconds", []).append(_as_long(placer, problem, equal, giph[2], setup.seed))
        return {name: np.array(rows) for name, rows in found.items()}


def _place(placer: Placer, problem: Problem, evaluations: int, seed: int) -> tuple[float, float, float]:
    """Return the SLR found, the evaluations that were allowed, and seconds of this thread's processor."""
    cost = SimulatedCost(problem, rules=GIPH_RULES)
    began = time.thread_time()
    placement = placer.place(problem, cost, seed=seed, evaluations=evaluations)
    seconds = time.thread_time() - began
    return float(cost(placement[None])[0]) / problem.critical_path, evaluations, seconds


def _as_long(
    placer: Placer, problem: Problem, last: tuple[float, float, float], seconds: float, seed: int
) -> tuple[float, float, float]:
    """Search with the number of evaluations that takes about ``seconds``; ``last`` is an earlier, timed search."""
    for _ in range(_TRIES):
        evaluations = max(1, round(last[1] * min(30.0, seconds / last[2])))
        last = _place(placer, problem, evaluations, seed)
        if abs(last[2] / seconds - 1) < _NEAR:
            break
    return last


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [Budgeted(data) for data in _KINDS]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    series: dict[str, list[float]] = {}
    for data in _KINDS:
        found = lab[Budgeted(data)]
        cases = len(found["giph"])
        run, planned = heft_slr(lab.setup.dataset(data, 0).test[:cases])
        giph = found["giph"][:, 0]
        for name, rows in found.items():
            slr, evaluations, seconds = rows.mean(axis=0).tolist()
            better, equal, worse = better_equal_worse(giph, rows[:, 0])
            over = over_heft(slr, float(run.mean()), float(planned.mean()))
            report.row(
                part="budgets",
                problems=data,
                cases=cases,
                search=name,
                evaluations=evaluations,
                ms=1e3 * seconds,
                mean_slr=slr,
                **over,
                giph_over_it=giph.mean() / slr,
                giph_better_equal_worse="-" if name == "giph" else f"{100 * better:.0f}/{100 * equal:.0f}/{100 * worse:.0f} %",
            )
            series.setdefault(name, []).append(over["over_heft"])
        for how in ("equal evaluations", "equal seconds"):
            for name in _PLACERS:
                ratio = giph.mean() / found[f"{name}, {how}"][:, 0].mean()
                report.claim(f"{data}: SLR of the shipped GiPH, relative to {name}, {how}", ratio, "", at_most=1.0)
    figures.bars("budgets", "budgets", "", ("", "mean SLR, relative to HEFT"), _KINDS, series)
