"""Predict the costs of groups from the history of kernel times, without running the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from statistics import median

import numpy as np

from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.profiler.cache import Cache
from placeit.profiler.compiled_costs import as_eager, cached_ratio
from placeit.profiler.kernel_history import History, Overheads, history_key
from placeit.profiler.kernel_times import Error, KernelTimes
from placeit.profiler.links import probe
from placeit.profiler.op_traits import OpTraits
from placeit.profiler.sampling import border_bytes
from placeit.profiler.support import supported
from placeit.runtime.compiling import Compiling

__all__ = ["predicted_costs"]


def predicted_costs(
    model: Model, grouping: Grouping, cluster: Cluster, cache: Cache, *, precision: str, compiling: Compiling
) -> tuple[Costs, Mapping[str, Error | None]]:
    """Predict the costs of groups from the times of other models on the same devices, and probe links that are not cached.

    On devices that compile, the predictions are for models that run op by op, multiplied by the last ratio that was measured
    there (:func:`placeit.profiler.compiled_costs.by_ratio`).

    Returns:
        The costs, and the prediction error of each device; None if it is unknown.

    Raises:
        DeviceError: no model was profiled on a device, or a device exists in simulation only.
    """
    described = [device.name for device in cluster.devices if device.described]
    if described:
        raise DeviceError(f"{described[0]} exists in simulation only: 'placeit profile' estimates it by its figures.")
    history, traits = History(cache.folder), OpTraits.of_graph(model.graph)
    can, sizes = supported(model, grouping, cluster), border_bytes(grouping.groups)
    eager = replace(cluster, devices=tuple(map(as_eager, cluster.devices)))
    links = probe(eager, chain=model.chain, precision=precision, cache=cache, compiling=compiling)
    core, cut, load = np.full(can.shape, np.inf), np.zeros(can.shape), np.zeros(can.shape)
    dispatch, read = np.zeros((2, len(cluster)))
    errors: dict[str, Error | None] = {}
    for d, device in enumerate(cluster.devices):
        models = history.of(history_key(eager.devices[d], precision))
        if not models:
            raise DeviceError(
                f"No model was profiled on {device.name} in {precision}, with this version of its runtime: run `placeit "
                f"profile MODEL --devices {device.name}` with some models first, the more the better."
            )
        times = KernelTimes(models)
        errors[device.name] = times.error()
        overheads = Overheads(
            *(median(getattr(other.overheads, field.name) for other in models) for field in fields(Overheads))
        )
        ratio = cached_ratio(device, precision, cache)
        core[:, d] = np.where(can[:, d], ratio * np.bincount(grouping.group_of, times.seconds(traits), len(can)), np.inf)
        cut[:, d] = ratio * (overheads.cut_each + overheads.cut_byte * sizes)
        load[:, d] = overheads.load * (np.where(can[:, d], core[:, d], 0.0) + cut[:, d])
        dispatch[d], read[d] = overheads.dispatch, overheads.read
    return Costs(core, cut, dispatch, replace(cluster, links=links.cluster.links), load, read), errors
