"""A session's model as a problem to learn from, valued by simulation or by runs on its devices."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import ProblemError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.doppler.agent import DopplerAgent
from placeit.learning.registry import fresh
from placeit.learning.training.loop import Stage, train
from placeit.learning.training.sources import Source as ProblemSource
from placeit.learning.training.sources import draw_from
from placeit.learning.training.valuing import dropping
from placeit.optimizer.measured_cost import MeasuredCost, Source
from placeit.placers.heft import Heft
from placeit.planning.segments import Segmenter
from placeit.profiler.costs import Progress
from placeit.runtime.incumbent import is_worth_trying
from placeit.session import Session
from placeit.simulator.objectives import get_objective
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput import least_seconds

__all__ = ["MeasuredCosts", "learn_measured", "session_source"]

_IMITATION_SHARE, _SIMULATION_SHARE = 0.05, 0.15  # of the time to learn in, at most
_IMITATION, _SIMULATION = 50, 250  # updates, at most
_EPISODES, _MEASURED_EPISODES = 16, 14  # of an update; the latter are two races
_RATE = 3e-3
_EXPLORE = 0.05  # how often any answer is taken where placements are measured, so that policies that are sure go on finding
_IDLE = 4  # measured updates in a row that propose nothing new, after which there is nothing more to learn
_PATIENCE = 12  # and those without anything better


def session_source(session: Session, problem: Problem | None = None, *, objective: str = "latency") -> ProblemSource:
    """Return a source whose only problem, also for evaluation, is the placement of a session's groups.

    Its cost is the simulated makespan under the rules by which the session's executors run, in multiples of the critical path;
    for throughput the seconds per request, in multiples of the least that could be hoped for; and for another objective its
    value, in multiples of that of HEFT's placement.

    Args:
        session: profiled.
        problem: what a training that resumes began with; None for the problem by the session's costs, which may have been
            profiled again since then.
        objective: what is minimised (:func:`placeit.simulator.objectives.objective_names`).

    Raises:
        UsageError: the session is not profiled, or the problem is of other groups or devices; the objective is not known, or
            needs figures of the devices that are not.
        ProblemError: nothing takes time.
    """
    wanted = get_objective(objective, session.cluster)
    own = Segmenter(session.grouping, session.costs, steady=wanted.steady).problem()
    problem = own if problem is None else problem
    if (problem.op_names, problem.device_names) != (own.op_names, own.device_names):
        raise UsageError(
            "The training to resume is of another model, other groups or other devices: resume with the same options, or in "
            "another folder."
        )
    if not problem.critical_path > 0:
        raise ProblemError(f"{session.model.path} takes no time on these devices, so nothing can be learned from it.")
    cost = wanted.cost(problem, SimulatedCost(problem))
    if wanted.is_makespan:
        unit, of = problem.critical_path, "critical path"
    elif wanted.steady:
        unit, of = least_seconds(problem), "least seconds per request"
    else:
        unit, of = float(cost(Heft().plan(problem).placement[None])[0]), f"{wanted.name} of HEFT's placement"
    instance = ProblemInstance(problem, cost, unit)
    return ProblemSource(draw_from([instance]), [instance], 1, of)


class MeasuredCosts:
    """Costs of a session's placements by running them: what ``train`` takes as ``costs`` under a name such as ``measured``.

    Nothing is measured, and no file read, before a stage asks for it. A placement for which devices turn out to have no room is
    left out, as one that failed. What the calibrated simulator expects to be hopeless is not run, and learned from by what is
    expected.

    Args:
        session: on real devices, profiled; it stays open while this is used.
        objective: what is measured.
        journal: of runs, as of :class:`placeit.optimizer.measured_cost.MeasuredCost`; None to keep none.
        seed: of the order of runs.
        spare: share of a stage's ``seconds`` that is left over for what comes after training.
        progress: told what is being done.

    Attributes:
        deadline: from when on nothing is measured any more, by :func:`placeit.core.clock.now`; training sets it.
        sources: where the costs of placements are from, by the bytes of the placement; of this process
            (:attr:`placeit.optimizer.measured_cost.Outcome.source`).

    Raises:
        UsageError: a device exists in simulation only.
    """

    def __init__(
        self,
        session: Session,
        objective: str = "latency",
        *,
        journal: Path | None = None,
        seed: int = 0,
        spare: float = 0.0,
        progress: Progress | None = None,
    ) -> None:
        if not session.executable:
            raise UsageError(
                "Devices that are only described run nothing, so there is nothing to measure: leave out cost=measured."
            )
        self.spare, self.deadline = spare, math.inf
        self.sources: dict[bytes, Source] = {}
        self._make = functools.partial(MeasuredCost, session, objective, journal=journal, seed=seed, progress=progress)

    @functools.cached_property
    def measured(self) -> MeasuredCost:
        """The cost that measures."""
        return self._make()

    def __call__(self, instance: ProblemInstance) -> CostFunction:  # noqa: ARG002
        """Return the cost function of the session's problem."""
        return self._cost

    def _cost(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        self.measured.deadline = self.deadline
        outcomes = self.measured.outcomes(placements)
        self.sources |= {one.devices.tobytes(): one.source for one in outcomes}
        values = np.array([one.value for one in outcomes])
        return np.where(np.isfinite(values), values, np.nan)


def learn_measured(
    cost: MeasuredCost,
    instance: ProblemInstance,
    starts: NDArray[np.int32],
    *,
    deadline: float,
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Train DOPPLER's policies on one problem: they imitate a list scheduler, learn by simulation, and then by runs.

    What they have found is in ``cost`` in the end. Training ends before its deadline where the policies have come to propose
    the same plans again and again, or nothing better for a long time.

    Differs from the paper: the stages are short; episodes of an update are compared with their mean.

    Args:
        cost: measures placements, and keeps to the same deadline.
        instance: the problem, with costs corrected by measured runs, and its simulated cost.
        starts: placements that were measured before, ``int32[N, G]``, at least one: the values of others are ratios to theirs.
        deadline: by :func:`placeit.core.clock.now`; the gradient step under way is completed.
        seed: of everything random.
        progress: told what is being done.
    """
    begin = clock.now()
    agent = fresh(DopplerAgent, seed)
    simulated = functools.partial(
        Stage, draw_from([instance]), problems=1, episodes=_EPISODES, learning_rate=_RATE, schedule="linear", gamma=1.0
    )
    room = max(deadline - begin, 1e-3)
    stages = [
        simulated(updates=_IMITATION, kind="imitation", seconds=room * _IMITATION_SHARE),
        simulated(updates=_SIMULATION, seconds=room * _SIMULATION_SHARE, entropy=0.01),
    ]
    trained = train(agent, stages, evaluate_on=(), seed=seed, progress=progress)
    cost(starts)
    agent.recall({})  # what it remembers is by simulated costs
    if (found := trained.stages[-1].found) and clock.now() < deadline:
        starts = np.concatenate([starts, found[0].placement[None]])
    agent.meet(instance.problem, starts, dropping(cost)(starts) / instance.unit)
    measured = Stage(
        _Promising(cost, instance, deadline),
        updates=10**6,
        problems=1,
        episodes=_MEASURED_EPISODES,
        learning_rate=_RATE / 3,
        gamma=1.0,
        entropy=0.01,
        explore=_EXPLORE,
        cost=lambda _: dropping(cost),
    )
    train(agent, [measured], evaluate_on=(), seed=seed + 1)


class _Promising:
    """Draws a problem to learn from as long as that still finds something."""

    def __init__(self, cost: MeasuredCost, instance: ProblemInstance, deadline: float) -> None:
        self.cost, self.instance, self.deadline = cost, instance, deadline
        self.tried, self.best = 0, float("inf")
        self.idle = self.stale = 0

    def __call__(self, rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG002
        """Return the problem, or nothing to end with."""
        tried, best = len(self.cost.tried), self.cost.incumbent
        self.idle = 0 if tried > self.tried else self.idle + 1
        better = best is not None and is_worth_trying(best.value, self.best)
        self.stale = 0 if better else self.stale + 1
        self.best = best.value if better and best is not None else self.best
        self.tried = tried
        over = clock.now() >= self.deadline or self.idle >= _IDLE or self.stale >= _PATIENCE
        return [] if over else [self.instance] * count
