"""Divides the time of a whole model among its groups, for runtimes without per-op times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.core.cluster import Cluster, Device
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.runtime import Runtime

__all__ = ["group_shares"]


def group_shares(
    model: Model, grouping: Grouping, device: Device, precision: str = "f32", *, passes: int = 10
) -> NDArray[np.float64]:
    """Measure each group's share of a pass over the whole model: ``float64[G]``, which sums to one.

    Every group is run as a segment of its own, one after the other, and has the share that it has in the sum of their times.
    That is right for runtimes that run ops one by one in any case, such as PyTorch.

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
    shares = np.zeros(groups)
    shares[[segment.groups[0] for segment in plan.segments]] = seconds
    total = shares.sum()
    return shares / total if total > 0 else np.full(groups, 1 / groups)
