"""Objectives to minimise: latency, throughput (as seconds per request), total cost, energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.core.problem import CostFunction, Problem
from placeit.simulator.cost_functions import EnergyCost, TotalCost

if TYPE_CHECKING:
    from placeit.simulator.simulate import Schedule

__all__ = [
    "BusyTime",
    "Energy",
    "Latency",
    "MeteredEnergy",
    "Objective",
    "Planned",
    "Planner",
    "Throughput",
    "check_objective",
    "get_objective",
    "objective_names",
]

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
        better: how reports call less of it.
        worse: how reports call more of it.
        best: how reports call the placement with least of it.
        note: explanation in reports; None if the name needs none.
        is_makespan: whether it is the makespan.
        is_measured: whether it is the simulated and measured time itself, and not another figure of runs.
        steady: whether many requests are in flight while it is simulated and measured. The seconds of a run are then seconds
            per request, and placements on several groups of devices may each serve whole requests.
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

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:  # noqa: ARG003 (some need its figures)
        """Return the objective for the devices of a cluster. Raises UsageError if it needs figures of them that are unknown."""
        return cls()

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


@dataclass(frozen=True)
class Latency(Objective):
    """Seconds until the last op has finished: the makespan.

    Attributes:
        rate: requests per second that arrive, one after the other, while runs are measured; None to measure them without
            pauses.
    """

    rate: float | None = None

    name = "latency"
    unit = "s"
    quantity = "time"
    better, worse, best = "faster", "slower", "the fastest"
    is_makespan = is_measured = True

    def of_run(self, seconds: float, work: BusyTimes) -> float:  # noqa: ARG002
        """Return the makespan."""
        return seconds

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:  # noqa: ARG002
        """Return the makespans unchanged."""
        return makespan

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the makespans of the plans, in compiled code."""
        return planner.seconds(placements)


@dataclass(frozen=True)
class Throughput(Objective):
    """Seconds per request with many requests in flight; see :class:`placeit.simulator.throughput.ThroughputCost`."""

    name = "throughput"
    unit = "s"
    quantity = "time per request"
    better, worse, best = "of higher throughput", "slower per request", "the one of highest throughput"
    note = "seconds per request, with as many requests in flight as keep the bottleneck busy"
    is_measured = steady = True

    def of_run(self, seconds: float, work: BusyTimes) -> float:  # noqa: ARG002
        """Return the seconds per request."""
        return seconds

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:  # noqa: ARG002
        """Return a cost function: seconds that one request keeps the busiest device or link busy."""
        from placeit.simulator.throughput import ThroughputCost

        return ThroughputCost(problem)

    def of_plan(self, plan: Planned) -> float:
        """Return the seconds that one request keeps the busiest device or link of the plan busy."""
        from placeit.simulator.throughput import ThroughputCost

        return float(ThroughputCost(plan.problem)(plan.placement)[0])

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the seconds per request of the plans, in compiled code."""
        return planner.seconds(placements)


@dataclass(frozen=True)
class BusyTime(Objective):
    """Busy seconds of all devices and links, summed; see :class:`placeit.simulator.cost_functions.TotalCost`."""

    name = "total-cost"
    unit = "s"
    quantity = "busy time"
    better, worse, best = "better by total-cost", "worse", "the one of least busy time"
    note = "busy time of all devices and links, summed"

    def of_run(self, seconds: float, work: BusyTimes) -> float:  # noqa: ARG002
        """Return the busy seconds of all devices and links, summed."""
        busy, moving = work()
        return float(busy.sum()) + moving

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:  # noqa: ARG002
        """Return the cost function that sums busy seconds of placements."""
        return TotalCost(problem)


@dataclass(frozen=True)
class Energy(Objective):
    """Joules of a power model; see :class:`placeit.simulator.cost_functions.EnergyCost`.

    Attributes:
        busy_w: watts of each device while it computes.
        idle_w: watts of each device while it does not. Of core sets that share cores only one has idle power, so that no core
            counts twice; for the others ``busy_w`` is their busy power less their own idle power.
    """

    busy_w: tuple[float, ...]
    idle_w: tuple[float, ...]

    name = "energy"
    unit = "J"
    quantity = "modelled energy"
    better, worse, best = "better by energy", "worse", "the one of least modelled energy"
    note = "joules by a power model from busy times, not measured"

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """Return the objective with the power of a cluster's devices. Raises UsageError that names devices of unknown power."""
        unknown = [device.name for device in cluster.devices if device.power is None]
        if unknown:
            raise UsageError(
                f"Energy needs the power of every device, and the power of {', '.join(unknown)} is not known: give "
                "'busy_power' and 'idle_power' (watts) for it in a cluster file. Placers use them even where there are meters."
            )
        apart = cluster.apart()
        power = [device.power for device in cluster.devices if device.power is not None]
        idle = [p.idle_w if d in apart else 0.0 for d, p in enumerate(power)]
        return cls(tuple(p.busy_w - p.idle_w + i for p, i in zip(power, idle, strict=True)), tuple(idle))

    def of_run(self, seconds: float, work: BusyTimes) -> float:
        """Return joules by the power model."""
        busy, _ = work()
        return float(self.of_work(np.array([seconds]), busy[None])[0])

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        """Return the cost function that models the energy of placements."""
        return EnergyCost(problem, self.busy_w, self.idle_w, makespan=makespan)

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the joules of the plans, in compiled code."""
        return self.of_work(*planner.work(placements))

    def of_work(self, seconds: NDArray[np.float64], busy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return joules, ``float64[B]``, from makespans, ``float64[B]``, and each device's busy seconds, ``float64[B, D]``."""
        idle = np.array(self.idle_w)
        joules: NDArray[np.float64] = busy @ (np.array(self.busy_w) - idle) + seconds * idle.sum()
        return joules


class MeteredEnergy(Energy):
    """Joules by meters for real runs, and by the power model for simulated ones."""

    quantity, best = "energy", "the one of least energy"
    note = "joules by meters of the devices; simulated ones by a power model"


_OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Latency, Throughput, BusyTime, Energy)}


def objective_names() -> tuple[str, ...]:
    """Return the names of all objectives."""
    return tuple(_OBJECTIVES)


def check_objective(name: str) -> None:
    """Raise UsageError if no objective has this name."""
    if name not in _OBJECTIVES:
        known = ", ".join(_OBJECTIVES)
        raise UsageError(f"The objective '{name}' is not known; there are {known}{nearest(name, _OBJECTIVES)}.")


def get_objective(name: str, cluster: Cluster, *, rate: float | None = None) -> Objective:
    """Return an objective for the devices of a cluster.

    Args:
        name: name of the objective.
        cluster: the devices.
        rate: requests per second at which latency is measured.

    Raises:
        UsageError: the objective does not exist, or it needs the power of devices whose power is unknown (names the devices).
    """
    check_objective(name)
    return Latency(rate) if name == Latency.name else _OBJECTIVES[name].of_cluster(cluster)
