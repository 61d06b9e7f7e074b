"""Energy of a request, by meters or by a power model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.devices.energy import EnergyMeters, energy_meters
from placeit.simulator.cost_functions import EnergyCost
from placeit.simulator.objectives.base import BusyTimes, Objective, Planner

__all__ = ["Energy", "MeteredEnergy"]


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
    has_model = True

    @classmethod
    def of_cluster(cls, cluster: Cluster, rate: float | None = None) -> Self:
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

    def meters(self, cluster: Cluster) -> EnergyMeters:
        """Return the energy meters of the devices."""
        return energy_meters(cluster)

    def measured_with(self, meters: EnergyMeters | None) -> Energy:
        """Return energy by meters if each device has one, else energy by the power model."""
        kind = MeteredEnergy if meters is not None and meters.complete else Energy
        return kind(self.busy_w, self.idle_w)

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
    by_meters = True

    @property
    def kept_as(self) -> str:
        """Its name, and that meters are read."""
        return f"{self.name}, by meters"
