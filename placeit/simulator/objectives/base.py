"""The base class of objectives: measures of placements and runs that a search minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.devices.energy import EnergyMeters

if TYPE_CHECKING:
    from placeit.simulator.simulate import Schedule

__all__ = ["BusyTimes", "Objective", "Planned", "Planner"]

BusyTimes: TypeAlias = Callable[[], tuple[NDArray[np.float64], float]]
"""Function that returns the busy seconds of each device, ``float64[D]``, and of all transfers, summed."""


class Planned(Protocol):
    """A plan of a placement, as objectives see it."""

    @property
    def problem(self) -> Problem:
        """Problem over its segments."""
        ...

    @property
    def placement(self) -> NDArray[np.int32]:
        """``int32[S]``, the device of each segment."""
        ...

    @property
    def schedule(self) -> Schedule:
        """Its simulated run."""
        ...


class Planner(Protocol):
    """Maker of plans from placements, such as :class:`placeit.planning.segments.Segmenter`."""

    def plan(self, placement: NDArray[np.int32]) -> Planned:
        """Plan a placement, ``int32[V]``."""
        ...

    def seconds(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return simulated seconds of placements' plans, ``float64[B]``: makespans or, if ``steady``, seconds per request."""
        ...

    def work(self, placements: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return :meth:`seconds`, and the busy seconds of each device, ``float64[B, D]``."""
        ...


@dataclass(frozen=True)
class Objective(ABC):
    """A measure of placements and runs that is minimised. Two objectives with the same figures are equal.

    Attributes:
        name: name on the command line.
        unit: ``s`` or ``J``.
        quantity: its name in reports, as in "it takes half of the ... of CPU@0".
        better: word of reports for less of it, such as ``faster``.
        worse: word of reports for more of it, such as ``slower``.
        best: words of reports for the placement with the least of it, such as ``the fastest``.
        note: explanation in reports; None if the name needs none.
        is_makespan: whether it is the makespan.
        is_measured: whether it is the simulated and measured time itself, and not another figure of runs.
        steady: whether many requests are in flight while it is simulated and measured. The seconds of a run are then seconds
            per request, and placements on several groups of devices may each serve whole requests.
        paced: whether runs can be measured at the rate at which requests arrive.
        has_model: whether meters can measure it, and :meth:`of_run` models their readings. Reports then have both.
        by_meters: whether the values of real runs are read from meters, and not computed by :meth:`of_run`.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    quantity: ClassVar[str]
    better: ClassVar[str]
    worse: ClassVar[str]
    best: ClassVar[str]
    note: ClassVar[str | None] = None
    is_makespan: ClassVar[bool] = False
    is_measured: ClassVar[bool] = False
    steady: ClassVar[bool] = False
    paced: ClassVar[bool] = False
    has_model: ClassVar[bool] = False
    by_meters: ClassVar[bool] = False

    @classmethod
    def of_cluster(cls, cluster: Cluster, rate: float | None = None) -> Self:
        """Return the objective for the devices of a cluster.

        Args:
            cluster: the devices.
            rate: requests per second at which runs are measured, if the objective is ``paced``; others ignore it.

        Raises:
            UsageError: it needs figures of the devices that are unknown.
        """
        return cls()

    @property
    def rate(self) -> float | None:
        """Requests per second that arrive while runs are measured; None to start each run when the previous one has ended."""
        return None

    @property
    def in_flight(self) -> int | None:
        """Number of requests in flight while runs are simulated and measured; None for as many as a plan needs."""
        return None

    def at_depth(self, in_flight: int) -> Objective:
        """Return the objective with a number of requests in flight.

        Raises:
            UsageError: it is not ``steady``, so that one request is in flight.
        """
        raise UsageError(
            f"A number of requests in flight is for throughput, and the objective '{self.name}' is of single requests: leave "
            "it out."
        )

    @property
    def kept_as(self) -> str:
        """Its name in journals; measurements of objectives with equal names are interchangeable."""
        return self.name

    def meters(self, cluster: Cluster) -> EnergyMeters | None:
        """Return the meters of the devices; None if the objective reads none."""
        return None

    def measured_with(self, meters: EnergyMeters | None) -> Objective:
        """Return the objective for runs during which these meters are read, which depends on whether they are complete."""
        return self

    @abstractmethod
    def of_run(self, seconds: float, work: BusyTimes) -> float:
        """Return the value of one run: a prediction for a simulated run, a figure from measured times for a real one.

        Args:
            seconds: the makespan, or if ``steady`` the seconds per request.
            work: returns busy times; called only if they count.
        """

    @abstractmethod
    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        """Return the cost function of a problem, given one that returns its makespans in seconds."""

    def of_plan(self, plan: Planned) -> float:
        """Return the value of a plan's simulated run."""
        schedule = plan.schedule
        moved = schedule.transfers
        return self.of_run(schedule.makespan, lambda: (schedule.busy, float((moved.finish - moved.start).sum())))

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the values of the simulated runs of feasible placements' plans, ``int32[B, V] -> float64[B]``."""
        return np.array([self.of_plan(planner.plan(row)) for row in placements])
