"""A session's model as a training problem whose placements are valued by simulation or by measured runs."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ProblemError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.training.sources import Source as ProblemSource
from placeit.learning.training.sources import draw_from
from placeit.optimizer.journal import Journal
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.outcomes import Source
from placeit.placers.heft import Heft
from placeit.planning.segments import Segmenter
from placeit.profiler.costs import Progress
from placeit.simulator.objectives.registry import get_objective
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import min_seconds
from placeit.workbench import Workbench

__all__ = ["MeasuredCosts", "session_source"]


def session_source(session: Workbench, problem: Problem | None = None, *, objective: str = "latency") -> ProblemSource:
    """Return a source whose only problem, for training and evaluation, is the placement of a session's groups.

    For latency, the cost is the simulated makespan under the rules of the session's executors, in multiples of the critical
    path. For throughput, it is the seconds per request, in multiples of their lower bound. For any other objective, it is the
    value of the objective, in multiples of the value of HEFT's placement.

    Args:
        session: a profiled session.
        problem: the problem that a resumed training started with; None for the problem with the session's current costs, which
            may have been profiled again since then.
        objective: name of the objective to minimise (:func:`placeit.simulator.objectives.objective_names`).

    Raises:
        UsageError: the session is not profiled; the problem has other groups or devices; the objective does not exist, or
            needs figures of the devices that are not known.
        ProblemError: the model takes no time.
    """
    target = get_objective(objective, session.cluster)
    current = Segmenter(session.grouping, session.costs, steady=target.steady).problem()
    problem = current if problem is None else problem
    if (problem.op_names, problem.device_names) != (current.op_names, current.device_names):
        raise UsageError(
            "The training to resume is of another model, other groups or other devices: resume with the same options, or in "
            "another folder."
        )
    if not problem.critical_path > 0:
        raise ProblemError(f"{session.model.path} takes no time on these devices, so nothing can be learned from it.")
    cost = target.cost(problem, SimulatedCost(problem))
    if target.is_makespan:
        unit, unit_name = problem.critical_path, "critical path"
    elif target.steady:
        unit, unit_name = min_seconds(problem), "least seconds per request"
    else:
        unit, unit_name = float(cost(Heft().plan(problem).placement[None])[0]), f"{target.name} of HEFT's placement"
    instance = ProblemInstance(problem, cost, unit)
    return ProblemSource(draw_from([instance]), [instance], 1, unit_name)


class MeasuredCosts:
    """A cost factory for ``train`` that values a session's placements by measured runs.

    It is passed to ``train`` as one of the ``costs``, under a name such as ``measured``. Nothing is measured, and no file is
    read, before a stage calls it. A placement that failed, or for which a device had no room, costs NaN. A placement that the
    calibrated simulator expects to be hopeless is not run, and has its expected cost.

    Args:
        session: a profiled session on real devices, which must stay open.
        objective: name of the objective that is measured.
        journal: journal of runs, as for :class:`placeit.optimizer.measured_cost.MeasuredCost`; None for no journal.
        seed: seed of the order of runs.
        spare: share of a stage's ``seconds``, in [0, 1), that is reserved for the time after training.
        progress: called with the current activity.

    Attributes:
        deadline: time by :func:`placeit.core.clock.now` after which nothing is measured; training sets it.
        sources: origin of the cost of each placement valued in this process, by the bytes of the placement
            (:attr:`placeit.optimizer.outcomes.MeasuredOutcome.source`).
        curve: objective of each measured placement, in the order of the measurements.

    Raises:
        UsageError: a device is only described and cannot run anything.
    """

    def __init__(
        self,
        session: Workbench,
        objective: str = "latency",
        *,
        journal: Path | Journal | None = None,
        seed: int = 0,
        spare: float = 0.0,
        progress: Progress | None = None,
    ) -> None:
        if not session.cluster.executable:
            raise UsageError(
                "Devices that are only described run nothing, so there is nothing to measure: leave out cost=measured."
            )
        self.spare, self.deadline = spare, math.inf
        self.sources: dict[bytes, Source] = {}
        self.curve: list[float] = []
        self._make = functools.partial(MeasuredCost, session, objective, journal=journal, seed=seed, progress=progress)

    @functools.cached_property
    def measured(self) -> MeasuredCost:
        """The cost function that measures, created on first use."""
        return self._make()

    def __call__(self, instance: ProblemInstance) -> CostFunction:  # noqa: ARG002
        """Return the cost function of the session's problem."""
        return self._cost

    def _cost(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        self.measured.deadline = self.deadline
        outcomes = self.measured.outcomes(placements)
        self.sources |= {one.devices.tobytes(): one.source for one in outcomes}
        self.curve += [one.value for one in outcomes if one.source == "measured"]
        values = np.array([one.value for one in outcomes])
        return np.where(np.isfinite(values), values, np.nan)
