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
"""Tells what a run kept busy: ``float64[D]`` seconds of each device, and seconds of all transfers in sum."""


class Planned(Protocol):
    """A plan of a placement, as objectives see it."""

    @property
    def problem(self) -> Problem:
        """Its segments."""
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
        """Simulated seconds of placements' plans, ``int32[B, V] -> float64[B]``: makespans, or if ``steady`` per request."""
        ...

    def work(self, placements: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """These seconds, and for how long each device is busy, ``float64[B, D]``."""
        ...


@dataclass(frozen=True)
class Objective(ABC):
    """An objective: how placements and runs are valued. Two objectives with the same figures are equal.

    Attributes:
        name: as it is given on the command line.
        unit: ``s`` or ``J``.
        quantity: what a report calls it, as in "it takes half of the ... of CPU@0".
        better: what less of it is called.
        worse: what more of it is called.
        best: what the one of least of it is called.
        note: what a report says about it; None if the name says it all.
        is_makespan: whether it is the makespan.
        is_measured: whether it is the time that is simulated and measured itself, and not another figure of runs.
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
        """Return it for the devices of a cluster. Raises UsageError if it needs figures of them that are not known."""
        return cls()

    @abstractmethod
    def of_run(self, seconds: float, work: BusyTimes) -> float:
        """Value of one run: by a simulated schedule it is a prediction; by a real run it is a figure from measured times.

        Args:
            seconds: the makespan, or if ``steady`` the seconds per request.
            work: asked only if it counts.
        """

    @abstractmethod
    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        """Cost function of a problem, by one that gives its makespans in seconds."""

    def of_plan(self, plan: Planned) -> float:
        """Value of a plan's simulated run."""
        schedule = plan.schedule
        moved = schedule.transfers
        return self.of_run(schedule.makespan, lambda: (schedule.busy, float((moved.finish - moved.start).sum())))

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Values of the simulated runs of feasible placements' plans, ``int32[B, V] -> float64[B]``."""
        return np.array([self.of_plan(planner.plan(row)) for row in placements])


@dataclass(frozen=True)
class Latency(Objective):
    """Seconds until the last op has finished: the makespan.

    Attributes:
        rate: requests per second that arrive, one after the other, where runs are measured at that pace; None to measure them
            without pauses.
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
        """Return the makespans as they are."""
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
        """Return for how long one request keeps the busiest device or link busy."""
        from placeit.simulator.throughput import ThroughputCost

        return ThroughputCost(problem)

    def of_plan(self, plan: Planned) -> float:
        """Return for how long one request keeps the busiest device or link of the plan busy."""
        from placeit.simulator.throughput import ThroughputCost

        return float(ThroughputCost(plan.problem)(plan.placement)[0])

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the seconds per request of the plans, in compiled code."""
        return planner.seconds(placements)


@dataclass(frozen=True)
class BusyTime(Objective):
    """Seconds that devices and links are busy, in sum; see :class:`placeit.simulator.cost_functions.TotalCost`."""

    name = "total-cost"
    unit = "s"
    quantity = "busy time"
    better, worse, best = "better by total-cost", "worse", "the one of least busy time"
    note = "busy time of all devices and links, summed"

    def of_run(self, seconds: float, work: BusyTimes) -> float:  # noqa: ARG002
        """Sum up what was busy."""
        busy, moving = work()
        return float(busy.sum()) + moving

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:  # noqa: ARG002
        """Return the total cost of placements."""
        return TotalCost(problem)


@dataclass(frozen=True)
class Energy(Objective):
    """Joules of a power model; see :class:`placeit.simulator.cost_functions.EnergyCost`.

    Attributes:
        busy_w: watts of each device that computes.
        idle_w: watts of each device that does not. Of core sets that share cores only one has any, so that no core is idle
            twice; for the others ``busy_w`` is what they take beyond their own idle power.
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
        """Take the power of its devices. Raises UsageError, which names those whose power is not known."""
        unknown = [device.name for device in cluster.devices if device.power is None]
        if unknown:
            raise UsageError(
                f"Energy needs the power of every device, and that of {', '.join(unknown)} is not known: give 'busy_power' and "
                "'idle_power' (watts) for it in a cluster file. Placers go by them where there are meters, too."
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
        """Return the energy of placements."""
        return EnergyCost(problem, self.busy_w, self.idle_w, makespan=makespan)

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the joules of the plans, in compiled code."""
        return self.of_work(*planner.work(placements))

    def of_work(self, seconds: NDArray[np.float64], busy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return joules, ``float64[B]``, by makespans, ``float64[B]``, and how long devices are busy, ``float64[B, D]``."""
        idle = np.array(self.idle_w)
        joules: NDArray[np.float64] = busy @ (np.array(self.busy_w) - idle) + seconds * idle.sum()
        return joules


class MeteredEnergy(Energy):
    """Joules by meters where something runs, and by the power model where it is simulated."""

    quantity, best = "energy", "the one of least energy"
    note = "joules by meters of the devices; simulated ones by a power model"


_OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Latency, Throughput, BusyTime, Energy)}


def objective_names() -> tuple[str, ...]:
    """Names of all objectives."""
    return tuple(_OBJECTIVES)


def check_objective(name: str) -> None:
    """Raise UsageError unless there is such an objective."""
    if name not in _OBJECTIVES:
        known = ", ".join(_OBJECTIVES)
        raise UsageError(f"The objective '{name}' is not known; there are {known}{nearest(name, _OBJECTIVES)}.")


def get_objective(name: str, cluster: Cluster, *, rate: float | None = None) -> Objective:
    """Return an objective for the devices of a cluster.

    Args:
        name: of the objective.
        cluster: the devices.
        rate: requests per second at which latency is measured.

    Raises:
        UsageError: there is no such objective, or it needs the power of a device that is not known (names the devices).
    """
    check_objective(name)
    return Latency(rate) if name == Latency.name else _OBJECTIVES[name].of_cluster(cluster)
