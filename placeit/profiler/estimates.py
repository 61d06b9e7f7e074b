"""Estimate the costs of groups on described devices, and combine them with costs measured on real devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.devices import roofline_seconds
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.profiler.memory_rates import group_reads
from placeit.profiler.sampling import border_bytes
from placeit.runtime.compiling import Compiling
from placeit.runtime.runtime import Runtime

__all__ = ["estimated"]


def estimated(
    model: Model,
    grouping: Grouping,
    cluster: Cluster,
    measure: Callable[[Cluster, Runtime], Costs],
    *,
    precision: str = "f32",
    compiling: Compiling | None = None,
) -> Costs:
    """Estimate costs on described devices by the roofline model, and measure costs on real devices.

    Args:
        model: the model.
        grouping: its groups.
        cluster: the devices, real or described.
        measure: measures costs on the real devices; not called if there are none.
        precision: precision in which the devices compute.
        compiling: counter of compiled programs; None for a new one.
    """
    here = [d for d, device in enumerate(cluster.devices) if not device.described]
    groups = grouping.groups
    traffic = group_reads(grouping) + border_bytes(groups)
    seconds = np.stack(
        [roofline_seconds(groups.flops, traffic, device) if device.described else traffic for device in cluster.devices],
        axis=1,
    )
    cut, load, dispatch, read = np.zeros_like(seconds), np.zeros_like(seconds), *np.zeros((2, len(cluster)))
    profiled, host = None, np.zeros(len(cluster) + 1)
    if here:
        real = cluster.only([cluster.names[d] for d in here])
        with Runtime(model, grouping, real, precision=precision, compiling=compiling) as runtime:
            measured = measure(runtime.cluster, runtime)
        seconds[:, here], cut[:, here], load[:, here] = measured.core, measured.cut, measured.load
        dispatch[here], read[here] = measured.dispatch, measured.read
        host[[*here, len(cluster)]] = measured.host
        cluster = replace(cluster, links={**measured.cluster.links, **cluster.links})
        profiled = measured.profiled
    return Costs(seconds, cut, dispatch, cluster, load, read, profiled, host=host)
