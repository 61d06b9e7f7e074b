"""Read the time of each op inside its segment from the counters of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placeit.backends.base import Model
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.view import View
from placeit.core.cluster import Cluster
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Plan
from placeit.runtime.device_pool import open_links
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.emulated import slowed
from placeit.runtime.devices.kernels import CountedKernel, CountsKernels
from placeit.runtime.devices.kinds import Counts, device_kind
from placeit.runtime.runtime import Runtime

__all__ = ["OpTime", "op_times"]


@dataclass(frozen=True)
class OpTime:
    """Time of an op, or of a kernel that belongs to no op, such as a layout conversion.

    Attributes:
        segment: number of its segment in the plan.
        op: name of the op; None for a kernel that belongs to no op.
        kind: kind of the op, or of the kernel.
        kernel: name of the kernel that computes it; None if no kernel names it, because it was folded into other ops.
        sharers: number of ops that the kernel computes.
        seconds: mean of several runs. The time of a kernel is divided equally among its ops. None if it was not counted.
    """

    segment: int
    op: str | None
    kind: str
    kernel: str | None
    sharers: int
    seconds: float | None


def op_times(
    model: Model, grouping: Grouping, cluster: Cluster, plan: Plan, *, precision: str = "f32", passes: int = 10
) -> list[OpTime]:
    """Run a plan with OpenVINO's counters enabled, and return the time of each op.

    All devices of the plan run. Counters slow kernels a little, so these runs measure nothing else. The result has no ops of
    segments on other runtimes, which have no counters. It is empty for models that are cut already, and if streams drive the
    devices.

    Raises:
        DeviceError: a segment cannot be compiled.
        ExecutionError: a run failed.
    """
    counts = any(isinstance(device_kind(device), Counts) for device in cluster.devices if not device.described)
    if not counts or not isinstance(model, OpenVinoModel):
        return []
    counted: list[RuntimeDevice] = []
    try:
        for device in cluster.devices:
            kind = device_kind(device)
            real = kind.counting(device, precision) if isinstance(kind, Counts) else kind.open(device, precision)
            here = device.emulated and not device.where.node  # nodes slow their own devices down
            counted.append(slowed(real, device.slowdown) if here else real)
        links = open_links(cluster, counted, [device_kind(device) for device in cluster.devices])
        runtime = Runtime(model, grouping, cluster, precision=precision, devices=counted, transports=links)
    except BaseException:
        for opened in counted:
            opened.close()
        raise
    with runtime:
        with runtime.executor(plan) as executor:
            executor.set_inputs(model.sample_inputs())
            for _ in range(passes):
                executor.time()
        running = [s for s, segment in enumerate(plan.segments) if not segment.passthrough]
        programs = runtime.compiler.compile([plan.segments[s] for s in running])
        found: list[OpTime] = []
        for s, program in zip(running, programs, strict=True):
            if isinstance(program, CountsKernels) and (kernels := program.counted()):
                slowdown = cluster.devices[plan.segments[s].device].slowdown
                found += _of_segment(s, kernels, runtime.book.ops(plan.segments[s]), grouping, model.view, slowdown)
        return found


def _of_segment(
    segment: int, kernels: Sequence[CountedKernel], ops: Sequence[int], grouping: Grouping, view: View, slowdown: float
) -> list[OpTime]:
    graph = grouping.graph
    kind = {graph.names[v]: graph.kinds[v] for v in ops}
    of_ops: dict[str, OpTime] = {}
    others: list[OpTime] = []
    for kernel in kernels:
        seconds = None if kernel.seconds is None else kernel.seconds * slowdown
        names = [name for name in view.ops_named(kernel.layers) if name in kind]
        for name in names:
            part = None if seconds is None else seconds / len(names)
            if name in of_ops:  # computed by several kernels
                part = None if part is None and of_ops[name].seconds is None else (part or 0.0) + (of_ops[name].seconds or 0.0)
            of_ops[name] = OpTime(segment, name, kind[name], kernel.name, len(names), part)
        if not names and seconds is not None and kernel.kind not in ("Input", "Output", "Const"):
            others.append(OpTime(segment, None, kernel.kind, kernel.name, 0, seconds))
    return [of_ops.get(name, OpTime(segment, name, kind[name], None, 0, None)) for name in kind] + others
