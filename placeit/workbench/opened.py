"""The interface of a session that its own parts use, to measure and to serve; :class:`placeit.session.Session` has it."""

from __future__ import annotations

from typing import Protocol

from placeit.backends.base import Arrays, Model
from placeit.core.cluster import Cluster
from placeit.core.placement import Placement
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan
from placeit.profiler.op_times import OpTime
from placeit.runtime.check import Checkable, OutputCheck, OutputDifference
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime

__all__ = ["OpenSession"]


class OpenSession(Protocol):
    """A model on a cluster, open to be run.

    Attributes:
        model: with the formats that the cluster's devices need.
        cluster: the devices.
        precision: inference precision of every device.
        tolerance: the error of outputs that is accepted.
    """

    model: Model
    cluster: Cluster
    precision: str
    tolerance: float
    _costs: Costs | None

    @property
    def grouping(self) -> Grouping:
        """The ops in groups."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Devices and links, opened on first use. Raises DeviceError."""
        ...

    @property
    def costs(self) -> Costs:
        """Costs of the groups. Raises UsageError if they are not known."""
        ...

    def hurry(self) -> None:
        """After an interrupt that was handled, close without waiting for what still runs."""
        ...

    def home_of(self, placement: Placement) -> OpenSession:
        """The session that runs a placement: this one, or that of a plain device."""
        ...

    def plan_of(self, placement: Placement) -> Plan:
        """Plan a placement."""
        ...

    def executor(self, plan: Plan, *, in_flight: int = 1) -> PlanExecutor:
        """Make a plan ready to run."""
        ...

    def best_in_flight(self, plan: Plan, otherwise: int) -> int:
        """Number of requests in flight that suits a plan in throughput mode best; ``otherwise`` for any other plan."""
        ...

    def op_times(self, plan: Plan, *, passes: int = 10) -> list[OpTime]:
        """The time of each op in a plan, by the counters of the runtime."""
        ...

    def check_outputs(self, executor: Checkable, *, after: bool = False) -> OutputDifference:
        """Compare the outputs of an executor with the reference."""
        ...

    def output_check(self, given: Arrays | None = None) -> OutputCheck:
        """Prepare the check of outputs with inputs of one run, or with the session's."""
        ...
