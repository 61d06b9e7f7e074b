"""A model on a cluster: its costs, plans and executors, and the check of their outputs."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core import clock
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, UsageError
from placeit.core.interrupts import disarm_watchdog
from placeit.core.placement import Placement
from placeit.core.threads import finishes_within
from placeit.planning.coarsen import Grouping
from placeit.planning.placing import Placing
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.support import divided_by_support, supported, without_refused
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.programs import searching
from placeit.runtime.runtime import Runtime
from placeit.workbench import profiling
from placeit.workbench.reference import Reference
from placeit.workbench.setup import Setup

if TYPE_CHECKING:
    from placeit.core.problem import Problem
    from placeit.profiler.costs import Certain, Progress, Worth
    from placeit.profiler.op_times import OpTime

__all__ = ["Workbench"]

_HURRY_S = 0.3  # seconds that threads have to end after an interrupt
_MIN_SHARE = 1 / 4  # minimum share of the budget for profiling again after a device has refused an op


class Workbench:
    """A model on a cluster: its costs, plans, executors and the check of their outputs. A context manager.

    Searches use it. :class:`placeit.Session` adds the methods for users.

    Args:
        setup: the model, the cluster and the options; also an attribute.
        costs: costs of its groups on the devices, if they are known already.

    Attributes:
        model: the model. A device that refuses to compile ops is recorded in it.
        cluster: the devices, as the model's runtimes drive them.
        placing: the model's ops in groups, and placements of them.
        precision: inference precision of every device.
        tolerance: largest relative error of right outputs.
        pins: device names by op names or globs of them.
        memory: bytes of the devices whose memory is limited, by name.
        cache: cache of measured costs; None for no cache.
        compiling: counts the programs that were compiled, here and for other devices (:meth:`alone`); its ``progress`` is
            called with the program that is being compiled.
    """

    def __init__(self, setup: Setup, costs: Costs | None = None) -> None:
        self.model, self.cluster, self.placing = setup.model, setup.cluster, setup.placing
        self.precision, self.tolerance, self.cache = setup.precision, setup.tolerance, setup.cache
        self.pins, self.memory, self.compiling = setup.pins, setup.memory, setup.compiling
        self.setup, self.policy, self._expected = setup, setup.policy, setup.expected
        self._runtime: Runtime | None = None
        self._costs = costs
        self._runs_on: NDArray[np.bool_] | None = None  # [G, D]: whether each group runs on each device
        self._hurried = self._closed = False
        self._reference: Reference | None = None
        self._others: dict[tuple[tuple[Device, ...], str, Placing], Workbench] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._hurried |= kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close()

    def close(self) -> None:
        """Stop every thread, and release the compiled segments; nothing runs afterwards. The caller closes executors."""
        self._reference, self._closed = None, True
        with contextlib.ExitStack() as stack:
            for other in self._others.values():
                other._hurried |= self._hurried
                stack.callback(other.close)
            runtime, self._runtime = self._runtime, None
            if runtime is not None and self._hurried:
                stack.callback(finishes_within, _HURRY_S, runtime.close)
            elif runtime is not None:
                stack.callback(runtime.close)

    def hurry(self) -> None:
        """Make :meth:`close` not wait for running segments, after an interrupt that was handled."""
        self._hurried = True
        disarm_watchdog()

    def alone(self, on: Device | Cluster, *, precision: str | None = None) -> Workbench:
        """Open the same model, in the same groups, on other devices; closed with this workbench.

        Args:
            on: the devices, as the model's runtimes drive them.
            precision: precision of the devices; None for the precision of this workbench. With another precision, the tolerance
                is the larger of both precisions' tolerances.
        """
        precision = self.precision if precision is None else precision
        cluster = Cluster((on,)) if isinstance(on, Device) else on
        key = cluster.devices, precision, self.placing
        if key not in self._others:
            self._others[key] = Workbench(self._current_setup().on(cluster, precision))
        return self._others[key]

    def again(self) -> Workbench:
        """Return a new workbench with the same model, groups, devices and costs, to be used after this one is closed."""
        other = Workbench(self._current_setup(), self._costs)
        other._runs_on = self._runs_on
        return other

    def _current_setup(self) -> Setup:
        """Return the setup with the current model, in which refused ops are recorded, and the current groups."""
        return replace(self.setup, model=self.model, placing=self.placing)

    def home_of(self, placement: Placement) -> Workbench:
        """Return the workbench that runs a placement: this one, or one on devices outside the cluster (:meth:`alone`).

        A plain device (:func:`placeit.devices.plain.plain_devices`), the throughput mode or a compiled twin of a core set is
        not in the cluster, and yet `placeit optimize` may choose it.
        """
        used, own_names = set(placement.as_dict().values()), set(self.cluster.names)
        for cluster in () if self.pins else self.setup.elsewhere:
            if used <= set(cluster.names) and (not used <= own_names or placement.device_names == cluster.names):
                return self.alone(cluster)
        return self

    @property
    def runtime(self) -> Runtime:
        """Devices and links, opened on first use.

        Raises:
            DeviceError: some device exists in simulation only.
            UsageError: the session is closed.
        """
        if self._closed:
            raise UsageError("The session is closed, with its devices: use it inside its 'with' block, or open another one.")
        if self._runtime is None:
            self._runtime = Runtime(
                self.model,
                self.grouping,
                self.cluster,
                precision=self.precision,
                expected=self._expected,
                compiling=self.compiling,
                spin_s=self.setup.spin_s,
                own=self.setup.alone,
            )
        return self._runtime

    @property
    def grouping(self) -> Grouping:
        """The model's ops in groups."""
        return self.placing.grouping

    def divide(self, placement: Placement, *, by_segments: bool = False) -> None:
        """Split groups whose ops a placement has on different devices, or in different segments, so that it can be run.

        This is for placements that were found with other groups: with pins, or another ``max_groups``.

        Raises:
            PlacementError: the placement does not fit the model or the devices, or separates ops that need one device.
            UsageError: something has been measured or compiled already, with the groups before the split.
        """
        placing = self.placing.divided(placement, by_segments=by_segments)
        if placing.grouping is not self.grouping and not (self._costs is None and self._runtime is None):
            raise UsageError("Groups can be split only before anything is measured or run: open another session.")
        self.placing = placing

    @searching()
    def profile(
        self,
        *,
        budget_s: float = 30.0,
        check: bool = False,
        worth: Worth | None = None,
        certain: Certain | None = None,
        progress: Progress | None = None,
    ) -> Costs:
        """Measure the costs of groups on the devices, or take them from the cache; estimate them for described devices.

        In these costs, a pinned group can run only where it is pinned. They become :attr:`costs`. If a device does not
        compile some ops, these are placed on other devices from then on, with a warning.

        Args:
            budget_s: seconds that it may take; it makes fewer passes over models that take long.
            check: whether costs from the cache are first compared with a few runs of the whole model on each device, and
                measured again if they do not hold any more.
            worth: decides whether to continue, once the time of a run is known; see :func:`placeit.profiler.costs.profile`. Not
                called if some device is described.
            certain: decides whether to stop, once the minimum times of groups are known; see
                :func:`placeit.profiler.costs.profile`.
            progress: called with the current step and the share of it that is done.

        Raises:
            InfeasibleError: no device supports some op, or not the one that it is pinned to.
            DeviceError: a device compiles no op, or no other device supports the ops that it does not compile.
        """
        self.compiling.progress, begin = progress, clock.now()
        options: dict[str, Any] = {"check": check, "worth": worth, "certain": certain, "progress": progress}
        self._divide_by_support()
        while True:
            remaining = max(budget_s * _MIN_SHARE, budget_s - (clock.now() - begin))
            try:
                return self.take(profiling.measure(self._current_setup(), lambda: self.runtime, budget_s=remaining, **options))
            except DeviceError as error:
                self._refuse(error)

    def _refuse(self, error: DeviceError) -> None:
        """Place ops that a device does not compile on other devices; raise the error if it is not about such ops."""
        self.model = without_refused(self.model, self.cluster, error)
        if self._costs is None:  # there are no executors yet
            runtime, self._runtime = self._runtime, None
            if runtime is not None:
                runtime.close()
            self._divide_by_support()

    def _divide_by_support(self) -> None:
        """Split groups so that all ops of a group run on the same devices; do nothing once something was measured or run."""
        if self._costs is None and self._runtime is None and self.cluster.executable and not self._expected:
            self.placing = divided_by_support(self.placing, self.model, self.cluster)

    def recall(self) -> bool:
        """Load the costs from the cache, without profiling, and return whether they were there.

        Raises:
            InfeasibleError: no device supports some op, or not the one that it is pinned to.
            DeviceError: some device exists in simulation only.
        """
        self._divide_by_support()
        cached = profiling.recall(self._current_setup(), lambda: self.runtime)
        if cached is not None:
            self.take(cached)
        return cached is not None

    def take(self, costs: Costs) -> Costs:
        """Set the costs, and return them with pins applied. Raises InfeasibleError."""
        self._runs_on = np.isfinite(costs.core)
        self._costs = self.placing.held(costs)
        return self._costs

    @property
    def costs(self) -> Costs:
        """Costs of groups on the devices, as :meth:`profile` found them. Raises UsageError if it was not called."""
        if self._costs is None:
            raise UsageError("The costs of the model's ops are not known here: call the session's profile() first.")
        return self._costs

    @property
    def has_costs(self) -> bool:
        """True if the costs of single groups on the devices are known."""
        return self._costs is not None and not self._costs.shared

    @property
    def planned_with(self) -> tuple[Costs | None, Placing]:
        """The costs (None if they are not known) and the groups; plans depend on these and the placement."""
        return self._costs, self.placing

    @property
    def segmenter(self) -> Segmenter:
        """Turns placements into plans, by the costs. Raises UsageError if they are not known (:attr:`costs`)."""
        return Segmenter(self.grouping, self.costs)

    def _supported(self) -> NDArray[np.bool_]:
        """Return whether each group runs on each device, ``bool[G, D]``. Raises DeviceError if a device is described only."""
        if self._runs_on is None:
            _ = self.runtime
            self._runs_on = supported(self.model, self.grouping, self.cluster)
        return self._runs_on

    def problem(self, *, steady: bool = False) -> Problem:
        """Return the placement problem over groups by the costs of :meth:`profile`; :meth:`placement` leads back to the model.

        Args:
            steady: whether many requests are in flight, so that devices slow each other down for more of the time.
        """
        return Segmenter(self.grouping, self.segmenter.costs, steady=steady).problem()

    def placement(self, groups: ArrayLike | Placement, plan: Plan | None = None) -> Placement:
        """Return the placement of the model's ops, with the segments of a plan.

        Args:
            groups: the device of each group, ``int32[G]``, or a placement of the session's problem, whose ops are the groups.
            plan: the plan.

        Raises:
            PlacementError: these are not the numbers of a device for each group.
        """
        return replace(self.placing.placement(groups, plan), conditions=self.setup.conditions)

    def plan_of(self, placement: Placement, segmenter: Segmenter | None = None) -> Plan:
        """Plan a placement: with the segments that it includes, or else with the segments of the lowest simulated makespan.

        The segments of a placement are the ones that were measured. They are used if every group of the session lies within one
        of them, and need no costs: without costs, all times in the plan are 0. Of a placement with replicas, this plans the
        first replica.

        Args:
            placement: of the model's ops.
            segmenter: by the costs, in place of :attr:`segmenter`.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory, or its segments wait for each other.
            UsageError: it has no segments that can be used, and costs are not known.
        """
        groups, of = self.placing.groups_of(placement), self.placing.segments_of(placement)
        if of is not None and self._costs is None:
            nothing = Costs.zero(len(groups), self.cluster)
            segmenter = Segmenter(self.grouping, self.placing.held(nothing.where(self._supported())))
        elif self._costs is None:
            raise UsageError(
                "The placement has no segments that these groups could run as, and choosing good ones needs the costs of ops: "
                "call the session's profile() first."
            )
        elif segmenter is None:
            segmenter = self.segmenter
        if self.setup.texts is not None:
            self.setup.texts.check(self.grouping.graph, groups[self.grouping.group_of], self.cluster)
        groups = segmenter.problem().check(groups)
        return segmenter.plan(groups) if of is None else segmenter.merged(of, groups)

    def executor(self, plan: Plan, *, in_flight: int = 1, priority: int = 0, alone: bool = False) -> PlanExecutor:
        """Compile a plan and put inputs in place; see :meth:`placeit.runtime.runtime.Runtime.executor`.

        Close it when it is not needed any more. A plan on devices outside the cluster runs there, in :meth:`alone`.
        """
        if plan.problem.device_names != self.cluster.names:
            for cluster in self.setup.elsewhere:
                if plan.problem.device_names == cluster.names:
                    return self.alone(cluster).executor(plan, in_flight=in_flight, priority=priority)
        executor = self.runtime.executor(plan, in_flight=in_flight, priority=priority, alone=alone)
        requests = self.model.sample_requests()
        for request in range(1, in_flight):
            executor.set_inputs(requests[0].inputs, request=request)
        executor.set_requests(requests, self.runtime.reached)
        return executor

    def best_in_flight(self, plan: Plan, otherwise: int) -> int:
        """Return the number of requests in flight that OpenVINO's throughput mode chooses for a plan, else ``otherwise``."""
        here = plan.problem.device_names == self.cluster.names
        return (self.runtime.best_in_flight(plan) if here else None) or otherwise

    @property
    def reference(self) -> Reference:
        """The uncut model, run by its framework: ``reference(inputs)`` returns its outputs by name."""
        if self._reference is None:
            self._reference = Reference(self.model, self._whole_model_device, self.precision, self.tolerance)
        return self._reference

    def _whole_model_device(self) -> Device | None:
        """Return a device of this machine that can run the whole model; None if there is no such device."""
        supported = zip(self.cluster.devices, self._supported().T, strict=True)
        return next((device for device, ops in supported if ops.all() and not (device.address and device.address.node)), None)

    def op_times(self, plan: Plan, *, passes: int = 10) -> list[OpTime]:
        """Return the time of each op inside its segment; see :func:`placeit.profiler.op_times.op_times`."""
        from placeit.profiler.op_times import op_times

        return op_times(self.model, self.grouping, self.cluster, plan, precision=self.precision, passes=passes)
