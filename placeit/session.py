"""A model on a cluster, with everything open that is needed to measure and run placements."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import backends
from placeit.backends.base import Arrays, Model, checked_inputs
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import PlacementError, UsageError
from placeit.core.interrupts import come_through
from placeit.core.placement import Placement
from placeit.devices import roofline_seconds
from placeit.devices.caps import capped
from placeit.devices.clusterfile import find_cluster
from placeit.devices.host import free_bytes
from placeit.devices.nvml import GpuSampler, gpu_use
from placeit.devices.plain import plain_devices
from placeit.planning.coarsen import coarsen
from placeit.planning.pins import divided, group_devices, held, pinned_ops
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress, Worth, profile
from placeit.profiler.op_times import OpTime, op_times
from placeit.profiler.trace import utilization
from placeit.runtime.check import OutputCheck, OutputError, other_inputs
from placeit.runtime.devices.worker import apart, within
from placeit.runtime.drivers import drive
from placeit.runtime.measure import WARMUP, Race, check_length
from placeit.runtime.plan_executor import DispatchOrder, PlanExecutor
from placeit.runtime.run_report import RunReport
from placeit.runtime.runtime import Runtime
from placeit.runtime.spans import Span

__all__ = ["Session", "check_tolerance"]


_HURRY_S = 0.3  # for threads to end after an interrupt
_COPIES = 2  # of the weights that there has to be room for before another placement is opened
_TOLERANCES = {"f32": 1e-3, "f16": 2e-2, "float16": 2e-2, "bf16": 1e-1, "bfloat16": 1e-1}  # of a precision, and of a type


def check_tolerance(tolerance: float | None) -> None:
    """Raise UsageError if a tolerance makes no sense."""
    if tolerance is not None and not tolerance >= 0:
        raise UsageError(f"The tolerance is {tolerance}; it must be a number that is not negative.")


class Session:
    """A model, its groups, a cluster, and threads and compiled segments to run it. A context manager.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        input_shapes: sizes by input name, where the model leaves them open.
        batch: first size of every input that leaves it open.
        max_groups: most groups that placers decide about.
        precision: inference precision of every device.
        tolerance: largest ``OutputError.max_rel`` of outputs that are right; None for 0.001 in float32, 0.02 in float16 and 0.1
            in bfloat16, by the coarsest type of the precision and of the model's tensors.
        inputs: what the model is measured and checked on, by name, if its time or validity depends on values; None for random
            inputs. Costs are kept for each of them apart.
        profile_s: seconds that profiling may take; it makes fewer passes over models that take long.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        check_costs: whether costs from the cache are first compared with a few runs of the whole model on each device, and
            measured again if they do not hold any more.
        progress: told what is being done and how far it is.
        pins: device names by op names or globs of them (``{"conv1*": "CPU@0"}``), which hold for every placement. An op takes
            along those of its group; a group whose ops are pinned to several devices is split.
        memory: most memory by device name, in bytes or with a unit (``{"CPU@0": "2 GB"}``); less than the device has.
        worth: whether to profile at all; see :func:`placeit.profiler.costs.profile`.
        kept_only: whether to measure no costs, for placements that have segments of their own; those that are not in the cache
            are zero.

    Raises:
        ModelError, FileError, DeviceError, ClusterError: the model or the devices are not what they should be.
        UsageError: an input is missing, unknown, or has another shape or type than the model wants; the tolerance is
            negative or not a number; a limit is no size or names no device; a pin names no device, matches no op, or
            contradicts another one.
        PlacementError: ops that need one device are pinned to several.
    """

    def __init__(
        self,
        model: str | Path | Model,
        devices: str | Sequence[str] | Path | Cluster | None = None,
        *,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        batch: int | None = None,
        max_groups: int = 96,
        precision: str = "f32",
        tolerance: float | None = None,
        inputs: Arrays | None = None,
        profile_s: float = 30.0,
        cache: Cache | Literal["default"] | None = "default",
        check_costs: bool = False,
        progress: Progress | None = None,
        pins: Mapping[str, str] | None = None,
        memory: Mapping[str, float | str] | None = None,
        worth: Worth | None = None,
        kept_only: bool = False,
    ) -> None:
        check_tolerance(tolerance)
        cluster = capped(find_cluster(devices), memory)
        self.memory = {device.name: device.memory_bytes for device in cluster.devices if device.name in (memory or {})}
        loaded = model if isinstance(model, Model) else backends.load(model, input_shapes=input_shapes, batch=batch)
        if inputs is not None:
            loaded = loaded.with_inputs(inputs)
        self.cluster = drive(cluster, loaded)
        self.model = loaded.prepared(self.cluster)
        self.pins = dict(pins or {})
        self._pinned = pinned_ops(self.pins, self.model.graph.names, self.cluster.names)
        grouping = coarsen(self.model.graph, max_groups=max_groups, keep_together=self.model.together)
        self.grouping = divided(grouping, self._pinned, self.model.together)
        self.precision, self._profile_s, self._progress = precision, profile_s, progress
        types = (precision, *self.model.graph.tensor_dtypes)
        self.tolerance = max(_TOLERANCES.get(name, 0.0) for name in types) if tolerance is None else tolerance
        self._cache, self._check_costs = Cache() if cache == "default" else cache, check_costs
        self._worth, self._kept_only = worth, kept_only
        self._runtime: Runtime | None = None
        self._costs: Costs | None = None
        self._able: list[int] = []  # devices that can run the model whole
        self._hurried = False
        self._reference: Callable[[Arrays], dict[str, NDArray[np.generic]]] | None = None
        self._check: OutputCheck | None = None
        self._others: dict[tuple[Device, str], Session] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._hurried |= kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close()

    def close(self) -> None:
        """Stop every thread, and give back the memory of what was compiled. Executors are closed by those who made them."""
        self._reference = None
        with contextlib.ExitStack() as stack:
            for other in self._others.values():
                other._hurried |= self._hurried
                stack.callback(other.close)
            runtime, self._runtime = self._runtime, None
            if runtime is not None and self._hurried:
                stack.callback(within, _HURRY_S, runtime.close)
            elif runtime is not None:
                stack.callback(runtime.close)

    def hurry(self) -> None:
        """After an interrupt that is not raised any further: let nobody wait for what still runs; it ends by itself."""
        self._hurried = True
        come_through()

    def alone(self, device: Device, *, precision: str | None = None) -> Session:
        """Open the same model, in the same groups, on one other device; closed with this session.

        Args:
            device: as the model's runtimes drive it.
            precision: another one; the tolerance is then the larger of the two precisions'.
        """
        precision = self.precision if precision is None else precision
        if (device, precision) in self._others:
            return self._others[device, precision]
        other = copy.copy(self)
        other.cluster, other.precision = Cluster((device,)), precision
        if precision != self.precision:
            other.tolerance = max(self.tolerance, _TOLERANCES.get(precision, 0.0))
        other._runtime = other._costs = other._reference = other._check = None
        other.pins, other._pinned, other._others = {}, np.full_like(self._pinned, -1), {}
        self._others[device, precision] = other
        return other

    def home_of(self, placement: Placement) -> Session:
        """The session that runs a placement: this one, or one of the plain device that the placement is on.

        A plain device (:func:`placeit.devices.plain.plain_devices`) is none of the cluster's, and yet `placeit optimize` may
        choose it.
        """
        used = set(placement.as_dict().values())
        if used.isdisjoint(self.cluster.names) and not self.pins:
            for device in plain_devices(self.cluster):
                if used == {device.name}:
                    return self.alone(device)
        return self

    @property
    def executable(self) -> bool:
        """Whether every device is real, or emulated by a real one."""
        return not any(device.described for device in self.cluster.devices)

    @property
    def runtime(self) -> Runtime:
        """Devices and links, opened on first use. Raises DeviceError if some device exists in simulation only."""
        if self._runtime is None:
            self._runtime = Runtime(self.model, self.grouping, self.cluster, precision=self.precision)
        return self._runtime

    @property
    def costs(self) -> Costs:
        """What groups cost on the devices: measured (or taken from the cache) on first use, estimated for described devices.

        By them a pinned group can run where it is pinned only.

        Raises:
            InfeasibleError: no device supports some op, or not the one that it is pinned to.
        """
        if self._costs is None:
            costs = self._profile(self.cluster, self.runtime) if self.executable else self._described_costs()
            self._able = np.flatnonzero(np.isfinite(costs.core).all(axis=0)).tolist()
            self._costs = held(costs, self.grouping, self._pinned)
        return self._costs

    def _profile(self, cluster: Cluster, runtime: Runtime) -> Costs:
        return profile(
            self.model,
            self.grouping,
            cluster,
            runtime,
            budget=self._profile_s,
            cache=self._cache,
            check=self._check_costs,
            progress=self._progress,
            worth=self._worth if self.executable else None,
            kept_only=self._kept_only,
        )

    def _described_costs(self) -> Costs:
        """Roofline estimates for described devices beside measurements of the real ones."""
        real = tuple(device for device in self.cluster.devices if not device.described)
        groups = self.grouping.groups
        traffic = groups.param_bytes + np.bincount(groups.tensor_op, groups.tensor_bytes, len(groups))
        np.add.at(traffic, groups.edges[:, 1], groups.tensor_bytes[groups.edge_tensor])
        seconds = np.stack(
            [
                roofline_seconds(groups.flops, traffic, device) if device.described else traffic
                for device in self.cluster.devices
            ],
            axis=1,
        )
        cut, load, dispatch, read = np.zeros_like(seconds), np.zeros_like(seconds), *np.zeros((2, len(self.cluster)))
        cluster, profiled = self.cluster, None
        if real:
            here = [d for d, device in enumerate(cluster.devices) if not device.described]
            names = {device.name for device in real}
            links = {pair: link for pair, link in cluster.links.items() if names.issuperset(pair)}
            with Runtime(self.model, self.grouping, Cluster(real, links), precision=self.precision) as runtime:
                measured = self._profile(runtime.cluster, runtime)
            seconds[:, here], cut[:, here], load[:, here] = measured.core, measured.cut, measured.load
            dispatch[here], read[here] = measured.dispatch, measured.read
            cluster = replace(cluster, links={**measured.cluster.links, **cluster.links})
            profiled = measured.profiled
        return Costs(seconds, cut, dispatch, cluster, load, read, profiled)

    def groups_of(self, placement: Placement) -> NDArray[np.int32]:
        """Device of each group, ``int32[G]``, matched by op and device name.

        Raises:
            PlacementError: the placement belongs to another model, does not cover this one, uses a device that is not there,
                separates ops of one group, or has an op elsewhere than where it is pinned.
        """
        graph = self.model.graph
        devices = placement.for_ops(graph.names, self.cluster.names, graph.hash)
        first = np.full(len(self.grouping.groups), -1, np.int32)
        for v, (group, device) in enumerate(zip(self.grouping.group_of.tolist(), devices.tolist(), strict=True)):
            if first[group] < 0:
                first[group] = device
            elif first[group] != device:
                raise PlacementError(
                    f"Op '{graph.names[v]}' is on {self.cluster.names[device]}, but the ops before it that it belongs with are "
                    f"on {self.cluster.names[first[group]]}: ops of a group share a device (see `placeit inspect --groups`)."
                )
        wanted = group_devices(self.grouping, self._pinned)
        wrong = np.flatnonzero((wanted >= 0) & (wanted != first))
        if len(wrong):
            group = int(wrong[0])
            raise PlacementError(
                f"The placement has op '{self.grouping.groups.names[group]}' on {self.cluster.names[first[group]]}, and it is "
                f"pinned to {self.cluster.names[wanted[group]]}, alone or with others of its group."
            )
        return first

    def divide(self, placement: Placement, *, by_segments: bool = False) -> None:
        """Split groups whose ops a placement has on different devices, or in different segments, so that it can be run.

        Placements need it that were found with other groups: with pins, or another ``max_groups``.

        Raises:
            PlacementError: the placement does not fit the model or the devices, or separates ops that need one device.
            UsageError: something has been measured or compiled already, with the groups as they were.
        """
        graph = self.model.graph
        parts = placement.for_ops(graph.names, self.cluster.names, graph.hash)
        if by_segments and (segments := placement.segments_for(graph.names)) is not None:
            parts = segments
        grouping = divided(self.grouping, parts, self.model.together)
        if grouping is not self.grouping and not (self._costs is None and self._runtime is None):
            raise UsageError("Groups can be split only before anything is measured or run: open another session.")
        self.grouping = grouping

    def placement(self, groups: ArrayLike, plan: Plan | None = None) -> Placement:
        """Placement of the model's ops from the device of each group, ``int32[G]``, and from the segments of its plan."""
        group_of, segments = self.grouping.group_of, None
        devices = np.asarray(groups, np.int32)[group_of]
        if plan is not None:
            segments = plan.segment_of[group_of]
        return Placement(self.model.graph.names, devices, self.cluster.names, self.model.graph.hash, segments)

    def plan_of(self, placement: Placement) -> Plan:
        """Plan a placement: its own segments, or else those of the lowest simulated makespan.

        Its own segments are those that were measured. They count if every group of the session is within one of them.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory, or its segments wait for each other.
        """
        groups = self.segmenter.problem().check(self.groups_of(placement))
        of_op, of = placement.segments_for(self.model.graph.names), np.zeros(len(groups), np.int32)
        if of_op is None:
            return self.segmenter.plan(groups)
        of[self.grouping.group_of] = of_op
        if (of[self.grouping.group_of] != of_op).any():  # groups of another kind
            return self.segmenter.plan(groups)
        return self.segmenter.merged(of, groups)

    def executor(self, plan: Plan, *, requests: int = 1, order: DispatchOrder = "dynamic") -> PlanExecutor:
        """Compile a plan and put inputs in place; see :meth:`placeit.runtime.runtime.Runtime.executor`.

        Close it when it is not needed any more. A plan on a plain device of the cluster runs there, in :meth:`alone`.
        """
        if plan.problem.device_names != self.cluster.names:
            for device in plain_devices(self.cluster):
                if plan.problem.device_names == (device.name,):
                    return self.alone(device).executor(plan, requests=requests, order=order)
        executor = self.runtime.executor(plan, requests=requests, order=order)
        inputs = self.model.sample_inputs()
        for request in range(requests):
            executor.set_inputs(inputs, request=request)
        return executor

    def has_room(self) -> bool:
        """Whether this machine has memory for another copy of the model's weights, and as much again for all else."""
        return free_bytes() > _COPIES * float(self.grouping.groups.param_bytes.sum())

    @property
    def segmenter(self) -> Segmenter:
        """Turns placements into plans, by the current costs."""
        return Segmenter(self.grouping, self.costs)

    def reference(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Outputs of the model as its framework runs it, uncut and without placeit's executor, by name. Raises DeviceError."""
        if self._reference is None:
            _ = self.costs
            device = self.cluster.devices[self._able[0]] if self._able else None
            self._reference = self.model.reference(device, self.precision)
        return apart(functools.partial(self._reference, inputs))  # it may take long, and Ctrl-C be pressed

    def check_outputs(self, executor: PlanExecutor, *, after: bool = False) -> OutputError:
        """Compare the outputs of an executor with the reference, on two inputs; see :class:`placeit.runtime.check.OutputCheck`.

        What is measured is checked before and after it is, and the worse error counts.

        Args:
            executor: the one that is measured, at rest; the session's inputs are in place afterwards.
            after: whether this is the check after the measurement.

        Raises:
            ExecutionError: a device failed.
        """
        return self._output_check()(executor, after=after)

    def _output_check(self, given: Arrays | None = None) -> OutputCheck:
        """Prepare a check with inputs of one run, or with those of the session, once."""
        if given is not None:
            return OutputCheck(given, other_inputs(self.model, given, given=True), self.reference, self.tolerance)
        if self._check is None:
            inputs, chosen = self.model.sample_inputs(), self.model.given is not None
            self._check = OutputCheck(inputs, other_inputs(self.model, inputs, given=chosen), self.reference, self.tolerance)
        return self._check

    def run(
        self,
        placement: Placement,
        *,
        runs: int = 30,
        duration: float | None = None,
        warmup: int = WARMUP,
        inputs: Mapping[str, NDArray[np.generic]] | None = None,
    ) -> RunReport:
        """Run a placement and measure it.

        Args:
            placement: of the model's ops.
            runs: timed runs, at least one.
            duration: seconds of timed runs, in place of their number: as many as fit, and one in any case.
            warmup: runs before them that do not count.
            inputs: by name; None for the session's.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory.
            UsageError: an input is missing or has the wrong shape, or there are no runs.
            ExecutionError: a device failed.
            KeyboardInterrupt: Ctrl-C before the first timed run had ended; afterwards it ends the runs.
        """
        check_length(runs, duration, warmup)
        home = self.home_of(placement)
        if home is not self:
            return home.run(placement, runs=runs, duration=duration, warmup=warmup, inputs=inputs)
        wanted = {spec.name: spec for spec in self.model.inputs}
        given = self.model.sample_inputs() if inputs is None else checked_inputs(inputs, wanted)
        plan = self.plan_of(placement)
        interrupted = False
        with self.executor(plan) as executor:
            check = self._output_check(None if inputs is None else given)
            error = check(executor)
            with GpuSampler() as sampler:
                race = Race({"placement": executor.time}, warmup=warmup)
                try:
                    race.warm_up()
                    length = runs if duration is None else None
                    race.run(rounds=length, budget_s=duration, min_rounds=1)
                except KeyboardInterrupt:
                    if not race.results():
                        raise
                    interrupted = True
                    self.hurry()
            latency, segment_s = race.results()["placement"], executor.segment_seconds()
            outputs: dict[str, NDArray[np.generic]] = {}
            spans: list[Span] = []
            if not interrupted:
                error = error.worse(check(executor, after=True))
                outputs = executor.run(given)
                error = error.worse(OutputError.between(outputs, check.expected))
                spans = executor.spans()
        return RunReport(
            latency=latency,
            utilization={} if interrupted else utilization(spans, devices=self.cluster.names),
            output_error=error,
            failed=error.wrong(self.tolerance),
            spans=spans,
            outputs=outputs,
            plan=plan,
            segment_s=segment_s,
            gpus=gpu_use(sampler.samples),
            interrupted=interrupted,
        )

    def op_times(self, plan: Plan, *, passes: int = 10) -> list[OpTime]:
        """What each op of a plan takes inside its segment; see :func:`placeit.profiler.op_times.op_times`.

        Args:
            plan: of this session, as in ``RunReport.plan``.
            passes: runs that are counted.

        Raises:
            DeviceError: a segment cannot be compiled, or a device exists in simulation only.
            ExecutionError: a run failed.
        """
        if self.runtime.streams is not None:
            return []
        return op_times(self.model, self.grouping, self.cluster, plan, precision=self.precision, passes=passes)
