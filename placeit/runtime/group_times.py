"""Measurement of each group of a model as one kernel, for runtimes without per-op times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeit.backends.base import Model
from placeit.core.cluster import Cluster, Device
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.runtime import Runtime

__all__ = ["groups_as_kernels"]


def groups_as_kernels(
    model: Model, grouping: Grouping, device: Device, precision: str = "f32", *, passes: int = 10
) -> list[Kernel]:
    """Measure the seconds of each group, run as a separate segment, one after the other.

    This is accurate for runtimes that run ops one by one in any case, such as PyTorch.

    Raises:
        DeviceError: the device cannot run some group.
        ExecutionError: a run failed.
    """
    groups = len(grouping.groups)
    with Runtime(model, grouping, Cluster((replace(device, slowdown=1.0),)), precision=precision) as runtime:
        plan = Segmenter(grouping, Costs.zero(groups, runtime.cluster)).plan(np.zeros(groups, np.int32), merge=False)
        with runtime.executor(plan) as executor:
            executor.set_inputs(model.sample_inputs())
            for _ in range(passes):
                executor.time()
            seconds = executor.segment_seconds()
    return [
        Kernel(tuple(np.flatnonzero(grouping.group_of == segment.groups[0]).tolist()), taken)
        for segment, taken in zip(plan.segments, seconds.tolist(), strict=True)
    ]
