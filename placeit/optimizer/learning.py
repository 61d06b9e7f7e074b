"""A session's model as a problem to learn from, valued by simulation or by runs on its devices."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from placeit.core.errors import ProblemError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.placers.learned.agent import ProblemInstance
from placeit.placers.learned.training.sources import Source, draw_from
from placeit.placers.learned.training.stages import MEASURED, CostFactory
from placeit.placers.learned.training.valuing import dropping
from placeit.session import Session
from placeit.simulator.simulate import SimulatedCost

__all__ = ["measured_costs", "session_source"]


def session_source(session: Session, problem: Problem | None = None) -> Source:
    """Return a source whose only problem, also for evaluation, is the placement of a session's groups.

    Its cost is the simulated makespan under the rules by which the session's executors run, in multiples of the critical path.

    Args:
        session: profiled.
        problem: what a training that resumes began with; None for the problem by the session's costs, which may have been
            profiled again since then.

    Raises:
        UsageError: the session is not profiled, or the problem is of other groups or devices.
        ProblemError: nothing takes time.
    """
    own = session.segmenter.problem()
    problem = own if problem is None else problem
    if (problem.op_names, problem.device_names) != (own.op_names, own.device_names):
        raise UsageError(
            "The training to resume is of another model, other groups or other devices: resume with the same options, or in "
            "another folder."
        )
    if not problem.critical_path > 0:
        raise ProblemError(f"{session.model.path} takes no time on these devices, so nothing can be learned from it.")
    cost = SimulatedCost(problem, links="channel", queue="priority")
    instance = ProblemInstance(problem, cost, problem.critical_path)
    return Source(draw_from([instance]), [instance], 1)


def measured_costs(session: Session, *, journal: Path | None = None, seed: int = 0) -> Mapping[str, CostFactory]:
    """Return what :func:`placeit.placers.learned.training.loop.train` takes as ``costs`` to measure a session's placements.

    Nothing is measured, and no file read, before a stage asks for it. A placement for which devices turn out to have no room is
    left out, as one that failed.

    Args:
        session: on real devices, profiled; it stays open while this is used.
        journal: of runs, as of :class:`placeit.optimizer.measured_cost.MeasuredCost`; None to keep none.
        seed: of the order of runs.

    Raises:
        UsageError: a device exists in simulation only.
    """
    if not session.executable:
        raise UsageError(
            "Devices that are only described run nothing, so there is nothing to measure: leave out cost=measured."
        )

    @functools.cache
    def cost() -> CostFunction:
        return dropping(MeasuredCost(session, journal=journal, seed=seed))

    return {MEASURED: lambda instance: cost()}  # noqa: ARG005
