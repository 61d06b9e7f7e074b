"""A model on a cluster, with everything open that is needed to measure and run placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import backends
from placeit.backends.base import Arrays, Model
from placeit.backends.coarsen import coarsen
from placeit.cluster import Cluster
from placeit.clusterfile import find_cluster
from placeit.devices import roofline_seconds
from placeit.errors import PlacementError, UsageError
from placeit.problem import Placement
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress, profile
from placeit.profiler.nvml import GpuSampler, GpuUse, gpu_use
from placeit.profiler.trace import Span, utilization
from placeit.runtime.executor import Order, PlanExecutor
from placeit.runtime.measure import Measurement, race
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Costs, Plan, Segmenter

__all__ = ["OutputError", "RunReport", "Session"]


@dataclass(frozen=True)
class OutputError:
    """How far the outputs of a placement are from those of the whole model on one device.

    Attributes:
        max_abs: largest absolute difference of any element of any output.
        max_rel: for each output, the largest absolute difference over the largest absolute value of the reference; the worst
            of all outputs.
    """

    max_abs: float
    max_rel: float

    @classmethod
    def between(cls, outputs: Mapping[str, NDArray[np.generic]], reference: Mapping[str, NDArray[np.generic]]) -> OutputError:
        """Compare outputs by name. An element that is finite on one side only differs infinitely."""
        worst_abs = worst_rel = 0.0
        for name, expected in reference.items():
            ours, theirs = outputs[name].astype(np.float64), expected.astype(np.float64)
            same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
            gap = np.where(same, 0.0, np.abs(np.subtract(ours, theirs, where=~same, out=np.zeros_like(ours))))
            largest = float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max(initial=0.0))
            scale = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0))
            worst_abs = max(worst_abs, largest)
            worst_rel = max(worst_rel, largest / scale if scale > 0 else largest)
        return cls(worst_abs, worst_rel)


@dataclass(frozen=True, eq=False)
class RunReport:
    """What running a placement showed.

    Attributes:
        latency: seconds of single requests.
        utilization: share of the time that each device computed, during the traced run.
        output_error: against the whole model on one device.
        spans: what ran when, in the traced run.
        outputs: by name.
        plan: the segments that ran.
        gpus: how busy each NVIDIA GPU of the machine was during the timed runs, by name; none without NVML.
    """

    latency: Measurement
    utilization: dict[str, float]
    output_error: OutputError
    spans: list[Span]
    outputs: dict[str, NDArray[np.generic]]
    plan: Plan
    gpus: Mapping[str, GpuUse]


class Session:
    """A model, its groups, a cluster, and threads and compiled segments to run it. A context manager.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        input_shapes: sizes by input name, where the model leaves them open.
        batch: first size of every input that leaves it open.
        max_groups: most groups that placers decide about.
        precision: inference precision of every device.
        profile_s: seconds that profiling may take; it makes fewer passes over models that take long.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        progress: told what is being done and how far it is.

    Raises:
        ModelError, FileError, DeviceError, ClusterError: the model or the devices are not what they should be.
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
        profile_s: float = 30.0,
        cache: Cache | Literal["default"] | None = "default",
        progress: Progress | None = None,
    ) -> None:
        cluster = find_cluster(devices)
        loaded = model if isinstance(model, Model) else backends.load(model, input_shapes=input_shapes, batch=batch)
        self.cluster = loaded.driven(cluster)
        self.model = loaded.prepared(self.cluster)
        self.grouping = coarsen(self.model.graph, max_groups=max_groups, keep_together=self.model.together)
        self.precision, self._profile_s, self._progress = precision, profile_s, progress
        self._cache = Cache() if cache == "default" else cache
        self._runtime: Runtime | None = None
        self._costs: Costs | None = None
        self._uncut: Callable[[Arrays], dict[str, NDArray[np.generic]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop every thread."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

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

        Raises:
            InfeasibleError: no device supports some op.
        """
        if self._costs is None:
            self._costs = self._measured_costs() if self.executable else self._described_costs()
        return self._costs

    def _measured_costs(self) -> Costs:
        return self._profile(self.cluster, self.runtime)

    def _profile(self, cluster: Cluster, runtime: Runtime) -> Costs:
        return profile(
            self.model, self.grouping, cluster, runtime, budget=self._profile_s, cache=self._cache, progress=self._progress
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
        cut, dispatch = np.zeros_like(seconds), np.zeros(len(self.cluster))
        cluster = self.cluster
        if real:
            here = [d for d, device in enumerate(cluster.devices) if not device.described]
            names = {device.name for device in real}
            links = {pair: link for pair, link in cluster.links.items() if names.issuperset(pair)}
            with Runtime(self.model, self.grouping, Cluster(real, links), precision=self.precision) as runtime:
                measured = self._profile(runtime.cluster, runtime)
            seconds[:, here], cut[:, here], dispatch[here] = measured.core, measured.cut, measured.dispatch
            cluster = replace(cluster, links={**measured.cluster.links, **cluster.links})
        return Costs(seconds, cut, dispatch, cluster)

    def groups_of(self, placement: Placement) -> NDArray[np.int32]:
        """Device of each group, ``int32[G]``, matched by op and device name.

        Raises:
            PlacementError: the placement belongs to another model, does not cover this one, uses a device that is not there,
                or separates ops of one group.
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
        return first

    def placement(self, groups: ArrayLike) -> Placement:
        """Placement of the model's ops from the device of each group, ``int32[G]``."""
        devices = np.asarray(groups, np.int32)[self.grouping.group_of]
        return Placement(self.model.graph.names, devices, self.cluster.names, self.model.graph.hash)

    def executor(self, plan: Plan, *, requests: int = 1, order: Order = "dynamic") -> PlanExecutor:
        """Compile a plan and put inputs in place; see :meth:`placeit.runtime.runtime.Runtime.executor`.

        Close it when it is not needed any more.
        """
        executor = self.runtime.executor(plan, requests=requests, order=order)
        inputs = self.model.random_inputs()
        for request in range(requests):
            executor.set_inputs(inputs, request=request)
        return executor

    @property
    def segmenter(self) -> Segmenter:
        """Turns placements into plans, by the current costs."""
        return Segmenter(self.grouping, self.costs)

    def reference(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Outputs of the model as its framework runs it, uncut and without placeit's executor, by name. Raises DeviceError."""
        if self._uncut is None:
            whole = np.flatnonzero(np.isfinite(self.costs.core).all(axis=0))
            device = self.cluster.devices[int(whole[0])] if len(whole) else None
            self._uncut = self.model.uncut(device, self.precision)
        return self._uncut(inputs)

    def check_outputs(self, executor: PlanExecutor) -> OutputError:
        """Run an executor once on random inputs and compare its outputs with the reference."""
        inputs = self.model.random_inputs()
        return OutputError.between(executor.run(inputs), self.reference(inputs))

    def run(
        self, placement: Placement, *, runs: int = 30, inputs: Mapping[str, NDArray[np.generic]] | None = None
    ) -> RunReport:
        """Run a placement and measure it.

        Args:
            placement: of the model's ops.
            runs: timed runs, at least one.
            inputs: by name; None for random ones.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory.
            UsageError: an input is missing or has the wrong shape, or there are no runs.
            ExecutionError: a device failed.
        """
        if runs < 1:
            raise UsageError(f"{runs} runs measure nothing; there must be at least one.")
        groups = self.segmenter.problem().check(self.groups_of(placement))
        plan = self.segmenter.plan(groups)
        given = self.model.random_inputs() if inputs is None else inputs
        with self.executor(plan) as executor:
            executor.set_inputs(given)
            with GpuSampler() as sampler:
                latency = race({"placement": executor.time}, rounds=runs)["placement"]
            outputs = executor.run(given)
            spans = executor.spans()
        return RunReport(
            latency=latency,
            utilization=utilization(spans, devices=self.cluster.names),
            output_error=OutputError.between(outputs, self.reference(given)),
            spans=spans,
            outputs=outputs,
            plan=plan,
            gpus=gpu_use(sampler.samples),
        )
